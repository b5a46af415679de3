"""Two runs side by side as rows: their differences, and curves over each other. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ...presets.plurals import plural
from ...presets.sanitize import clean_text
from ...runners.comparison.account import DRAWN, STEPS, Account, MetricCurve
from ...runners.comparison.differences import (
    DIFFERS,
    ONLY_A,
    ONLY_B,
    SAME,
    UNKNOWN,
    VALUE,
    Comparison,
    Difference,
    Section,
    ratio_text,
)
from ...runners.run.formatting import NA, duration_short
from ...runners.telemetry.metric_names import find_metric
from ...runners.telemetry.quantity import Quantity
from .charts import BYTES, chart_text, chart_title, count_short, edge_text, gutter, near
from .glyphs import Cell, Row, clip, fit, labelled, row_width
from .plot import Axis, Line, Mode, Values, axis_for, draw, finite, with_labels

MARKS = {
    SAME: (" ", "text"),
    DIFFERS: ("*", "warn"),
    ONLY_A: ("-", "warn"),
    ONLY_B: ("+", "warn"),
    UNKNOWN: ("?", "stale"),
    VALUE: (" ", "text"),
}
"""Mark in front of a row, readable without colours."""
LEGEND = "* differs  - only A  + only B  ? not recorded on one side, or too little to tell"
NAME = 30
"""Maximum columns of names."""
SIDES = ("A", "B")
INKS = ("accent", "warn")
"""Styles of the two curves."""


def comparison_rows(compared: Comparison, width: int) -> list[Row]:
    """Return head, sections with rows, equal sections, and notes."""
    rows = head_rows(compared, width)
    equal: list[str] = []
    for section in compared.sections:
        if section.rows or section.hidden or (section.note and section.name == "transports"):
            rows += [(), *section_rows(section, width)]
        elif section.name != "numbers":
            equal.append(section.title)
    if equal:
        rows += [
            (),
            *labelled(("the same, or recorded on neither side: ", "dim"), ", ".join(equal), width, "dim"),
        ]
    if compared.notes:
        rows += [
            (),
            *(line for note in compared.notes for line in labelled(("", "dim"), note, width, "dim")),
        ]
    return [*rows, (), *labelled(("", "dim"), LEGEND, width, "dim")]


def single_rows(compared: Comparison, width: int) -> list[Row]:
    """Return the record of one run."""
    account = compared.a
    rows: list[Row] = [((clean_text(account.title), "head"), (f"  {account.run}", "dim"))]
    for section in compared.sections:
        if section.rows:
            rows += [(), ((section.title, "head"),)]
        edge = min(2 * NAME, max((len(row.name) for row in section.rows), default=0))
        for row in section.rows:
            rows += labelled((fit(f"  {row.name}", edge + 2) + "  ", "dim"), row.a or NA, width)
    return [*rows, *((), *(((note, "dim"),) for note in compared.notes))] if compared.notes else rows


def head_rows(compared: Comparison, width: int) -> list[Row]:
    """Return the title, state and id of both runs."""
    sides = (compared.a, compared.b)
    edge = max(len(clean_text(side.title)) for side in sides)
    return [
        clip(
            (
                (f"{letter}  ", ink),
                (f"{clean_text(side.title):<{edge}}  ", "head"),
                (side.state, "text"),
                (f"  {clean_text(side.run)}", "dim"),
            ),
            width,
        )
        for letter, ink, side in zip(SIDES, INKS, sides, strict=True)
    ]


def section_rows(section: Section, width: int) -> list[Row]:
    """Return a heading, then one line per row; sides that do not fit on one line go below each other."""
    rows: list[Row] = [((section.title, "head"),)]
    edge = _edge(section.rows)
    most = max(12, (width - edge - 24) // 2)
    left = min(most, max((len(row.a or NA) for row in section.rows), default=0))
    right = min(most, max((len(row.b or NA) for row in section.rows), default=0))
    for row in section.rows:
        rows += _difference(row, (edge, left, right), width)
    if section.hidden:
        verb = "differs" if section.hidden == 1 else "differ"
        text = f"{plural(section.hidden, 'variable')} of the terminal {verb}, too: --all lists all"
        rows.append(((f"  {text}", "dim"),))
    if section.note:
        rows += labelled(("  ", "dim"), section.note, width, "dim")
    return rows


def _edge(rows: Sequence[Difference]) -> int:
    return min(NAME, max((len(row.name) for row in rows), default=0))


def _difference(row: Difference, sizes: tuple[int, int, int], width: int) -> list[Row]:
    """Return the lines of one row; `sizes` are the columns of the name and of both sides."""
    mark, ink = MARKS[row.kind]
    a, b = (NA if text is None else text for text in (row.a, row.b))
    tail = "  ".join(filter(None, (ratio_text(row.ratio), row.note)))
    name, left, right = sizes
    if len(row.name) <= name and len(a) <= left and len(b) <= right:
        line: Row = (
            (f"{mark} ", ink),
            (f"{row.name:<{name}}  ", "text"),
            (f"{a:<{left}}  ", _ink(row.a)),
            (f"{b:<{right}}", _ink(row.b)),
        )
        behind: Row = ((f"  {tail}" if tail else "", "dim"),)
        if row_width((*line, *behind)) <= width:
            return [(*line, *behind)]
        if row_width(line) <= width:
            return [line, *labelled(("      ", "dim"), tail, width, "dim")]
    rows: list[Row] = [((f"{mark} ", ink), (row.name, "text"), (f"  {tail}" if tail else "", "dim"))]
    if a == b and row.kind in (SAME, UNKNOWN):
        return [*rows, *labelled(("    A B  ", "dim"), a, width)]
    for letter, style, text in zip(SIDES, INKS, (a, b), strict=True):
        rows += labelled((f"    {letter}  ", style), text, width)
    return rows


def _ink(text: str | None) -> str:
    return "stale" if text is None else "text"


# --- curves over each other ---

LEAST_CHART = 5
"""Minimum rows of a chart with its title."""
LETTERS_EVERY = 24
"""Cells between two letters on a curve."""


def charts(a: Account, b: Account, by_step: bool, mode: Mode, width: int, height: int) -> list[Row]:
    """Return as many metrics as fit, each with both curves on one axis: steps, or time since the start."""
    both = [name for name in metrics_of(a, b) if points(a, name, by_step) or points(b, name, by_step)]
    if not both:
        why = (
            "no step is recorded with a metric: x puts the curves over each other by time"
            if by_step
            else "no metrics"
        )
        return [((why, "stale"),)]
    end = max(at for side in (a, b) for name in both for at, _ in points(side, name, by_step))
    end = end if end > 0 else 1.0
    room = max(LEAST_CHART, height - 1)
    shown = both[: max(1, room // LEAST_CHART)]
    size, rest = divmod(room, len(shown))
    rows: list[Row] = []
    for number, name in enumerate(shown):
        sides = (points(a, name, by_step), points(b, name, by_step))
        rows += chart_rows(find_metric(name), sides, end, mode, width, size + (number < rest))
    return [*rows, axis_row(end, by_step, width)]


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
    cells = width - edge
    lines = [
        Line(columns(side, end, cells * mode.across), style=ink, letter=letter)
        for side, ink, letter in zip(sides, INKS, SIDES, strict=True)
    ]
    title: Row = ((chart_title(metric), "head"),)
    for line, side in zip(lines, sides, strict=True):
        title = (
            *title,
            (f"  {line.letter} {chart_text(metric, side[-1][1] if side else None)}", line.style),
        )
    filled = [line for line in lines if finite(line.mean)]
    axis = (
        near(filled)
        if metric.kind == "train" and not metric.unit
        else axis_for(filled, binary=metric.unit in BYTES)
    )
    body = max(1, height - 1)
    if mode is Mode.ASCII:
        grid = [[(" ", "text")] * cells for _ in range(body)]
    else:
        grid = [
            [(glyph, ink) for text, ink in row for glyph in text]
            for row in draw(filled, cells, body, axis, mode)
        ]
    for at, line in enumerate(lines):
        _letter(grid, line, at, axis, mode)
    drawn = [tuple(row) for row in grid]
    labelled_rows = with_labels(
        drawn, edge_text(metric, axis.high), edge_text(metric, axis.low) if body > 1 else "", edge
    )
    return [clip(title, width), *labelled_rows]


def columns(side: Sequence[tuple[float, float]], end: float, dots: int) -> list[float | None]:
    """Return the mean of each dot column; values are interpolated between neighbours that are not too far apart."""
    sums: list[list[float]] = [[] for _ in range(dots)]
    for at, value in side:
        sums[min(dots - 1, int(at / end * dots))].append(value)
    values = [sum(part) / len(part) if part else None for part in sums]
    places = [at for at, value in enumerate(values) if value is not None]
    usual = sorted(after - at for at, after in pairwise(places))
    most = 4 * usual[len(usual) // 2] if usual else 0
    for at, after in pairwise(places):
        before, behind = values[at], values[after]
        if 1 < after - at <= most and before is not None and behind is not None:
            for between in range(at + 1, after):
                values[between] = before + (behind - before) * (between - at) / (after - at)
    return values


def _letter(grid: list[list[Cell]], line: Line, number: int, axis: Axis, mode: Mode) -> None:
    """Put a curve's letter on it at intervals and at its end; in ASCII at every point."""
    height, across = len(grid), mode.across
    cells = [at // across for at, value in enumerate(line.mean) if value is not None]
    if not cells:
        return
    plain = mode is Mode.ASCII
    first = cells[0] + number * LETTERS_EVERY // 2
    chosen = (
        set(cells) if plain else {at for at in cells if (at - first) % LETTERS_EVERY == 0 and at >= first}
    )
    chosen.add(cells[-1] if plain or number or cells[-1] < 2 else cells[-1] - 1)
    for at in sorted(chosen & set(cells) or {cells[-1]}):
        share = axis.share(next(v for v in line.mean[at * across : at * across + across] if v is not None))
        if share is not None and at < len(grid[0]):
            row = height - 1 - min(height - 1, int(share * height))
            both = plain and grid[row][at][0] not in (" ", line.letter)
            grid[row][at] = ("*", "text") if both else (line.letter, line.style)


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
