"""metrics: the curves of a run as numbers: newest, smallest, mean and largest value of each series in a window."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import TypedDict

from ...presets.finding import nearest_names
from ...presets.plurals import plural
from ...runners.node.local_agent import with_link
from ...runners.run import clock, run_directories
from ...runners.run.errors import RunError
from ...runners.run.formatting import NA, size_text
from ...runners.run.model import HUB, MetricsWindow, ReadMetrics, Series
from ...runners.run.wire.client import Link, new_id
from ...runners.telemetry.metric_names import METRICS, SOURCES, find_metric, source_of, unknown
from ..option_values import DISTANT
from ..rows.glyphs import table
from ..rows.plot import Axis, Mode, finite, sparkline
from ..terminal import answer, complain
from .runs import run_or_bundle

WIDTH = 24
"""Columns of a small curve."""


@run_or_bundle
def metrics(options: argparse.Namespace) -> int:
    """Print the metrics of a window, or the names of metrics."""
    names: list[str] = list(options.metric)
    if options.run is not None and options.run in (*METRICS, *SOURCES) and not _is_run(options.run):
        names.insert(0, options.run)  # RUN was omitted
        options.run = None
    if strange := unknown(names):
        raise RunError(
            f"there is no metric {strange[0]!r}: {_meant(strange[0])}`distui metrics --list` lists all"
        )
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
    shown = chosen(window.series, options.rank, options.gpu, bool(names))
    if not shown and not options.json:
        complain(
            "there are no values in this window: `distui metrics RUN --list` lists the metrics of a run"
        )
        return 1
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8" and not options.ascii
    answer(options.json, document(run, window, shown), lines(shown, utf8))
    return 0


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


class SeriesSummary:
    """The numbers of one series."""

    def __init__(self, series: Series) -> None:
        means = [value for value in series.mean if value is not None]
        lows = [value for value in (series.low or series.mean) if value is not None]
        highs = [value for value in (series.high or series.mean) if value is not None]
        counts = series.samples or tuple(int(value is not None) for value in series.mean)
        total = sum(
            value * count for value, count in zip(series.mean, counts, strict=False) if value is not None
        )
        self.last = means[-1] if means else None
        self.low, self.high = min(lows, default=None), max(highs, default=None)
        self.mean = total / sum(counts) if sum(counts) else None


def lines(shown: Sequence[Series], utf8: bool) -> list[str]:
    """Return a table with one row per series."""
    rows = [("METRIC", "OF", "LAST", "MIN", "MEAN", "MAX", *(("CURVE",) if utf8 else ()))]
    several = len({series.node for series in shown}) > 1
    for series in shown:
        summary, unit = SeriesSummary(series), find_metric(series.metric).unit
        values = (summary.last, summary.low, summary.mean, summary.high)
        curve = (small_curve(series),) if utf8 else ()
        rows.append(
            (series.metric, _owner(series, several), *(value_text(value, unit) for value in values), *curve)
        )
    return table(rows, frozenset({2, 3, 4, 5}))


def _owner(series: Series, several: bool) -> str:
    source = source_of(series.metric)
    if series.index is not None:
        text = f"{'rank' if source == 'train' else source} {series.index}"
    elif source == "host":
        text = f"node {series.node}" if series.node != HUB else plural(series.of, "node")
    else:
        text = plural(series.of, "GPU" if source == "gpu" else "rank")
    return f"node {series.node} {text}" if several and source != "host" else text


def value_text(value: float | None, unit: str) -> str:
    """Return a value with its unit."""
    if value is None:
        return NA
    if unit in ("B", "B/s"):
        return size_text(value) + unit[1:]
    number = f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"
    return f"{number} {unit}".rstrip() if unit not in ("%", "core %") else f"{number} %"


def small_curve(series: Series) -> str:
    """Return means as blocks; a space means no sample."""
    size, about = len(series.mean), find_metric(series.metric)
    groups = [
        finite(series.mean[size * k // WIDTH : max(size * (k + 1) // WIDTH, size * k // WIDTH + 1)])
        for k in range(WIDTH)
    ]
    values = [sum(group) / len(group) if group else None for group in groups]
    known = finite(values)
    if not known:
        return ""
    low, high = about.curve.low, about.curve.high
    if low is None or high is None:
        low, high = min(known), max(known)
    return sparkline(values, WIDTH, Axis(low, high), Mode.BLOCK)


class Curve(TypedDict):
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


class Curves(TypedDict):
    """`metrics RUN`."""

    run: str
    begin: float
    seconds: float
    count: int
    series: list[Curve]


class MetricName(TypedDict):
    """A row of `metrics --list`."""

    metric: str
    unit: str
    title: str


def document(run: str, window: MetricsWindow, shown: Sequence[Series]) -> Curves:
    return {
        "run": run,
        "begin": window.begin,
        "seconds": window.seconds,
        "count": window.count,
        "series": [_series(series) for series in shown],
    }


def _series(series: Series) -> Curve:
    summary, about = SeriesSummary(series), find_metric(series.metric)
    return {
        "metric": series.metric,
        "title": about.title,
        "unit": about.unit,
        "node": None if series.node == HUB else series.node,
        "index": series.index,
        "of": series.of,
        "last": summary.last,
        "min": summary.low,
        "mean": summary.mean,
        "max": summary.high,
        "means": series.mean,
        "lows": series.low or series.mean,
        "highs": series.high or series.mean,
        "samples": series.samples,
    }


def _print_names(names: Sequence[str], as_json: bool) -> int:
    listed = [
        MetricName(metric=name, unit=find_metric(name).unit, title=find_metric(name).title)
        for name in names
    ]
    rows = [(about["metric"], about["unit"], about["title"]) for about in listed]
    answer(as_json, listed, table([("METRIC", "UNIT", "TITLE"), *rows]))
    return 0
