"""The curves on disk: smallest, mean and largest values, bounds, what a crash or a full disk leaves."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from distui.runners.run.samples import Gpu, Host, RankSample, TrainingSample
from distui.runners.telemetry.metric_names import METRICS, NO_INDEX
from distui.runners.telemetry.metrics import MetricsStore
from distui.runners.telemetry.metrics_files import (
    LEVELS,
    Cells,
    Resolution,
    Row,
    cells_of,
    gathered,
    pieces,
    read_rows,
)

T = 1_800_000_000
SMALL = (Resolution(1, 5, 1, packed=False), Resolution(10, 3, 2), Resolution(60, 2, 2))


def gpu(util: float | None) -> Gpu:
    return Gpu(0, "u", "n", util=util, mem_used=80 << 30, power_w=500.0)


def rank(step_s: float | None) -> RankSample:
    return RankSample(3, cpu_percent=90.0, rss_bytes=1 << 30, step_s=step_s)


def fill(store: MetricsStore, seconds: int, begin: float = T) -> None:
    for second in range(seconds):
        assert store.append(begin + second, [gpu(float(second))])


def rows(directory: Path, seconds: int = 1) -> list[Row]:
    return [*read_rows(directory, next(level for level in LEVELS if level.seconds == seconds))]


def means(cells: Cells, name: str) -> dict[int, float]:
    return {index: cell[0] / cell[1] for index, cell in cells[name].items()}


def utils(directory: Path, seconds: int = 1) -> list[float]:
    return [means(cells_of(row), "gpu.util")[0] for row in rows(directory, seconds)]


def test_a_row_holds_low_mean_and_high_of_its_bucket(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path / "metrics")
    store.append(T + 0.1, [gpu(10.0)], [rank(0.0625)], Host(cpu_percent=20.0, mem_used=400))
    store.append(T + 0.6, [gpu(20.0)], [rank(None)], Host(cpu_percent=40.0))
    assert rows(tmp_path / "metrics") == []  # the second has not ended
    store.append(T + 1.1, [gpu(None)])
    (row,) = rows(tmp_path / "metrics")
    cells = cells_of(row)
    assert (row.time, row.seconds) == (T, 1)
    assert cells["gpu.util"] == {0: [30.0, 2, 10.0, 20.0]}
    assert cells["rank.step_s"] == {3: [0.0625, 1, 0.0625, 0.0625]}
    assert cells["host.cpu"] == {NO_INDEX: [60.0, 2, 20.0, 40.0]}
    assert "gpu.temp" not in cells  # unknown is left out, not 0
    assert "rank.step" not in cells


def test_coarse_rows_fold_the_finer_ones_exactly(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path)
    for second in range(72):  # a minute ends with the ten seconds after it
        # Known in some seconds alone: a mean of means would be wrong.
        store.append(T + second, [gpu(100.0 if second == 7 else 1.0 if second % 2 else None)])
    (minute,) = rows(tmp_path, 60)
    assert cells_of(minute)["gpu.util"] == {0: [129.0, 30, 1.0, 100.0]}


def test_a_count_keeps_its_newest_value_whole(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path)
    for second in range(12):
        store.append(T + second, ranks=[RankSample(0, step=123_456_780 + second)])
    (row,) = rows(tmp_path, 10)
    assert cells_of(row)["rank.step"] == {0: [123_456_789, 1, 123_456_780, 123_456_789]}


def test_each_report_of_a_script_counts_once(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path)
    signals = TrainingSample(0, at=1.0, loss=2.0, values={"eval/loss": 3.0, "a\x1b[31m": float("inf")})
    for second in range(4):
        store.append(T + second, training=[signals])
    store.append(T + 4, training=[TrainingSample(0, at=2.0, loss=4.0)])
    store.flush()
    found = [cells_of(row) for row in rows(tmp_path)]
    assert [set(cells) for cells in found] == [
        {"train.loss", "train.eval/loss"}, set(), set(), set(), {"train.loss"},
    ]  # fmt: skip


def test_flush_writes_what_is_open(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path)
    store.append(T, [gpu(1.0)])
    assert store.flush()
    assert utils(tmp_path) == [1.0]
    assert store.flush()
    assert len(rows(tmp_path)) == 1


def test_every_level_is_bounded(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path, SMALL)
    fill(store, 1500)
    for level in SMALL:
        full = pieces(tmp_path, level)
        assert len(full) == level.pieces
        assert all((path.suffix == ".gz") == level.packed for _, path in full)
        kept = [*read_rows(tmp_path, level)]
        assert level.rows * level.pieces < len(kept) <= level.rows * (level.pieces + 1)
        assert [row.time for row in kept] == sorted({row.time for row in kept})
        assert kept[-1].end >= T + 1500 - 1 - level.seconds
    assert len(list(tmp_path.iterdir())) == sum(level.pieces + 1 for level in SMALL)


def test_a_week_of_minutes_is_kept() -> None:
    minutes = next(level for level in LEVELS if level.seconds == 60)
    assert minutes.rows * minutes.pieces * 60 >= 7 * 86400


def test_a_new_writer_goes_on_where_the_old_one_was_killed(tmp_path: Path) -> None:
    fill(MetricsStore(tmp_path), 34)  # killed: 3 rows of 10 s, and 3 s that are in no such row
    with (tmp_path / "1s.jsonl").open("ab") as file:
        file.write(b'{"t":1800')
    fill(MetricsStore(tmp_path), 20, T + 36)
    assert utils(tmp_path) == [float(second) for second in (*range(33), *range(19))]
    tens = {row.time - T: cells_of(row)["gpu.util"][0] for row in rows(tmp_path, 10)}
    assert tens[0] == [45.0, 10, 0.0, 9.0]
    assert tens[30] == pytest.approx([30 + 31 + 32 + 0 + 1 + 2 + 3, 7, 0.0, 32.0], rel=1e-3)


def test_lines_that_are_no_rows_are_passed_over(tmp_path: Path) -> None:
    fill(MetricsStore(tmp_path), 3)
    good = (tmp_path / "1s.jsonl").read_bytes()
    hostile = (
        b"\xff\xfe", b"[" * 5000, b"{}", b'{"t":1e300,"m":{},"i":{}}', b'{"t":1,"s":0,"m":{},"i":{}}', b"null",
        b'{"t":99999999999999999999999,"m":{},"i":{}}', b'{"time":1e308,"seconds":1}',
        b'{"t":1800000005,"i":{"gpu":[0,1]},"m":{"gpu.util":[[1]],"gpu.temp":["x"],"gpu.mem":[],"gpu.power":[5]}}',
    )  # fmt: skip
    (tmp_path / "1s.jsonl").write_bytes(b"\n".join(hostile) + b"\n" + good)
    found = rows(tmp_path)
    assert [row.time for row in found][-2:] == [T, T + 1]
    odd = next(row for row in found if row.time == T + 5)
    assert cells_of(odd) == {"gpu.power": {0: [5.0, 1.0, 5.0, 5.0], 1: [5.0, 1.0, 5.0, 5.0]}}


def test_a_file_is_there_whole_while_it_is_packed(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path, SMALL)
    fill(store, 100)
    (_, packed), *_ = pieces(tmp_path, SMALL[1])
    plain = packed.with_suffix("")
    plain.write_bytes(gzip.decompress(packed.read_bytes()))  # killed between the two
    before = [row.time for row in read_rows(tmp_path, SMALL[1])]
    assert len(before) == len(set(before))
    (tmp_path / "10s-7.jsonl.tmp").write_bytes(b"torn")
    fill(MetricsStore(tmp_path, SMALL), 100, T + 200)
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]


def test_a_damaged_packed_file_costs_only_itself(tmp_path: Path) -> None:
    fill(MetricsStore(tmp_path, SMALL), 100)
    full = pieces(tmp_path, SMALL[1])
    full[0][1].write_bytes(full[0][1].read_bytes()[:60])
    assert len([*read_rows(tmp_path, SMALL[1])]) == 6


ROW = b'{"t":1,"i":{},"m":{}}'


@pytest.mark.parametrize(
    ("data", "damaged", "rows"),
    [
        (b"", False, 0),
        (ROW + b"\n", False, 1),
        (ROW + b'\n{"ti', False, 1),
        (ROW + b"\n\xff\n", True, 1),
        (b"\xff\n", True, 0),
    ],
)
def test_what_a_bundle_gets(tmp_path: Path, data: bytes, damaged: bool, rows: int) -> None:
    (tmp_path / "1s.jsonl").write_bytes(data)
    text, found = gathered(tmp_path, LEVELS[0], 1 << 20)
    assert (text.count(b"\n"), found) == (rows, damaged)


def test_a_bundle_gets_all_files_of_a_level_as_one_and_the_newest_of_too_many(tmp_path: Path) -> None:
    fill(MetricsStore(tmp_path, SMALL), 100)
    whole, _ = gathered(tmp_path, SMALL[1], 1 << 20)
    times = [row.time for row in read_rows(tmp_path, SMALL[1])]
    assert [int(line[5:15]) for line in whole.splitlines()] == times
    some, _ = gathered(tmp_path, SMALL[1], len(whole) // 2)
    assert whole.endswith(some)
    assert 0 < len(some) <= len(whole) // 2


def test_a_full_disk_is_said_and_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MetricsStore(tmp_path)
    assert store.append(T, [gpu(1.0)])
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda handle, data: 0)
        written = store.append(T + 1, [gpu(2.0)])
    assert (written, store.problem) == (
        False,
        f"the disk is full: no metrics are kept in {tmp_path}; free space there",
    )
    written = store.append(T + 2, [gpu(3.0)])
    assert (written, store.problem) == (True, None)
    assert utils(tmp_path) == [2.0]
    fill(store, 9, T + 3)
    assert (
        cells_of(rows(tmp_path, 10)[0])["gpu.util"][0][1] == 10
    )  # what the finer file lacks is in the coarser one


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text("a file")
    store = MetricsStore(tmp_path / "metrics")
    store.append(T)
    assert not store.append(T + 1)
    assert store.problem is not None
    assert store.problem.startswith("no metrics are kept in ")
    assert rows(tmp_path / "metrics") == []


def test_a_run_directory_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path / "removed" / "metrics")
    store.append(T)
    assert not store.append(T + 1)
    assert store.problem is not None
    assert not (tmp_path / "removed").exists()


@pytest.mark.parametrize("back", [0.5, 3600.0])
def test_a_clock_that_steps_back_loses_nothing(tmp_path: Path, back: float) -> None:
    store = MetricsStore(tmp_path)
    store.append(T + 0.7, [gpu(1.0)])
    store.append(T + 1.2, [gpu(2.0)])
    store.append(T + 1.2 - back, [gpu(3.0)])
    store.flush()
    assert sorted(utils(tmp_path)) == [1.0, 2.0, 3.0]


def test_every_metric_says_what_a_chart_needs() -> None:
    for name, metric in METRICS.items():
        curve = metric.curve
        assert curve.title, name
        assert curve.low is None or curve.high is None or curve.low < curve.high
