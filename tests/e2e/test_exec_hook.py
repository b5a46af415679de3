"""A command that is one rank itself, `distui exec -- python train.py`, is asked and counted like one of torchrun."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from .runs import World

TRAINS = """
import os, time, torch
names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
print(*[os.environ.get(name) for name in names], flush=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100_000):
    loss = model(torch.ones(4, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.4f}", flush=True)
    time.sleep(0.05)
"""


def trains(status: dict[str, Any], attempt: int) -> bool:
    """Whether its rank has made some steps in that attempt."""
    ranks = status["ranks"] if status["attempt"] == attempt else []
    return bool(ranks) and (ranks[0]["step"] or 0) > 3


@pytest.mark.real
def test_its_steps_stacks_and_variables_are_known(world: World) -> None:
    run = world.execute(TRAINS)
    status = run.eventually(lambda now: trains(now, attempt=1))
    assert status["ranks"][0]["hook"] == "armed"
    first = run.file("node-0/attempt-001/rank-0.out").splitlines()[0]
    assert first.split() == [b"2000", b"None"], (
        "torch warns of the flight recorder's old name where it is set"
    )
    assert "job.py" in run.distui("dump", "stacks").fine().out
    run.distui("nccl", "INFO").fine()
    run.distui("restart", "--env", "OMP_NUM_THREADS=1", "--yes").fine()
    again = run.eventually(lambda now: trains(now, attempt=2))
    assert again["ranks"][0]["pid"] != status["ranks"][0]["pid"]
    run.stop().fine()


@pytest.mark.long
def test_programs_of_python_that_are_no_rank_get_none(world: World) -> None:
    """A tool of Python's and a text, both with torch: as before, also for their signals."""
    text = "import torch, time\nprint('up', flush=True)\ntime.sleep(600)\n"
    tool = world.script("tool", text)
    for command in ([sys.executable, tool], [sys.executable, "-c", text]):
        run = world.run("exec", "--", *command)
        assert run.prints()
        assert run.status()["ranks"][0]["hook"] is None, command
        run.stop().fine()
