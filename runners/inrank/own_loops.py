"""Find the loop without an end that a thread of the script turns in, and what its condition reads.

A livelock stays in a `while` loop, or in a `for` loop over an endless iterator, and the values in its condition do not
change. A long computation is in a loop that ends, or its condition changes. Standard library only.
"""

from __future__ import annotations

import contextlib
from collections import deque
from types import FrameType
from typing import Any, NamedTuple

from .awaited_names import value_of
from .import_watch import PATCH_ERRORS
from .source_trees import called, tree_of

FRAMES = 8
"""Innermost frames to search."""
ENDLESS = ("count", "cycle", "repeat", "iter")
"""Functions whose iterators may have no end."""
MOST_STATE = 200
_PLAIN, _SIZED = (bool, int, float, str, type(None)), (list, dict, set, tuple, deque, bytearray)


class Loop(NamedTuple):
    """A loop of a file: a statement or a comprehension."""

    first: int
    last: int
    test: Any
    """Syntax tree of the condition of an endless loop; None if it ends."""


class LoopLine(NamedTuple):
    file: str
    line: int


_loops: dict[str, list[Loop]] = {}
"""File → its loops, outer ones first."""


def endless_loop(frame: FrameType | None) -> LoopLine | None:
    """Return the innermost loop of the script that a frame and its callers are in; None if it ends, or without one."""
    found = _found(frame)
    if found is None or found[0].test is None:
        return None
    return LoopLine(found[1].f_code.co_filename, found[0].first)


def state_of(frame: FrameType | None, loop: LoopLine) -> str | None:
    """Return the values that the condition of this loop reads, as a text; None if the frame is in another one.

    It reads variables of the frame. Up to Python 3.12 that keeps their objects alive for longer.
    """
    found = _found(frame)
    if found is None or found[0].test is None or endless_loop(frame) != loop:
        return None
    return _values(found[0].test, found[1])[:MOST_STATE]


def _found(frame: FrameType | None) -> tuple[Loop, FrameType] | None:
    for _ in range(FRAMES):
        if frame is None:
            break
        with contextlib.suppress(*PATCH_ERRORS):
            loop = _around(frame)
            if loop is not None:
                return loop, frame
        frame = frame.f_back
    return None


def _around(frame: FrameType) -> Loop | None:
    """Return the innermost loop around the current line of a frame."""
    file, line = frame.f_code.co_filename, frame.f_lineno
    if file not in _loops:
        tree = tree_of(frame)
        _loops[file] = [] if tree is None else _loops_in(tree)
    innermost = None
    for loop in _loops[file]:
        if loop.first <= (line or 0) <= loop.last:
            innermost = loop
    return innermost


def _loops_in(tree: Any) -> list[Loop]:
    import ast  # slow

    found: list[Loop] = []
    todo: list[Any] = [tree]
    for node in todo:
        parts = ast.iter_child_nodes(node)
        if isinstance(node, ast.While):
            found.append(Loop(node.lineno, node.body[-1].end_lineno or node.lineno, node.test))
            parts = iter([*node.body, *node.orelse])  # a comprehension in the condition belongs to it
        elif isinstance(node, ast.For):
            found.append(Loop(node.lineno, node.body[-1].end_lineno or node.lineno, _without_end(node)))
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            found.append(Loop(node.lineno, node.end_lineno or node.lineno, None))
        todo.extend(parts)
    return sorted(found, key=lambda loop: (loop.first, -loop.last))


def _without_end(node: Any) -> Any:
    """Return the iterator of a `for` loop if it may have no end, else None."""
    import ast

    is_endless = isinstance(node.iter, ast.Call) and called(node.iter) in ENDLESS
    return ast.Constant(True) if is_endless else None


def _values(test: Any, frame: FrameType) -> str:
    import ast

    marks: list[str] = []
    for node in ast.walk(test):
        if isinstance(node, (ast.Name, ast.Attribute)):
            with contextlib.suppress(*PATCH_ERRORS):
                marks.append(_mark(value_of(node, frame)))
    return " ".join(marks)


def _mark(value: object) -> str:
    """Return a text that changes with a plain value or the size of a plain container. It runs no code of the script."""
    if type(value) in _PLAIN:
        return repr(value)[:40]
    if type(value) in _SIZED:
        return "%d items" % len(value)  # type: ignore[arg-type]
    return type(value).__name__
