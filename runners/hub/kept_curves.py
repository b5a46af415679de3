"""Metrics of a run on several nodes: from nodes that answer, else from the copies at the ends of their parts."""

from __future__ import annotations

import asyncio
import gzip
import math
from collections.abc import AsyncIterator, Callable, Iterator

from msgspec import structs

from ...presets.base_dirs import private_folder
from ..run import clock, file_io
from ..run.answers import MetricsWindow, Series
from ..run.commands import ReadMetrics
from ..run.run_directories import Entry
from ..run.wire.client import Link, LinkError, new_id
from ..telemetry.curves import (
    AHEAD_S,
    BEFORE_ALL,
    DISTANT,
    MOST_BUCKETS,
    ask_curves,
    directories,
    kept,
    merged,
    refusal,
)
from ..telemetry.metric_names import NO_INDEX
from ..telemetry.metrics import encoded
from ..telemetry.metrics_files import COUNTS, FOLDER, Cells
from .merged_run import MergedRun

READ_SECONDS = 10.0
"""Maximum seconds for a node's answer."""
KEEP_SECONDS = 60.0
"""Maximum seconds for copying one node's metrics."""
PAGE = 120
"""Buckets per request, for every GPU and rank of a node."""
FEW_NODES = 8
FULL = ((600, 1008), (60, 720), (10, 360), (1, 240))
"""Seconds and number of the buckets to copy per node for few nodes: a week, 12 h, 1 h, 4 min; about 3 MB."""
SHORT = ((600, 480), (60, 120), (10, 120))
"""`FULL` for many nodes; about 1 MB."""

Up = Callable[[int], tuple[Link, float] | None]
"""The link to a node, if it is up, and the seconds to add to its times."""


class NodeCurves:
    def __init__(self, run: MergedRun, up: Up) -> None:
        self._run, self._up = run, up

    async def read(self, ask: ReadMetrics) -> MetricsWindow:
        """Merge the windows of all nodes that have one; skip nodes that do not answer."""
        if why := refusal(ask):
            return MetricsWindow(ask.id, error=why)
        now = clock.now()
        begin = self._run.record.created if ask.begin <= BEFORE_ALL else ask.begin
        end = now if ask.end > now + AHEAD_S else ask.end
        fold = "each" if ask.fold == "each" else "node"
        buckets = min(ask.buckets, MOST_BUCKETS)
        part = structs.replace(
            ask, begin=begin, end=max(end, begin + 1), fold=fold, counts=True, buckets=buckets
        )
        nodes = self._run.nodes.numbers()
        windows = await asyncio.gather(*(self._read_node(node, part) for node in nodes))
        return merged(
            ask, {node: pair for node, pair in zip(nodes, windows, strict=True) if pair is not None}
        )

    async def _read_node(self, node: int, part: ReadMetrics) -> tuple[MetricsWindow, float] | None:
        reached = self._up(node)
        if reached is not None:
            link, shift = reached
            own = structs.replace(part, id=new_id(), begin=part.begin - shift, end=part.end - shift)
            try:
                async with asyncio.timeout(READ_SECONDS):
                    return await link.read_metrics(own), shift
            except (LinkError, OSError, TimeoutError):
                pass  # fall back to the copy
        store = kept(Entry(self._run.run_dir, self._run.record)).get(node)
        return None if store is None else (await ask_curves({node: store}, part), 0.0)


class KeptCurves:
    """Copies the metrics of ended parts to the hub's run directory."""

    def __init__(self, run: MergedRun) -> None:
        self._run = run

    async def keep(self, node: int, link: Link, shift: float) -> None:
        """Copy the metrics of one node, unless they are on this machine; `shift`: seconds to add to its times.

        Raises LinkError, TimeoutError and OSError.
        """
        if node in directories(Entry(self._run.run_dir, self._run.record)):
            return
        spans = FULL if len(self._run.nodes.numbers()) <= FEW_NODES else SHORT
        async with asyncio.timeout(KEEP_SECONDS):
            whole = await link.read_metrics(ReadMetrics(new_id(), BEFORE_ALL, DISTANT, metrics=("host",)))
            times = [
                whole.begin + place * whole.seconds
                for series in whole.series
                for place, value in enumerate(series.mean)
                if value is not None
            ]
            if not times:
                return
            first, end = min(times), max(times) + whole.seconds
            for seconds, buckets in spans:
                rows = [row async for row in self._pages(link, seconds, buckets, first, end)]
                if rows:
                    await asyncio.to_thread(self._write, node, seconds, rows, shift)

    async def _pages(
        self, link: Link, seconds: int, buckets: int, first: float, end: float
    ) -> AsyncIterator[tuple[int, Cells]]:
        last = math.ceil(end / seconds) * seconds
        begin = max(last - seconds * buckets, int(first // seconds) * seconds)
        for at in range(begin, last, PAGE * seconds):
            until = min(at + PAGE * seconds, last)
            ask = ReadMetrics(new_id(), at, until, (until - at) // seconds, counts=True)
            window = await link.read_metrics(ask)
            if window.seconds == seconds:
                for row in rows_of(window):
                    yield row

    def _write(self, node: int, seconds: int, rows: list[tuple[int, Cells]], shift: float) -> None:
        folder = self._run.run_dir / f"node-{node}" / FOLDER
        private_folder(folder)
        later = round(shift / seconds) * seconds
        lines = b"".join(encoded(at + later, seconds, cells) for at, cells in rows)
        data = gzip.compress(lines, compresslevel=6, mtime=0)
        file_io.write_atomically(folder / f"{seconds}s-{rows[0][0] + later}.jsonl.gz", data)


def rows_of(window: MetricsWindow) -> Iterator[tuple[int, Cells]]:
    """Convert a window of every GPU and rank of a node, requested with `counts`, to rows (unix time, cells). Pure."""
    for place in range(window.count):
        cells: Cells = {}
        for series in window.series:
            cell = _cell(series, place)
            if cell is not None:
                index = NO_INDEX if series.index is None else series.index
                cells.setdefault(series.metric, {})[index] = cell
        if cells:
            yield int(window.begin + place * window.seconds), cells


def _cell(series: Series, place: int) -> list[float] | None:
    """Return sum, samples, minimum and maximum; None without samples."""
    mean = series.mean[place]
    low, high = (series.low or series.mean)[place], (series.high or series.mean)[place]
    samples = series.samples[place] if series.samples else 1
    if mean is None or low is None or high is None or not samples:
        return None
    return [mean if series.metric in COUNTS else mean * samples, samples, low, high]
