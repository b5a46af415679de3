"""The curves of two runs over each other, on one axis of steps or of time since the start. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...runners.comparison.account import Account, MetricCurve
from ...runners.comparison.account_numbers import DRAWN, STEPS
from ...runners.telemetry.curves import finite
from ...runners.telemetry.metric_names import find_metric
from ...runners.telemetry.quantity import Quantity
from .charts import LEAST_ROWS, axis_of, chart_text, chart_title, curve_rows, gutter
from .comparison import INKS, SIDES
from .glyphs import Cell, Row, clip
from .plot import Line, Mode
from .step_axis import counted, spread_points
from .time_axis import Span, Unit, tick_row
from .value_axis import Values

LEAST_CHART = 5
"""Minimum rows of a chart with its title."""


def charts(a: Account, b: Account, by_step: bool, mode: Mode, width: int, height: int) -> list[Row]:
    """Return as many metrics as fit, each with both curves on one axis: steps, or time since the start."""
    drawn = {
        name: sides
        for name in metrics_of(a, b)
        if any(sides := (points(a, name, by_step), points(b, name, by_step)))
    }
    if not drawn:
        return [((_WHY_NONE[by_step], "stale"),)]
    end = max(at for sides in drawn.values() for side in sides for at, _ in side) or 1.0
    room = max(LEAST_CHART, height - 1)
    shown = list(drawn.items())[: max(1, room // LEAST_ROWS)]
    size, rest = divmod(room, len(shown))
    rows: list[Row] = []
    for number, (name, sides) in enumerate(shown):
        rows += chart_rows(find_metric(name), sides, end, mode, width, size + (number < rest))
    return [*rows, axis_row(end, by_step, mode, width)]


_WHY_NONE = {  # by_step → why there is no chart
    True: "no step is recorded with a metric: x puts the curves over each other by time",
    False: "no metrics",
}


def metrics_of(a: Account, b: Account) -> list[str]:
    """Return metrics of either side: those of both first, then in the usual order, a script's own last."""
    has = [{curve.metric for curve in side.curves if finite(curve.mean)} for side in (a, b)]
    there = (has[0] | has[1]) - set(STEPS)
    order = {name: at for at, name in enumerate(DRAWN)}
    return sorted(there, key=lambda name: (name not in has[0] & has[1], order.get(name, len(order)), name))


def points(side: Account, name: str, by_step: bool) -> list[tuple[float, float]]:
    """Return (axis position, value) of each bucket that has both."""
    curve = _curve(side, name)
    if curve is None:
        return []
    places = (
        _steps(side, curve)
        if by_step
        else [curve.begin + at * curve.seconds for at in range(len(curve.mean))]
    )
    pairs = zip(places, curve.mean, strict=False)
    return [
        (max(0.0, at), value)
        for at, value in pairs
        if at is not None and value is not None and math.isfinite(at) and math.isfinite(value)
    ]


def _curve(side: Account, name: str) -> MetricCurve | None:
    return next((curve for curve in side.curves if curve.metric == name), None)


def _steps(side: Account, curve: MetricCurve) -> Values:
    """Return the step of each bucket, as counted by the script or else the hook; a count holds until the next."""
    reported = (_curve(side, name) for name in STEPS)
    counted_curve = next((each for each in reported if each is not None and finite(each.mean)), None)
    if counted_curve is None or (counted_curve.begin, counted_curve.seconds) != (
        curve.begin,
        curve.seconds,
    ):
        return [None] * len(curve.mean)
    return counted(counted_curve.mean)


def chart_rows(
    metric: Quantity,
    sides: Sequence[Sequence[tuple[float, float]]],
    end: float,
    mode: Mode,
    width: int,
    height: int,
) -> list[Row]:
    """Return a title with the newest values, and the curves; letters identify them without colours."""
    body = max(1, height - 1)
    size = (width - gutter(width)) * mode.across
    lines = [
        Line(spread_points(side, end, size), style=ink, letter=letter)
        for side, ink, letter in zip(sides, INKS, SIDES, strict=True)
    ]
    title: list[Cell] = [(chart_title(metric), "head")]
    for line, side in zip(lines, sides, strict=True):
        newest = chart_text(metric, side[-1][1] if side else None)
        title.append((f"  {line.letter} {newest}", line.style))
    filled = [line for line in lines if finite(line.mean)]
    axis = axis_of(metric, filled, body, None, log=False)
    return [clip(tuple(title), width), *curve_rows(metric, filled, axis, width, body, mode)]


def axis_row(end: float, by_step: bool, mode: Mode, width: int) -> Row:
    """Return round steps, or durations since the start."""
    edge = gutter(width)
    cells = max(1, width - edge)
    unit = Unit.STEP if by_step else Unit.SINCE
    stroke = "|" if mode is Mode.ASCII else "╵"
    return clip(((" " * edge, "text"), *tick_row(Span(0.0, end / cells, cells, unit), stroke)), width)
