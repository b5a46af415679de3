"""The whole cockpit at a moment of the past: state, samples, findings, keys that act, and the way back."""

from __future__ import annotations

import asyncio
import re

import msgspec
import pytest
import scripted as play
from conftest import Rig, Start, shown
from each import for_each
from msgspec.structs import replace
from test_rows import line_of

from distui.presets.finding import Finding
from distui.runners.run.answers import MetricsWindow, Series
from distui.runners.run.commands import ReadMetrics
from distui.runners.run.model import (
    AttemptEnded,
    AttemptStarted,
    CaughtUp,
    Checkpoint,
    CheckpointSaved,
    Event,
    FindingCleared,
    FindingRaised,
    NcclChanged,
    Outcome,
    RankChanged,
    RankPhase,
)
from distui.runners.run.state import RunState
from distui.runners.run.wire.client import LinkError
from distui.tui.moment_text import MomentError, moment_of
from distui.tui.past import Timeline, copied, step_of
from distui.tui.past_samples import averaged_seconds, put_samples
from distui.tui.rows.frame import Frame, LinkPhase, LinkStatus, Moment
from distui.tui.rows.header import header_rows

SLOW = Finding("slow", "warning", "rank 4 is the straggler", rank=4, since=play.BEGAN + 40)


def eventful() -> list[tuple[float, Event]]:
    """A failure after 30 s, a second attempt, a finding that came and went, a checkpoint."""
    head = play.running()
    ended: list[tuple[float, Event]] = [
        (30.0, RankChanged(1, 3, RankPhase.FAILED, 3, 4714, 1)),
        (31.0, AttemptEnded(1, Outcome.FAILED, play.cause(), "rank 3 failed")),
    ]
    again: list[tuple[float, Event]] = [(32.0, AttemptStarted(2, "failure", 8, play.places(8)))]
    again += [(33.0, RankChanged(2, rank, RankPhase.RUNNING, rank, 5000 + rank)) for rank in range(8)]
    later: list[tuple[float, Event]] = [
        (40.0, FindingRaised(SLOW)),
        (60.0, CheckpointSaved(2, Checkpoint("/c/step-900", play.BEGAN + 60, "torch.save", 900))),
        (70.0, FindingCleared("slow", rank=4)),
        (80.0, NcclChanged("INFO", "", (0, 1), True, "NCCL_DEBUG=INFO on ranks 0, 1")),
    ]
    telemetry = [item for item in head if item[0] >= 124]
    return [*[item for item in head if item[0] < 30], *ended, *again, *later, *telemetry]


def timeline() -> Timeline:
    return Timeline(play.stamped(eventful()))


def at(after: float) -> RunState:
    return timeline().state_at(play.BEGAN + after)


def test_the_state_is_that_of_the_moment() -> None:
    assert at(10).attempt == 1
    assert at(30.5).ranks[3].phase is RankPhase.FAILED
    assert at(50).attempt == 2
    assert [finding.id for finding in at(50).findings.values()] == ["slow"]
    assert at(75).findings == {}
    assert at(50).checkpoint is None
    assert at(61).checkpoint is not None
    assert at(-5).attempts == []


def test_a_checkpoint_is_there_from_when_it_was_whole() -> None:
    """What watches the folder sees it some seconds later."""
    saved = CheckpointSaved(2, Checkpoint("/ckpt/step-240", play.BEGAN + 80, "folder", step=240))
    line = Timeline(play.stamped([*eventful(), (86.0, saved)]))
    for second, step in ((79, 900), (81, 240), (85, 240), (87, 240)):
        newest = line.state_at(play.BEGAN + second).checkpoint
        assert newest is not None
        assert newest.step == step
    assert [each.step for each in line.state_at(play.BEGAN + 87).checkpoints] == [900, 240]


def test_going_back_and_forth_gives_the_same() -> None:
    line = timeline()
    once = [line.state_at(play.BEGAN + second).attempt for second in range(100)]
    again = [line.state_at(play.BEGAN + second).attempt for second in reversed(range(100))]
    assert once == again[::-1]


def test_a_long_journal_is_folded_from_kept_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distui.tui.past.KEEP_EVERY", 7)
    monkeypatch.setattr("distui.tui.past.MOST_EVENTS", 30)
    line, whole = timeline(), play.stamped(eventful())
    assert line._base.attempt == 1
    for second in (90, 33, 60, 90, 41):
        told = RunState().apply_all(
            each
            for each in whole
            if each.time <= play.BEGAN + second and not isinstance(each.event, CaughtUp)
        )
        state = line.state_at(play.BEGAN + second)
        assert (state.attempt, state.findings, state.checkpoints) == (
            told.attempt,
            told.findings,
            told.checkpoints,
        )
        assert {n: r.phase for n, r in state.ranks.items()} == {n: r.phase for n, r in told.ranks.items()}


def test_a_growing_journal_keeps_its_saved_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distui.tui.past.KEEP_EVERY", 7)
    monkeypatch.setattr("distui.tui.past.MOST_EVENTS", 30)
    line, told = Timeline(), RunState()
    for stamped in (each for each in play.stamped(eventful()) if each.seq):
        line.add([stamped])
        told.apply(stamped)
        state = line.state_at(line.end)
        assert (state.seq, state.attempt, state.findings) == (told.seq, told.attempt, told.findings)
    assert line._kept


def test_a_copy_does_not_change_with_the_state() -> None:
    state = RunState().apply_all(play.stamped(play.running()))
    other = copied(state)
    assert other == state
    state.apply_all(play.stamped(play.failed()))
    assert other.ranks[3].phase is RankPhase.RUNNING
    assert other.attempts[0].outcome is None
    assert other.ranks_of(0)[3].phase is RankPhase.RUNNING


def test_clocks_that_go_back_do_not_hide_events() -> None:
    events = play.stamped(eventful())
    events[-5] = msgspec.structs.replace(events[-5], time=1.0)
    line = Timeline(events)
    assert line.state_at(line.end).seq == max(each.seq for each in events)


def window(**curves: float | None) -> MetricsWindow:
    series = [
        Series(name.replace("__", "."), 0, None if name.startswith("host") else 3, 1, (value,) * 10)
        for name, value in curves.items()
    ]
    return MetricsWindow("", play.BEGAN + 45, 1.0, 10, tuple(series))


def test_samples_of_the_moment_are_put_in() -> None:
    now = RunState().apply_all(play.stamped(eventful()))
    state = at(50)
    put_samples(
        state,
        window(
            gpu__util=31.0,
            gpu__mem=2.0**30,
            rank__step=120.0,
            rank__step_s=0.5,
            host__cpu=12.0,
            train__loss=2.5,
            train__step=700.0,
        ),
        play.BEGAN + 50,
        now,
    )
    gpu = state.nodes[0].gpus[3]
    assert (gpu.util, gpu.mem_used, gpu.name, gpu.mem_total) == (
        31.0,
        2**30,
        "NVIDIA H100 80GB HBM3",
        80 << 30,
    )
    assert state.nodes[0].gpus[2].util is None
    sample = state.ranks[3].sample
    assert sample is not None
    assert (sample.step, sample.step_s) == (120, 0.5)
    assert state.nodes[0].metrics is not None
    assert (state.nodes[0].metrics.cpu_percent, state.nodes[0].metrics.cores) == (12.0, 64)
    assert state.training[3].loss == 2.5
    assert step_of(state) == 700


def test_means_of_a_moment_are_marked_and_its_step_is_a_real_one() -> None:
    """The buckets of 10 s begin at 40, 50 and 60 s: at 61 s the last complete one is that from 50 s."""
    now = RunState().apply_all(play.stamped(eventful()))
    state, moment = at(61), play.BEGAN + 61
    ten = MetricsWindow(
        "",
        play.BEGAN + 40,
        10.0,
        3,
        (
            Series(
                "train.step", 0, 0, 1, (427.0, 432.0, 440.0), (421.0, 425.0, 433.0), (427.0, 432.0, 440.0)
            ),
            Series("train.loss", 0, 0, 1, (0.41, 0.3951, 0.37), (0.4, 0.3806, 0.36), (0.42, 0.4, 0.38)),
        ),
    )
    put_samples(state, ten, moment, now)
    assert (state.training[0].step, state.training[0].loss) == (432, 0.3951)
    shown = Moment(moment, play.NOW, step_of(state), averaged_seconds(ten))
    frame = Frame(state, LinkStatus(LinkPhase.FOLLOWING, moment), moment, moment, moment=shown)
    first, second = map(line_of, header_rows(frame, 160))
    assert "PAST 22:14:21 · step 432 · 10 s means" in first
    assert "step 432" in second
    assert "loss ~0.3951" in second


def test_a_moment_outside_the_window_has_no_samples() -> None:
    now = RunState().apply_all(play.stamped(eventful()))
    state = at(90)
    put_samples(state, window(gpu__util=31.0, train__loss=2.5), play.BEGAN + 90, now)
    assert all(gpu.util is None for gpu in state.nodes[0].gpus)
    assert state.training[3].loss == 2.5  # the newest report until then


@for_each(
    ("text", "after"),
    [
        ("22:14:00", 40),
        ("22:14", 40),
        ("-10s", 110),
        ("-1m", 60),
        ("start", 0),
        ("end", 120),
        ("first-cause", 31),
        ("step 800", 60),
    ],
)
def test_a_moment_that_was_typed(utc: None, text: str, after: float) -> None:
    assert moment_of(text, timeline(), play.BEGAN + 120) == pytest.approx(play.BEGAN + after)


@for_each(
    "text", ["", "noon", "25:00:00", "12:61", "step", "step x", "step 5000", "-5", "03:00:00", "1 2 3"]
)
def test_what_is_no_moment_is_a_sentence(utc: None, text: str) -> None:
    with pytest.raises(MomentError) as caught:
        moment_of(text, timeline(), play.BEGAN + 120)
    assert len(str(caught.value)) > 10


def test_a_time_after_the_end_is_not_said_to_be_before_the_run(utc: None) -> None:
    with pytest.raises(MomentError, match="22:19:00 is after the newest known time of this run, 22:15:20"):
        moment_of("22:19:00", timeline(), play.BEGAN + 120)
    with pytest.raises(MomentError, match="is before the start of this run"):
        moment_of("20:00:00", timeline(), play.BEGAN + 120)


# --- on the screen


class Kept(play.ScriptedLink):
    """Has curves: GPU utilisation is the seconds since the beginning."""

    async def read_metrics(self, ask: ReadMetrics) -> MetricsWindow:
        count = int(ask.end - ask.begin)
        values = tuple(ask.begin + second - play.BEGAN for second in range(count))
        indexes = [None] if ask.fold != "each" else [0, 1, 2]
        names = [name for name in ("gpu.util", "rank.step") if not ask.metrics or name in ask.metrics]
        series = tuple(Series(name, 0, index, 1, values) for name in names for index in indexes)
        return MetricsWindow(ask.id, ask.begin, 1.0, count, series)


def travelling(rig: Start, **more: object) -> Rig:
    it = rig(eventful(), **more)
    old = it.link
    it.source.link = Kept(old.run_dir, old.script, old.readonly)
    return it


async def started(it: Rig) -> None:
    await it.until(lambda: "RUNNING" in it.screen())


async def test_brackets_move_the_whole_cockpit_and_escape_comes_back(rig: Start) -> None:
    async with shown(travelling(rig), 140, 40) as it:
        await started(it)
        assert "attempt 2" in it.screen()
        await it.press("4", "left_square_bracket")
        await it.until(lambda: "PAST 22:15" in it.screen())
        for _ in range(30):
            await it.press("left_curly_bracket")
        await it.until(lambda: "PAST 22:13:20" in it.screen())
        await it.press("1")
        await it.until(lambda: "STARTING" in it.screen())
        await it.press("escape")
        await it.until(lambda: "PAST" not in it.screen() and "attempt 2" in it.screen())


async def test_a_move_past_the_beginning_says_how_far_it_went(rig: Start) -> None:
    async with shown(travelling(rig), 140, 40) as it:
        await started(it)
        await it.press("4", "left_parenthesis")
        await it.until(lambda: "PAST 22:13:20" in it.screen())
        await it.until(lambda: "moved 2 min 5 s only: this is the beginning of the run" in it.told())
        await it.press("left_square_bracket")
        await it.until(lambda: it.told().endswith("\nThis is the beginning of the run"))


class AfterTheStart(Kept):
    """Has curves that begin 20 seconds after the run."""

    async def read_metrics(self, ask: ReadMetrics) -> MetricsWindow:
        window = await super().read_metrics(ask)
        late = [
            replace(
                series,
                mean=tuple(value if value is not None and value >= 20 else None for value in series.mean),
            )
            for series in window.series
        ]
        return replace(window, series=tuple(late))


async def test_titles_of_a_past_moment_have_no_later_value(rig: Start) -> None:
    it = rig(eventful())
    old = it.link
    it.source.link = AfterTheStart(old.run_dir, old.script, old.readonly)
    async with shown(it, 140, 40):
        await started(it)
        await it.press("4")
        it.run.travel.go_to("22:14:05")
        await it.until(lambda: "GPU util 45%" in it.screen())
        it.run.travel.go_to("start")
        await it.until(lambda: "PAST 22:13:20" in it.screen() and "GPU util n/a · p50" in it.screen())


async def test_the_screen_shows_one_time_and_one_escape_returns_to_live(rig: Start) -> None:
    async with shown(travelling(rig), 140, 40) as it:
        await started(it)
        await it.press("4")
        await it.until(lambda: "p50" in it.screen())
        await it.pilot.click("#curves", offset=(30, 8))
        await it.until(lambda: re.search(r"live \S+ · 22:1\d:\d\d", it.screen()))
        await it.press("left_square_bracket")
        await it.until(lambda: "PAST 22:1" in it.screen())
        await it.until(lambda: not re.search(r"past \S+ · 22:1", it.screen()))
        await it.press("left", "left")
        await it.until(lambda: re.search(r"past \S+ · 22:1\d:\d\d", it.screen()))
        await it.press("escape")
        await it.until(lambda: "PAST" not in it.screen())
        await it.until(lambda: not re.search(r"live \S+ · 22:1", it.screen()))
        assert "[4 Curves]" in it.screen()


async def test_the_tables_show_the_samples_of_that_second(rig: Start) -> None:
    async with shown(travelling(rig), 140, 40) as it:
        await started(it)
        it.run.travel.go_to("22:14:05")
        await it.until(lambda: "PAST 22:14:05 · step 45" in it.screen())
        await it.until(lambda: "45%" in it.screen())


class Failing(Kept):
    """Fails to read metrics as often as a test says."""

    failures = 1

    async def read_metrics(self, ask: ReadMetrics) -> MetricsWindow:
        if self.failures:
            self.failures -= 1
            raise LinkError("the agent is busy")
        return await super().read_metrics(ask)


def row_of_gpu(it: Rig) -> str:
    """Return the row of rank 0's GPU."""
    return next((line for line in it.screen().splitlines() if " 0 r0 " in line), "")


@for_each("again", ["the same moment", "another pane"])
async def test_samples_whose_reading_failed_are_read_again(again: str, rig: Start) -> None:
    it = rig(eventful())
    old = it.link
    it.source.link = link = Failing(old.run_dir, old.script, old.readonly)
    link.failures = 0
    async with shown(it, 140, 40) as it:
        await started(it)
        link.failures = 1000
        it.run.travel.go_to("22:14:05")
        await it.until(lambda: "samples of that time cannot be read: the agent is busy" in it.told())
        assert "45%" not in row_of_gpu(it), "its chart was read before"
        link.failures = 0
        if again == "another pane":
            await it.press("2")
        else:
            it.run.travel.go_to("22:14:05")
        await it.until(lambda: "45%" in row_of_gpu(it))


async def test_findings_of_that_time_are_seen_again(rig: Start) -> None:
    async with shown(travelling(rig), 140, 40) as it:
        await started(it)
        assert "straggler" not in it.screen()
        it.run.travel.go_to("22:14:05")
        await it.until(lambda: "rank 4 is the straggler" in it.screen())


async def test_keys_that_act_are_refused_in_the_past(rig: Start) -> None:
    async with shown(travelling(rig), 140, 40) as it:
        await started(it)
        it.run.travel.go_to("-30s")
        await it.until(lambda: "PAST" in it.screen())
        for count, key in enumerate(("r", "x", "d"), start=1):
            await it.press(key)
            refusals = it.told().lower().count("not available in the past")
            assert refusals == count, f"{key}: {it.told()}"
            assert it.link.commands == [], key
            assert len(it.app.screen_stack) == 2, key


async def test_a_line_of_commands_goes_there_and_complains(rig: Start) -> None:
    async with shown(travelling(rig), 140, 40) as it:
        await started(it)
        it.app.commands.run_line("at first-cause")
        await it.until(lambda: "PAST 22:13:51" in it.screen())
        it.app.commands.run_line("at step 60")
        await it.until(lambda: "PAST 22:14:20" in it.screen())
        it.app.commands.run_line("-30s")
        await it.until(lambda: "PAST 22:14:54" in it.screen())
        it.app.commands.run_line("back 20s")
        await it.until(lambda: "PAST 22:14:34" in it.screen())
        await it.press("4", "left_parenthesis")
        await it.until(lambda: "PAST 22:13:20" in it.screen())
        it.app.commands.run_line("back a while")
        await it.until(lambda: "Back needs a duration" in it.told())
        it.app.commands.run_line("at noon")
        await it.until(lambda: "Invalid time 'noon'" in it.told())
        it.app.commands.run_line("stop")
        await it.until(lambda: "vailable in the past" in it.told())
        it.app.commands.run_line("live")
        await it.until(lambda: "PAST" not in it.screen())


async def test_what_comes_live_does_not_move_the_past(rig: Start) -> None:
    async with shown(travelling(rig), 140, 40) as it:
        await started(it)
        it.run.travel.go_to("22:14:05")
        await it.until(lambda: "45%" in it.screen())
        await asyncio.sleep(5)  # charts follow later than tables
        before = it.screen()
        it.link.play(RankChanged(2, 5, RankPhase.FAILED, 5, 5005, 1), seq=500)
        await it.until(lambda: it.run.state.ranks[5].phase is RankPhase.FAILED)
        assert it.screen() == before
        await it.press("equals_sign")
        await it.until(lambda: "✖ failed" in it.screen())


async def test_the_focus_comes_back_to_the_pane_that_the_past_had_no_room_for(rig: Start) -> None:
    async with shown(travelling(rig)) as it:
        await started(it)
        await it.press("down")
        await it.until(lambda: "›    1 ● running" in it.screen())
        it.app.commands.run_line("at start")
        await it.until(lambda: "PAST" in it.screen() and "STARTING" in it.screen())
        await it.press("escape")
        await it.until(lambda: "›    1 ● running" in it.screen())
