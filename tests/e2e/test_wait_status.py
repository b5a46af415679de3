"""`distui wait --json` prints the status when it returns, also after its timeout."""

from __future__ import annotations

import pytest

from .runs import World

WAITS = """
import os, time
print("waiting", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""


@pytest.mark.real
def test_the_status_is_printed_at_the_end_or_the_timeout(world: World) -> None:
    run = world.execute(WAITS)
    assert run.wait("healthy") == 0
    waited = run.distui("wait", "--until", "healthy", "--json").fine().json()
    assert (waited["run"], waited["state"]) == (run.id, "running")
    for limit_s in ("0", "0.3"):  # before the agent has told anything, and after
        late = run.distui("wait", "--timeout", limit_s, "--json")
        assert (late.code, late.json()["state"]) == (124, "running")
    (world.work / "go").touch()
    ended = run.distui("wait", "--json")
    assert (ended.code, ended.json()["state"]) == (0, "succeeded")
