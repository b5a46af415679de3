"""The stacks of the script's threads, and the exceptions that ended some of them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any

from .import_watch import PATCH_ERRORS
from .tracebacks import frames_of, shortened

MOST_THREADS, MOST_FRAMES, MOST_DEAD = 8, 6, 4


def stack_from(frame: FrameType | None, most: int) -> list[list[Any]]:
    """Return [file, line, function] of a frame and its callers, innermost first."""
    stack: list[list[Any]] = []
    while frame is not None and len(stack) < most:
        stack.append(
            [frame.f_code.co_filename, frame.f_lineno or frame.f_code.co_firstlineno, frame.f_code.co_name]
        )
        frame = frame.f_back
    return stack


def _cpu_s(thread: threading.Thread) -> float | None:
    """Return the CPU seconds of a thread; None if it has ended."""
    try:
        with open("/proc/self/task/%d/stat" % (thread.native_id or 0), "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


class Threads:
    """The script's threads except the main one, and those that an exception ended."""

    def __init__(self) -> None:
        self._died: list[list[Any]] = []

    def arm(self) -> None:
        """Record exceptions that end threads from now on; they are printed as before."""
        chained = threading.excepthook

        def noted(ended: Any) -> None:
            try:
                with contextlib.suppress(*PATCH_ERRORS):
                    self._keep(ended)
            finally:
                chained(ended)

        threading.excepthook = noted

    def _keep(self, ended: Any) -> None:
        if ended.exc_type is SystemExit or len(self._died) >= MOST_DEAD:
            return
        frames = [list(frame) for frame in frames_of(ended.exc_traceback)][::-1]
        name = ended.thread.name if ended.thread is not None else "a thread"
        error = shortened("%s: %s" % (ended.exc_type.__name__, ended.exc_value))
        self._died.append([name, frames[:MOST_FRAMES], error, 0])

    def dead(self) -> list[list[Any]]:
        """Return the threads that an exception ended."""
        return list(self._died)

    def sample(self, loops: Mapping[int, int], turns: Mapping[int, int]) -> list[list[Any]]:
        """Return the fields of RankThread for each thread: frames innermost first, error "" if the thread is alive.

        `loops`: thread → samples at a backward jump. `turns`: thread → samples in a loop without an end.
        """
        frames = sys._current_frames()
        living: list[list[Any]] = []
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            own = thread.name.startswith("distui-")
            if thread is threading.main_thread() or own or frame is None or len(living) == MOST_THREADS:
                continue
            number = thread.ident or 0
            counts = [loops.get(number, 0), turns.get(number, 0), _cpu_s(thread)]
            living.append([thread.name, stack_from(frame, MOST_FRAMES), "", *counts])
        return self._died + living
