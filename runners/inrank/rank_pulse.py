"""A rank's pulse: its stack, CPU time, steps and collectives, in the form of runners/run/model.py."""

from __future__ import annotations

import opcode
import os
import sys
import threading
import time
from collections import Counter
from types import FrameType
from typing import Any

from .asyncio_tasks import waiting_tasks
from .awaited_locks import lock_of
from .collectives import UNREADABLE, Collectives, torch_home
from .own_loops import LoopLine, endless_loop, state_of
from .script_threads import Threads, stack_from
from .thread_waits import main_wait
from .tracebacks import frames_of

FRAMES, INNERMOST, DEPTH = 24, 8, 400
"""Most frames in a pulse, how many innermost ones are always kept, and the most frames that are read."""
SAMPLES, APART_S = 20, 0.02
MOST_TEXT = 160
"""Most characters of the text of an exception."""
TURNS = 4
"""Pulses in a row in which the main thread turns in one endless loop until its condition is read."""
HELD_UP = ("futex", "lock", "sleep", "poll")
"""The other threads are sampled during these waits of the main thread: it may wait for one of them."""


class PulseSampler:
    """Takes pulses of this process, and keeps the state that the next one needs."""

    def __init__(self, threads: Threads) -> None:
        self._collectives, self._threads = Collectives(), threads
        self._loop: LoopLine | None = None
        """The endless loop of the main thread in the newest pulse."""
        self._turns = 0
        """Pulses in a row with this loop."""

    def take(
        self, count: int, last: float, samples: int = 1, whole: bool = False, sites: bool = False
    ) -> dict[str, Any]:
        """Take a pulse.

        `count`, `last`: optimizer steps, and unix time of the newest one. `samples`: stack samples, at most SAMPLES. For
        `whole` and `sites` see Collectives.sample.
        """
        main = threading.main_thread().ident
        seen: set[Any] = set()
        stack: list[list[Any]] = []
        samples = max(1, min(samples, SAMPLES))
        loops, endless = Counter[int](), Counter[tuple[int, LoopLine]]()
        for number in range(samples):
            if number:
                time.sleep(APART_S)
            loops.update(loop_threads())
            if samples > 1:
                endless.update(endless_loops())
            stack = stack_of(main)
            seen.add(tuple(stack[0]) if stack else None)
        taken: dict[str, Any] = {
            "stack": stack,
            "sites": len(seen),
            "samples": samples,
            "loops": loops[main or 0],
            "cpu_s": thread_seconds(main),
            "process_s": time.process_time(),
            "torch": "torch.distributed" in sys.modules,
            "step": count,
            "last_step": last or None,
            "world_size": os.environ.get("WORLD_SIZE"),
            "master": master(),
            "handles": handled(main),
        }
        taken.update(self._endless(main, endless))
        taken.update(main_wait())
        if taken.get("call") == "futex" and main is not None:
            taken["lock"] = lock_of(main)
        if taken.get("call") in HELD_UP:
            turns = Counter[int]()
            for (thread, _), count in endless.items():
                turns[thread] += count
            tasks = waiting_tasks(sys._current_frames().get(main or 0)) if taken["call"] == "poll" else []
            taken["threads"] = tasks + self._threads.sample(loops, turns)
        else:
            taken["threads"] = self._threads.dead()
        try:
            taken.update(self._collectives.sample(whole, sites))
        except UNREADABLE:
            taken["recorder"] = False
        return taken

    def _endless(self, main: int | None, endless: Counter[tuple[int, LoopLine]]) -> dict[str, Any]:
        """Return the endless loop that the main thread was in most often, and the samples in it; {} without one."""
        own = {loop: count for (thread, loop), count in endless.items() if thread == main}
        loop = max(own, key=lambda each: own[each], default=None)
        self._turns = self._turns + 1 if loop == self._loop else 1
        self._loop = loop
        if loop is None:
            return {}
        frame = sys._current_frames().get(main or 0)
        state = state_of(frame, loop) if self._turns >= TURNS else None
        return {"endless": [loop.file, loop.line, own[loop], state]}


def handled(thread: int | None) -> str:
    """Return the exception that a thread is handling, in an `except` or `finally` block; "" without one."""
    exceptions: dict[int | None, Any] = getattr(sys, "_current_exceptions", dict)()
    current = exceptions.get(thread)
    error = current[1] if isinstance(current, tuple) else current  # a tuple before Python 3.12
    if error is None:
        return ""
    places = list(frames_of(error.__traceback__))
    place = " at %s:%s" % (os.path.basename(places[-1][0]), places[-1][1]) if places else ""
    values = [
        str(value) for value in error.args if type(value) in (str, int, float)
    ]  # str(error) may run its code
    return ("%s: %s" % (type(error).__name__, ", ".join(values)))[:MOST_TEXT] + place


def endless_loops() -> list[tuple[int, LoopLine]]:
    """Return each thread of the script whose innermost loop has no end, with that loop."""
    found = []
    for thread, frame in sys._current_frames().items():
        loop = None if thread == threading.get_ident() else endless_loop(frame)
        if loop is not None:
            found.append((thread, loop))
    return found


def master() -> str | None:
    """Return MASTER_ADDR:MASTER_PORT of the current environment, or None."""
    address = os.environ.get("MASTER_ADDR")
    return None if address is None else "%s:%s" % (address, os.environ.get("MASTER_PORT", ""))


def thread_seconds(thread: int | None) -> float | None:
    """Return the CPU seconds of a live thread."""
    return None if thread is None else time.clock_gettime(time.pthread_getcpuclockid(thread))


def loop_threads() -> list[int]:
    """Return the threads that are at a backward jump, the end of a loop's body, or at the beginning of a function.

    The interpreter switches threads there and at calls of C code. A loop that calls no C code is always there.
    """
    return [thread for thread, frame in sys._current_frames().items() if _jumps_back(frame)]


def _jumps_back(frame: FrameType) -> bool:
    if frame.f_lasti < 0:
        return False
    name = opcode.opname[frame.f_code.co_code[frame.f_lasti]]
    return name == "RESUME" or "JUMP_BACKWARD" in name or (sys.version_info < (3, 11) and "JUMP" in name)


def stack_of(thread: int | None) -> list[list[Any]]:
    """Return [file, line, function] of a thread's frames, innermost first. A deep stack omits outer frames of torch."""
    stack = stack_from(sys._current_frames().get(thread or 0), DEPTH)
    if len(stack) > FRAMES:
        home = torch_home()
        stack[INNERMOST:] = [site for site in stack[INNERMOST:] if not site[0].startswith(home)]
    return stack[:FRAMES]
