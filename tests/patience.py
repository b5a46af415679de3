"""Limits of tests are there to end what hangs; how long that takes is judged by what else the machine does."""

from __future__ import annotations

import os

MOST = 10.0
"""A limit is stretched no further than this."""


def slowness() -> float:
    """How many times longer than alone a process takes now, from 1 to MOST: processes that want a core, per core."""
    return min(MOST, max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0))))
