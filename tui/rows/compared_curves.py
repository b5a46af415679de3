"""The curves of two runs over each other, on one axis of steps or of time since the start. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from ...runners.comparison.account import Account, MetricCurve
from ...runners.comparison.account_numbers import DRAWN, STEPS
from ...runners.run.formatting import duration_short
from ...runners.telemetry.curves import finite
from ...runners.telemetry.metric_names import find_metric
from ...runners.telemetry.quantity import Quantity
from ...runners.telemetry.quantity_text import count_short
from .charts import chart_text, chart_title, edge_text, free_axis, gutter
from .comparison import INKS, SIDES
from .glyphs import Cell, Row, clip
from .plot import Axis, Line, Mode, Values, draw, with_labels

LEAST_CHART = 5
"""Minimum rows of a chart with its title."""
LETTERS_EVERY = 24
"""Cells between two letters on a curve."""


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
    shown = list(drawn.items())[: max(1, room // LEAST_CHART)]
    size, rest = divmod(room, len(shown))
    rows: list[Row] = []
    for number, (name, sides) in enumerate(shown):
        rows += chart_rows(find_metric(name), sides, end, mode, width, size + (number < rest))
    return [*rows, axis_row(end, by_step, width)]


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
    counted = next((each for each in reported if each is not None and finite(each.mean)), None)
    if counted is None or (counted.begin, counted.seconds) != (curve.begin, curve.seconds):
        return [None] * len(curve.mean)
    held: list[float | None] = []
    for value in counted.mean:
        held.append(held[-1] if value is None and held else value)
    return held


def chart_rows(
    metric: Quantity,
    sides: Sequence[Sequence[tuple[float, float]]],
    end: float,
    mode: Mode,
    width: int,
    height: int,
) -> list[Row]:
    """Return a title with the newest values, and the curves; letters identify them without colours."""
    edge = gutter(width)
    cells, body = width - edge, max(1, height - 1)
    lines = [
        Line(columns(side, end, cells * mode.across), style=ink, letter=letter)
        for side, ink, letter in zip(sides, INKS, SIDES, strict=True)
    ]
    title: list[Cell] = [(chart_title(metric), "head")]
    for line, side in zip(lines, sides, strict=True):
        newest = chart_text(metric, side[-1][1] if side else None)
        title.append((f"  {line.letter} {newest}", line.style))
    filled = [line for line in lines if finite(line.mean)]
    axis = free_axis(metric, filled)
    grid = _grid(filled, cells, body, axis, mode)
    for number, line in enumerate(lines):
        _letter(grid, line, number, axis, mode)
    bottom = edge_text(metric, axis.low) if body > 1 else ""
    drawn = [tuple(row) for row in grid]
    return [clip(tuple(title), width), *with_labels(drawn, edge_text(metric, axis.high), bottom, edge)]


def _grid(curves: Sequence[Line], width: int, height: int, axis: Axis, mode: Mode) -> list[list[Cell]]:
    """Return the curves as single cells; ASCII curves are drawn only by their letters."""
    if mode is Mode.ASCII:
        return [[(" ", "text")] * width for _ in range(height)]
    rows = draw(curves, width, height, axis, mode)
    return [[(glyph, ink) for text, ink in row for glyph in text] for row in rows]


def columns(side: Sequence[tuple[float, float]], end: float, dots: int) -> list[float | None]:
    """Return the mean of each dot column; values are interpolated between neighbours that are not too far apart."""
    values: dict[int, list[float]] = {}
    for at, value in side:
        values.setdefault(min(dots - 1, int(at / end * dots)), []).append(value)
    means: list[float | None] = [None] * dots
    places = sorted(values)
    for at in places:
        means[at] = fmean(values[at])
    usual = sorted(after - at for at, after in pairwise(places))
    most = 4 * usual[len(usual) // 2] if usual else 0
    for at, after in pairwise(places):
        if after - at <= most:
            _bridge(means, at, after)
    return means


def _bridge(values: list[float | None], at: int, after: int) -> None:
    """Fill the gap between two places with a straight line."""
    first, last = values[at], values[after]
    assert first is not None
    assert last is not None
    for between in range(at + 1, after):
        values[between] = first + (last - first) * (between - at) / (after - at)


def _letter(grid: list[list[Cell]], line: Line, number: int, axis: Axis, mode: Mode) -> None:
    """Put a curve's letter on it at intervals and at its end; in ASCII at every point."""
    across, height = mode.across, len(grid)
    cells = [at // across for at, value in enumerate(line.mean) if value is not None]
    for at in _lettered(cells, number, mode):
        value = next(v for v in line.mean[at * across : at * across + across] if v is not None)
        share = axis.share(value)
        if share is None or at >= len(grid[0]):
            continue
        row = grid[height - 1 - min(height - 1, int(share * height))]
        is_shared = mode is Mode.ASCII and row[at][0] not in (" ", line.letter)
        row[at] = ("*", "text") if is_shared else (line.letter, line.style)


def _lettered(cells: Sequence[int], number: int, mode: Mode) -> list[int]:
    """Return the cells of a curve that get its letter; the second curve's letters are between those of the first."""
    drawn = set(cells)
    if not cells or mode is Mode.ASCII:
        return sorted(drawn)
    last = cells[-1]
    chosen = set(range(cells[0] + number * LETTERS_EVERY // 2, last + 1, LETTERS_EVERY))
    chosen.add(last - 1 if number == 0 and last >= 2 else last)
    return sorted(chosen & drawn) or [last]


def axis_row(end: float, by_step: bool, width: int) -> Row:
    """Return start, middle and end of the axis."""
    edge = gutter(width)
    texts = [
        f"step {count_short(end * share)}" if by_step else duration_short(end * share)
        for share in (0.0, 0.5, 1.0)
    ]
    texts[0] = "step 0" if by_step else "0s since the start"
    cells = width - edge
    middle = max(0, cells // 2 - len(texts[0]))
    line = texts[0] + " " * middle + texts[1]
    line = line + " " * max(1, cells - len(line) - len(texts[2])) + texts[2]
    return clip(((" " * edge, "text"), (line, "dim")), width)
