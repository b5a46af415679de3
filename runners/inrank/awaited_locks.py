"""Name the lock of the script that a thread waits for, the thread that holds it, and what that one waits for.

A lock does not tell its holder. But a thread that is inside of `with LOCK:` holds it. Standard library only.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from types import FrameType
from typing import Any

from .awaited_names import nodes_around, value_of
from .import_watch import PATCH_ERRORS
from .source_trees import called

FRAMES, MOST_NAME = 40, 80


def lock_of(thread: int) -> list[Any] | None:
    """Return the wait of a thread at its current line, as the fields of LockWait; None if it waits for no lock."""
    frames = sys._current_frames()
    awaited = _awaited(frames.get(thread))
    if awaited is None:
        return None
    name, lock = awaited
    holder = _holder(lock, frames, thread)
    further = None if holder is None else _awaited(frames.get(holder))
    is_circle = further is not None and _holder(further[1], frames, holder or 0) == thread
    return [name, _name_of(holder), "" if further is None else further[0], is_circle]


def _name_of(thread: int | None) -> str:
    living = {each.ident: each.name for each in threading.enumerate()}
    return living.get(thread, "")


def _awaited(frame: FrameType | None) -> tuple[str, Any] | None:
    """Return the lock that the current line of a frame takes, with its name in the source."""
    if frame is None:
        return None
    with contextlib.suppress(*PATCH_ERRORS):
        for node in reversed(nodes_around(frame)):
            for target in _taken(node, frame.f_lineno):
                lock = value_of(target, frame)
                if _is_lock(lock):
                    return _source(target), lock
    return None


def _taken(node: Any, line: int) -> list[Any]:
    """Return the expressions of locks that a node takes at this line: `with lock:` or `lock.acquire()`."""
    import ast  # slow

    if isinstance(node, ast.With):
        return [item.context_expr for item in node.items if item.context_expr.lineno == line]
    if isinstance(node, ast.Call) and called(node) == "acquire" and isinstance(node.func, ast.Attribute):
        return [node.func.value]
    return []


def _is_lock(value: object) -> bool:
    return type(value).__name__ in ("lock", "RLock") and type(value).__module__ == "_thread"


def _source(node: Any) -> str:
    import ast

    return ast.unparse(node)[:MOST_NAME]


def _holder(lock: object, frames: dict[int, FrameType], but: int) -> int | None:
    """Return the thread, other than this one, that is inside of a `with` statement of this lock."""
    for thread, innermost in frames.items():
        frame: FrameType | None = innermost
        for _ in range(0 if thread == but else FRAMES):
            if frame is None:
                break
            if _is_within(frame, lock):
                return thread
            frame = frame.f_back
    return None


def _is_within(frame: FrameType, lock: object) -> bool:
    import ast

    for node in nodes_around(frame):
        if isinstance(node, ast.With) and frame.f_lineno >= node.body[0].lineno:
            for item in node.items:
                with contextlib.suppress(*PATCH_ERRORS):
                    if value_of(item.context_expr, frame) is lock:
                        return True
    return False
