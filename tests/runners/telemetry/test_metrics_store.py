"""The curves on disk: means, bounds, what a crash or a full disk leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from distui.runners.model import Gpu, Host, RankSample
from distui.runners.telemetry.metrics import LEVELS, MetricsStore, Resolution, Row

T = 1_800_000_000.0
SMALL = (Resolution(1, 5), Resolution(10, 3), Resolution(60, 2))


def gpu(util: float | None) -> Gpu:
    return Gpu(0, "u", "n", util=util, mem_used=80 << 30, power_w=500.0)


def rank(step_s: float | None) -> RankSample:
    return RankSample(3, cpu_percent=90.0, rss_bytes=1 << 30, step_s=step_s)


def fill(store: MetricsStore, seconds: int, begin: float = T) -> None:
    for second in range(seconds):
        assert store.append(begin + second, [gpu(float(second))])


def history(directory: str | Path, seconds: float, levels: tuple[Resolution, ...] = LEVELS) -> list[Row]:
    """The rows of the last `seconds`, oldest first: the finest level as far as it reaches, before it coarser ones."""
    kept: list[Row] = []
    since = until = float("inf")
    for level in levels:
        rows = [row for row in _read(Path(directory) / level.name) if row.time < until]
        if rows and since == float("inf"):
            since = max(row.time + row.seconds for row in rows) - seconds
        kept = sorted((row for row in rows if row.time >= since), key=lambda row: row.time) + kept
        until = min((row.time for row in rows), default=until)
        if until <= since:
            break
    return kept


def _read(path: Path) -> Iterator[Row]:
    """The rows of one level, older file first; a line that does not decode (torn by a crash) is skipped."""
    decode = msgspec.json.Decoder(Row).decode
    for file in (path.with_name(path.name + ".1"), path):
        try:
            lines = file.read_bytes().splitlines()
        except OSError:
            continue
        for line in lines:
            try:
                yield decode(line)
            except (msgspec.DecodeError, msgspec.ValidationError):
                continue


def utils(rows: list[Row]) -> list[float | None]:
    return [row.gpus[0][0] for row in rows]


def test_a_row_holds_the_means_of_its_bucket(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path / "metrics")
    store.append(T + 0.1, [gpu(10.0)], [rank(0.0625)], Host(cpu_percent=20.0, mem_used=400))
    store.append(T + 0.6, [gpu(20.0)], [rank(None)], Host(cpu_percent=40.0))
    assert history(tmp_path / "metrics", 60) == []  # the second has not ended
    store.append(T + 1.1, [gpu(None)])
    assert history(tmp_path / "metrics", 60) == [
        Row(
            time=T,
            gpus={0: (15.0, 85899300000.0, 500.0, None)},  # six digits
            ranks={3: (90.0, 1073740000.0, 0.0625)},
            host=(30.0, 400.0),
        )
    ]


def test_flush_writes_what_is_open(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path)
    store.append(T, [gpu(1.0)])
    assert store.flush()
    assert utils(history(tmp_path, 60)) == [1.0]
    assert store.flush()
    assert len(history(tmp_path, 60)) == 1


def test_coarser_levels_hold_what_the_finer_no_longer_do(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path, SMALL)
    fill(store, 240)
    rows = history(tmp_path, 10_000, SMALL)
    assert [row.seconds for row in rows] == sorted((row.seconds for row in rows), reverse=True)
    assert [row.time for row in rows] == sorted(row.time for row in rows)
    assert {row.seconds for row in rows} == {1, 10, 60}
    assert rows[0].gpus[0][0] == 29.5  # the first minute's mean of 0…59
    assert utils(history(tmp_path, 5, SMALL)) == [234.0, 235.0, 236.0, 237.0, 238.0]
    assert all(row.time >= T + 239 - 30 for row in history(tmp_path, 30, SMALL))


def test_every_level_is_bounded(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path, SMALL)
    fill(store, 700)
    for level in SMALL:
        files = [tmp_path / level.name, tmp_path / (level.name + ".1")]
        lines = [len(file.read_bytes().splitlines()) for file in files]
        assert max(lines) <= level.rows
        assert sum(lines) > level.rows
    assert len(list(tmp_path.iterdir())) == 6


def test_a_new_agent_goes_on_where_the_old_one_was_cut_off(tmp_path: Path) -> None:
    fill(MetricsStore(tmp_path, SMALL), 4)
    with (tmp_path / "1s.jsonl").open("ab") as file:
        file.write(b'{"time":18000')
    fill(MetricsStore(tmp_path, SMALL), 4, T + 100)
    lines = (tmp_path / "1s.jsonl").read_bytes().splitlines()
    assert len(lines) <= SMALL[0].rows
    assert utils(history(tmp_path, 1000, SMALL)) == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]


def test_a_full_disk_is_said_and_survived(tmp_path: Path) -> None:
    store = MetricsStore(tmp_path)
    os.symlink("/dev/full", tmp_path / "1s.jsonl")
    assert store.append(T, [gpu(1.0)])
    written = store.append(T + 1, [gpu(2.0)])
    assert (written, store.problem) == (
        False,
        f"the disk is full: no metrics are kept in {tmp_path}; free space there",
    )
    (tmp_path / "1s.jsonl").unlink()
    written = store.append(T + 2, [gpu(3.0)])
    assert (written, store.problem) == (True, None)
    assert utils(history(tmp_path, 60)) == [2.0]


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text("a file")
    store = MetricsStore(tmp_path / "metrics")
    store.append(T)
    assert not store.append(T + 1)
    assert store.problem is not None
    assert store.problem.startswith("no metrics are kept in ")
    assert history(tmp_path / "metrics", 10) == []


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
    rows = [row for row in history(tmp_path, 10_000) if row.seconds == 1]
    assert sorted(value or 0 for value in utils(rows)) == [1.0, 2.0, 3.0]
