"""A managed job: SkyPilot brings it up on a cluster of its own and takes that down; no ssh leads there."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from desk import Desk, told
from slurm.owned import owned
from slurm.settings import Shape


@pytest.fixture(scope="module")
def keeper() -> Iterator[Desk]:
    """A rig of its own: the controllers of managed jobs cost 1.5 GB that no other test needs."""
    with owned(Shape(jobs=True)) as cluster:
        cluster.start_api()
        yield Desk(cluster, "kept")


def test_a_managed_job_runs_is_read_and_is_cancelled(keeper: Desk) -> None:
    words = keeper.words("ddp", "--managed", "--name", "kept", "--detach")[1:]
    at = words.index("--cluster")
    keeper.ok(*words[:at], *words[at + 2 :])
    found = keeper.until("kept", lambda found: found["state"] == "running", 240)
    cluster = found["cluster"]
    assert (cluster["managed"], cluster["state"], cluster["job"]) == (True, "RUNNING", 1), told(found)
    keeper.cluster.wait(
        lambda: "[rank 1] line 3" in keeper.ok("logs", "kept"), "what the ranks write", 90, every=1.0
    )
    assert "managed job" in keeper.refused("down", "kept", "--yes", cluster["name"])
    assert json.loads(keeper.ok("stop", "kept", "--yes", "--json"))["ok"] is True
    found = keeper.status("kept")
    assert found["state"] == "stopped"
    if found["cluster"]["state"] == "CANCELLED":
        assert found["text"] == "managed job 1 ended as CANCELLED"
    else:  # SkyPilot takes its time where the machine is busy
        state = found["cluster"]["state"]
        assert found["text"].startswith(
            f"managed job 1 was ordered to stop and is still {state}: `sky jobs"
        )
    keeper.cluster.wait(
        lambda: "CANCELLED" in keeper.sky("jobs", "queue"), "SkyPilot lists it as cancelled", 120, every=1.0
    )
