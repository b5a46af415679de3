"""Syntax trees of the script's own files, for a frame that runs one of them. Standard library only."""

from __future__ import annotations

import contextlib
import linecache
from types import FrameType
from typing import Any

LIBRARIES = ("/site-packages/", "/dist-packages/", "/torch/", "/lib/python3", "/inrank/", "<")
"""Parts of the paths of files that are not parsed: they are long, and do not belong to the script."""
MOST_SOURCE = 20_000
"""Most lines of a file to parse."""

_trees: dict[str, Any] = {}
"""File → its syntax tree; None if it cannot be parsed."""


def tree_of(frame: FrameType) -> Any:
    """Return the syntax tree of a frame's file; None for a library, and for a file that is long or not readable."""
    file = frame.f_code.co_filename
    if any(part in file for part in LIBRARIES):
        return None
    if file not in _trees:
        _trees[file] = None
        text = linecache.getlines(file, frame.f_globals)
        if text and len(text) <= MOST_SOURCE:
            with contextlib.suppress(SyntaxError):
                _trees[file] = _parsed("".join(text))
    return _trees[file]


def _parsed(text: str) -> Any:
    """Return the syntax tree of a text; None if Python 3.11 fails twice, as it does by chance (CPython's gh-106905)."""
    import ast  # slow

    for _ in range(2):
        with contextlib.suppress(SystemError):
            return ast.parse(text)
    return None


def called(node: Any) -> str:
    """Return the name of the function that a call calls, without its module or object."""
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))
