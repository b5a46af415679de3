"""gloo's threads at the end of a process: each gives back what a collective held some time after that is done.

It needs the GIL for this. CPython before 3.14 ends a thread that asks for the GIL of an interpreter in its last steps,
there in a destructor of C++'s: the process dies of SIGABRT, "terminate called without an active exception".
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time

TASKS = "/proc/self/task"
THREAD = "(pt_gloo_runloop)"
"""What torch calls each of them."""
LIMIT_S = 5.0
"""The longest that the end of a process waits for them; they only wait for a core."""
PAUSE_S = 0.001
SAMPLES = 2
"""So many in a row have to see them all asleep: another thread may have had the GIL meanwhile."""


def arm() -> None:
    """Have the end of this process wait for them, behind all that is registered for it later."""
    atexit.register(settle)


def settle() -> None:
    """Wait until all of them sleep: one that asks for the GIL is awake whenever this thread gives it up."""
    until, asleep = time.monotonic() + LIMIT_S, 0
    while asleep < SAMPLES and time.monotonic() < until:
        states = _states()
        if not states:
            return
        asleep = asleep + 1 if states == {"S"} else 0
        time.sleep(PAUSE_S)


def _states() -> set[str]:
    """Of each thread, as proc(5) has it: S sleeps, R runs or waits for a core; none where there is no /proc."""
    states = set()
    with contextlib.suppress(OSError):
        for task in os.listdir(TASKS):
            with (
                contextlib.suppress(OSError),
                open("%s/%s/stat" % (TASKS, task)) as file,
            ):  # it may end meanwhile
                name, _, rest = file.read().partition(" ")[2].partition(" ")
                if name == THREAD:
                    states.add(rest[:1])
    return states
