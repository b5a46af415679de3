"""Curves as rows of text in braille or ASCII; sparklines also in blocks. Pure.

One bucket is one dot column, or several if there are few buckets. The newest bucket is at the right edge. An unknown
value is a gap in the curve. Cells of one colour are joined into one piece, because colours cost bytes.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Iterator, Sequence

from msgspec import Struct

from ...runners.telemetry.curves import finite
from .glyphs import Cell, Row, fit, joined

Value = float | None
Values = Sequence[Value]


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


class Axis(Struct, frozen=True):
    """The values at the lower and the upper edge of a chart."""

    low: float = 0.0
    high: float = 100.0
    log: bool = False

    def share(self, value: Value) -> float | None:
        """Return 0.0 at the lower edge to 1.0 at the upper; None if the value cannot be drawn."""
        if value is None or not math.isfinite(value):
            return None
        low, high = self.low, self.high
        if self.log:
            if value <= 0 or low <= 0:
                return None
            value, low, high = math.log(value), math.log(low), math.log(high)
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.0


class Line(Struct, frozen=True):
    """One value per bucket, oldest first; for a folded bucket also its smallest and largest sample."""

    mean: Values
    low: Values = ()
    high: Values = ()
    style: str = "accent"
    letter: str = ""
    """Identifies the curve without colours: ASCII curves are drawn with this letter."""


# --- the scale ---


_STEPS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


def nice_ceiling(value: float, *, binary: bool = False) -> float:
    """Return the next round value at or above this one; 1.0 if it is not above 0. `binary` rounds in KiB, MiB, …."""
    if not math.isfinite(value) or value <= 0:
        return 1.0
    unit = 1.0
    if binary:
        while value / unit > 1000:
            unit *= 1024
    power = unit * 10.0 ** math.floor(math.log10(value / unit))
    return next((step * power for step in _STEPS if value <= step * power * (1 + 1e-9)), 10.0 * power)


def axis_for(curves: Sequence[Line], *, log: bool = False, binary: bool = False) -> Axis:
    """Return 0 to a round value above all curves; with `log` from a power of ten below the smallest."""
    values: list[float] = []
    for curve in curves:
        values += [*finite(curve.mean), *finite(curve.high)]
    if not log:
        return Axis(0.0, nice_ceiling(max(values, default=0.0), binary=binary))
    for curve in curves:
        values += finite(curve.low)
    positive = [value for value in values if value > 0]
    low, high = min(positive, default=0.1), max(positive, default=1.0)
    floor = 10.0 ** math.floor(math.log10(low))
    ceiling = 10.0 ** math.ceil(math.log10(high))
    return Axis(floor, ceiling if ceiling > floor else floor * 10.0, log=True)


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


def _spread(columns: list[int], dots: int, wide: int) -> list[int]:
    """Return the columns right-aligned in `dots` dot columns, each bucket `wide` of them."""
    if wide > 1:
        columns = [column for column in columns for _ in range(wide)]
    columns = columns[-dots:]
    return [0] * (dots - len(columns)) + columns


def _braille(curves: Sequence[Line], width: int, height: int, axis: Axis, wide: int) -> list[list[Cell]]:
    dots = 4 * height
    layers: list[tuple[list[int], str]] = []
    for curve in curves:
        if curve.high:
            layers.append((_spread(_bands(curve, axis, dots), 2 * width, wide), "dim"))
    for curve in curves:
        layers.append((_spread(_lines(curve, axis, dots), 2 * width, wide), curve.style))
    grid: list[list[Cell]] = []
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


# --- ASCII: a column is filled from below ---

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_FIFTHS = " _.-=#"


def _filled(curves: Sequence[Line], width: int, height: int, axis: Axis, wide: int) -> list[list[Cell]]:
    steps = len(_FIFTHS) - 1
    grid: list[list[Cell]] = [[(" ", "text")] * width for _ in range(height)]
    for number, curve in enumerate(curves):
        heights = _dots(axis, curve.mean, steps * height)
        tops = _dots(axis, curve.high, height) or [None] * len(heights)
        for x, (dot, top) in enumerate(_right(heights, tops, width, wide)):
            if dot is None:
                continue
            if number and curve.letter:
                grid[height - 1 - dot // steps][x] = (curve.letter, curve.style)
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


def _right(
    heights: Sequence[int | None], tops: Sequence[int | None], width: int, wide: int
) -> list[tuple[int | None, int | None]]:
    """Return both values per cell, right-aligned."""
    columns = [pair for pair in zip(heights, tops, strict=False) for _ in range(wide)][-width:]
    return [(None, None)] * (width - len(columns)) + columns


# --- a chart ---


def draw(
    curves: Sequence[Line],
    width: int,
    height: int,
    axis: Axis,
    mode: Mode = Mode.BRAILLE,
    *,
    wide: int = 1,
    cursor: int | None = None,
) -> list[Row]:
    """Return curves in `width` × `height` cells, with `wide` dot columns per bucket.

    `cursor` is the cell of a hairline, from the left. Any curve with `high` has a band; later curves are drawn over
    earlier ones.
    """
    if width < 1 or height < 1:
        return []
    if mode is Mode.BRAILLE:
        grid = _braille(curves, width, height, axis, wide)
    else:
        grid = _filled(curves, width, height, axis, wide)
    if cursor is not None and 0 <= cursor < width:
        bar = "|" if mode is Mode.ASCII else "│"
        for cells in grid:
            glyph = cells[cursor][0]
            cells[cursor] = (bar, "key") if glyph in " ⠀" else (glyph, "hit")
    return [joined(cells) for cells in grid]


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


# --- the time axis ---


def durations(
    seconds: Sequence[int], minutes: Sequence[int], hours: Sequence[int], days: Sequence[int]
) -> tuple[int, ...]:
    """Return all durations in seconds, the shortest first."""
    units = ((1, seconds), (60, minutes), (3600, hours), (86400, days))
    return tuple(unit * number for unit, numbers in units for number in numbers)


TICKS = durations((1, 2, 5, 10, 15, 30), (1, 2, 5, 10, 15, 30), (1, 2, 3, 6, 12), (1, 2, 7))
"""Seconds between two labels; the first that leaves room for them is used."""

_ROOM = 12
"""Minimum cells from one label to the next."""


class TimeSpan(Struct, frozen=True):
    """The times of the cells of a row: cell k begins at `begin + k * cell`, in unix seconds."""

    begin: float
    cell: float
    cells: int

    @property
    def end(self) -> float:
        return self.begin + self.cell * self.cells

    def newest(self, cells: int) -> TimeSpan:
        """Return the newest cells."""
        return TimeSpan(self.begin + (self.cells - cells) * self.cell, self.cell, cells)

    def at(self, when: float) -> int | None:
        """Return the cell of a time; None outside the span."""
        where = math.floor((when - self.begin) / self.cell) if self.cell > 0 else -1
        return where if 0 <= where < self.cells else None


def _label(when: float, step: float) -> str:
    if step < 60:
        shape = "%H:%M:%S"
    elif step < 86400:
        shape = "%H:%M"
    else:
        shape = "%d %b"
    return time.strftime(shape, time.localtime(when))


def tick_row(span: TimeSpan, mode: Mode = Mode.BRAILLE) -> Row:
    """Return wall times at round values, each after a tick at its place."""
    step = next((step for step in TICKS if step >= span.cell * _ROOM), TICKS[-1])
    shift = time.localtime(span.end).tm_gmtoff if span.end < 1e11 else 0
    stroke = "|" if mode is Mode.ASCII else "╵"
    text = [" "] * span.cells
    when = math.ceil((span.begin + shift) / step) * step - shift
    while when < span.end:
        at, label = span.at(when), f"{stroke}{_label(when, step)}"
        if at is not None and at + len(label) <= span.cells:
            text[at : at + len(label)] = label
        when += step
    return (("".join(text), "dim"),)


class Mark(Struct, frozen=True):
    """An event below the charts."""

    at: float
    """Unix seconds."""
    kind: str
    """One of MARKS."""
    text: str = ""


MARKS: dict[str, tuple[str, str, str, str]] = {
    "finding": ("!", "!", "warn", "finding"),
    "restart": ("▲", "^", "bad", "restart"),
    "checkpoint": ("◆", "c", "ok", "checkpoint"),
    "nccl": ("◇", "n", "accent", "NCCL_DEBUG"),
}
"""Kind → glyph, ASCII glyph, style, word."""

_OVER = ("nccl", "checkpoint", "finding", "restart")


def mark_row(marks: Sequence[Mark], span: TimeSpan, mode: Mode = Mode.BRAILLE) -> Row | None:
    """Return one glyph per mark; None if none is in the span.

    In one cell, kinds cover each other in the order of `_OVER`; a restart covers all.
    """
    cells: list[Cell] = [(" ", "dim")] * span.cells
    for kind in _OVER:
        glyph, plain, style, _ = MARKS[kind]
        for mark in marks:
            at = span.at(mark.at) if mark.kind == kind else None
            if at is not None:
                cells[at] = (plain if mode is Mode.ASCII else glyph, style)
    if all(glyph == " " for glyph, _ in cells):
        return None
    return joined(cells)


# --- the value axis ---


def with_labels(rows: Sequence[Row], top: str, bottom: str, gutter: int) -> list[Row]:
    """Return the chart after a gutter with the labels of its upper and lower edge; a single row has only the upper."""
    if gutter <= 0:
        return list(rows)
    texts = [""] * len(rows)
    if texts:
        texts[-1] = bottom
        texts[0] = top
    return [
        ((fit(f"{text} ", gutter, right=True), "dim"), *row) for text, row in zip(texts, rows, strict=True)
    ]
