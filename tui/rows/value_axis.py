"""The value axis of a chart: which values it shows, and the round numbers next to it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

Value = float | None
Values = Sequence[Value]

ROWS_PER_TICK, LEAST_ROWS_PER_TICK = 4, 3
"""Rows from one label to the next: about, and at least."""

WORTH_CLIPPING = 1.5
"""Rare values are clipped if they would stretch the axis by more than this factor."""

LARGEST = 1e300
"""Values beyond it would overflow in the arithmetic of the axis."""

LEAST_SHARE = 0.1
"""Minimum span of an axis that does not begin at 0, as a share of its largest absolute value."""


class Axis(Struct, frozen=True):
    """The values at the lower and the upper edge of a chart, and those that have a label."""

    low: float = 0.0
    high: float = 100.0
    log: bool = False
    ticks: tuple[float, ...] = ()

    def share(self, value: Value) -> float | None:
        """Return 0.0 at the lower edge to 1.0 at the upper; None if the value cannot be drawn."""
        if value is None or not math.isfinite(value):
            return None
        low, high = self.low, self.high
        if self.log:
            if value <= 0 or low <= 0:
                return None
            value, low, high = math.log(value), math.log(low), math.log(high)
        if high <= low:
            return 0.0
        return min(1.0, max(0.0, (value - low) / (high - low)))


# --- round numbers ---

_EDGES = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
"""Leading digits of the upper edge of an axis without further labels."""

_STEPS = {1.0: 0.0, 2.0: 0.0, 5.0: 0.0, 2.5: 0.05, 4.0: 0.1, 1.5: 0.15, 3.0: 0.15}
"""Leading digits of the distance between two labels, and how much room an axis may waste to avoid them."""


def _unit(value: float, binary: bool) -> float:
    """Return 1, or the largest of KiB, MiB, … in which a value is written."""
    unit = 1.0
    while binary and value / unit > 1000:
        unit *= 1024
    return unit


def nice_ceiling(value: float, *, binary: bool = False) -> float:
    """Return the next round value at or above this one; 1.0 if it is not above 0. `binary` rounds in KiB, MiB, …."""
    if not math.isfinite(value) or value <= 0:
        return 1.0
    unit = _unit(value, binary)
    power = unit * 10.0 ** math.floor(math.log10(value / unit))
    return next((step * power for step in _EDGES if value <= step * power * (1 + 1e-9)), 10.0 * power)


def _multiples(step: float, first: int, last: int) -> tuple[float, ...]:
    """Return the multiples of a step from the first to the last number, without the noise of binary fractions."""
    return tuple(float(f"{number * step:.12g}") for number in range(first, last + 1))


def round_axis(low: float, high: float, rows: int, *, binary: bool = False) -> Axis:
    """Return an axis whose edges are round values around `low` and `high`, with a label every few rows."""
    low, high = (min(max(value, -LARGEST), LARGEST) for value in (low, high))
    most = max(1, round(rows / LEAST_ROWS_PER_TICK))
    if most == 1:
        return _tight_axis(low, high, binary=binary)
    best, least = 1.0, math.inf
    for step, penalty in _steps(high - low, binary):
        first, last = _around(low, high, step)
        too_few = abs(last - first - rows / ROWS_PER_TICK) / 50
        cost = (last - first) * step * (1 + penalty + too_few)
        if last - first <= most and cost < least:
            best, least = step, cost
    ticks = _multiples(best, *_around(low, high, best))
    return Axis(ticks[0], ticks[-1], ticks=ticks)


def _steps(size: float, binary: bool) -> Iterator[tuple[float, float]]:
    """Yield round distances around a tenth of a size and above, with their penalties."""
    if not math.isfinite(size) or size <= 0:
        size = 1.0
    unit = _unit(size, binary)
    power = math.floor(math.log10(size / unit))
    for exponent in (power - 1, power, power + 1):
        for digit, penalty in _STEPS.items():
            yield digit * 10.0**exponent * unit, penalty


def _tight_axis(low: float, high: float, *, binary: bool) -> Axis:
    """Return an axis of a low chart, which has labels only at its edges."""
    if not low:
        high = nice_ceiling(high, binary=binary)
        return Axis(0.0, high, ticks=(0.0, high))
    step = nice_ceiling((high - low) / 4, binary=binary)
    ticks = _multiples(step, *_around(low, high, step))
    return Axis(ticks[0], ticks[-1], ticks=(ticks[0], ticks[-1]))


def _around(low: float, high: float, step: float) -> tuple[int, int]:
    """Return the numbers of the multiples of a step that enclose both values."""
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return first, max(last, first + 1)


def fixed_axis(high: float, rows: int, *, binary: bool = False) -> Axis:
    """Return an axis from 0 to a known maximum, in equal parts if these are round."""
    intervals = max(1, round(rows / ROWS_PER_TICK))
    for parts in range(intervals, 1, -1):
        step = high / parts
        if any(math.isclose(step, each) for each, _ in _steps(step, binary)):
            return Axis(0.0, high, ticks=_multiples(step, 0, parts))
    step = min(each for each, _ in _steps(high, binary) if each >= high / intervals)
    inner = [tick for tick in _multiples(step, 0, intervals) if tick <= high - step * 0.7]
    return Axis(0.0, high, ticks=(*inner, high))


def log_axis(values: Sequence[float], rows: int, *, binary: bool = False) -> Axis:
    """Return an axis from a power of ten below the smallest positive value to one above the largest.

    `binary` counts 1, 10, 100 in bytes, KiB, MiB, ….
    """
    positive = [value for value in values if value > 0]
    low, high = min(positive, default=0.1), max(positive, default=1.0)
    least = math.floor(math.log10(low))
    while _power(least, binary) > low:
        least -= 1
    most = max(math.ceil(math.log10(high)), least + 1)
    while most > least + 1 and _power(most - 1, binary) >= high:
        most -= 1
    stride = math.ceil((most - least) / max(1, round(rows / ROWS_PER_TICK)))
    ticks = {_power(number, binary) for number in (*range(least, most + 1, stride), most)}
    return Axis(_power(least, binary), _power(most, binary), log=True, ticks=tuple(sorted(ticks)))


def _power(number: int, binary: bool) -> float:
    """Return a power of ten; `binary` replaces each thousand by 1024."""
    if not binary or number < 0:
        return float(10.0**number)
    thousands, rest = divmod(number, 3)
    return float(1024.0**thousands * 10.0**rest)


# --- the range of an axis ---


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def usual_range(lows: Sequence[float], highs: Sequence[float], base: float | None) -> tuple[float, float]:
    """Return the range from the 1st to the 99th percentile, or of all values if the rest stretches it little.

    In a short window even a single value is more than one percent, so that a few values count as rare as well. With a
    `base` the axis begins there, or below it if values are.
    """
    lows, highs = sorted(lows), sorted(highs)
    if not lows or not highs:
        return (0.0, 1.0) if base is None else (base, base + 1.0)
    low, high = lows[_rare(lows)], highs[-1 - _rare(highs)]
    if base is not None:
        low = min(base, low)
    size = (high - low) * WORTH_CLIPPING
    if highs[-1] <= low + size or high <= low:
        high = highs[-1]
    if lows[0] >= high - size or high <= low:
        low = min(low, lows[0])
    return low, high


def _rare(values: Sequence[float]) -> int:
    """Return how many of the largest or the smallest values may be clipped."""
    return max(len(values) // 100, min(4, len(values) // 20))


def widened(low: float, high: float) -> tuple[float, float]:
    """Return a range that is not so small that noise fills the chart."""
    missing = LEAST_SHARE * max(abs(high), abs(low), 1e-12) - (high - low)
    if missing <= 0:
        return low, high
    floor = low - missing / 2
    if low >= 0:
        floor = max(0.0, floor)
    return floor, high + missing / 2
