"""Texts of measured values by their units: short ones for columns and charts, longer ones for tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ..run.formatting import NA, duration_exact, size_short, size_text, step_short, step_text

BYTES = ("B", "B/s")
LARGEST = 1e15
"""A number from here on is written with an exponent."""


def _rounded(sign: str) -> Callable[[float], str]:
    return lambda value: f"{value:.0f}{sign}"


_SHORT: Mapping[str, Callable[[float], str]] = {
    "%": _rounded("%"),
    "core %": _rounded("%"),
    "°C": _rounded("°"),
    "W": _rounded("W"),
    "MHz": lambda value: f"{value / 1000:.2f}G",
    "B": size_short,
    "B/s": size_short,
    "s": step_short,
}


def value_short(value: float | None, unit: str) -> str:
    """Return a value in at most six columns, of a rate without the time."""
    if value is None:
        return NA
    return _SHORT.get(unit, count_short)(value)


def value_text(value: float | None, unit: str) -> str:
    """Return a value with its unit."""
    if value is None or not math.isfinite(value):
        return NA
    if unit == "s":
        return _seconds_text(value)
    if unit in BYTES:
        return size_text(value) + unit[1:]
    if unit == "/s":
        return _number_text(value) + unit
    if unit in ("%", "core %") and abs(value) < LARGEST:
        return f"{value:.1f} %"
    return f"{_number_text(value)} {unit}".rstrip()


def _number_text(value: float) -> str:
    if 1000 <= abs(value) < LARGEST or value == int(value) < LARGEST:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _seconds_text(value: float) -> str:
    if value >= 120:
        return duration_exact(value)
    return step_text(value) if value >= 0.01 else f"{1000 * value:.2f} ms"


def count_short(value: float) -> str:
    """Return a plain number in at most five columns: "2.311", "1,729", "91.2k", "3e-4"."""
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            scaled = value / (1e3 if unit == "k" else limit)
            return f"{scaled:.1f}{unit}" if abs(scaled) < 100 else f"{scaled:.0f}{unit}"
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    if size >= 0.001:
        return f"{value:.4g}"[:6]
    return f"{value:.0e}".replace("e-0", "e-")
