"""Name what the main thread polls or asks for, from its source line: a file that a loop checks, a key of a store.

The values come from the frame's variables. No code of the script runs: expressions other than names, attributes of
plain objects, constants, f-strings and joined paths are not evaluated. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import PurePath
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from .import_watch import PATCH_ERRORS
from .source_trees import called, tree_of

if TYPE_CHECKING:
    import ast

CHECKS = ("exists", "isfile", "is_file", "isdir", "is_dir", "lexists", "getsize", "stat", "glob")
"""Functions with which a script checks for a file."""
ASKS = ("get", "wait", "multi_get", "check")
"""Methods of torch's stores that wait for keys."""
RETURNS_STORE = ("_get_default_store", "TCPStore", "PrefixStore", "FileStore")
MOST_NAME, FRAMES = 200, 4
"""Most characters of a name, and innermost frames to search."""

WAITS = ("sleep", "futex", "poll", "read")
MOST_KEPT = 1000

_lines: dict[tuple[str, int], list[Any]] = {}
"""File and line → the nodes that contain it."""


class Wanted(NamedTuple):
    """What a thread waits for."""

    name: str = ""
    """A path, or the key of a store."""
    until_gone: bool = False
    """Whether it waits until the file is removed."""


def wanted(frame: FrameType | None, call: str) -> Wanted:
    """Return the file or key that a frame or one of its callers waits for; without a name if none is found.

    `call`: kind of system call that the thread is in, as in thread_waits.py.
    """
    for _ in range(FRAMES if call in WAITS else 0):
        if frame is None:
            break
        with contextlib.suppress(*PATCH_ERRORS):
            found = Wanted(_key(frame))
            if not found.name and call in ("sleep", "futex"):
                found = _file(frame)
            if found.name:
                return found._replace(name=found.name[:MOST_NAME])
        frame = frame.f_back
    return Wanted()


def _file(frame: FrameType) -> Wanted:
    """Return the path that the innermost loop around the current line checks."""
    import ast

    loop = None
    for node in nodes_around(frame):
        if isinstance(node, (ast.While, ast.For)):
            loop = node  # nodes come from the outside to the inside
    for node in ast.walk(loop) if loop is not None else ():
        if isinstance(node, ast.Call) and called(node) in CHECKS:
            target = node.args[0] if node.args else getattr(node.func, "value", None)
            path = value_of(target, frame)
            if isinstance(path, (str, PurePath)):
                return Wanted(os.path.abspath(path), until_gone=node is getattr(loop, "test", None))
    return Wanted()


def _key(frame: FrameType) -> str:
    """Return the key for which the current line asks a store of torch."""
    import ast

    for node in nodes_around(frame):
        if isinstance(node, ast.Call) and called(node) in ASKS and isinstance(node.func, ast.Attribute):
            if not node.args or not _is_store(node.func.value, frame):
                continue
            first = node.args[0]
            keys = first.elts if isinstance(first, (ast.List, ast.Tuple)) else [first]
            values = [value_of(key, frame) for key in keys]
            return ", ".join(value for value in values if isinstance(value, str))
    return ""


def _is_store(node: ast.expr, frame: FrameType) -> bool:
    """Whether an expression is a store of torch: by its value, or by the function of torch that returns one."""
    import ast

    if isinstance(node, ast.Call):
        return called(node) in RETURNS_STORE
    kinds = type(value_of(node, frame)).__mro__
    return any(kind.__name__ == "Store" and kind.__module__.startswith("torch") for kind in kinds)


def nodes_around(frame: FrameType) -> list[Any]:
    """Return the nodes of the file that contain the frame's current line, outer ones first."""
    file, line = frame.f_code.co_filename, frame.f_lineno
    tree = None if line is None else tree_of(frame)
    if tree is None:
        return []
    if (file, line) not in _lines and len(_lines) < MOST_KEPT:
        _lines[file, line] = _containing(tree, line)
    return _lines.get((file, line), [])


def _containing(tree: Any, line: int) -> list[Any]:
    import ast

    placed: list[Any] = [node for node in ast.walk(tree) if hasattr(node, "end_lineno")]
    return [node for node in placed if node.lineno <= line <= node.end_lineno]


def value_of(node: Any, frame: FrameType) -> Any:
    """Return the value of an expression, or None. Raises LookupError for unknown names."""
    import ast

    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        known = frame.f_locals if node.id in frame.f_locals else frame.f_globals
        return known[node.id]
    if isinstance(node, ast.Attribute):
        return object.__getattribute__(value_of(node.value, frame), "__dict__").get(node.attr)
    if isinstance(node, ast.JoinedStr):
        return "".join(_plain(value_of(getattr(part, "value", None), frame)) for part in _parts(node))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return os.path.join(*(_plain(value_of(part, frame)) for part in (node.left, node.right)))
    if isinstance(node, ast.Call) and called(node) in ("join", "Path", "str"):
        return os.path.join(*(_plain(value_of(part, frame)) for part in node.args))
    return None


def _parts(node: ast.JoinedStr) -> list[Any]:
    """Return the parts of an f-string: constants, and expressions, whose format is ignored."""
    import ast

    return [ast.Expr(part) if isinstance(part, ast.Constant) else part for part in node.values]


def _plain(value: object) -> str:
    """Return a text, a path or a number as text. Raises TypeError for other objects, which may run code."""
    if type(value) is str:
        return value
    if isinstance(value, PurePath) and type(value).__module__.startswith("pathlib"):
        return str(value)
    if type(value) is int:
        return str(value)
    raise TypeError("not a plain value")
