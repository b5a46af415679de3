"""A command is answered exactly once, or said to be unknown: also when agent or runner die in it."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from typing import Any

import pytest
from patience import HANG_S

from ..runs import Run, World, kill, until

COUNT = """
import os, signal, time
def leave(*_):
    while not os.path.exists("go"):
        time.sleep(0.02)
    exit(1)
signal.signal(signal.SIGTERM, leave)
for n in range(100000):
    print(n, flush=True)
    time.sleep(0.05)
"""


def asked(run: Run) -> list[str]:
    """Ids of the commands that the journal says were asked for."""
    lines = run.file("journal.jsonl").splitlines()
    events = [json.loads(line)["event"] for line in lines if line.endswith(b"}")]
    return [event["id"] for event in events if event["type"] == "CommandReceived"]


def answered(run: Run) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for event in run.of("CommandDone"):
        found.setdefault(event["id"], []).append(event)
    return found


@pytest.mark.real
@pytest.mark.parametrize("after_s", [0.0, pytest.param(0.1, marks=pytest.mark.long)])
def test_the_agent_dies_in_a_restart(world: World, after_s: float) -> None:
    run = world.execute(COUNT)
    assert run.prints(), "from now on SIGTERM waits for `go`"
    agent = run.agent_pid()
    asking = world.start("restart", run.id, "--yes")
    assert until(lambda: asked(run), every=0.002)
    time.sleep(after_s)
    kill(agent)
    (world.work / "go").touch()  # until then no restart comes to its end
    out, err = asking.communicate(timeout=HANG_S)
    assert asking.returncode == 5, (out, err)
    assert b"not known whether that was done" in err
    assert b"distui status" in err
    (command,) = asked(run)
    run.status()  # starts the next agent
    assert until(lambda: command in answered(run)), run.describe()
    (done,) = answered(run)[command]
    attempt = run.status()["attempt"]
    assert done["ok"] == (attempt == 2), (done, attempt)
    assert done["text"].startswith("restarted: attempt 2" if attempt == 2 else "not done"), done
    run.stop().fine()
    assert {len(each) for each in answered(run).values()} == {1}


@pytest.mark.long
def test_a_stopped_runner_is_asked_nothing(world: World) -> None:
    (world.work / "go").touch()
    run = world.execute(COUNT)
    assert run.wait("running") == 0
    runner, pids = run.runner_pid(), run.pids()
    os.kill(runner, signal.SIGSTOP)
    said = run.distui("restart", "--yes").refused(1, f"pid {runner}", f"kill -CONT {runner}")
    assert "nothing was asked" in said
    os.kill(runner, signal.SIGCONT)
    with socket.socket(socket.AF_UNIX) as peer:  # one that came while it was stopped, and is read now
        peer.connect(json.loads(run.file("runner.json"))["socket"])
        late = {"op": "restart", "id": 1, "until": time.monotonic() - 1}
        peer.sendall(json.dumps(late).encode() + b"\n")
        answer = next(
            line for line in peer.makefile() if line.strip()
        )  # an empty one says that there is a report
        assert "withdrawn" in json.loads(answer)["text"]
    assert run.distui("signal", "CONT").fine()
    assert (run.status()["attempt"], run.pids()) == (1, pids)
    run.distui("restart", "--yes").fine()
    assert run.status()["attempt"] == 2
    run.stop().fine()
