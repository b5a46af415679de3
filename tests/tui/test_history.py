"""What charts know of the past: asked once, extended by samples, never more than is shown."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import scripted as play
from each import for_each

from distui.runners.run.answers import MetricsWindow, Series
from distui.runners.run.model import Event, GpuTick, RankTick, Stamped
from distui.runners.run.state import RunState
from distui.tui.history import (
    MOST_BUCKETS,
    MOST_TRACKS,
    Ask,
    Buckets,
    MetricHistory,
    fitted_to,
)
from distui.tui.newest_samples import Want
from distui.tui.rows.frame import Frame, LinkPhase, LinkStatus, gpu_places

UTIL = Want("gpu.util")


class Moving:
    """A run whose clock goes on a second at a time."""

    def __init__(self) -> None:
        self.state = RunState().apply_all(play.stamped(play.running()))
        self.now = play.BEGAN + 124.6
        self.history = MetricHistory(lambda: self.now)

    def tick(self, util: float | None, *more: Event) -> None:
        self.now += 1.0
        gpus = tuple(msgspec.structs.replace(gpu, util=util) for gpu in play.gpus())
        for event in (GpuTick(gpus), *more):
            self.state.apply(Stamped(self.now, event))

    def frame(self) -> Frame:
        return Frame(self.state, LinkStatus(LinkPhase.FOLLOWING, 0.0), self.now, self.now)

    def mean(self, size: int = 20, seconds: int = 1, want: Want = UTIL) -> list[float | None]:
        begin = (int(self.now // seconds) - size + 1) * seconds
        shown = self.history.show(self.frame(), want, seconds, float(begin), size, True)
        return shown[0].mean if shown else []

    def ask(self) -> Ask:
        (ask,) = self.history.due()
        return ask


def test_it_asks_once_and_then_follows() -> None:
    run = Moving()
    run.mean()
    ask = run.ask()
    assert (ask.read.metrics, ask.read.fold, ask.read.buckets) == (("gpu.util",), "all", 20)
    assert ask.read.end - ask.read.begin == 20
    count = ask.read.buckets
    answer = MetricsWindow(
        ask.read.id, ask.read.begin, 1.0, count, (Series("gpu.util", of=8, mean=(5.0,) * count),)
    )
    run.history.answered(ask, answer)
    for second in range(5):
        run.tick(float(second))
        assert run.mean()[-1] == second
        assert run.history.due() == []
    assert run.mean()[:15] == [5.0] * 15


def test_resizing_to_a_wider_pane_asks_for_more_and_keeps_what_is_known() -> None:
    run = Moving()
    run.mean(20)
    run.history.answered(run.ask(), MetricsWindow("", 0.0, 1.0, 0, ()))
    run.tick(50.0)
    run.mean(20)
    assert run.mean(40)[-1] == 50.0
    assert run.ask().read.buckets == 40


def test_a_bucket_keeps_the_extremes_of_its_samples() -> None:
    run = Moving()
    run.now = (run.now // 10 + 1) * 10 - 0.5
    for util in (10.0, 90.0, 20.0):
        run.tick(util)
        shown = run.history.show(run.frame(), UTIL, 10, run.now // 10 * 10, 1, True)
    assert (shown[0].low, shown[0].mean, shown[0].high, shown[0].of) == ([10.0], [40.0], [90.0], 8)


def test_a_series_takes_samples_while_nothing_is_painted_of_it() -> None:
    """A spike of a second that no chart is painted in stays in the band."""
    run = Moving()
    run.now = (run.now // 10 + 1) * 10 - 0.5
    for util in (10.0, 90.0, 20.0):
        run.tick(util)
        if util != 90.0:
            shown = run.history.show(run.frame(), UTIL, 10, run.now // 10 * 10, 1, True)
        else:
            run.history.follow(run.frame(), [(UTIL, 10), (Want("gpu.temp"), 10)])
    assert (shown[0].low, shown[0].mean, shown[0].high) == ([10.0], [40.0], [90.0])


def test_what_is_stale_is_a_gap() -> None:
    run = Moving()
    run.tick(50.0)
    run.mean()
    run.now += 30
    frame = replace(run.frame(), heard=run.now - 30)
    shown = run.history.show(frame, UTIL, 1, run.now - 40, 41, True)
    assert shown[0].mean[-1] is None


def test_a_pause_is_asked_for_afterwards() -> None:
    run = Moving()
    run.tick(50.0)
    run.mean()
    run.history.answered(run.ask(), MetricsWindow("", 0.0, 1.0, 0, ()))
    run.now += 60
    run.tick(50.0)
    run.mean()
    assert run.ask().read.end > run.now - 1


def test_an_agent_that_refuses_is_asked_again_later() -> None:
    run = Moving()
    run.mean()
    run.history.answered(run.ask(), MetricsWindow("", error="no metrics of this run are kept here"))
    run.tick(1.0)
    run.mean()
    assert run.history.due() == []
    assert run.history.note(UTIL, 1) == "no metrics of this run are kept here"
    run.history.refused(Ask(None, ()), "")  # type: ignore[arg-type]
    run.now += 60
    run.tick(1.0)
    run.mean()
    assert len(run.history.due()) == 1


def test_charts_of_one_window_share_a_question() -> None:
    run = Moving()
    run.mean()
    run.mean(want=Want("host.cpu"))
    assert run.ask().read.metrics == ("gpu.util", "host.cpu")


def test_only_the_gpus_of_the_run_count() -> None:
    run = Moving()
    run.state.ranks = {0: run.state.ranks[0]}
    gpus = tuple(msgspec.structs.replace(gpu, util=100.0 if gpu.index else 40.0) for gpu in play.gpus())
    run.state.apply(Stamped(run.now, GpuTick(gpus)))
    assert run.mean()[-1] == 40.0


def test_ranks_by_themselves_and_some_of_them() -> None:
    run = Moving()
    run.tick(1.0, RankTick(play.samples(8)))
    begin = float(int(run.now))
    each = run.history.show(run.frame(), Want("rank.step_s", "each", (1, 3)), 1, begin, 1, True)
    assert [shown.index for shown in each] == [1, 3]
    assert [shown.mean[0] for shown in each] == pytest.approx([0.042, 0.044])
    assert [len(shown.mean) for shown in each] == [1, 1]


def columns(buckets: Buckets | None) -> list[tuple[float, float, float] | None]:
    """Mean, minimum and maximum of each bucket."""
    assert buckets is not None
    return [None if each is None else each[:3] for each in buckets.values]


@for_each("value", [float("nan"), float("inf"), "12", None, True, [1]])
def test_an_answer_with_no_number_is_a_gap(value: object) -> None:
    series = Series("gpu.util", mean=(1.0, value, 3.0))  # type: ignore[arg-type]
    buckets = fitted_to(1, MetricsWindow("", 10.0, 1.0, 3), series)
    assert buckets is not None
    means = [None if each is None else each.mean for each in buckets.slice(9, 5)]
    assert means == [None, 1.0, None, 3.0, None]


def test_shorter_buckets_are_folded_and_keep_extremes() -> None:
    series = Series("x", mean=(1.0, 2.0, None, 9.0), low=(0.5, 2.0, None, 9.0), high=(1.0, 7.0, None, 9.0))
    folded = fitted_to(2, MetricsWindow("", 100.0, 1.0, 4), series)
    assert columns(folded) == [(1.5, 0.5, 7.0), (9.0, 9.0, 9.0)]
    assert folded is not None
    assert folded.first == 50


def test_memory_is_bounded() -> None:
    buckets = Buckets()
    for number in range(2 * MOST_BUCKETS):
        buckets.put(number, 1.0, 1.0, 1.0)
    assert len(buckets.values) == MOST_BUCKETS
    buckets.put(10**12, 1.0, 1.0, 1.0)
    assert len(buckets.values) == 1
    buckets.put(5, 1.0, 1.0, 1.0)
    assert len(buckets.values) == 1
    run = Moving()
    for seconds in range(1, 3 * MOST_TRACKS):
        run.mean(seconds=seconds)
    assert len(run.history._tracks) <= MOST_TRACKS + 1


def test_a_live_chart_keeps_two_windows_and_asks_for_older_values_again() -> None:
    run = Moving()
    run.mean()
    run.history.answered(run.ask(), MetricsWindow("", 0.0, 1.0, 0, ()))
    for second in range(100):
        run.tick(float(second))
        run.mean()
    earlier = run.now - 30
    assert run.history.show(run.frame(), UTIL, 1, earlier, 20, False)[0].mean[0] == 69.0
    assert run.history.due() == []
    run.history.show(run.frame(), UTIL, 1, run.now - 60, 20, False)
    assert run.ask().read.begin == int(run.now - 60)


def test_longer_buckets_fill_all_that_they_cover() -> None:
    series = Series("x", mean=(1.0, None, 9.0))
    spread = fitted_to(2, MetricsWindow("", 100.0, 10.0, 3), series)
    ones, nines = (1.0, 1.0, 1.0), (9.0, 9.0, 9.0)
    assert columns(spread) == [*[ones] * 5, *[None] * 5, *[nines] * 5]
    assert spread is not None
    assert spread.first == 50


def test_the_gpus_of_a_replay_are_known_without_samples_of_gpus() -> None:
    run = Moving()
    run.state.nodes[0].gpus = ()
    run.state.ranks = {rank: run.state.ranks[rank] for rank in (0, 5)}
    assert gpu_places(run.state) == {0: {0, 5}}


def test_a_sample_that_comes_late_leaves_no_hole_and_a_pause_does() -> None:
    run = Moving()
    run.tick(50.0)
    run.mean()
    run.now += 1.0  # this sample came a second late
    run.tick(70.0)
    assert run.mean(size=3) == [50.0, 50.0, 70.0]
    run.now += 2.0
    run.tick(90.0)
    assert run.mean(size=4) == [70.0, None, None, 90.0]
