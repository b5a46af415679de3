"""A run as HTML for notebooks: a small table, and its loss or pace over time as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ...presets.plurals import plural
from ..reports.run_list import ReadRun, read_run
from ..run.answers import Series
from ..run.commands import ReadMetrics
from ..run.formatting import NA, duration_text
from ..run.run_directories import Entry
from ..run.wire.client import new_id
from ..telemetry import curves
from ..telemetry.curves import BEFORE_ALL, DISTANT, finite
from ..telemetry.metric_names import find_metric
from ..telemetry.quantity_text import value_text

DRAWN = ("train.loss", "rank.step_s", "gpu.util")
"""Metrics of which the first with values is drawn."""
BUCKETS = 120
WIDTH, HEIGHT = 360, 64
"""Size of the picture in pixels."""


def run_card(entry: Entry) -> str:
    """Return the HTML of a run, read from its files."""
    read = read_run(entry)
    rows = "".join(
        f"<tr><th style='text-align:left'>{name}</th><td style='text-align:left'>{escape(text)}</td></tr>"
        for name, text in _facts(read).items()
    )
    return f"<div><table>{rows}</table>{_curve(entry)}</div>"


def _facts(read: ReadRun) -> dict[str, str]:
    its, plan = read.figures, read.history.state.plan
    ranks = NA if its.ranks is None else plural(its.ranks, "rank")
    nodes = NA if its.nodes is None else plural(its.nodes, "node")
    step = NA if its.step is None else f"{its.step:,}"
    facts = {
        "run": f"{read.entry.record.name} ({read.entry.record.run})",
        "state": f"{read.phase}, and seems to hang" if its.hung else str(read.phase),
        "preset": plan.preset if plan else "",
        "on": f"{nodes}, {ranks}",
        "step": f"{step} of {its.total:,}" if its.total else step,
        "lasted": NA if its.lasted_s is None else duration_text(its.lasted_s),
        "finding": its.finding,
    }
    return {name: text for name, text in facts.items() if text}


def _curve(entry: Entry) -> str:
    """Return the picture of the first metric of DRAWN with at least two values; "" if there is none."""
    asked = ReadMetrics(new_id(), BEFORE_ALL, DISTANT, BUCKETS, DRAWN, "all")
    found = {series.metric: series for series in curves.read(curves.kept(entry), asked).series}
    for name in DRAWN:
        if name in found and len(finite(found[name].mean)) > 1:
            return _picture(found[name])
    return ""


def _picture(series: Series) -> str:
    known, about = finite(series.mean), find_metric(series.metric)
    low, high = min(known), max(known)
    lines = "".join(
        f'<polyline fill="none" stroke="currentColor" stroke-width="1.5" points="{points}"/>'
        for points in _segments(series.mean, low, high)
    )
    last = value_text(known[-1], about.unit)
    ends = f"{value_text(low, about.unit)} to {value_text(high, about.unit)}"
    title = escape(f"{series.metric}: {last} (from {ends})")
    return (
        f'<figure style="margin:4px 0"><svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{title}">'
        f"{lines}</svg><figcaption>{title}</figcaption></figure>"
    )


def _segments(values: Sequence[float | None], low: float, high: float) -> list[str]:
    """Return the points of each part of a curve; an unknown value is a gap."""
    span = high - low or 1.0
    segments: list[list[str]] = [[]]
    for at, value in enumerate(values):
        if not finite([value]):
            segments.append([])
            continue
        x = at * WIDTH / max(1, len(values) - 1)
        y = HEIGHT - 2 - ((value or 0.0) - low) / span * (HEIGHT - 4)
        segments[-1].append(f"{x:.1f},{y:.1f}")
    return [" ".join(points) for points in segments if points]
