"""Names, groups and reports of checkpoints: the pure parts."""

from __future__ import annotations

import pytest

from distui.runners.diagnosis.died import find_torn_checkpoint
from distui.runners.diagnosis.view import View
from distui.runners.run.checkpoints import (
    SaveReport,
    Seen,
    checkpoint_line,
    checkpoint_of,
    checkpoint_text,
    common_path,
    folder_option,
    grouped,
    is_checkpoint_name,
    joined,
    same_save,
    settled,
    settled_parts,
    step_in,
)
from distui.runners.run.model import (
    AttemptEnded,
    AttemptStarted,
    Checkpoint,
    CheckpointSaved,
    Event,
    FirstCause,
    Outcome,
    RankPlace,
    Stamped,
)
from distui.runners.run.state import RunState


def test_steps_in_names() -> None:
    for path, step in [
        ("/out/step-00001000.pt", 1000),
        ("/out/global_step1000", 1000),
        ("/out/global_step1000/mp_rank_00_model_states.pt", 1000),
        ("/out/checkpoint-500", 500),
        ("/out/checkpoint-500/model.safetensors", 500),
        ("/out/epoch=3-step=7200.ckpt", 7200),
        ("/out/iter_0000500/mp_rank_00", 500),
        ("/out/ckpt_12.pth", 12),
        ("/out/model.pt", None),
        ("/out/llama-7b.safetensors", None),
        ("/step-9/else/where/model.pt", None),
        ("/out/step-99999999999999999999.pt", None),
        ("", None),
    ]:
        assert step_in(path) == step


def test_names_of_checkpoints() -> None:
    for name, folder, is_one in [
        ("step-1.pt", False, True),
        ("model.safetensors", False, True),
        ("checkpoint-5", True, True),
        ("global_step100", True, True),
        ("last.ckpt", False, True),
        ("step-1.pt.tmp", False, False),
        ("tmp-checkpoint-5", True, False),
        (".partial-step-3.pt", False, False),
        ("notes.txt", False, False),
        ("tensorboard", True, False),
        ("wandb", True, False),
    ]:
        assert is_checkpoint_name(name, folder) is is_one


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (("train.py", "--checkpoint-dir", "a"), "a"),
        (("train.py", "--output_dir=a/b"), "a/b"),
        (("train.py", "--save", "x", "--save", "y"), "y"),
        (("train.py", "out_dir=out-shakespeare"), "out-shakespeare"),  # nanoGPT's own way
        (("train.py", "--save-every", "5"), None),
        (("train.py", "--checkpoint-dir"), None),
        (("train.py", "save", "me"), None),
        ((), None),
    ],
)
def test_the_folder_that_a_script_is_given(words: tuple[str, ...], folder: str | None) -> None:
    assert folder_option(words) == folder


def report(
    path: str, begin: float, end: float, count: int = 5, inode: int | None = 1, size: int = 10
) -> SaveReport:
    file = None if inode is None else (1, inode, size)
    return SaveReport("done", path, "torch.save", begin, end, count, None, file)


def test_model_and_optimizer_are_one_checkpoint() -> None:
    parts = [(0, report("/c/5/model.pt", 10, 11)), (0, report("/c/5/optim.pt", 11.1, 13, size=20))]
    (group,) = grouped(parts)
    saved = checkpoint_of(group, common_path(group), 30)
    assert saved == Checkpoint(
        "/c/5", 13, "torch.save", step=None, rank=0, duration_s=3, size=30, count=5, complete=True
    )


def test_the_number_of_an_epoch_is_no_step() -> None:
    for name, count, step in (
        ("checkpoint-7.pth.tar", 139, None),
        ("checkpoint-0.pth.tar", 16, None),
        ("checkpoint-500.pt", 500, 500),
        ("step-0.pt", 1, 0),  # counted from 0
        ("step-20.pt", 42, 20),  # two optimizers
        ("checkpoint-900.pt", 100, 900),  # resumed
    ):
        saved = checkpoint_of([(0, report(f"/c/{name}", 10, 11, count))], f"/c/{name}", 10)
        assert saved.step == step, name


def test_a_copy_named_latest_is_not_another_checkpoint() -> None:
    (group,) = grouped([(0, report("/c/step-5.pt", 10, 11)), (0, report("/c/latest.pt", 11.1, 12))])
    assert common_path(group) == "/c/step-5.pt"


def test_saves_of_a_loop_that_nobody_counts_stay_apart() -> None:
    """Without an optimizer of torch's every save is after 0 steps."""
    parts = [(0, report("/c/latest.pt", at, at + 1, count=0)) for at in (10, 20, 30)]
    assert [len(group) for group in grouped(parts)] == [1, 1, 1]


def test_ranks_that_save_in_another_order_are_one_group() -> None:
    parts = [(1, report("/c/s/r1.pt", 10.4, 12)), (0, report("/c/s/r0.pt", 10, 11))]
    (group,) = grouped(parts)
    assert common_path(group) == "/c/s"


def test_what_may_still_be_renamed_or_written_is_not_reported() -> None:
    """Scripts save under a temporary name and rename the file right after."""
    parts = [(0, report("/c/step-5.pt.tmp", 10, 11)), (1, report("/c/step-5.r1.tmp", 10, 11.5))]
    assert not settled_parts(parts, (), 12.0)
    assert settled_parts(parts, (), 12.5)
    assert not settled_parts(parts, {"/c/step-5.r1.tmp"}, 20.0)


def test_what_still_grows_is_not_reported() -> None:
    before, now = Seen("/c/step-5.pt", 10.0, 100), Seen("/c/step-5.pt", 12.0, 200)
    assert settled([before], [now], []) == []
    (saved,) = settled([now], [now], [])
    assert (saved.path, saved.step, saved.size, saved.at) == ("/c/step-5.pt", 5, 200, 12.0)
    assert settled([now], [now], [saved]) == []


def test_a_checkpoint_in_words() -> None:
    saved = Checkpoint("/c/step-18000", 1000.0, "dcp", 18_000, duration_s=3.2, size=3 << 30)
    assert checkpoint_text(saved, 1720.0) == "12 min ago (step 18,000)"
    assert (
        checkpoint_line(saved, 1720.0) == "12 min ago (step 18,000): 3.0 GiB, in 3 s, by dcp, /c/step-18000"
    )
    assert checkpoint_text(Checkpoint("/c/a.pt", 1000.0, "folder"), 900.0).startswith(
        "at "
    )  # clocks disagree


def test_two_nodes_report_one_save() -> None:
    one = Checkpoint("/shared/step-5", 10.0, "dcp", 5, 0, 3.0, 100, count=5)
    other = Checkpoint("/shared/step-5", 11.0, "dcp", 5, 8, 4.0, 180, complete=False, count=5)
    assert same_save(one, other)
    both = joined(one, other)
    assert (both.at, both.duration_s, both.size, both.complete) == (11.0, 4.0, 180, False)
    assert not same_save(one, Checkpoint("/shared/step-5", 30.0, "dcp", 5, count=15))


@pytest.mark.parametrize(
    ("size", "attempt", "now", "severity"),
    [
        (100, 1, 20.0, "note"),
        (100, 2, 20.0, "warning"),
        (100, 1, 12.0, "note"),
        (100, 2, 12.0, None),
        (None, 1, 20.0, None),
        (None, 2, 20.0, None),
    ],
    ids=[
        "its failure is named",
        "nobody says why",
        "its failure is named at once",
        "what cut it off may yet end the attempt",
        "nothing of it is on disk",
        "the same, unnamed",
    ],
)
def test_a_torn_checkpoint_is_an_alarm_where_nothing_else_is(
    size: int | None, attempt: int, now: float, severity: str | None
) -> None:
    state = RunState()
    cause = FirstCause(0, 0, 0, text="rank 0 was ended by SIGKILL")
    events: list[Event] = [
        AttemptStarted(1, "launch", 1, (RankPlace(0, 0),)),
        AttemptEnded(1, Outcome.FAILED, cause),
        AttemptStarted(2, "failure", 1, (RankPlace(0, 0),)),
        CheckpointSaved(
            attempt, Checkpoint("/c/step-5.pt", 10.0, "torch.save", 5, 0, size=size, complete=False)
        ),
    ]
    for seq, event in enumerate(events, 1):
        state.apply(Stamped(float(seq), event, seq))
    raised = [
        finding.severity
        for finding in find_torn_checkpoint(View(state=state, plan=None, now=now, history={}))
    ]
    assert raised == ([] if severity is None else [severity])
