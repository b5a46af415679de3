"""Curves of a time window from the metrics on disk: `ReadMetrics` → `MetricsWindow`.

A window consists of buckets of equal length (`NICE_S`) that begin at multiples of it in unix time, so that a moving
window keeps its inner buckets. Rows come from the coarsest level with rows that add up to a bucket, or from a coarser
level if that level lacks the window's beginning. After a level's last row the finer levels continue. Minima, maxima and
means (weighted by samples) are exact.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from ..run import clock
from ..run.answers import MetricsWindow, Series
from ..run.commands import ReadMetrics
from ..run.model import HUB
from ..run.run_directories import Entry, parts
from .metric_names import METRICS, NO_INDEX, SOURCES, find_metric, selected, unknown
from .metrics_files import FOLDER, LEVELS, Resolution, Row, columns_of, end_of, oldest, read_rows

DAY_S = 86400
NICE_S = (
    *(1, 2, 3, 4, 5, 10, 20, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 20, 30)),
    *(3600 * hours for hours in (1, 2, 3, 6, 12)),
    *(DAY_S * days for days in (1, 2, 7, 28, 364)),
)
"""Bucket lengths; each is a multiple of some level's rows, and from 10 s on also of the second level's."""
MOST_BUCKETS = 1000
MOST_VALUES = 200_000
"""Maximum numbers in one answer, which keep it below MAX_LINE."""
FOLDS = ("each", "node", "all")
BEFORE_ALL = 0.0
"""A window with this begin or an earlier one begins with the run."""
DISTANT = 1e12
"""An end later than all real times."""
AHEAD_S = 3600.0
"""A window with an end further in the future than this ends with the newest row."""

_READERS = ThreadPoolExecutor(max_workers=1, thread_name_prefix="curves")  # limits viewers to one core


class Bins(NamedTuple):
    """Buckets of a window: `buckets` of `seconds` each, from `begin`."""

    begin: int
    seconds: int
    buckets: int

    @property
    def end(self) -> int:
        return self.begin + self.seconds * self.buckets


class Points(Struct):
    """One series during gathering, one element per bucket."""

    total: list[float]
    samples: list[float]
    low: list[float]
    high: list[float]
    of: int = 1
    """Number of GPUs or ranks in it."""


def no_points(size: int) -> Points:
    """Return an empty series."""
    return Points([0.0] * size, [0] * size, [math.inf] * size, [-math.inf] * size)


Gathered = dict[tuple[str, int], Points]
"""(metric, index) → series."""


def refusal(ask: ReadMetrics) -> str:
    """Why a request is refused, as a sentence; "" if it is not."""
    if not (math.isfinite(ask.begin) and math.isfinite(ask.end)):
        return "a window of metrics needs a begin and an end in unix seconds"
    if ask.begin >= ask.end:
        return (
            f"the window ends ({ask.end:.15g}) before it begins ({ask.begin:.15g}): give an earlier begin"
        )
    if ask.buckets < 1:
        return f"a window of metrics has at least 1 bucket, not {ask.buckets}"
    if ask.fold not in FOLDS:
        return f"fold is one of {', '.join(FOLDS)}, not {ask.fold[:40]!r}"
    if strange := unknown(ask.metrics):
        return f"there is no metric {strange[0][:60]!r}: `distui metrics --list` lists all"
    return ""


def bins_of(begin: float, end: float, buckets: int, least_s: int = 1) -> Bins:
    """Choose the shortest length of at least `least_s` with at most `buckets` buckets for the window. Pure."""
    for seconds in NICE_S:
        first, last = math.floor(begin / seconds), math.ceil(end / seconds)
        if seconds >= least_s and last - first <= buckets:
            break
    return Bins(first * seconds, seconds, min(last - first, buckets))


def level_for(seconds: int, levels: Sequence[Resolution] = LEVELS) -> int:
    """Return the index of the coarsest level whose rows add up to buckets of that length."""
    return max(place for place, level in enumerate(levels) if seconds % level.seconds == 0)


class Store:
    """The metrics of one node on disk, and the open second that its writer has not written yet."""

    def __init__(
        self, directory: Path, open_row: Row | None = None, levels: Sequence[Resolution] = LEVELS
    ) -> None:
        self._directory, self._open, self._levels = directory, open_row, levels

    @property
    def there(self) -> bool:
        """Whether there may be metrics."""
        return self._open is not None or self._directory.is_dir()

    def span(self) -> tuple[float, float] | None:
        """Unix times of the first and the last row; None without rows."""
        begins = [at for level in self._levels if (at := oldest(self._directory, level)) is not None]
        ends = [end_of(self._directory, level) for level in self._levels]
        if self._open is not None:
            begins.append(self._open.time)
            ends.append(self._open.end)
        return (min(begins), max(ends)) if begins else None

    def fit(self, begin: float, end: float, buckets: int) -> tuple[Bins, int]:
        """Choose buckets for a window, and the level to read."""
        bins = bins_of(begin, end, buckets)
        level = level_for(bins.seconds, self._levels)
        mine = oldest(self._directory, self._levels[level])
        for coarser in range(level + 1, len(self._levels)):
            reached = math.inf if mine is None else mine
            if reached <= begin:
                break
            other, seconds = oldest(self._directory, self._levels[coarser]), self._levels[coarser].seconds
            if other is not None and other + seconds <= reached:
                level, mine, bins = coarser, other, bins_of(begin, end, buckets, seconds)
        return bins, level

    def rows(self, level: int, begin: float, end: float) -> Iterator[Row]:
        """Yield rows of a level in [begin, end), and of finer levels after its last row."""
        reached = begin
        for finer in range(level, -1, -1):
            newest = reached
            for row in read_rows(self._directory, self._levels[finer], reached, end):
                newest = max(newest, row.end)
                yield row
            reached = newest if newest > reached else max(reached, self._until(finer))
        if self._open is not None and begin <= self._open.time < end:
            yield self._open

    def _until(self, level: int) -> float:
        return end_of(self._directory, self._levels[level])


Stores = Mapping[int, Store]
"""Node → store."""


def kept(entry: Entry) -> dict[int, Store]:
    """Return the metrics of a run on this machine, by node."""
    return {node: Store(path) for node, path in directories(entry).items()}


def directories(entry: Entry) -> dict[int, Path]:
    """Node → directory of its metrics on this machine: the run's own, its parts', and a hub's copies of others."""
    by_node: dict[int, Path] = {}
    for path in entry.path.glob(f"node-*/{FOLDER}"):
        number = path.parent.name.removeprefix("node-")
        if number.isdecimal() and len(number) < 7:
            by_node[int(number)] = path
    if entry.record.kind == "hub":
        by_node |= {part.record.node: part.path / FOLDER for part in parts(entry.record.run)}
    else:
        by_node[entry.record.node] = entry.path / FOLDER
    return {node: path for node, path in sorted(by_node.items()) if path.is_dir()}


def newest(store: Store, metrics: Sequence[str], begin: float, end: float) -> dict[str, dict[int, float]]:
    """Metric → index → newest value in [begin, end). Reads files; never raises."""
    values: dict[str, dict[int, float]] = {name: {} for name in metrics}
    for row in store.rows(0, begin, end):
        for name in metrics:
            columns = columns_of(row, name)
            if columns is not None:
                pairs = zip(columns.indexes, columns.high, strict=True)
                values[name] |= {index: value for index, value in pairs if value is not None}
    return values


def read(stores: Stores, ask: ReadMetrics, now: float | None = None) -> MetricsWindow:
    """Read the curves of one or several nodes from files; never raise."""
    if why := refusal(ask):
        return MetricsWindow(ask.id, error=why)
    stores = {node: store for node, store in stores.items() if store.there}
    window = _window(stores, ask, clock.now() if now is None else now)
    if not stores or window is None:
        return MetricsWindow(ask.id, error="no metrics of this run are kept here")
    buckets = min(ask.buckets, MOST_BUCKETS)
    fits = {node: store.fit(*window, buckets) for node, store in stores.items()}
    least = max(bins.seconds for bins, _ in fits.values())
    bins = bins_of(*window, buckets, least)
    gathered = {
        node: gather(stores[node].rows(level, bins.begin, bins.end), bins, ask.metrics, ask.indexes)
        for node, (_, level) in fits.items()
    }
    return answer(ask, bins, folded(gathered, ask.fold, ask.counts))


def _window(stores: Stores, ask: ReadMetrics, now: float) -> tuple[float, float] | None:
    """Resolve begin and end to unix seconds; None if they depend on the existing rows, and there are none."""
    from_first, to_last = ask.begin <= BEFORE_ALL, ask.end > now + AHEAD_S
    if not from_first and not to_last:
        return ask.begin, ask.end
    spans = [span for store in stores.values() if (span := store.span())]
    if not spans:
        return None
    begin = min(span[0] for span in spans) if from_first else ask.begin
    end = max(span[1] for span in spans) if to_last else ask.end
    return begin, max(end, begin + 1)


def finite(values: Sequence[float | None]) -> list[float]:
    """Return the values that are known and finite."""
    return [value for value in values if value is not None and math.isfinite(value)]


async def ask_curves(stores: Stores, ask: ReadMetrics) -> MetricsWindow:
    """Call `read` in a thread."""
    return await asyncio.get_running_loop().run_in_executor(_READERS, read, stores, ask)


def answer(ask: ReadMetrics, bins: Bins, series: Sequence[Series]) -> MetricsWindow:
    """Build the window, or an error if it is too large to send."""
    values = sum(len(each.mean) + len(each.low) + len(each.high) + len(each.samples) for each in series)
    if values > MOST_VALUES:
        return MetricsWindow(
            ask.id,
            error=f"the window holds {values:,} values, and an answer at most {MOST_VALUES:,}: "
            "ask for fewer buckets or metrics, or fold them",
        )
    return MetricsWindow(ask.id, float(bins.begin), float(bins.seconds), bins.buckets, tuple(series))


def merged(ask: ReadMetrics, windows: Mapping[int, tuple[MetricsWindow, float]]) -> MetricsWindow:
    """Merge the windows of several nodes, which were requested with `counts`. Pure.

    Each comes with the seconds to add to its times; buckets stay aligned, so these are rounded to whole buckets.
    """
    usable = {node: pair for node, pair in windows.items() if not pair[0].error and pair[0].count > 0}
    if not usable:
        errors = [window.error for window, _ in windows.values() if window.error]
        return MetricsWindow(ask.id, error=errors[0] if errors else "no node of this run answers")
    seconds = int(max(window.seconds for window, _ in usable.values()))
    begins = {node: _moved(window, shift) for node, (window, shift) in usable.items()}
    begin = min(begins.values()) // seconds * seconds
    end = max(begins[node] + window.seconds * window.count for node, (window, _) in usable.items())
    bins = Bins(begin, seconds, min(MOST_BUCKETS, math.ceil((end - begin) / seconds)))
    gathered = {node: _regathered(window, begins[node], bins) for node, (window, _) in usable.items()}
    return answer(ask, bins, folded(gathered, ask.fold, ask.counts))


def _moved(window: MetricsWindow, shift: float) -> int:
    return int(window.begin) + round(shift / window.seconds) * int(window.seconds)


def _regathered(window: MetricsWindow, begin: int, bins: Bins) -> Gathered:
    gathered: Gathered = {}
    for series in window.series:
        index = NO_INDEX if series.index is None else series.index
        points = gathered[series.metric, index] = no_points(bins.buckets)
        points.of = series.of
        last = find_metric(series.metric).curve.last
        low, high = series.low or series.mean, series.high or series.mean
        columns = zip(series.mean, low, high, series.samples or (1,) * len(series.mean), strict=False)
        for number, (mean, least, most, samples) in enumerate(columns):
            place = (begin + number * int(window.seconds) - bins.begin) // bins.seconds
            if mean is not None and least is not None and most is not None and 0 <= place < bins.buckets:
                _add(points, place, last, mean, samples, least, most)
    return gathered


def gather(
    rows: Iterable[Row], bins: Bins, metrics: Sequence[str] = (), indexes: Sequence[int] = ()
) -> Gathered:
    """Sort rows into buckets."""
    gathered: Gathered = {}
    only, chosen = frozenset(indexes), dict[str, bool]()
    for row in rows:
        place = (row.time - bins.begin) // bins.seconds
        if not 0 <= place < bins.buckets:
            continue
        for name in row.columns:
            wanted = chosen.get(name)
            if wanted is None:
                wanted = chosen[name] = selected(name, metrics)
            if wanted:
                _put(gathered, bins, place, name, row, only)
    if bins.seconds == 1:
        _bridge(gathered)
    return gathered


def _put(gathered: Gathered, bins: Bins, place: int, name: str, row: Row, only: frozenset[int]) -> None:
    columns = columns_of(row, name)
    if columns is None:
        return
    last = find_metric(name).curve.last
    for index, mean, low, high, count in zip(*columns, strict=True):
        if mean is None or low is None or high is None or not count:
            continue
        if only and index not in only and index != NO_INDEX:
            continue
        points = gathered.get((name, index))
        if points is None:
            points = gathered[name, index] = no_points(bins.buckets)
        _add(points, place, last, mean, count, low, high)


def _add(
    points: Points, place: int, last: bool, mean: float, samples: float, low: float, high: float
) -> None:
    if last:
        points.total[place], points.samples[place] = mean * samples, samples
    else:
        points.total[place] += mean * samples
        points.samples[place] += samples
    if low < points.low[place]:
        points.low[place] = low
    if high > points.high[place]:
        points.high[place] = high


def _bridge(gathered: Gathered) -> None:
    """Fill single empty seconds from the next one: samples come a little less often than once per second."""
    for (name, _), points in gathered.items():
        if find_metric(name).sparse:
            continue
        samples = points.samples
        for place in range(1, len(samples) - 1):
            if not samples[place] and samples[place - 1] and samples[place + 1]:
                for values in (points.total, samples, points.low, points.high):
                    values[place] = values[place + 1]


def folded(gathered: Mapping[int, Gathered], fold: str, counts: bool = False) -> list[Series]:
    """Fold the series of several nodes, in the order of the metrics table."""
    by_metric: dict[str, dict[tuple[int, int], Points]] = {}
    for node, of_node in gathered.items():
        for (name, index), points in of_node.items():
            by_metric.setdefault(name, {})[node, index] = points
    series = []
    for name in sorted(by_metric, key=_order):
        groups: dict[tuple[int, int], list[Points]] = {}
        for (node, index), points in sorted(by_metric[name].items()):
            groups.setdefault(_group(fold, node, index), []).append(points)
        for (node, index), several in groups.items():
            place = next(iter(gathered)) if node == HUB and len(gathered) == 1 else node
            series.append(_series(name, place, None if index == NO_INDEX else index, several, counts))
    return series


def _group(fold: str, node: int, index: int) -> tuple[int, int]:
    """Node and index of the folded series that includes the series of `node` and `index`."""
    if fold == "each":
        return node, index
    return (node, NO_INDEX) if fold == "node" else (HUB, NO_INDEX)


def _order(name: str) -> tuple[int, int, str]:
    source = name.partition(".")[0]
    return (
        SOURCES.index(source) if source in SOURCES else len(SOURCES),
        _PLACES.get(name, len(_PLACES)),
        name,
    )


_PLACES = {name: place for place, name in enumerate(METRICS)}


def _sum(several: Sequence[Points]) -> Points:
    if len(several) == 1:
        return several[0]
    return Points(
        [*map(sum, zip(*(each.total for each in several), strict=True))],
        [*map(sum, zip(*(each.samples for each in several), strict=True))],
        [*map(min, zip(*(each.low for each in several), strict=True))],
        [*map(max, zip(*(each.high for each in several), strict=True))],
        sum(each.of for each in several),
    )


def _series(name: str, node: int, index: int | None, several: Sequence[Points], counts: bool) -> Series:
    points = _sum(several)
    mean = tuple(
        _short(total / count) if count else None
        for total, count in zip(points.total, points.samples, strict=True)
    )
    low = tuple(_short(value) if value != math.inf else None for value in points.low)
    high = tuple(_short(value) if value != -math.inf else None for value in points.high)
    if low == high == mean:
        low = high = ()
    samples = tuple(int(count) for count in points.samples) if counts else ()
    return Series(name, node, index, points.of, mean, low, high, samples)


def _short(value: float) -> float:
    """Round to six digits, with whole numbers as int, which are shorter on the wire."""
    value = value if value.__class__ is int else float(f"{value:.6g}")
    return int(value) if value == int(value) else value
