"""The two lines of the header: whole cells, true numbers, nothing unknown as 0."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import scripted as play
from each import for_each
from test_rows import frame_of, line_of

from distui.presets.finding import Finding
from distui.runners.run.model import (
    AttemptEnded,
    AttemptStarted,
    Checkpoint,
    CheckpointSaved,
    CommandDone,
    Event,
    FindingRaised,
    GpuTick,
    Outcome,
    RankChanged,
    RankPhase,
    RankTick,
    TrainingTick,
)
from distui.runners.run.samples import TrainingSample
from distui.tui.rows.frame import Frame
from distui.tui.rows.glyphs import row_width
from distui.tui.rows.header import header_rows


def trained() -> list[tuple[float, Event]]:
    sample = TrainingSample(
        0, play.NOW - 1, step=18420, total=50000, loss=2.311, tokens_s=91200.0, step_s=0.84, mfu=41.0,
        sources=dict.fromkeys(("step", "total", "loss", "tokens_s", "step_s", "mfu"), "wandb"),
    )  # fmt: skip
    saved = Checkpoint("/ckpt/step-18000", play.NOW - 740, "torch.save", step=18000)
    return [*play.running(), (20, CheckpointSaved(1, saved)), (124.65, TrainingTick((sample,)))]


def head(events: list[tuple[float, Event]], width: int = 200, **view: object) -> list[str]:
    return [line_of(row) for row in header_rows(frame_of(events, **view), width)]  # type: ignore[arg-type]


@for_each("width", range(60, 201, 7))
@for_each("events", [play.running(), trained(), play.failed(), play.running(2, gpu=False)])
def test_cells_are_dropped_whole(width: int, events: list[tuple[float, Event]]) -> None:
    wide = [{text for text, _ in row} for row in header_rows(frame_of(events), 400)]
    for row, whole in zip(header_rows(frame_of(events), width), wide, strict=True):
        assert row_width(row) <= width
        assert all(text in whole or not text.strip() or text.startswith("saved ") for text, _ in row)


def test_all_is_there_where_there_is_room() -> None:
    first, second = head(trained())
    for part in ("minigpt", "● RUNNING", "1 node · 8 ranks", "fsdp2 · torch 2.13 · NCCL 2.29", "22:15:25"):
        assert part in first
    wanted = (
        "step 18,420 / 50,000  36 %  ETA", "loss 2.311", "91.2k tok/s", "MFU 41 %", "44 ms/step",
        "checkpoint 12 min ago (step 18,000)", "util 76%", "mem 516/640G", "3.5 kW",
    )  # fmt: skip
    for part in wanted:
        assert part in second


def test_at_80_columns_the_most_important_is_kept() -> None:
    first, second = head(trained(), 80)
    assert "minigpt   ● RUNNING   1 node · 8 ranks" in first
    assert "22:15:25" in first
    assert second.startswith(" step 18,420 / 50,000")
    for part in ("ETA 7 h", "loss 2.311", "saved 12 min ago"):
        assert part in second


def test_numbers_are_of_the_runs_own_gpus() -> None:
    """Two ranks at 97 and 96 % on a node whose other six GPUs are idle or of others."""
    events = play.running(2)
    busy = tuple(msgspec.structs.replace(gpu, util=0.0) if gpu.index > 1 else gpu for gpu in play.gpus())
    _, second = head([*events, (124.65, GpuTick(busy))])
    assert "util 96%" in second or "util 97%" in second
    assert "mem 123/160G" in second
    assert "810 W" in second


def test_a_script_without_an_optimizer_has_no_step() -> None:
    samples = tuple(msgspec.structs.replace(sample, step=0, step_s=None) for sample in play.samples(8))
    _, second = head([*play.running(), (124.65, RankTick(samples))])
    assert "step" not in second.partition("fsdp2")[0]


def test_state_names_what_is_wrong() -> None:
    def state(*findings: Finding) -> str:
        return head([*play.running(), *((125.0, FindingRaised(finding)) for finding in findings)])[0]

    hang = Finding("hang-not-joined", "error", "rank 1 sleeps", ranks=(1,))
    slow = Finding("straggler", "warning", "rank 2 is slow", rank=2)
    assert "✖ RUNNING · hung?" in state(slow, hang)
    assert "▲ RUNNING · slow rank" in state(slow)
    assert "▲ RUNNING · 1 alarm" in state(Finding("nobody-knows", "warning", "x"))
    assert "● RUNNING  " in state(Finding("start-waiting", "note", "x"))


def test_an_alarm_of_the_attempt_before_is_not_one_of_this_attempt() -> None:
    died = Finding("died-killed", "error", "attempt 1: rank 3 was killed", rank=3, since=play.BEGAN + 99.0)
    again = [
        *play.running(),
        (100, AttemptEnded(1, Outcome.FAILED, play.cause(), "rank 3 failed")),
        (110, AttemptStarted(2, "failure", 8, play.places(8), failures=1)),
        *[(112.0, RankChanged(2, rank, RankPhase.RUNNING, rank, 5000 + rank)) for rank in range(8)],
        (113.0, FindingRaised(died)),
    ]
    assert "▲ RUNNING · rank died in attempt 1 " in head(again)[0]


def test_the_age_of_an_attempt_is_not_that_of_the_run() -> None:
    """kill -9 of a rank: the restart stays visible, with how long its ranks run."""
    again = [
        *play.running(),
        (100, AttemptEnded(1, Outcome.FAILED, play.cause(), "rank 3 failed")),
        (110, AttemptStarted(2, "failure", 8, play.places(8), failures=1)),
        *[(112.0, RankChanged(2, rank, RankPhase.RUNNING, rank, 5000 + rank)) for rank in range(8)],
    ]
    again.sort(key=lambda item: item[0])
    first, _ = head(again)
    assert "attempt 2 (1 restart) for 15 s" in first
    assert "run 2 min 5 s" in first
    assert "attempt" not in head(play.running())[0]


def test_a_narrow_header_keeps_the_number_of_the_attempt() -> None:
    died = Finding("died-killed", "error", "attempt 1: rank 3 was killed", rank=3, since=play.BEGAN + 99.0)
    again = [
        *play.running(),
        (100, AttemptEnded(1, Outcome.FAILED, play.cause(), "rank 3 failed")),
        (110, AttemptStarted(2, "failure", 8, play.places(8), failures=1)),
        *[(112.0, RankChanged(2, rank, RankPhase.RUNNING, rank, 5000 + rank)) for rank in range(8)],
        (113.0, FindingRaised(died)),
    ]
    assert "rank died in attempt 1   attempt 2   " in head(again, 80)[0]
    assert "attempt 2 (1 restart) for 15 s" in head(again, 120)[0]


def test_an_ended_run_is_not_called_read_only() -> None:
    assert "read-only" in head(play.running(), readonly=True)[0]
    assert "read-only" not in head(play.failed(), readonly=True)[0]


def test_what_the_attempt_before_reported_is_not_shown_as_current() -> None:
    again = [*trained(), (124.8, AttemptStarted(2, "restart", 8, play.places(8)))]
    again += [(124.9, RankChanged(2, rank, RankPhase.RUNNING, rank, 5000 + rank)) for rank in range(8)]
    row = header_rows(frame_of(again), 200)[1]
    assert "before the restart: step 18,420 / 50,000 │ loss 2.311 │ checkpoint" in line_of(row)
    assert ("before the restart: step 18,420 / 50,000", "stale") in row
    assert ("loss 2.311", "stale") in row


def test_missing_ranks_are_counted() -> None:
    gone = [*play.running(), (124.65, RankChanged(1, 3, RankPhase.FAILED, 3, 4714, 1))]
    assert "7 of 8 ranks" in head(gone, 80)[0]


def test_notices_do_not_stay_in_the_header() -> None:
    noticed = [*play.running(), (124.65, CommandDone("x", True, "stacks of ranks 0, 1"))]
    assert not any("stacks" in line for line in head(noticed))


def test_after_the_end_the_last_values_stay() -> None:
    ended = [*trained(), *play.failed()[len(play.running()) - 1 :]]
    first, second = head(ended)
    assert "✖ FAILED" in first
    assert "took 2 min 11 s" in first
    assert "step 18,420 / 50,000" in second
    assert "loss 2.311" in second
    assert "checkpoint 22:03:05 (step 18,000)" in second
    assert "util" not in second
    assert "ETA" not in second


def test_a_held_screen_says_since_when() -> None:
    frame = frame_of(play.running())
    late = replace(frame, wall=play.NOW + 48)
    assert isinstance(late, Frame)
    assert "HELD 22:15:25 · 48 s behind" in line_of(header_rows(late, 80)[0])


def test_a_number_that_is_not_finite_is_named() -> None:
    sample = TrainingSample(
        0, play.NOW - 1, step=5, sources={"step": "wandb", "loss": "wandb"}, not_finite={"loss": "nan"}
    )
    row = header_rows(frame_of([*play.running(), (124.65, TrainingTick((sample,)))]), 120)[1]
    assert ("loss NaN", "bad") in row


@for_each("width", range(60, 201, 5))
def test_a_trend_takes_no_numbers_place(width: int) -> None:
    plain = header_rows(frame_of(trained()), width)
    numbers = {text for text, _ in plain[1] if "train.py" not in text}
    drawn = header_rows(frame_of(trained()), width, {"loss": "⣤⣀⣀⣀"})
    assert row_width(drawn[1]) <= width
    assert numbers <= {text for text, _ in drawn[1]}


def test_a_trend_stands_beside_its_number() -> None:
    assert "loss 2.311 ⣤⣀⣀⣀ │" in line_of(header_rows(frame_of(trained()), 200, {"loss": "⣤⣀⣀⣀"})[1])
