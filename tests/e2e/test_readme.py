"""README.md's commands: each exists with its options, and those before a launch do what it says.

A command that is not in the tables below fails the first test: whoever writes one says here where it is tried.
Launches, `restart`, `nccl`, `attach`, `diagnose`, `export`, `status` and so on are those of test_smoke.py.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from distui.runners.run.commands import Restart
from distui.tui.cli import parser, split_rest
from distui.tui.rows import command_line as colon

from .runs import Done, World, contents

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()

ADVISE = "distui advise --params 7B --gpus 8xA100-80GB"
LINT = "distui lint ddp --nproc-per-node 2 -- train.py"
PLAN = "distui plan ddp --nproc-per-node 2 -- train.py --lr 3e-4"
ADOPT = "distui launch zero1 --adopt -- train.py"
SLURM = "distui diagnose slurm-4711.out"
SKY = "distui launch ddp --on sky --gpus H100:8 --nnodes 2 -- train.py"

RUN_HERE = {ADVISE, LINT, PLAN, ADOPT, SLURM, SKY}
PARSED_HERE = {
    "distui doctor", "distui launch ddp --nproc-per-node 2 -- train.py --lr 3e-4", "distui diagnose",
    "distui restart --env OMP_NUM_THREADS=4", "distui nccl INFO --subsys COLL --for 10", "distui attach", "distui watch",
    "distui exec -- bash train.sh", "distui export RUN FILE", "distui replay FILE", "distui status --json",
    "distui logs -f", "distui events -f", "distui wait",
    "distui launch ddp --hosts a,b --nproc-per-node 8 -- train.py", "distui notify test", "distui ls state:failed",
    "distui diff A B", "distui rerun RUN", "distui mcp", "distui completion bash", "distui demo", "distui demo --hang",
}  # fmt: skip
MAKE = {"make demo", "make test"}
ELSEWHERE = {"pip install .", "make pictures", "torchrun"}

TRAIN = """
import argparse, os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
lr = parser.parse_args().lr
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
ended = torch.zeros(1)
while not ended.item():
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    ended[0] = float(os.path.exists("done"))
    dist.all_reduce(ended, op=dist.ReduceOp.MAX)
    time.sleep(0.05)
dist.destroy_process_group()
"""

LOG = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/job/train.py", line 12, in <module>
[rank0]:     loss = 1 / 0
[rank0]: ZeroDivisionError: division by zero
[rank1]:[E1122 10:00:05.000 ProcessGroupGloo.cpp:143] Rank 1 failed: Connection closed by peer [10.0.0.1]:5000
"""


def printed() -> set[str]:
    """Every command of the README: lines of its blocks, and what stands between backquotes in its text."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    text = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", text)
    verbs = {"logs", "events", "wait", "status"}
    words = [
        f"distui {span}" if span.split()[0] in verbs else span
        for span in spans
        if span.split()[0] in verbs | {"distui", "make", "pip", "torchrun"}
    ]
    return {line for line in (*lines, *words) if line}


def test_every_command_is_tried_by_a_test() -> None:
    assert printed() == RUN_HERE | PARSED_HERE | MAKE | ELSEWHERE
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {command.removeprefix("make ") for command in (*MAKE, "make pictures")} <= {*targets}


def test_every_option_exists() -> None:
    for text in sorted(RUN_HERE | PARSED_HERE):
        words, rest = split_rest(text.split()[1:])
        options = parser().parse_args(words)
        assert rest is None or (options.declaration and options.declaration.has_command), text


def test_the_cockpits_own_command_is_what_the_shells_does() -> None:
    (typed,) = re.findall(r"`:(restart [^`]+)`", README)
    asked = colon.parse(typed, lambda: "1").command
    assert isinstance(asked, Restart)
    assert asked.env == {"OMP_NUM_THREADS": "4"}


@pytest.fixture
def newcomer(world: World) -> World:
    """Somebody with a script and a log."""
    world.script("train.py", TRAIN)
    world.script("slurm-4711.out", LOG)
    world.env.pop("OMP_NUM_THREADS", None)
    return world


def typed(world: World, line: str) -> Done:
    return world.distui(*shlex.split(line)[1:])


@pytest.mark.torch
def test_before_anything_costs(newcomer: World) -> None:
    before = contents(newcomer.root)
    assert "launch zero1" in typed(newcomer, ADVISE).fine().out
    assert "error" not in typed(newcomer, LINT).fine().out
    plan = typed(newcomer, PLAN).fine().out
    for words in (
        "--nproc-per-node 2",
        "train.py --lr 3e-4",
        "OMP_NUM_THREADS=1",
        "DistributedDataParallel",
    ):
        assert words in plan, plan
    assert contents(newcomer.root) == before, "looking writes nothing"
    assert "preset" in typed(newcomer, SKY.replace("launch", "plan")).fine().out

    # Logs of a job that distui never saw:
    told = typed(newcomer, SLURM)
    assert told.code == 1
    assert "ZeroDivisionError" in told.out
    document = typed(newcomer, f"{SLURM} --json").json()
    cause = next(one for one in document["findings"] if one["id"] == document["first_cause"]["id"])
    assert cause["rank"] == 0


@pytest.mark.real
@pytest.mark.torch
def test_a_preset_acts_on_a_script_that_nobody_edited(newcomer: World) -> None:
    line = TRAIN.splitlines().index("model = DistributedDataParallel(torch.nn.Linear(4, 4))") + 1
    plan = typed(newcomer, ADOPT.replace("launch", "plan")).fine().out
    assert f"calls DistributedDataParallel in line {line}: --adopt applies zero1 there" in plan
    run = newcomer.run(*shlex.split(ADOPT)[1:])
    status = run.eventually(lambda status: (status["applied"] or {}).get("state") == "applied")
    assert f"zero1 applied at train.py:{line}" in status["applied"]["text"]
    (newcomer.work / "done").touch()
    assert run.wait() == 0
