"""A command is answered exactly once, or said to be unknown: also when the agent dies in it."""

from __future__ import annotations

import json
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
def test_the_agent_dies_in_a_restart(world: World) -> None:
    run = world.execute(COUNT)
    assert run.prints(), "from now on SIGTERM waits for `go`"
    agent = run.agent_pid()
    asking = world.start("restart", run.id, "--yes")
    assert until(lambda: asked(run), every=0.002)
    kill(agent)
    (world.work / "go").touch()  # until then no restart comes to its end
    out, err = asking.communicate(timeout=HANG_S)
    assert asking.returncode == 5, (out, err)
    assert b"it is unknown if that was done" in err
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
