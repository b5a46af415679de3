"""Curves of a window: buckets, levels, folds, gaps, and what nobody should ask for."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distui.runners.run.answers import MetricsWindow, Series
from distui.runners.run.commands import ReadMetrics
from distui.runners.run.model import HUB
from distui.runners.run.samples import Gpu, Host, RankSample, TrainingSample
from distui.runners.run.wire.frames import MAX_LINE, encode
from distui.runners.telemetry.curves import MOST_VALUES, NICE_S, Bins, Store, bins_of, level_for, read
from distui.runners.telemetry.metrics import MetricsStore, encoded
from distui.runners.telemetry.metrics_files import LEVELS

T = 1_800_000_000
DAY = 86400


def ask(
    begin: float, end: float, *metrics: str, buckets: int = 240, fold: str = "each", **more: object
) -> ReadMetrics:
    return msgspec.convert(
        {"type": "ReadMetrics", "id": "a", "begin": begin, "end": end, "buckets": buckets, "metrics": metrics,
         "fold": fold, **more},
        ReadMetrics,
    )  # fmt: skip


def curves(directory: Path, asked: ReadMetrics, now: float = T + 30 * DAY) -> MetricsWindow:
    return read({0: Store(directory)}, asked, now)


def one(window: MetricsWindow) -> Series:
    assert window.error == ""
    (series,) = window.series
    return series


def gpus(util: float, count: int = 1) -> list[Gpu]:
    return [Gpu(index, "u", "n", util=util + index) for index in range(count)]


def written(directory: Path, seconds: range, skip: range = range(0)) -> MetricsStore:
    store = MetricsStore(directory)
    for second in seconds:
        if second not in skip:
            store.append(T + second, gpus(float(second % 50)))
    store.flush()
    return store


# --- buckets -----------------------------------------------------------------------------------------------------


@given(st.floats(0, 4e9), st.floats(0.01, 1e9), st.integers(1, 1000))
def test_buckets_are_nice_aligned_and_few(begin: float, length: float, buckets: int) -> None:
    bins = bins_of(begin, begin + length, buckets)
    assert bins.seconds in NICE_S
    assert bins.begin % bins.seconds == 0
    assert 1 <= bins.buckets <= max(buckets, 1)
    assert bins.begin <= begin
    assert bins.end >= begin + length or bins.seconds == NICE_S[-1]
    assert bins.seconds % LEVELS[level_for(bins.seconds)].seconds == 0


def test_a_window_that_moves_on_changes_only_its_edges(tmp_path: Path) -> None:
    written(tmp_path, range(1300))
    before = curves(tmp_path, ask(T + 400, T + 1200, "gpu.util"))
    after = curves(tmp_path, ask(T + 401, T + 1201, "gpu.util"))
    assert before.seconds == after.seconds == 4
    assert before.begin == after.begin
    first, second = one(before), one(after)
    assert first.mean[1:200] == second.mean[1:200]
    assert first.high[1:200] == second.high[1:200]


def test_a_spike_of_one_second_shows_in_a_window_of_a_week(tmp_path: Path) -> None:
    """Rows of a minute, as a writer has them after a week; the spike is in the middle of it."""
    tens = []
    for number in range(7 * 144):
        high = 100.0 if number == 500 else 3.0
        tens.append(encoded(T + number * 600, 600, {"gpu.util": {0: [600 * 3.0, 600, 3.0, high]}}))
    (tmp_path / "600s.jsonl").write_bytes(b"".join(tens))
    window = curves(tmp_path, ask(T, T + 7 * DAY, "gpu.util", fold="all"))
    series = one(window)
    assert (window.seconds, len(series.mean)) == (3600, 168)
    assert [value for value in series.high if value != 3] == [100]
    assert set(series.low) == {3}


def test_a_spike_of_one_second_goes_through_every_level(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path)
    for second in range(3 * 3600):
        store.append(T + second, gpus(100.0 if second == 1234 else 1.0))
    for last, seconds in ((10800, 60), (3 * 10800, 300), (10 * 10800, 600), (7 * DAY, 3600)):
        window = curves(tmp_path, ask(T + 10800 - last, T + 10800, "gpu.util"))
        assert (window.seconds, max(v for v in one(window).high if v is not None)) == (seconds, 100)


def test_a_gap_of_30_s_is_a_gap(tmp_path: Path) -> None:
    written(tmp_path, range(300), skip=range(100, 130))
    mean = one(curves(tmp_path, ask(T, T + 200, "gpu.util"))).mean
    assert [place for place, value in enumerate(mean) if value is None] == [*range(100, 130)]
    fives = one(curves(tmp_path, ask(T, T + 300, "gpu.util", buckets=60))).mean
    assert [place for place, value in enumerate(fives) if value is None] == [*range(20, 26)]


def test_samples_that_come_a_little_less_often_leave_no_hole(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path)
    for number in range(100):
        store.append(
            T + number * 1.02, gpus(float(number)), training=[TrainingSample(0, at=number // 9, loss=1.0)]
        )
    store.flush()
    assert None not in one(curves(tmp_path, ask(T, T + 100, "gpu.util"))).mean
    assert one(curves(tmp_path, ask(T, T + 100, "train.loss"))).mean.count(1) == 11  # a report is one point


# --- levels ------------------------------------------------------------------------------------------------------


def test_an_open_second_is_there_at_once_and_coarse_levels_lag_by_nothing(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path)
    for second in range(95):
        store.append(T + second, gpus(float(second)))
    live = {0: Store(tmp_path, store.open_row())}
    for buckets, seconds, newest in ((200, 1, 1), (15, 10, 5), (3, 60, 35), (1, 120, 95)):
        asked = ask(T, T + 95, "gpu.util", buckets=buckets, counts=True)
        window = read(live, asked, now=T + 95)
        series = one(window)
        assert window.seconds == seconds
        assert (series.high or series.mean)[-1] == 94
        assert series.samples[-1] == newest
    (later,) = read(live, ask(T - 4000, T + 95, "gpu.util", buckets=8, counts=True), now=T + 95).series
    assert (later.high[-1], sum(later.samples)) == (94, 95)


def test_a_window_that_the_seconds_have_forgotten_comes_from_coarser_rows(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path)
    for second in range(2 * 3600):
        store.append(T + second, gpus(1.0))
    window = curves(tmp_path, ask(T, T + 100, "gpu.util"))
    assert (window.seconds, one(window).mean) == (10, (1,) * 10)


def test_the_whole_run_is_asked_for_by_0(tmp_path: Path) -> None:
    written(tmp_path, range(1000))
    window = curves(tmp_path, ask(0, 1e300, "gpu.util"))
    assert (window.begin, window.seconds, window.count) == (T, 5, 200)
    assert None not in one(window).mean


# --- folds -------------------------------------------------------------------------------------------------------


def test_folds(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path)
    for second in range(10):
        store.append(T + second, gpus(10.0, count=3), host=Host(cpu_percent=7.0))
    store.flush()
    each = curves(tmp_path, ask(T, T + 10, "gpu", "host.cpu", buckets=1))
    assert [(s.metric, s.index, s.of, s.mean) for s in each.series] == [
        ("gpu.util", 0, 1, (10,)), ("gpu.util", 1, 1, (11,)), ("gpu.util", 2, 1, (12,)),
        ("host.cpu", None, 1, (7,)),
    ]  # fmt: skip
    assert each.series[0].low == each.series[0].high == ()
    folded = one(curves(tmp_path, ask(T, T + 10, "gpu.util", buckets=1, fold="node")))
    assert (folded.node, folded.index, folded.of) == (0, None, 3)
    assert (folded.mean, folded.low, folded.high) == ((11,), (10,), (12,))
    some = curves(tmp_path, ask(T, T + 10, "gpu.util", indexes=(1,), buckets=1))
    assert [series.index for series in some.series] == [1]


def nodes(directory: Path) -> Mapping[int, Store]:
    for node, (count, value) in enumerate(((1, 0.0), (3, 100.0))):
        (directory / str(node)).mkdir()
        store = MetricsStore(directory / str(node))
        for second in range(12):
            if second % count == 0:
                store.append(T + second, gpus(value))
        store.flush()
    return {node: Store(directory / str(node)) for node in (0, 1)}


def test_nodes_are_folded_by_samples(tmp_path: Path) -> None:
    stores = nodes(tmp_path)
    whole = one(read(stores, ask(T, T + 10, "gpu.util", buckets=1, fold="all"), T + 60))
    assert (whole.node, whole.of, whole.low, whole.high) == (HUB, 2, (0,), (100,))
    assert list(whole.mean) == pytest.approx([100 * 4 / 14], rel=1e-4)
    by_node = read(stores, ask(T, T + 10, "gpu.util", buckets=1, fold="node"), T + 60)
    assert [(series.node, series.mean) for series in by_node.series] == [(0, (0,)), (1, (100,))]


# --- what nobody should ask for ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (ask(T + 1, T), "before it begins"),
        (ask(T, T), "before it begins"),
        (ReadMetrics("a", math.nan, T), "unix seconds"),
        (ReadMetrics("a", T, math.inf), "unix seconds"),
        (ask(T, T + 1, buckets=0), "at least 1 bucket"),
        (ask(T, T + 1, buckets=-5), "at least 1 bucket"),
        (ask(T, T + 1, "gpu.utl"), "no metric 'gpu.utl'"),
        (ask(T, T + 1, "train."), "no metric 'train.'"),
        (ask(T, T + 1, fold="x" * 1000), "fold is one of"),
    ],
)
def test_a_window_that_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, asked: ReadMetrics, says: str
) -> None:
    written(tmp_path, range(3))
    window = curves(tmp_path, asked)
    assert says in window.error
    assert len(window.error) < 200
    assert window.series == ()


def test_hostile_windows_are_cut_to_size(tmp_path: Path) -> None:
    written(tmp_path, range(3))
    assert curves(tmp_path, ask(-1e300, 1e300, buckets=10**9)).count <= 1000
    assert curves(tmp_path, ask(T, 1e300)).count <= 240
    assert curves(tmp_path, ask(T - 1e9, T + 1, buckets=3)).count <= 3
    assert curves(tmp_path, ask(T, T + 2, "train.of my own")).series == ()
    assert "no metrics" in curves(tmp_path / "none", ask(T, T + 2)).error


def test_an_answer_fits_a_line(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path)
    many = [
        RankSample(rank, cpu_percent=rank / 7, rss_bytes=10**12 + rank, step_s=rank / 3)
        for rank in range(128)
    ]
    for second in range(1000):
        store.append(T + second, ranks=many)
    window = curves(tmp_path, ask(T, T + 1000, "rank", buckets=1000))
    assert f"at most {MOST_VALUES:,}" in window.error
    window = curves(tmp_path, ask(T, T + 1000, "rank", buckets=300))
    assert window.error == ""
    assert len(encode(window)) < MAX_LINE
    chart = curves(tmp_path, ask(T, T + 1000, "rank.rss", fold="all"))
    assert len(encode(chart)) < 10_000


def test_rows_that_lie_do_not_get_in(tmp_path: Path) -> None:
    (tmp_path / "1s.jsonl").write_bytes(
        b'{"t":%d,"s":1,"n":1,"i":{"gpu":[0,0,7],"x":[1]},"m":{"gpu.util":[[1,2]],"x.y":[3],"gpu":[1],"":[1]}}\n'
        % T
    )
    window = curves(tmp_path, ask(T, T + 5))
    assert window.error == ""


# --- readers beside a writer -------------------------------------------------------------------------------------


def test_readers_see_whole_rows_while_files_turn(tmp_path: Path) -> None:
    """Two readers and a writer whose files turn all the time: no row is torn, and none that was there is missed."""
    store = MetricsStore(tmp_path)
    for second in range(1500):
        store.append(T + second, gpus(5.0))
    stop, wrong = threading.Event(), list[object]()

    def look() -> None:
        while not stop.is_set():
            series = one(curves(tmp_path, ask(T + 1200, T + 1400, "gpu.util")))
            if set(series.mean) != {5}:
                wrong.append(series.mean)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for second in range(1500, 1900):
        store.append(T + second, gpus(5.0))
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []


def test_reading_writes_nothing(tmp_path: Path) -> None:
    written(tmp_path, range(20))
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    curves(tmp_path, ask(0, 1e12))
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert "metrics" not in os.listdir(tmp_path)


def test_bins_cover_a_window() -> None:
    assert bins_of(T, T + 600, 240) == Bins(T, 3, 200)
    assert bins_of(T + 0.5, T + 1, 240) == Bins(T, 1, 1)
