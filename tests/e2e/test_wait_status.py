"""`distui status -w` repeats the status until the run has ended; `wait --json` prints it when it returns."""

from __future__ import annotations

import json
import threading
from contextlib import closing

import pytest

from .runs import DISTUI, World
from .screen import Screen

WAITS = """
import os, time
print("waiting", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""


@pytest.mark.real
def test_each_status_is_an_object_until_the_run_has_ended(world: World) -> None:
    run = world.execute(WAITS)
    assert run.wait("healthy") == 0
    assert run.distui("wait", "--until", "healthy").fine().out == "job is healthy\n"
    waited = run.distui("wait", "--until", "healthy", "--json").fine().json()
    assert (waited["run"], waited["state"]) == (run.id, "running")
    for limit_s in ("0", "0.3"):  # before the agent has told anything, and after
        late = run.distui("wait", "--timeout", limit_s, "--json")
        assert (late.code, late.json()["state"]) == (124, "running")
    with closing(Screen([DISTUI, "status", "-w"], world.env, world.work, height=5)) as screen:
        screen.until("more lines: `distui status` prints all")
        threading.Timer(2.0, (world.work / "go").touch).start()
        watched = run.distui("status", "--watch", "--json").fine().out.splitlines()
        assert screen.ended() == 0
        assert "more lines" not in screen.text
    states = [json.loads(line)["state"] for line in watched]
    assert (states[0], states[-1]) == ("running", "succeeded")
    ended = run.distui("wait", "--json")
    assert (ended.code, ended.json()["state"]) == (0, "succeeded")
    assert run.distui("status", "-w").fine().out.startswith("job  succeeded")
