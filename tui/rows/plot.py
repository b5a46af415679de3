"""Curves as rows of text in braille or ASCII; sparklines also in blocks. Pure.

A curve has one value per column of dots. An unknown value is a gap in the curve. Cells of one colour are joined into
one piece, because colours cost bytes.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from ...runners.telemetry.curves import finite
from .glyphs import Cell, Row, fit, joined
from .value_axis import Axis, Value, Values, nice_ceiling

Grid = list[list[Cell]]
"""The cells of a chart, the upper row first."""


class Mode(enum.StrEnum):
    """The glyphs that draw curves; one mode for all curves."""

    BRAILLE = "braille"
    BLOCK = "block"
    ASCII = "ascii"

    @property
    def across(self) -> int:
        """Dot columns per cell."""
        return 2 if self is Mode.BRAILLE else 1

    @property
    def up(self) -> int:
        """Dots in a column of a cell."""
        if self is Mode.BRAILLE:
            return 4
        return 8 if self is Mode.BLOCK else 5


class Line(Struct, frozen=True):
    """One value per column of dots, oldest first; for a folded column also its smallest and largest sample."""

    mean: Values
    low: Values = ()
    high: Values = ()
    style: str = "accent"
    letter: str = ""
    """Identifies the curve without colours: it is drawn on the curve; in ASCII the curve consists of it."""
    now: Value = None
    """The value in the title: at the crosshair, else the newest."""
    is_mean: bool = False
    """Whether `now` is a mean of several samples, which the title marks with a ~."""
    old: tuple[float, float] | None = None
    """The newest value and its age in seconds, for the title if it no longer holds."""

    @property
    def lows(self) -> Values:
        return self.low or self.mean

    @property
    def highs(self) -> Values:
        return self.high or self.mean


# --- braille ---

_LEFT, _RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)
"""Bits of the dots of a braille cell (Unicode 2800), from the bottom up."""


def _bits(dots: tuple[int, ...], lit: int) -> int:
    return sum(bit for at, bit in enumerate(dots) if lit >> at & 1)


_BRAILLE = tuple(
    tuple(
        chr(0x2800 + _bits(_LEFT, left) + _bits(_RIGHT, right)) if left or right else " "
        for right in range(16)
    )
    for left in range(16)
)
"""Left column, right column → glyph; each column is four bits from the bottom up."""

_STIPPLE = (0x5555_5555_5555_5555, 0xAAAA_AAAA_AAAA_AAAA)
"""Every other dot, alternating per column: fills the area between the smallest and the largest sample."""


def _between(start: int, end: int) -> int:
    """Return the bits from one dot to the other, both included."""
    low, high = (start, end) if start < end else (end, start)
    return (2 << high) - (1 << low)


def _dots(axis: Axis, values: Values, dots: int) -> list[int | None]:
    """Return the dot of each bucket's value, from the bottom up; None if it cannot be drawn."""
    size = axis.high - axis.low
    scale = dots / size if size > 0 else 0.0
    if not axis.log and 0 < scale < math.inf:
        return _linear_dots(values, axis.low, scale, dots - 1)
    shares = [axis.share(value) for value in values]
    return [None if share is None else min(dots - 1, int(share * dots)) for share in shares]


def _linear_dots(values: Values, low: float, scale: float, top: int) -> list[int | None]:
    """Return the dots on a linear axis with `scale` dots per unit, `top` at most; fast, as charts have many values."""
    places: list[int | None] = []
    for value in values:
        if value is None or not math.isfinite(value):
            places.append(None)
            continue
        dot = (value - low) * scale
        if dot < 0:
            places.append(0)
        else:
            places.append(top if dot >= top else int(dot))
    return places


def _lines(curve: Line, axis: Axis, dots: int) -> list[int]:
    """Return the dots of each bucket's mean, joined with the previous bucket's if that has a value."""
    columns: list[int] = []
    before: int | None = None
    for now in _dots(axis, curve.mean, dots):
        if now is None:
            columns.append(0)
        elif before is None or -2 < now - before < 2:
            columns.append(1 << now)
        else:
            columns.append(_between(now, before + (1 if now > before else -1)))
        before = now
    return columns


def _bands(curve: Line, axis: Axis, dots: int) -> list[int]:
    """Return the dots of each bucket's smallest and largest sample, and every other dot between them."""
    columns: list[int] = []
    lows, highs = _dots(axis, curve.low, dots), _dots(axis, curve.high, dots)
    for at, (below, above) in enumerate(zip(lows, highs, strict=False)):
        if below is None or above is None:
            columns.append(0)
        else:
            columns.append(_between(below, above) & _STIPPLE[at & 1] | 1 << below | 1 << above)
    return columns


def _braille(curves: Sequence[Line], width: int, height: int, axis: Axis) -> Grid:
    dots = 4 * height
    layers: list[tuple[list[int], str]] = []
    for curve in curves:
        if curve.high:
            layers.append((_padded(_bands(curve, axis, dots), 2 * width), "dim"))
    for curve in curves:
        layers.append((_padded(_lines(curve, axis, dots), 2 * width), curve.style))
    grid: Grid = []
    style = layers[-1][1] if layers else "text"
    for row in range(height):
        shift = dots - 4 - 4 * row
        cells: list[Cell] = []
        ink = style
        for x in range(0, 2 * width, 2):
            left = right = 0
            for columns, colour in layers:
                first, second = columns[x] >> shift & 15, columns[x + 1] >> shift & 15
                if first or second:
                    left, right, ink = left | first, right | second, colour
            cells.append((_BRAILLE[left][right], ink))
        grid.append(cells)
    return grid


def _padded(columns: list[int], size: int) -> list[int]:
    """Return exactly `size` columns; missing ones are blank."""
    return columns[:size] + [0] * (size - len(columns))


# --- ASCII: a column is filled from below ---

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_FIFTHS = " _.-=#"


def _filled(curves: Sequence[Line], width: int, height: int, axis: Axis) -> Grid:
    """Return curves without a letter in ASCII, filled from below."""
    steps = len(_FIFTHS) - 1
    grid: Grid = [[(" ", "text")] * width for _ in range(height)]
    for curve in curves:
        if curve.letter:
            continue
        heights = _dots(axis, curve.mean, steps * height)
        tops = _dots(axis, curve.high, height) or [None] * len(heights)
        for x, (dot, top) in enumerate(zip(heights[:width], tops, strict=False)):
            if dot is None:
                continue
            for level, cell in enumerate(_column(dot, top, height, curve.style)):
                if cell is not None:
                    grid[height - 1 - level][x] = cell
    return grid


def _column(dot: int, top: int | None, height: int, style: str) -> Iterator[Cell | None]:
    """Yield the cells of one bucket from the bottom up: filled up to its mean, dotted up to its largest sample."""
    steps = len(_FIFTHS) - 1
    for level in range(height):
        lit = min(steps, max(0, dot + 1 - level * steps))
        if lit:
            yield (_FIFTHS[lit], style)
        else:
            yield (":", "dim") if top is not None and level <= top else None


# --- marks over the curves ---

LETTERS_EVERY = 24
"""Cells between two letters on a curve."""


def _put_letters(grid: Grid, line: Line, number: int, axis: Axis, mode: Mode) -> None:
    """Put a curve's letter on it at intervals and at its end; in ASCII at every point."""
    across, height, width = mode.across, len(grid), len(grid[0])
    drawn = {at // across: value for at, value in enumerate(line.mean) if axis.share(value) is not None}
    cells = [cell for cell in sorted(drawn) if cell < width]
    if mode is not Mode.ASCII:
        cells = _spaced(cells, number)
    for cell in cells:
        row = grid[height - 1 - _row(axis, drawn[cell], height)]
        is_shared = mode is Mode.ASCII and row[cell][0].isupper() and row[cell][0] != line.letter
        row[cell] = ("*", "text") if is_shared else (line.letter, line.style)


def _row(axis: Axis, value: Value, height: int) -> int:
    """Return the row of a value from below."""
    return min(height - 1, int((axis.share(value) or 0.0) * height))


def _spaced(cells: Sequence[int], number: int) -> list[int]:
    """Return the cells of a curve that get its letter; letters of several curves are next to each other."""
    if not cells:
        return []
    wanted = set(range(cells[0] + number * LETTERS_EVERY // 4, cells[-1] + 1, LETTERS_EVERY))
    wanted.add(max(cells[0], cells[-1] - number))
    return [cell for cell in cells if cell in wanted] or [cells[-1]]


def _put_clipped(grid: Grid, line: Line, axis: Axis, mode: Mode) -> None:
    """Mark values above and below the axis in the first and the last row."""
    above, below = ("^", "v") if mode is Mode.ASCII else ("▲", "▼")
    width, margin = len(grid[0]), 1e-9 * max(abs(axis.high), abs(axis.low))
    least, most = min(finite(line.lows), default=axis.low), max(finite(line.highs), default=axis.high)
    if axis.low - margin <= least and most <= axis.high + margin:
        return
    for at, (high, low) in enumerate(zip(line.highs, line.lows, strict=False)):
        cell = at // mode.across
        if cell >= width:
            break
        if _is_beyond(high, axis.high + margin, math.inf):
            grid[0][cell] = (above, line.style)
        if _is_beyond(low, -math.inf, axis.low - margin):
            grid[-1][cell] = (below, line.style)


def _is_beyond(value: Value, least: float, most: float) -> bool:
    """Return whether a finite value lies between two limits, neither included."""
    return value is not None and least < value < most


GRID = "┈"
GRID_FROM = 4
"""Minimum rows of a chart with lines from the labels of its value axis."""
BLANKS = f" ⠀{GRID}"
"""Cells of a chart without a curve."""


def _put_grid(grid: Grid, axis: Axis) -> None:
    """Draw a dotted line from each label of the value axis through the blank cells of its row."""
    for value in axis.ticks:
        row = grid[len(grid) - 1 - _row(axis, value, len(grid))]
        for x, (glyph, _) in enumerate(row):
            if glyph == " ":
                row[x] = (GRID, "calm")


def _put_rule(grid: Grid, cell: int, style: str, mode: Mode) -> None:
    """Draw a vertical line through the blank cells of a column; the crosshair also shows where it meets a curve."""
    bar = "|" if mode is Mode.ASCII else "│"
    for cells in grid:
        glyph = cells[cell][0]
        if glyph in BLANKS:
            cells[cell] = (bar, style)
        elif style == CROSSHAIR:
            cells[cell] = (glyph, "hit")


def _put_label(grid: Grid, cell: int, text: str, style: str) -> None:
    """Write a text at the right of a vertical line, if the upper row has room for it."""
    row, end = grid[0], cell + 1 + len(text)
    if text and end < len(row) and all(glyph in BLANKS for glyph, _ in row[cell + 1 : end + 1]):
        row[cell + 1 : end] = [(letter, style) for letter in text]


# --- a chart ---

CROSSHAIR = "key"
"""Style of the vertical line of the crosshair."""


class Rule(Struct, frozen=True):
    """A vertical line through a chart."""

    style: str = CROSSHAIR
    label: str = ""


def draw(
    curves: Sequence[Line],
    width: int,
    height: int,
    axis: Axis,
    mode: Mode = Mode.BRAILLE,
    rules: Mapping[int, Rule] | None = None,
) -> list[Row]:
    """Return curves in `width` × `height` cells. `rules` are vertical lines by their cell.

    Any curve with `high` has a band; later curves are drawn over earlier ones.
    """
    if width < 1 or height < 1:
        return []
    paint = _braille if mode is Mode.BRAILLE else _filled
    grid = paint(curves, width, height, axis)
    for number, curve in enumerate(each for each in curves if each.letter):
        _put_letters(grid, curve, number, axis, mode)
    for curve in curves:
        _put_clipped(grid, curve, axis, mode)
    if mode is Mode.BRAILLE and height >= GRID_FROM:
        _put_grid(grid, axis)
    for cell, rule in (rules or {}).items():
        if 0 <= cell < width:
            _put_rule(grid, cell, rule.style, mode)
            _put_label(grid, cell, rule.label, rule.style)
    return [joined(cells) for cells in grid]


def with_ticks(
    rows: Sequence[Row], axis: Axis, text: Callable[[float], str], gutter: int, mode: Mode
) -> list[Row]:
    """Return a chart after a gutter with the labels of its value axis; a single row has only the upper one."""
    if gutter <= 0:
        return list(rows)
    height = len(rows)
    labels: dict[int, str] = {}
    for value in axis.ticks:
        row = height - 1 - _row(axis, value, height)
        labels.setdefault(row, "")
        labels[row] = text(value)
    tick, bar = ("+", "|") if mode is Mode.ASCII else ("┤", "│")
    drawn: list[Row] = []
    for row, cells in enumerate(rows):
        label = labels.get(row, "")
        stroke = tick if label else bar
        drawn.append(((fit(label, gutter - 1, right=True) + stroke, "dim"), *cells))
    return drawn


# --- sparklines ---

_BARS = tuple((1 << level) - 1 for level in range(5))


def sparkline(values: Values, width: int, axis: Axis | None = None, mode: Mode = Mode.BRAILLE) -> str:
    """Return the newest values in one row of exactly `width` cells.

    Cells are filled from the bottom. A gap is blank, a 0 is not.
    """
    if axis is None:
        axis = Axis(0.0, nice_ceiling(max(finite(values), default=0.0)))
    levels = mode.up
    dots = width * mode.across
    heights = _dots(axis, list(values)[-dots:], levels)
    columns = [0] * (dots - len(heights)) + [0 if dot is None else dot + 1 for dot in heights]
    if mode is not Mode.BRAILLE:
        ramp = _EIGHTHS if mode is Mode.BLOCK else _FIFTHS
        return "".join(ramp[level] for level in columns)
    return "".join(
        _BRAILLE[_BARS[left]][_BARS[right]] for left, right in zip(columns[::2], columns[1::2], strict=True)
    )
