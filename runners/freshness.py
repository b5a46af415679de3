"""Whether a measured value still holds: the one place where every screen, verb and export asks. Pure.

A value holds for three of its usual intervals: a sample of a node for 3 s, the time of a step for three usual steps.
After that the samples or the steps have stopped, and the value says nothing about now.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from itertools import pairwise
from statistics import median_low

from .formatting import elapsed

TIMES = 3
"""Usual intervals for which a value holds."""
SAMPLE_S = 1.0
"""Seconds between two samples of a node. No value holds for less than three of them."""
PULSE_S = 5.0
"""Seconds between two pulses of a rank."""
OLD_S = 30.0
"""Seconds for which a value is shown as an old one. Also how long a value holds whose usual interval is unknown."""


class Freshness(enum.Enum):
    """How a value may be shown."""

    HOLDS = "holds"
    """As true now."""
    OLD = "old"
    """Only where it is marked as old."""
    UNKNOWN = "unknown"
    """Not at all: n/a."""


def holds(age_s: float, usual_s: float | None = SAMPLE_S) -> bool:
    """Whether a value of this age holds; `usual_s`: seconds between two such values, None where that is unknown."""
    if usual_s is None:
        return age_s <= OLD_S
    return age_s <= TIMES * max(usual_s, SAMPLE_S)


def freshness(measured: float | None, now: float, usual_s: float | None = SAMPLE_S) -> Freshness:
    """Of a value that was measured at a Unix time; None or 0: never."""
    age_s = elapsed(measured, now)
    if age_s is None:
        return Freshness.UNKNOWN
    if holds(age_s, usual_s):
        return Freshness.HOLDS
    return Freshness.OLD if age_s <= OLD_S else Freshness.UNKNOWN


def usual_interval(times: Iterable[float]) -> float | None:
    """The median of the distances between times, the oldest first; None where there are fewer than two."""
    distances = [after - before for before, after in pairwise(times)]
    return median_low(distances) if distances else None
