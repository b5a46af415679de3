"""Parse a Python file, and name the files of its folder that it imports.

Limited to Python 3.9 and its standard library, because runners/inrank loads this file.
"""

from __future__ import annotations

import ast
import gc
import warnings
from collections.abc import Iterable, Iterator


def syntax_tree(source: str | bytes) -> ast.Module:
    """Parse with Python's parser. Raises SyntaxError, ValueError (a lone surrogate), RecursionError or MemoryError.

    Python 3.11.0 to 3.11.7 raises SystemError if the garbage collector runs a finalizer that also parses (printing a
    traceback does): https://github.com/python/cpython/issues/106905.
    """
    text = source.removeprefix("\ufeff") if isinstance(source, str) else source
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd escapes in the user's strings
        try:
            return ast.parse(text)
        except SystemError:
            gc.collect()  # run the remaining finalizers before the second try
            return ast.parse(text)


def imported_files(nodes: Iterable[ast.AST]) -> list[str]:
    """Return paths, relative to the script's folder, that its import statements would load if they exist."""
    modules = (name for node in nodes for name in _imported(node))
    return [module.replace(".", "/") + ".py" for module in dict.fromkeys(modules)]


def _imported(node: ast.AST) -> Iterator[str]:
    """Yield the modules of the script's folder that a statement may load."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level <= 1:
        inside = ""
        if node.module:
            yield node.module
            inside = node.module + "."
        yield from (inside + alias.name for alias in node.names if alias.name != "*")
