"""A command that is one rank itself, `distui exec -- python train.py`, is asked and counted like one of torchrun."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest

from .runs import Run, World, until

TRAINS = """
import sys, time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100_000):
    loss = model(torch.ones(4, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.4f}", flush=True)
    if "fail" in sys.argv:
        raise KeyError("weights")
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
    assert "job.py" in run.distui("dump", "stacks").fine().out
    run.distui("nccl", "INFO").fine()
    run.distui("restart", "--env", "OMP_NUM_THREADS=1", "--yes").fine()
    again = run.eventually(lambda now: trains(now, attempt=2))
    assert again["ranks"][0]["pid"] != status["ranks"][0]["pid"]
    run.stop().fine()


@pytest.mark.long
def test_what_it_raises_is_the_first_cause_with_its_line(world: World) -> None:
    script = world.script("job.py", TRAINS)
    run = world.run("exec", "--restarts", "0", "--", sys.executable, script, "fail")
    assert run.wait() == 1
    cause = run.status()["attempts"][0]["first_cause"]
    assert (cause["kind"], cause["where"].rpartition("/")[2]) == ("exception", "job.py:12")


@pytest.mark.long
def test_a_name_that_torch_warns_of_is_gone_before_anything_reads_it(world: World) -> None:
    """The flight recorder's old name has the same value as the new one; torch 2.9 and newer warn where it is set."""
    run = world.execute(
        'import os, torch\nnames = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")\n'
        "print(*[os.environ.get(name) for name in names])\n"
    )
    assert run.wait() == 0
    assert run.file("node-0/attempt-001/rank-0.out").split() == [b"2000", b"None"]


def _is_up(run: Run) -> bool:
    return b"up" in run.file("node-0/attempt-001/rank-0.out")


@pytest.mark.long
def test_programs_of_python_that_are_no_rank_get_none(world: World) -> None:
    """A tool of Python's, a module, a text, and a script without torch: as before, also for their signals."""
    launcher = "import torch, time\nprint('up', flush=True)\ntime.sleep(600)\n"
    tool = world.script("tool", launcher)
    plain = world.script("plain.py", "import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    for command in (
        [sys.executable, tool],
        [sys.executable, "-c", launcher],
        [sys.executable, plain],
        ["sh", "-c", f"{sys.executable} {plain}; true"],
    ):
        run = world.run("exec", "--", *command)
        assert until(partial(_is_up, run))
        assert run.status()["ranks"][0]["hook"] is None, command
        run.stop().fine()


@pytest.mark.long
def test_without_a_hook_nothing_of_it_is_there(world: World) -> None:
    text = (
        "import os, torch\nprint('site' in os.environ.get('PYTHONPATH', ''), 'DISTUI_HOOK' in os.environ)\n"
    )
    run = world.execute(text, "--no-hook")
    assert run.wait() == 0
    assert run.file("node-0/attempt-001/rank-0.out").split() == [b"False", b"False"]
