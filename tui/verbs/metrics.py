"""metrics: the curves of a run as numbers: newest, smallest, mean and largest value of each series in a window."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from ...presets.plurals import plural
from ...runners.node.local_agent import with_link
from ...runners.reports.curve_report import Curve, CurveRequest, check_names, named, read_curves
from ...runners.run import run_directories
from ...runners.telemetry.curves import finite
from ...runners.telemetry.metric_names import METRICS, SOURCES, find_metric, source_of
from ...runners.telemetry.quantity_text import value_text
from ..rows.glyphs import table
from ..rows.plot import Mode, sparkline
from ..rows.value_axis import Axis
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
    asked = CurveRequest(
        metrics=names,
        last=options.last,
        since=options.since,
        until=options.until,
        ranks=options.rank,
        gpus=options.gpu,
        fold=options.fold,
    )
    read = asyncio.run(with_link(options.run, lambda entry, link: read_curves(entry, link, asked)))
    if options.list:
        return _print_names([curve.metric for curve in read.series], options.json)
    if not read.series and not options.json:
        complain(
            "there are no values in this window: `distui metrics RUN --list` lists the metrics of a run"
        )
        return 1
    answer(options.json, read, lines(read.series, _draws_blocks(options)))
    return 0


def _draws_blocks(options: argparse.Namespace) -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8" and not options.ascii


def _names(options: argparse.Namespace) -> list[str]:
    """Return the metrics that the user named; the first may be in place of RUN. Raises RunError."""
    names: list[str] = list(options.metric)
    if options.run in (*METRICS, *SOURCES) and not _is_run(options.run):
        names.insert(0, options.run)
        options.run = None
    check_names(names)
    return names


def _is_run(name: str) -> bool:
    """Whether a run has this name, which then takes precedence over a metric's name."""
    return any(entry.record.name == name for entry in run_directories.entries())


# --- output: pure ------------------------------------------------------------------------------------------------


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
    listed = named(names)
    rows = [(about.metric, about.unit, about.title) for about in listed]
    answer(as_json, listed, table([("METRIC", "UNIT", "TITLE"), *rows]))
    return 0
