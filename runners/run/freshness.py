"""Whether a measured value is still valid: the only place where screens, verbs and exports decide it. Pure.

A value is valid for three of its usual intervals: a sample of a node for 3 s, the time of a step for three usual steps.
After that, samples or steps have stopped, and the value is out of date. After five usual steps a reader is warned.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from itertools import pairwise
from statistics import median_low

from .formatting import elapsed

TIMES = 3
"""Number of usual intervals that a value is valid."""
WARNING_TIMES = 5
"""Number of usual steps without a step after which a reader is warned."""
SAMPLE_S = 1.0
"""Seconds between two samples of a node. Every value is valid for at least three of them."""
PULSE_S = 5.0
"""Seconds between two pulses of a rank."""
OLD_S = 30.0
"""Seconds that a value is shown as old. Also the validity of a value with an unknown interval."""


class Freshness(enum.Enum):
    """How to show a value."""

    HOLDS = "holds"
    """Show it as current."""
    OLD = "old"
    """Show it marked as old."""
    UNKNOWN = "unknown"
    """Show n/a."""


def holds(age_s: float, usual_s: float | None = SAMPLE_S) -> bool:
    """Whether a value of this age is valid; `usual_s`: seconds between two such values, None if unknown."""
    if usual_s is None:
        return age_s <= OLD_S
    return age_s <= TIMES * max(usual_s, SAMPLE_S)


def is_late(still_s: float, usual_s: float) -> bool:
    """Whether the next step is so late that a reader is warned; `still_s`: seconds since the newest step."""
    return still_s > WARNING_TIMES * usual_s and not holds(still_s, usual_s)


def freshness(measured: float | None, now: float, usual_s: float | None = SAMPLE_S) -> Freshness:
    """Freshness of a value that was measured at a unix time; None or 0: never."""
    age_s = elapsed(measured, now)
    if age_s is None:
        return Freshness.UNKNOWN
    if holds(age_s, usual_s):
        return Freshness.HOLDS
    return Freshness.OLD if age_s <= OLD_S else Freshness.UNKNOWN


def usual_interval(times: Iterable[float]) -> float | None:
    """Median difference between consecutive times, oldest first; None for fewer than two."""
    distances = [after - before for before, after in pairwise(times)]
    return median_low(distances) if distances else None
