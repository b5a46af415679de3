"""Metrics of a run on several nodes: merged by clock while they live, and kept when their parts end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest
from patience import HANG_S

from distui.runners.hub.kept_curves import KeptCurves
from distui.runners.node.agentless import DiskLink
from distui.runners.run.answers import MetricsWindow, Series
from distui.runners.run.commands import ReadMetrics
from distui.runners.run.model import HUB
from distui.runners.run.run_directories import Entry, new_record
from distui.runners.run.samples import Gpu, Host, RankSample
from distui.runners.run.wire.client import Link
from distui.runners.telemetry.curves import merged
from distui.runners.telemetry.metrics import MetricsStore

from .rehearsal import Rehearsed

T = 1_800_000_000


def ask(
    *metrics: str, begin: float = 0, end: float = 1e12, fold: str = "each", buckets: int = 240
) -> ReadMetrics:
    return ReadMetrics("a", begin, end, buckets, metrics, fold)


def window(begin: float, seconds: float, *series: Series) -> MetricsWindow:
    return MetricsWindow("x", begin, seconds, len(series[0].mean), series)


def test_nodes_count_by_their_samples_and_clocks() -> None:
    of_0 = window(T, 5, Series("gpu.util", 0, None, 8, (10, None), (5, None), (20, None), (40, 0)))
    # This node's clock is 100 s behind, and its window begins with the same moment by its own clock.
    of_1 = window(T - 100, 5, Series("gpu.util", 0, None, 2, (60, 70), (), (), (10, 10)))
    whole = merged(ask(fold="all"), {0: (of_0, 0.0), 3: (of_1, 99.1)})
    (series,) = whole.series
    assert (whole.begin, whole.seconds, whole.count) == (T, 5, 2)
    assert (series.node, series.of, series.mean) == (HUB, 10, (20, 70))
    assert (series.low, series.high) == ((5, 70), (60, 70))
    by_node = merged(ask(fold="node"), {0: (of_0, 0.0), 3: (of_1, 99.1)})
    assert [(series.node, series.of) for series in by_node.series] == [(0, 8), (3, 2)]


def test_a_node_that_has_only_coarse_rows_makes_all_coarse() -> None:
    fine = window(T, 5, Series("rank.step", 0, 0, 1, tuple(range(24)), (), (), (1,) * 24))
    coarse = window(T, 60, Series("rank.step", 0, 1, 1, (9, 19), (0, 10), (9, 19), (1, 1)))
    whole = merged(ask(), {0: (fine, 0.0), 1: (coarse, 0.0)})
    assert (whole.seconds, [(s.node, s.index, s.mean) for s in whole.series]) == (
        60, [(0, 0, (11, 23)), (1, 1, (9, 19))],
    )  # fmt: skip


def test_nodes_that_do_not_answer_are_left_out() -> None:
    good = window(T, 1, Series("host.cpu", 0, None, 1, (1,), (), (), (1,)))
    refused = MetricsWindow("x", error="the agent of this run is of an older distui: it serves no curves")
    assert merged(ask(), {0: (good, 0.0), 1: (refused, 0.0)}).error == ""
    assert "older distui" in merged(ask(), {1: (refused, 0.0)}).error
    assert "no node" in merged(ask(), {}).error


class _Nodes:
    def numbers(self) -> list[int]:
        return [0, 1]


class _Run:
    """The part of a hub's run that keeping needs."""

    def __init__(self, path: Path) -> None:
        self.run_dir, self.record, self.nodes = path, new_record("whole"), _Nodes()
        self.record = msgspec.structs.replace(self.record, kind="hub", nnodes=2)


def test_what_is_kept_of_a_node_is_what_the_node_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's own files by a link, then the hub's run directory without the node."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    there = Entry(tmp_path / "there", new_record("part"))
    there.path.mkdir()
    store = MetricsStore(there.path / "metrics")
    begin = int(time.time()) - 4000
    for second in range(4000):
        spike = 100.0 if second == 777 else 1.0
        gpus = [Gpu(0, "u", "n", util=spike), Gpu(3, "u", "n", util=3.0)]
        store.append(begin + second, gpus, [RankSample(7, step=second)], Host(cpu_percent=5.0))
    store.flush()
    run = _Run(tmp_path / "hub")
    run.run_dir.mkdir()

    async def keep() -> tuple[MetricsWindow, ...]:
        source = DiskLink(there)
        await KeptCurves(run).keep(1, source, 0.0)  # type: ignore[arg-type]
        link = DiskLink(Entry(run.run_dir, run.record))
        asked = ask("gpu", "rank", begin=begin, end=begin + 4000)
        hour = ask("gpu", "rank", begin=begin + 1000, end=begin + 4000)
        recent = ask("gpu", begin=begin + 3900, end=begin + 4000)
        return (
            await source.read_metrics(asked), await link.read_metrics(asked),
            await source.read_metrics(hour), await link.read_metrics(hour),
            await source.read_metrics(recent), await link.read_metrics(recent),
        )  # fmt: skip

    before, after, hour_before, hour_after, seconds_before, seconds_after = asyncio.run(keep())
    assert [series.node for series in after.series] == [1, 1, 1]
    assert (
        max(value for value in after.series[0].high if value is not None) == 100
    )  # of a minute more than an hour ago
    assert sum((run.run_dir / "node-1/metrics" / name).stat().st_size
               for name in [p.name for p in (run.run_dir / "node-1/metrics").iterdir()]) < 1 << 20  # fmt: skip
    assert [(s.metric, s.index) for s in after.series] == [(s.metric, s.index) for s in before.series]
    assert (hour_after.seconds, [s.mean for s in hour_after.series]) == (
        hour_before.seconds, [s.mean for s in hour_before.series],
    )  # fmt: skip
    assert (seconds_after.seconds, [s.mean for s in seconds_after.series]) == (
        seconds_before.seconds, [s.mean for s in seconds_before.series],
    )  # fmt: skip


async def test_a_hub_answers_for_all_its_nodes_and_its_files_after_the_end(run: Rehearsed) -> None:
    async def read(link: Link, *metrics: str, fold: str = "each") -> MetricsWindow:
        async with asyncio.timeout(HANG_S):
            while True:
                found = await link.read_metrics(ask(*metrics, fold=fold))
                if {series.node for series in found.series} >= ({0, 1} if fold == "each" else {HUB}):
                    return found
                await asyncio.sleep(0.2)

    await run.begin()
    async with run.viewer() as viewer:
        await viewer.until(lambda state: len(state.ranks) == 2)
        each = await read(viewer.link, "host.cpu")
        assert [(series.node, series.of) for series in each.series] == [(0, 1), (1, 1)]
        folded = await read(viewer.link, "host.cpu", fold="all")
        (series,) = folded.series
        assert (series.node, series.of) == (HUB, 2)
        await viewer.stop()
    assert run.hub is not None
    await run.hub.task
    after = await read(DiskLink(run.entry), "host.cpu")
    assert [(series.node, series.of) for series in after.series] == [(0, 1), (1, 1)]
