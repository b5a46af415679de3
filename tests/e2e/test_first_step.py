"""Minutes before the first step are told as what they are: one rank builds, the other waits for its lock."""

from __future__ import annotations

import pytest

from .runs import World

WAITS = """
import fcntl, os, time
import torch

lock = open("build.lock", "w")
if os.environ["RANK"] == "0":
    fcntl.flock(lock, fcntl.LOCK_EX)
    open("held", "w").close()
    time.sleep(600)
while not os.path.exists("held"):
    time.sleep(0.01)
fcntl.flock(lock, fcntl.LOCK_EX)
"""


@pytest.mark.real
def test_who_waits_for_a_lock_is_told_with_its_holder(world: World) -> None:
    script = world.script("job.py", WAITS)
    run = world.run("launch", "ddp", "--nproc-per-node", "2", "--detach", "--", script)
    words = "waiting for the lock on build.lock, which rank 0 holds (rank 1)"
    run.eventually(lambda now: now["no_step_yet"] == words)
    assert f"no step yet: {words}" in run.distui("status").fine().out.splitlines()[0]
    run.stop().fine()
