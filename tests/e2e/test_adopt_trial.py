"""`plan --adopt --try`: two short runs, without and with the preset, and their losses next to each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import schemas
from each import for_each

from distui.runners.comparison.adoption_trial import LossFiles, compared, starts_unequal
from distui.tui.rows.trial import trial_lines

from .runs import EXAMPLES, World

SCRIPT = str(Path(__file__).parents[1] / "inrank" / "plain_gpt.py")
PLAIN = str(EXAMPLES / "plain_ddp.py")
AROUND = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    loss = (model if step < 2 else model.module)(torch.full((2, 4), 1.0 + dist.get_rank())).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, *LOSS, flush=True)
dist.destroy_process_group()
"""


@for_each(
    ("words", "sentence"),
    [
        (("zero1", "--try", "3"), "--try compares a run with --adopt to one without it: add --adopt"),
        (("zero1", "--adopt", "--try", "0"), "--try 0: a number of reported losses from 1 on"),
        (("zero1", "--adopt", "--try", "3", "--hosts", "gpu1"), "--try runs the script on this machine"),
        (("zero1", "--adopt", "--try", "3", "--on", "sky"), "--try runs the script on this machine"),
        (("zero1", "--adopt", "--try", "3", "--nnodes", "2"), "--try runs the script on this machine"),
        (("tp", "--adopt", "--try", "3"), "--adopt cannot apply preset tp"),
    ],
)
def test_what_cannot_be_tried_is_refused_before_anything_starts(
    world: World, words: tuple[str, ...], sentence: str
) -> None:
    world.distui("plan", *words, "--", PLAIN).refused(2, sentence)
    assert not world.runs.exists() or not list(world.runs.iterdir())


def test_losses_are_read_from_output_and_from_reports_to_trackers(tmp_path: Path) -> None:
    folder = tmp_path / "node-0" / "attempt-001"
    folder.mkdir(parents=True)
    files = LossFiles(tmp_path)
    out, reports = folder / "rank-0.out", folder / "rank-0.reports"
    out.write_text("step 1 loss 2.5\nval loss: 9.0\nstep 2 loss 2.")
    report = {
        "version": 1,
        "trackers": {"wandb": {"values": {"loss": [2.5, 1, 10.0], "lr": [0.1, 1, 10.0]}}},
    }
    reports.write_text(f"{json.dumps(report)}\n" * 2)  # the second is of another value
    files.read()
    assert files.losses == {(0, "out"): {1: 2.5}, (0, "reports"): {1: 2.5}}
    with out.open("a") as file:
        file.write("25\n")
    (folder / "rank-1.err").write_text("loss: 7.0\nloss: 6.0\n")
    files.read()
    assert files.losses[0, "out"] == {1: 2.5, 2: 2.25}
    assert files.losses[1, "err"] == {1: 7.0, 2: 6.0}
    assert files.longest() == 2


def test_losses_of_one_file_are_compared_step_by_step() -> None:
    bare = {
        (0, "out"): {1: 2.0, 2: 1.0, 3: 0.5},
        (0, "err"): {1: 5.0},
        (1, "out"): dict.fromkeys(range(9), 1.0),
    }
    adopted = {(0, "out"): {2: 1.5, 3: float("nan")}, (1, "out"): {1: 1.0}}
    assert compared(bare, adopted, 9) == [
        {"step": 2, "bare": 1.0, "adopted": 1.5, "difference": 0.5},
        {"step": 3, "bare": 0.5, "adopted": None, "difference": None},
    ]
    assert compared(bare, {}, 9) == compared({}, adopted, 9) == []
    assert starts_unequal(compared(bare, adopted, 1))
    assert not starts_unequal(compared(bare, bare, 1))


def test_the_table_names_the_greatest_difference() -> None:
    steps = compared({(0, "out"): {1: 2.5, 2: 2.25}}, {(0, "out"): {1: 2.5, 2: float("inf")}}, 2)
    lines = trial_lines(
        {
            "preset": "zero1", "ranks": 2, "obeys": "It does.", "steps": steps, "greatest_difference": 0.5, "at_step": 1
        }
    )  # fmt: skip
    assert lines == [
        "preset zero1 on 2 ranks of this machine. It does.",
        "",
        "step  loss bare  loss adopted  difference",
        "   1        2.5           2.5           0",
        "   2       2.25           n/a         n/a",
        "",
        "greatest difference 0.5, at step 1",
    ]


@pytest.mark.torch
@pytest.mark.real
def test_both_losses_are_printed_and_nothing_is_left(world: World) -> None:
    done = world.distui(
        "plan", "zero1", "--adopt", "--try", "4", "--json", "--", SCRIPT, "--steps", "40"
    ).fine()
    trial = done.json()
    schemas.check("plan", trial)
    assert [each["step"] for each in trial["steps"]] == [0, 1, 2, 3]
    assert trial["greatest_difference"] == 0.0
    assert (trial["ranks"], trial["preset"]) == (2, "zero1")
    assert world.distui("ls", "--json").fine().json() == []


@pytest.mark.torch
@pytest.mark.long
def test_a_run_that_fails_is_kept_and_a_script_without_losses_is_refused(world: World) -> None:
    words = ("plan", "zero1", "--adopt", "--try", "6", "--")
    silent = world.script("silent.py", AROUND.replace("LOSS", "()"))
    world.distui(*words, silent).refused(2, "silent.py reports no loss that distui reads")
    assert world.distui("ls", "--json").fine().json() == []

    around = world.script("around.py", AROUND.replace("LOSS", "('loss', loss.item())"))
    failed = world.distui(*words, around)
    assert (failed.code, failed.out) == (1, "")
    assert "Run around-adopted failed after 2 of 6 losses: rank" in failed.err
    assert [run["name"] for run in world.distui("ls", "--json").fine().json()] == ["around-adopted"]
