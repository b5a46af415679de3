"""The tasks of asyncio that wait while the main thread is in its event loop. Standard library only."""

from __future__ import annotations

import contextlib
import sys
from types import FrameType
from typing import Any

from .import_watch import PATCH_ERRORS
from .script_threads import stack_from

MOST, DEPTH, FRAMES = 4, 20, 40
TASK = "task "
"""Beginning of the names of tasks, which are reported like threads."""


def waiting_tasks(frame: FrameType | None) -> list[list[Any]]:
    """Return the fields of RankThread for each task of the event loop that this frame or a caller runs."""
    for _ in range(FRAMES):
        if frame is None:
            break
        if frame.f_code.co_name == "run_forever" and "asyncio" in frame.f_code.co_filename:
            with contextlib.suppress(*PATCH_ERRORS):
                return [_fields(task) for task in _tasks(frame.f_locals["self"])]
        frame = frame.f_back
    return []


def _tasks(loop: Any) -> list[Any]:
    """Return the tasks of a loop, the oldest first as far as asyncio keeps their order."""
    module = sys.modules["asyncio"]
    return sorted(module.all_tasks(loop), key=lambda task: str(task.get_name()))[:MOST]


def _fields(task: Any) -> list[Any]:
    coroutine = task.get_coro()
    frames: list[list[Any]] = []
    for _ in range(DEPTH):
        frame = getattr(coroutine, "cr_frame", None)
        if frame is None:
            break
        frames = stack_from(frame, 1) + frames
        coroutine = coroutine.cr_await
    return [TASK + task.get_name(), frames, "", 0, 0, None]
