"""The stacks of the script's threads, and the exceptions that ended some of them."""

from __future__ import annotations

import contextlib
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
        stack.append([frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name])
        frame = frame.f_back
    return stack


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

    def sample(self, loops: Mapping[int, int]) -> list[list[Any]]:
        """Return [name, frames, error, loops] of each thread: frames innermost first, error "" if the thread is alive.

        `loops`: thread → samples at a backward jump.
        """
        frames = sys._current_frames()
        living: list[list[Any]] = []
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            own = thread.name.startswith("distui-")
            if thread is threading.main_thread() or own or frame is None or len(living) == MOST_THREADS:
                continue
            looped = loops.get(thread.ident or 0, 0)
            living.append([thread.name, stack_from(frame, MOST_FRAMES), "", looped])
        return self._died + living
