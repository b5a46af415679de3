"""The curves of two runs over each other, on one axis of steps or of time since the start. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...runners.comparison.account import Account, MetricCurve
from ...runners.comparison.account import Quantity as AccountNumber
from ...runners.comparison.account_numbers import DRAWN, STEPS
from ...runners.comparison.differences import number_text
from ...runners.run.formatting import NA
from ...runners.telemetry.curves import finite
from ...runners.telemetry.metric_names import find_metric
from ...runners.telemetry.quantity import Quantity
from .charts import axis_of, chart_text, chart_title, curve_rows, gutter
from .comparison import INKS, SIDES
from .glyphs import Cell, Row, clip
from .plot import Line, Mode
from .step_axis import counted, spread_points
from .time_axis import Span, Unit, tick_row
from .value_axis import Values

LEAST_CHART = 6
"""Minimum rows of a chart with its title."""


def charts(a: Account, b: Account, by_step: bool, mode: Mode, width: int, height: int) -> list[Row]:
    """Return a chart of each metric with both curves on one axis: steps, or time since the start.

    Charts that do not fit in `height` rows follow below, in pages of that height.
    """
    drawn = {
        name: sides
        for name in metrics_of(a, b)
        if any(sides := (points(a, name, by_step), points(b, name, by_step)))
    }
    if not drawn:
        return [((_WHY_NONE[by_step], "stale"),)]
    end = max(at for sides in drawn.values() for side in sides for at, _ in side) or 1.0
    room = max(LEAST_CHART, height - 1)
    names, axis = list(drawn), axis_row(end, by_step, mode, width)
    of_page = min(len(names), max(1, room // LEAST_CHART))
    size, rest = divmod(room, of_page)
    rows: list[Row] = []
    for begin in range(0, len(names), of_page):
        for number, name in enumerate(names[begin : begin + of_page]):
            metric = find_metric(name)
            title = chart_title_row(metric, (a, b), drawn[name])
            rows += [
                clip(title, width),
                *chart_rows(metric, drawn[name], end, mode, width, size + (number < rest) - 1),
            ]
        rows.append(axis)
    return rows


_WHY_NONE = {  # by_step → why there is no chart
    True: "no step is recorded with a metric: x puts the curves over each other by time",
    False: "no metrics",
}


def metrics_of(a: Account, b: Account) -> list[str]:
    """Return metrics of either side: those of both first, then those of the training, then in the usual order."""
    has = [{curve.metric for curve in side.curves if finite(curve.mean)} for side in (a, b)]
    there = (has[0] | has[1]) - set(STEPS)
    order = {name: at for at, name in enumerate(DRAWN)}

    def place(name: str) -> tuple[bool, bool, int, str]:
        is_of_system = not name.startswith("train.") and name != "rank.step_s"
        return name not in has[0] & has[1], is_of_system, order.get(name, len(order)), name

    return sorted(there, key=place)


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


def chart_title_row(
    metric: Quantity, accounts: tuple[Account, Account], sides: Sequence[Sequence[tuple[float, float]]]
) -> Row:
    """Return the title of a chart with the numbers of both sides from the table of differences, else the newest."""
    numbers = [_number(account, metric.name) for account in accounts]
    named = next((number for number in numbers if number is not None), None)
    cells: list[Cell] = [(f"{chart_title(metric)}, last" if named is None else named.title, "head")]
    for letter, ink, number, side in zip(SIDES, INKS, numbers, sides, strict=True):
        newest = chart_text(metric, side[-1][1] if side else None)
        cells.append(
            (f"  {letter} {newest if named is None else number_text(number, named.unit) or NA}", ink)
        )
    return tuple(cells)


def _number(account: Account, metric: str) -> AccountNumber | None:
    """Return the number of a metric in an account: its median, its last or its largest value."""
    names = (metric, f"last:{metric}", f"peak:{metric}")
    return next((number for number in account.quantities if number.name in names), None)


def chart_rows(
    metric: Quantity,
    sides: Sequence[Sequence[tuple[float, float]]],
    end: float,
    mode: Mode,
    width: int,
    height: int,
) -> list[Row]:
    """Return the curves of a metric in so many rows; letters identify them without colours."""
    body = max(1, height)
    size = (width - gutter(width)) * mode.across
    lines = [
        Line(spread_points(side, end, size), style=ink, letter=letter)
        for side, ink, letter in zip(sides, INKS, SIDES, strict=True)
    ]
    filled = [line for line in lines if finite(line.mean)]
    axis = axis_of(metric, filled, body, None, log=False)
    return [*curve_rows(metric, filled, axis, width, body, mode)]


def axis_row(end: float, by_step: bool, mode: Mode, width: int) -> Row:
    """Return round steps, or durations since the start."""
    edge = gutter(width)
    cells = max(1, width - edge)
    unit = Unit.STEP if by_step else Unit.SINCE
    stroke = "|" if mode is Mode.ASCII else "╵"
    return clip(((" " * edge, "text"), *tick_row(Span(0.0, end / cells, cells, unit), stroke)), width)
