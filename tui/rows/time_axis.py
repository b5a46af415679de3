"""The horizontal axis of charts: the window that all panes of a screen share, and its cells. Pure."""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from ...runners.run.formatting import duration_short, duration_text
from ...runners.telemetry.curves import NICE_S
from ...runners.telemetry.quantity_text import count_short
from .glyphs import Row
from .value_axis import Value, Values, nice_ceiling

# --- windows ---

WINDOWS: tuple[tuple[str, float], ...] = (
    ("1m", 60.0),
    ("5m", 300.0),
    ("15m", 900.0),
    ("1h", 3600.0),
    ("6h", 21600.0),
    ("all", math.inf),
)
"""Name and number of seconds; "all" begins with the first sample."""

LIVE_WINDOW = "5m"

SHORTEST_S = 30.0
"""Seconds of the window of a run that has just begun."""

GROWTH = 1.1
"""A growing window becomes longer by this factor, so that its cells rarely change their length."""


class Window(Struct, frozen=True):
    """The time that all charts of a screen show; unix seconds."""

    end: float
    seconds: float

    @property
    def begin(self) -> float:
        return self.end - self.seconds


def window_of(first: float, end: float, wanted: float, *, growing: bool) -> Window:
    """Return the newest `wanted` seconds, or all since the `first` sample if these are fewer.

    While it is `growing`, a window that begins with the first sample has some room at its right.
    """
    first = min(first, end)
    age = max(SHORTEST_S, end - first)
    if age >= wanted:
        return Window(end, wanted)
    seconds = age
    if growing:
        power = math.ceil(math.log(age / SHORTEST_S, GROWTH) - 1e-9)
        seconds = min(wanted, SHORTEST_S * GROWTH**power)
    return Window(first + seconds, seconds)


# --- cells ---


class Unit(enum.StrEnum):
    """What a horizontal axis counts."""

    CLOCK = "unix seconds"
    STEP = "steps"
    SINCE = "seconds since the start"


class Span(Struct, frozen=True):
    """The cells of a row: cell k begins at `begin + k * cell`."""

    begin: float
    cell: float
    cells: int
    unit: Unit = Unit.CLOCK

    @property
    def end(self) -> float:
        return self.begin + self.cell * self.cells

    def at(self, when: float) -> int | None:
        """Return the cell of a time or a step; None outside the span."""
        if self.cell <= 0 or not self.begin <= when < self.end:
            return None
        return min(self.cells - 1, math.floor((when - self.begin) / self.cell))

    def middle(self, cell: int) -> float:
        """Return the middle of a cell."""
        return self.begin + (cell + 0.5) * self.cell


def span_of(window: Window, cells: int) -> Span:
    """Return the cells of a window. They begin at multiples of their length, so that a drawing moves by whole cells."""
    cell = window.seconds / cells
    first = math.floor(window.end / cell + 1e-6) + 1 - cells
    return Span(first * cell, cell, cells)


# --- from the buckets of the history to columns of dots ---

MOST_BUCKETS = 900
"""Maximum buckets of a series in one window; a node sends at most 1000."""


class BucketRange(Struct, frozen=True):
    """The buckets of the history that cover a span: `size` of them, each of `seconds`, from `begin`."""

    begin: float
    seconds: int
    size: int

    def at(self, when: float) -> int | None:
        """Return the bucket of a time; None outside."""
        number = math.floor((when - self.begin) / self.seconds)
        return number if 0 <= number < self.size else None

    def complete_by(self, when: float) -> int:
        """Return the number of buckets whose samples are all at or before a time; a bucket of one second is a sample."""
        number = math.floor((when - self.begin) / self.seconds)
        if self.seconds <= 1:
            number += 1
        return min(self.size, max(0, number))


def buckets_of(span: Span, across: int) -> BucketRange:
    """Return buckets as fine as a column of dots, `across` of which are in a cell; at least one second."""
    length = span.cell * span.cells
    fine = [seconds for seconds in NICE_S if seconds <= span.cell / across]
    least = max([1.0, length / MOST_BUCKETS, *fine])
    seconds = next((each for each in NICE_S if each >= least), NICE_S[-1])
    first, last = math.floor(span.begin / seconds), math.ceil(span.end / seconds)
    return BucketRange(float(first * seconds), seconds, last - first)


def columns(span: Span, across: int, buckets: BucketRange) -> list[slice]:
    """Return the buckets of each column of dots: those with their middle in it, else the one at its middle."""
    width = span.cell / across
    begin = round(span.begin / width)
    first = round(buckets.begin / buckets.seconds)
    ratio = width / buckets.seconds
    parts: list[slice] = []
    for column in range(begin, begin + span.cells * across):
        start, end = math.ceil(column * ratio - 0.5), math.ceil((column + 1) * ratio - 0.5)
        if start >= end:
            start = math.floor((column + 0.5) * ratio)
            end = start + 1
        parts.append(slice(max(0, start - first), max(0, end - first)))
    return parts


def folded(values: Values, parts: Sequence[slice], fold: Callable[[Sequence[float]], float]) -> list[Value]:
    """Return one value per column: that of its only bucket, or `fold` of its known values."""
    per_column: list[Value] = []
    for part in parts:
        several = values[part]
        if len(several) == 1:
            per_column.append(several[0])
            continue
        known = [value for value in several if value is not None]
        per_column.append(fold(known) if known else None)
    return per_column


def mean(values: Sequence[float]) -> float:
    """Return the mean; faster than `statistics.fmean` for the few values of a column."""
    return sum(values) / len(values)


# --- labels ---


def _durations(
    seconds: Sequence[int], minutes: Sequence[int], hours: Sequence[int], days: Sequence[int]
) -> tuple[int, ...]:
    """Return all durations in seconds, the shortest first."""
    units = ((1, seconds), (60, minutes), (3600, hours), (86400, days))
    return tuple(unit * number for unit, numbers in units for number in numbers)


TICKS = _durations((1, 2, 5, 10, 15, 30), (1, 2, 5, 10, 15, 30), (1, 2, 3, 6, 12), (1, 2, 7))
"""Seconds between two labels; the first that leaves room for them is used."""

_ROOM = 12
"""Minimum cells from one label to the next."""


def _clock(when: float, step: float) -> str:
    if step < 60:
        shape = "%H:%M:%S"
    elif step < 86400:
        shape = "%H:%M"
    else:
        shape = "%d %b"
    return time.strftime(shape, time.localtime(when))


def _clock_labels(span: Span) -> list[tuple[float, str]]:
    """Return wall times at round values with their texts."""
    step = next((step for step in TICKS if step >= span.cell * _ROOM), TICKS[-1])
    shift = time.localtime(span.end).tm_gmtoff if span.end < 1e11 else 0
    first = math.ceil((span.begin + shift) / step)
    last = math.floor((span.end + shift) / step)
    times = [number * step - shift for number in range(first, last + 1)]
    return [(when, _clock(when, step)) for when in times]


def _step_labels(span: Span) -> list[tuple[float, str]]:
    """Return round steps with their texts."""
    step = max(1.0, nice_ceiling(span.cell * _ROOM))
    first, last = math.ceil(span.begin / step), math.floor(span.end / step)
    return [(number * step, f"step {count_short(number * step)}") for number in range(first, last + 1)]


def _since_labels(span: Span) -> list[tuple[float, str]]:
    """Return round durations with their texts, as in "1m30s"."""
    step = next((step for step in TICKS if step >= span.cell * _ROOM), TICKS[-1])
    times = range(0, math.floor(span.end) + 1, step)
    return [(float(when), _duration(when)) for when in times]


def _duration(seconds: int) -> str:
    parts = ((seconds // 3600, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"


_LABELS = {Unit.CLOCK: _clock_labels, Unit.STEP: _step_labels, Unit.SINCE: _since_labels}


def tick_row(span: Span, stroke: str, until: float = math.inf) -> Row:
    """Return labels at round values up to `until`, each after a stroke at its place."""
    text = [" "] * span.cells
    for when, label in _LABELS[span.unit](span):
        at, label = span.at(when), f"{stroke}{label}"
        if at is not None and when <= until and at + len(label) <= span.cells:
            text[at : at + len(label)] = label
    return (("".join(text), "dim"),)


def window_text(word: str, window: Window) -> str:
    """Return "live 5m": the state of time, and the length of the window."""
    return f"{word} {duration_short(window.seconds)}"


def ended_window_text(first: float, window: Window) -> str:
    """Return which part of an ended run is shown, by the time of its `first` sample: "whole run" or "last 5 min"."""
    if window.begin <= first:
        return "whole run"
    return f"last {duration_text(window.seconds)}"
