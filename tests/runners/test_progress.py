"""The training line: what is known of a run's progress, what is not, and where it comes from."""

from __future__ import annotations

import pytest
from msgspec import structs

from distui.presets.finding import Finding
from distui.runners.run.model import (
    AttemptEnded,
    AttemptStarted,
    CommandReceived,
    Event,
    FindingRaised,
    Outcome,
    RankChanged,
    RankPhase,
    RankPlace,
    RankTick,
    RunEnded,
    RunPhase,
    Stamped,
    TrainingTick,
)
from distui.runners.run.samples import RankSample, TrainingSample
from distui.runners.run.state import RunState
from distui.runners.telemetry.progress import parts, percent_text, progress, rate_text, source_text

PLACES = (RankPlace(0, 0), RankPlace(1, 1))
OUTPUT = "output: step {step} loss {loss}"


def told(at: float = 100.0, rank: int = 0, **fields: object) -> TrainingSample:
    named = {name: OUTPUT for name in fields if name not in ("values", "not_finite", "sources", "every_s")}
    named |= dict.fromkeys(fields.get("not_finite", {}), OUTPUT)  # type: ignore[call-overload]
    return TrainingSample(rank, at, sources=named, **fields)  # type: ignore[arg-type]


def running(*samples: TrainingSample, attempt: int = 1, at: float = 10.0) -> RunState:
    events: list[Event] = [AttemptStarted(attempt, "launch", 2, PLACES)]
    events += [RankChanged(attempt, rank, RankPhase.RUNNING, rank, 100 + rank) for rank in (0, 1)]
    events.append(TrainingTick(samples))
    return RunState().apply_all(Stamped(at, event, number) for number, event in enumerate(events, 1))


def test_nothing_is_known_of_a_run_that_reports_nothing() -> None:
    line = progress(running(), 100.0)
    assert parts(line) == []
    assert all(value in (None, {}, False) for value in structs.asdict(line).values())


def test_step_total_percent_and_eta() -> None:
    state = running(told(step=18420, total=50000, loss=2.3114, tokens_s=91_200.0, step_s=0.84, mfu=41.26))
    line = progress(state, 100.0)
    assert line.fraction == pytest.approx(0.3684)
    assert line.eta_s == pytest.approx(31580 * 0.84)
    assert [text for _, text in parts(line)] == [
        "step 18,420 / 50,000", "36 %", "ETA 7 h 22 min", "loss 2.311", "91.2k tok/s", "MFU 41.3 %", "840 ms/step",
    ]  # fmt: skip
    assert source_text(line) == f"step, total, loss, tokens_s, step_s, mfu by {OUTPUT}"


def test_the_eta_counts_down_between_reports_and_ends_with_the_advance() -> None:
    state = running(told(at=100.0, step=10, total=100, step_s=2.0, every_s=20.0))
    assert progress(state, 110.0).eta_s == pytest.approx(170.0)
    assert progress(state, 160.0).eta_s == pytest.approx(120.0), "reports come every 20 s"
    line = progress(state, 161.0)
    assert (line.eta_s, line.still_s) == (None, 61.0)


def test_one_report_alone_holds_for_half_a_minute() -> None:
    state = running(told(at=100.0, step=10, total=100, step_s=2.0, tokens_s=5000.0))
    assert progress(state, 130.0).tokens_s == 5000.0
    line = progress(state, 131.0)
    assert (line.tokens_s, line.step_s, line.eta_s, line.step, line.age_s) == (None, None, None, 10, 31.0)
    assert line.still_s is None, "nobody knows how often it reports"


def test_no_rates_while_the_optimizer_does_not_step() -> None:
    state = running(told(at=100.0, step=10, total=100, step_s=2.0, every_s=20.0))
    state.apply(Stamped(105.0, RankTick((RankSample(0, 100, step=10, still_s=7.0), RankSample(1, 101)))))
    line = progress(state, 105.0)
    assert (line.eta_s, line.step_s, line.still_s) == (None, None, 7.0)


def test_rates_hold_between_rare_reports_while_the_optimizer_steps() -> None:
    state = running(told(at=100.0, step=10, total=1000, tokens_s=5000.0))
    state.apply(Stamped(900.0, RankTick((RankSample(0, 100, step=90, step_s=10.0), RankSample(1, 101)))))
    line = progress(state, 901.0)
    assert (line.tokens_s, line.step_s, line.still_s) == (5000.0, 10.0, None)


def test_samples_that_are_old_have_no_rates_and_no_stop_either() -> None:
    state = running(told(at=100.0, step=10, tokens_s=5000.0, every_s=60.0))
    state.apply(Stamped(100.0, RankTick((RankSample(0, 100, step=90, step_s=0.5), RankSample(1, 101)))))
    for now, dim, tokens_s in [
        (103.0, False, 5000.0),
        (104.0, False, None),
        (104.0, True, 5000.0),
        (131.0, True, None),
    ]:
        line = progress(state, now, dim)
        assert (line.tokens_s, line.still_s) == (tokens_s, None), (now, dim)


def test_ranks_that_have_ended_have_no_rates_until_the_run_has() -> None:
    state = running(told(at=100.0, step=10, tokens_s=5000.0))
    for rank in (0, 1):
        state.apply(Stamped(101.0, RankChanged(1, rank, RankPhase.FAILED, rank, 100 + rank, 1), 8 + rank))
    assert progress(state, 101.0).tokens_s is None
    state.apply(Stamped(102.0, RunEnded(RunPhase.FAILED, 1, ""), 10))
    assert progress(state, 5000.0).tokens_s == 5000.0, "the last values are facts"


def test_no_eta_in_a_hang_and_without_a_step_time() -> None:
    state = running(told(step=10, total=100))
    assert progress(state, 100.0).eta_s is None
    state = running(told(step=10, total=100, step_s=1.0))
    state.apply(Stamped(11.0, FindingRaised(Finding("hang-collective", "error", "rank 1 hangs"))))
    line = progress(state, 160.0)
    assert (line.eta_s, line.step) == (None, 10)


def test_a_training_that_stalls_has_no_rates_and_says_since_when() -> None:
    state = running(told(at=100.0, step=10, total=100, step_s=1.0, loss=2.0, tokens_s=5000.0))
    assert [name for name, _ in parts(progress(state, 101.0))] == [
        "step", "fraction", "eta_s", "loss", "tokens_s", "step_s",
    ]  # fmt: skip
    state.apply(Stamped(11.0, FindingRaised(Finding("hang-collective", "error", "rank 1 hangs"))))
    texts = [text for _, text in parts(progress(state, 160.0))]
    assert texts == ["step 10 / 100", "10 %", "no step for 1 min 0 s", "loss 2 · 1 min 0 s ago"]
    state.apply(Stamped(200.0, RunEnded(RunPhase.FAILED, 1, "")))
    ended = progress(state, 300.0)
    assert (ended.still_s, ended.tokens_s) == (None, 5000.0), "the last values stay"


def test_a_late_step_is_told_with_the_usual_time_of_one() -> None:
    """From five usual steps on, long before a hang is found; with the reason, where it is known."""
    state = running(told(at=100.0, step=10, total=100, step_s=1.0))
    for still_s, usual_s, words in [
        (4.0, 0.6, ["no step for 4 s, usually 600 ms"]),
        (9.0, 2.0, []),
        (11.0, 2.0, ["no step for 11 s, usually 2.0 s"]),
    ]:
        sample = RankSample(0, 100, step=10, still_s=still_s, usual_s=usual_s)
        state.apply(Stamped(105.0, RankTick((sample, RankSample(1, 101)))))
        line = progress(state, 105.0)
        assert [text for name, text in parts(line) if name == "still_s"] == words
        assert (line.eta_s, line.step_s, line.still_s) == (None, None, still_s)
    assert dict(parts(line, "checkpoint"))["still_s"] == "no step for 11 s: checkpoint"


def test_the_time_of_a_step_is_that_of_the_table_and_the_eta_counts_the_scripts_steps() -> None:
    """Header, table and charts show one value; a script may count several steps per optimizer step."""
    state = running(told(at=100.0, step=10, total=110, step_s=0.25))
    ticks = RankTick((RankSample(0, 100, step=3, step_s=1.0), RankSample(1, 101, step=3, step_s=1.2)))
    state.apply(Stamped(100.0, ticks))
    line = progress(state, 100.0)
    assert (line.step_s, line.eta_s) == (1.1, 25.0)
    assert line.sources["step_s"] == "hook: optimizer steps"


def test_a_run_whose_ranks_are_being_ended_has_no_rates() -> None:
    state = running(told(at=100.0, step=10, total=110, step_s=0.25, tokens_s=5000.0))
    state.apply(Stamped(100.0, CommandReceived("c", "restart requested", "restart", 30.0), 9))
    line = progress(state, 101.0)
    assert (line.tokens_s, line.step_s, line.eta_s, line.still_s) == (None, None, None, None)


def test_optimizer_steps_stand_in_without_a_percentage() -> None:
    """A resumed script counts on where it was; the hook counts from 0: a share of the total would be wrong."""
    state = running(told(total=100))
    ticks = RankTick((RankSample(0, 100, step=7, step_s=0.5), RankSample(1, 101, step=6, step_s=0.5)))
    state.apply(Stamped(12.0, ticks))
    line = progress(state, 12.0)
    assert (line.step, line.step_s, line.fraction, line.eta_s) == (6, 0.5, None, None)
    assert line.sources["step"] == "hook: optimizer steps"


def test_each_field_is_of_the_lowest_rank_that_reports_it() -> None:
    state = running(told(rank=0, step=4), told(rank=1, step=3, loss=1.0, values={"eval/loss": 2.0}))
    line = progress(state, 100.0)
    assert (line.step, line.loss, line.values) == (4, 1.0, {"eval/loss": 2.0})


def test_the_step_within_an_epoch_is_no_step() -> None:
    line = progress(running(told(epoch=4.0, epoch_step=1130, epoch_total=2502, loss=2.5)), 101.0)
    assert (line.step, line.fraction, line.eta_s) == (None, None, None)
    assert dict(parts(line))["epoch"] == "epoch 4: 1,130 / 2,502"


def test_a_loss_that_is_nan_is_shown_as_such() -> None:
    state = running(told(rank=0, step=4, not_finite={"loss": "nan"}), told(rank=1, loss=1.0))
    line = progress(state, 100.0)
    assert line.loss is None
    assert ("loss", "loss NaN") in parts(line)
    assert line.not_finite == {"loss": "nan"}


def test_samples_of_the_attempt_before_stay_until_there_is_a_new_one() -> None:
    state = running(told(at=50.0, rank=0, step=90), told(at=50.0, rank=1, loss=9.0))
    state.apply(Stamped(60.0, AttemptStarted(2, "restart", 2, PLACES), 9))
    assert progress(state, 61.0).step == 90
    state.apply(Stamped(70.0, TrainingTick((told(at=70.0, rank=0, step=80),))))
    line = progress(state, 71.0)
    assert (line.step, line.loss) == (80, None)


def test_a_new_attempt_has_no_rates_of_the_one_before() -> None:
    state = running(told(at=50.0, step=90, total=100, step_s=1.0, loss=2.0, tokens_s=5000.0))
    state.apply(Stamped(60.0, AttemptStarted(2, "restart", 2, PLACES), 9))
    line = progress(state, 61.0)
    assert [text for _, text in parts(line)] == ["before the restart: step 90 / 100", "loss 2"]
    assert line.earlier is True
    assert line.eta_s is None
    counted = RankTick((RankSample(0, 200, step=1, step_s=8.0), RankSample(1, 201, step=1, step_s=8.0)))
    state.apply(Stamped(62.0, RankChanged(2, 0, RankPhase.RUNNING, 0, 200), 10))
    state.apply(Stamped(63.0, RankChanged(2, 1, RankPhase.RUNNING, 1, 201), 11))
    assert progress(state, 64.0).eta_s is None
    state.apply(Stamped(65.0, counted))
    assert parts(progress(state, 66.0)) == parts(line)
    state.apply(Stamped(70.0, TrainingTick((told(at=70.0, step=80, total=100, step_s=1.0),))))
    state.apply(Stamped(70.0, counted))
    assert [name for name, _ in parts(progress(state, 70.0))] == ["step", "fraction", "eta_s", "step_s"]


def test_the_last_values_stay_after_the_end() -> None:
    state = running()
    last = told(step=100, total=100, loss=1.5, step_s=1.0)
    state.apply(Stamped(20.0, AttemptEnded(1, Outcome.SUCCEEDED, training=(last,)), 8))
    state.apply(Stamped(21.0, RunEnded(RunPhase.SUCCEEDED, 0, ""), 9))
    line = progress(state, 5000.0)
    assert (line.step, line.loss, line.fraction, line.eta_s) == (100, 1.5, 1.0, None)


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0.5, "0.5"),
        (99.5, "99.5"),
        (8782.0, "8,782"),
        (91_234.0, "91.2k"),
        (912_345.0, "912k"),
        (1_250_000.0, "1.25M"),
    ],
)
def test_rates(rate: float, text: str) -> None:
    assert rate_text(rate) == text


def test_a_percentage_is_never_rounded_up_and_0_is_0() -> None:
    for fraction, words in [
        (0.0, "0 %"), (0.0004, "< 0.1 %"), (0.0083, "0.8 %"), (0.00999, "0.9 %"), (0.01, "1 %"),
        (0.3684, "36 %"), (0.9999, "99 %"), (1.0, "100 %"),
    ]:  # fmt: skip
        assert percent_text(fraction) == words
