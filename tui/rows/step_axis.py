"""Curves by step: the step of each column, and the values moved to the columns of their steps. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from .plot import Line
from .time_axis import Span, Unit
from .value_axis import Value, Values

MOST_MISSING = 4
"""Points further apart than this many usual distances are not joined."""


class Steps(Struct, frozen=True):
    """The step at each column of dots of a time axis."""

    span: Span
    counts: Values

    def at(self, when: float) -> Value:
        """Return the step at a time; None if it is unknown."""
        column = math.floor((when - self.span.begin) / self._column)
        return self.counts[column] if 0 <= column < len(self.counts) else None

    def time_of(self, step: float) -> float | None:
        """Return the newest time at which the run was at most at this step."""
        before = [at for at, count in enumerate(self.counts) if count is not None and count <= step]
        return self.span.begin + (before[-1] + 0.5) * self._column if before else None

    @property
    def _column(self) -> float:
        return self.span.cell * self.span.cells / max(1, len(self.counts))

    @property
    def axis(self) -> Span | None:
        """The cells of the axis of steps; None if the run made no steps in the window."""
        known = [count for count in self.counts if count is not None]
        if not known or min(known) == max(known):
            return None
        cells = self.span.cells
        return Span(min(known), (max(known) - min(known)) / cells, cells, Unit.STEP)

    def moved(self, line: Line) -> Line:
        """Return a curve with its values at their steps."""
        axis = self.axis
        if axis is None:
            return line
        size = len(self.counts)

        def spread(values: Values, fold: Callable[[Sequence[float]], float]) -> list[Value]:
            pairs = zip(self.counts, values, strict=False)
            points = [
                (at - axis.begin, value) for at, value in pairs if at is not None and value is not None
            ]
            return spread_points(points, axis.end - axis.begin, size, fold)

        low = spread(line.low, min) if line.low else ()
        high = spread(line.high, max) if line.high else ()
        return replace(line, mean=spread(line.mean, fmean), low=low, high=high)


def counted(values: Values) -> list[Value]:
    """Return the step of each column: a count holds until the next."""
    held: list[Value] = []
    for value in values:
        held.append(held[-1] if value is None and held else value)
    return held


def spread_points(
    points: Sequence[tuple[float, float]],
    end: float,
    size: int,
    fold: Callable[[Sequence[float]], float] = fmean,
) -> list[Value]:
    """Return the value of each of `size` columns from (position, value), positions from 0 to `end`.

    Values are interpolated between neighbours that are not too far apart.
    """
    values: dict[int, list[float]] = {}
    for at, value in points:
        values.setdefault(min(size - 1, int(at / end * size)), []).append(value)
    folded: list[Value] = [None] * size
    places = sorted(values)
    for at in places:
        folded[at] = fold(values[at])
    usual = sorted(after - at for at, after in pairwise(places))
    most = MOST_MISSING * usual[len(usual) // 2] if usual else 0
    for at, after in pairwise(places):
        if after - at <= most:
            _bridge(folded, at, after)
    return folded


def _bridge(values: list[Value], at: int, after: int) -> None:
    """Fill the gap between two places with a straight line."""
    first, last = values[at], values[after]
    assert first is not None
    assert last is not None
    for between in range(at + 1, after):
        values[between] = first + (last - first) * (between - at) / (after - at)
