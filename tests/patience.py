"""Limits of tests are there to end what hangs; how long that takes is judged by the machine and what else it does."""

from __future__ import annotations

import os
import time
from functools import cache

HANG_S = 120.0
"""Limit in seconds that only ends what hangs. It says nothing about speed."""
MOST = 10.0
"""A limit is stretched no further than this."""
USUAL_S = 0.06
"""CPU seconds of the sum below on a core of today."""


@cache
def _slow_core() -> float:
    """How many times longer than usual a core takes; the shortest of three, as another one may be in the way."""
    took = []
    for _ in range(3):
        began = time.thread_time()
        sum(number * number for number in range(1_000_000))
        took.append(time.thread_time() - began)
    return min(took) / USUAL_S


def slowness() -> float:
    """How many times longer than alone on a core of today a process takes now, from 1 to MOST."""
    busy = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    return min(MOST, max(1.0, busy) * max(1.0, _slow_core()))
