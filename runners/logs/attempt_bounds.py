"""The times between which the lines of each attempt were written. Pure.

A line's time may be inexact: the agent sees it after it was written. Bounds keep the lines of successive attempts apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..run.state import Attempt


class Bounds(NamedTuple):
    """Unix seconds of the first and the last possible line."""

    begin: float = 0.0
    end: float = math.inf

    def clamped(self, when: float) -> float:
        """Return a known time within the bounds. It is later than `begin`, which lines without a time get."""
        return min(max(when, math.nextafter(self.begin, math.inf)), self.end)


UNBOUNDED = Bounds()
"""For logs that belong to no attempt."""


def bounds_of(attempts: Sequence[Attempt]) -> dict[int, Bounds]:
    """Map each attempt's number to its bounds. An attempt ends before the next one begins."""
    bounds: dict[int, Bounds] = {}
    end = math.inf
    for attempt in reversed(attempts):
        begin = min(attempt.began, end)
        bounds[attempt.number] = Bounds(begin, end)
        end = math.nextafter(begin, 0.0)
    return bounds
