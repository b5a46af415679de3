"""`distui status -w` repeats the status until the run has ended; `wait --json` prints the status when it returns."""

from __future__ import annotations

import json
import signal

import pytest
from patience import HANG_S

from .runs import DISTUI, World
from .screen import Screen

SLEEPS = "import time\nprint('sleeping')\ntime.sleep(600)\n"


@pytest.mark.long
def test_on_a_terminal_the_newest_status_takes_the_place_of_the_last(world: World) -> None:
    run = world.execute(SLEEPS)
    assert run.wait("healthy") == 0
    screen = Screen([DISTUI, "status", run.id, "-w"], world.env, world.work, 80, 12)
    screen.until("job  running")
    assert b"\x1b[?1049h" in screen.written
    assert world.distui("stop", run.id, "-y", "--grace", "1").code == 0
    while screen.read(10.0):
        pass
    assert screen.written.count(b"\x1b[?1049h") == screen.written.count(b"\x1b[?1049l") == 1
    last = screen.written.rpartition(b"\x1b[?1049l")[2].decode()
    assert "job  stopped" in last, "the status at the end stays where it can be read"


@pytest.mark.real
def test_in_a_pipe_each_status_is_an_object_and_an_interrupt_is_130(world: World) -> None:
    run = world.execute(SLEEPS)
    assert run.wait("healthy") == 0
    watching = world.start("status", run.id, "--watch", "--json")
    assert watching.stdout is not None
    seen = [json.loads(watching.stdout.readline()) for _ in range(2)]
    assert [status["state"] for status in seen] == ["running", "running"]
    interrupted = world.start("status", run.id, "-w")
    assert interrupted.stdout is not None
    assert b"running" in interrupted.stdout.readline()
    interrupted.send_signal(signal.SIGINT)
    _, err = interrupted.communicate(timeout=HANG_S)
    assert (interrupted.returncode, err) == (130, b"")
    waited = run.distui("wait", "--until", "healthy", "--json").fine().json()
    assert (waited["run"], waited["state"]) == (run.id, "running")
    for limit_s in ("0", "0.3"):  # before the agent has told anything, and after
        late = run.distui("wait", "--timeout", limit_s, "--json")
        assert (late.code, late.json()["state"]) == (124, "running")
    assert run.stop("--grace", "1").code == 0
    out, _ = watching.communicate(timeout=HANG_S)
    assert watching.returncode == 0
    assert json.loads(out.splitlines()[-1])["state"] == "stopped"
    ended = run.distui("wait", "--json")
    assert (ended.code, ended.json()["state"]) == (1, "stopped")
    assert run.distui("status", "-w").fine().out.startswith("job  stopped")
