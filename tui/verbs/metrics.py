"""metrics: the curves of a run as numbers: newest, smallest, mean and largest value of each series in a window."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from msgspec import Struct

from ...presets.plurals import plural
from ...presets.spelling import nearest_names
from ...runners.node.local_agent import with_link
from ...runners.run import clock, run_directories
from ...runners.run.errors import RunError
from ...runners.run.model import HUB, MetricsWindow, ReadMetrics, Series
from ...runners.run.wire.client import Link, new_id
from ...runners.telemetry.metric_names import METRICS, SOURCES, find_metric, source_of, unknown
from ...runners.telemetry.quantity_text import value_text
from ..option_values import DISTANT
from ..rows.glyphs import table
from ..rows.plot import Axis, Mode, finite, sparkline
from ..terminal import answer, complain
from .run_or_bundle import run_or_bundle

WIDTH = 24
"""Columns of a small curve."""


@run_or_bundle
def metrics(options: argparse.Namespace) -> int:
    """Print the metrics of a window, or the names of metrics."""
    names = _names(options)
    if options.list and options.run is None:
        return _print_names(list(METRICS), options.json)

    async def use(entry: run_directories.Entry, link: Link) -> tuple[str, MetricsWindow]:
        begin, end = window_of(options, clock.now(), _ended(entry))
        fold = "all" if options.fold else "each"
        ask = ReadMetrics(new_id(), begin, end, 240, tuple(names), fold, counts=True)
        return entry.record.run, await link.read_metrics(ask)

    run, window = asyncio.run(with_link(options.run, use))
    if window.error:
        complain(window.error)
        return 1
    if options.list:
        return _print_names([*dict.fromkeys(series.metric for series in window.series)], options.json)
    shown = [curve_of(series) for series in chosen(window.series, options.rank, options.gpu, bool(names))]
    if not shown and not options.json:
        complain(
            "there are no values in this window: `distui metrics RUN --list` lists the metrics of a run"
        )
        return 1
    document = Curves(run, window.begin, window.seconds, window.count, shown)
    answer(options.json, document, lines(shown, _draws_blocks(options)))
    return 0


def _draws_blocks(options: argparse.Namespace) -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8" and not options.ascii


def _names(options: argparse.Namespace) -> list[str]:
    """Return the metrics that the user named; the first may be in place of RUN. Raises RunError."""
    names: list[str] = list(options.metric)
    if options.run in (*METRICS, *SOURCES) and not _is_run(options.run):
        names.insert(0, options.run)
        options.run = None
    if strange := unknown(names):
        raise RunError(
            f"there is no metric {strange[0]!r}: {_meant(strange[0])}`distui metrics --list` lists all"
        )
    return names


def _meant(word: str) -> str:
    """Return a question with metrics that a word may mean (`loss` is train.loss), or ""."""
    near = [name for name in METRICS if name.endswith(f".{word}")] or nearest_names(word, METRICS, 0.6, 1)
    return f"did you mean {' or '.join(near)}? " if near else ""


def _is_run(name: str) -> bool:
    """Whether a run has this name, which then takes precedence over a metric's name."""
    return any(entry.record.name == name for entry in run_directories.entries())


def _ended(entry: run_directories.Entry) -> float | None:
    """Return the unix time of the last event of a run that has ended; None for a live one."""
    if not run_directories.phase(entry).ended:
        return None
    history = entry.history()
    return max((stamped.time for stamped in history.events), default=None)


# --- the window: pure --------------------------------------------------------------------------------------------


def window_of(options: argparse.Namespace, now: float, ended: float | None) -> tuple[float, float]:
    """Return begin and end in unix seconds; `--last` counts back from now, or from the end of a run. Raises RunError."""
    if options.last is not None and (options.since is not None or options.until is not None):
        raise RunError("--last excludes --since and --until: give one or the other")
    newest = now if ended is None else ended + 1
    begin, end = options.since or 0.0, now if ended is None else DISTANT
    if options.last is not None:
        begin, end = newest - options.last, newest
    elif options.until is not None:
        end = options.until
    if begin >= end:
        raise RunError("the window is empty: --since has to be before --until, and --last above 0")
    return begin, end


# --- output: pure ------------------------------------------------------------------------------------------------


def chosen(
    series: Sequence[Series], ranks: Sequence[int], gpus: Sequence[int], named: bool
) -> list[Series]:
    """Return the series of these ranks and GPUs; other series only if a metric was named."""
    if not ranks and not gpus:
        return [*series]
    wanted = {"rank": ranks, "train": ranks, "gpu": gpus}
    shown = []
    for each in series:
        indexes = wanted.get(source_of(each.metric), ())
        if each.index in indexes or (named and not indexes):
            shown.append(each)
    return shown


class Curve(Struct, frozen=True):
    """One series with its numbers."""

    metric: str
    title: str
    unit: str
    node: int | None
    index: int | None
    of: int
    last: float | None
    min: float | None
    mean: float | None
    max: float | None
    means: Sequence[float | None]
    lows: Sequence[float | None]
    highs: Sequence[float | None]
    samples: Sequence[int]


class Curves(Struct, frozen=True):
    """`metrics RUN`."""

    run: str
    begin: float
    seconds: float
    count: int
    series: list[Curve]


class MetricName(Struct, frozen=True):
    """A row of `metrics --list`."""

    metric: str
    unit: str
    title: str


def curve_of(series: Series) -> Curve:
    """Return a series with its numbers: a spike counts as largest value, and the mean is over all samples."""
    about, means = find_metric(series.metric), finite(series.mean)
    lows, highs = series.low or series.mean, series.high or series.mean
    return Curve(
        series.metric,
        about.title,
        about.unit,
        None if series.node == HUB else series.node,
        series.index,
        series.of,
        last=means[-1] if means else None,
        min=min(finite(lows), default=None),
        mean=_mean(series),
        max=max(finite(highs), default=None),
        means=series.mean,
        lows=lows,
        highs=highs,
        samples=series.samples,
    )


def _mean(series: Series) -> float | None:
    """Return the mean of all samples; a bucket without their number counts as one sample."""
    total, samples = 0.0, 0
    for at, value in enumerate(series.mean):
        if value is not None:
            count = series.samples[at] if series.samples else 1
            total, samples = total + value * count, samples + count
    return total / samples if samples else None


def lines(shown: Sequence[Curve], utf8: bool) -> list[str]:
    """Return a table with one row per series."""
    rows = [("METRIC", "OF", "LAST", "MIN", "MEAN", "MAX", *(("CURVE",) if utf8 else ()))]
    several = len({curve.node for curve in shown}) > 1
    for curve in shown:
        numbers = (curve.last, curve.min, curve.mean, curve.max)
        cells = [curve.metric, _owner(curve, several), *(value_text(each, curve.unit) for each in numbers)]
        rows.append((*cells, small_curve(curve)) if utf8 else tuple(cells))
    return table(rows, frozenset({2, 3, 4, 5}))


def _owner(curve: Curve, several: bool) -> str:
    source = source_of(curve.metric)
    if source == "host":
        return f"node {curve.node}" if curve.node is not None else plural(curve.of, "node")
    if curve.index is not None:
        text = f"{'rank' if source == 'train' else source} {curve.index}"
    else:
        text = plural(curve.of, "GPU" if source == "gpu" else "rank")
    return f"node {curve.node} {text}" if several else text


def small_curve(curve: Curve) -> str:
    """Return means as blocks; a space means no sample."""
    size, about = len(curve.means), find_metric(curve.metric)
    values: list[float | None] = []
    for cell in range(WIDTH):
        first = size * cell // WIDTH
        group = finite(curve.means[first : max(size * (cell + 1) // WIDTH, first + 1)])
        values.append(sum(group) / len(group) if group else None)
    known = finite(values)
    if not known:
        return ""
    low, high = about.curve.low, about.curve.high
    if low is None or high is None:
        low, high = min(known), max(known)
    return sparkline(values, WIDTH, Axis(low, high), Mode.BLOCK)


def _print_names(names: Sequence[str], as_json: bool) -> int:
    listed = [MetricName(name, find_metric(name).unit, find_metric(name).title) for name in names]
    rows = [(about.metric, about.unit, about.title) for about in listed]
    answer(as_json, listed, table([("METRIC", "UNIT", "TITLE"), *rows]))
    return 0
