"""Wait for gloo's threads at exit. Each one releases the objects of a collective some time after its end.

For this it takes the GIL. CPython before 3.14 ends a thread that requests the GIL while the interpreter exits. Here that
happens in a C++ destructor: the process dies of SIGABRT, "terminate called without an active exception".
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time

TASKS = "/proc/self/task"
THREAD = "(pt_gloo_runloop)"
"""torch's name of these threads, as in /proc/self/task/TID/stat."""
LIMIT_S = 5.0
"""Longest wait in seconds at exit. The threads need only some CPU time."""
PAUSE_S = 0.001
SAMPLES = 2
"""All threads must sleep in this many consecutive samples: in a single one another thread may hold the GIL."""


def arm() -> None:
    """Register the wait with atexit. It runs after all functions that are registered later."""
    atexit.register(settle)


def settle() -> None:
    """Wait until all of them sleep. A thread that requests the GIL is awake whenever this thread releases it."""
    until, asleep = time.monotonic() + LIMIT_S, 0
    while asleep < SAMPLES and time.monotonic() < until:
        states = _states()
        if not states:
            return
        asleep = asleep + 1 if states == {"S"} else 0
        time.sleep(PAUSE_S)


def _states() -> set[str]:
    """Return the states of gloo's threads as in proc(5): S sleeps, R runs or can run. Empty without /proc."""
    states = set()
    with contextlib.suppress(OSError):
        for task in os.listdir(TASKS):
            with (
                contextlib.suppress(OSError),
                open("%s/%s/stat" % (TASKS, task)) as file,
            ):  # the thread may end now
                name, _, rest = file.read().partition(" ")[2].partition(" ")
                if name == THREAD:
                    states.add(rest[:1])
    return states
