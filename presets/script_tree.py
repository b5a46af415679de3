"""Parse Python scripts up to a size limit. Each script is parsed and walked once for all readers.

A plan must be ready after a few seconds of CPU time, whatever the script. The limits count bytes and nodes, not time,
so that all machines accept the same scripts.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar, overload

from .script_imports import imported_files, syntax_tree
from .text_formats import Unreadable

MOST_BYTES = 1 << 19
"""Largest script with its imported files, in bytes. torch's largest module has 413 kB."""
MOST_NODES = 150_000
"""Most nodes in their syntax trees. That module has 58,000."""
MOST_FILES = 50
"""Most imported files to read."""

A = TypeVar("A", bound=ast.AST)
B = TypeVar("B", bound=ast.AST)


class InvalidSyntaxError(Unreadable):
    """A text is not valid for this Python version."""


class ScriptTree:
    def __init__(self, module: ast.Module, nodes: list[ast.AST]) -> None:
        self.module, self.nodes = module, nodes

    @overload
    def of(self, first: type[A]) -> Iterator[A]: ...
    @overload
    def of(self, first: type[A], second: type[B]) -> Iterator[A | B]: ...
    def of(self, first: type[ast.AST], second: type[ast.AST] | None = None) -> Iterator[ast.AST]:
        """Yield the nodes of one or two kinds, parents before their children."""
        kinds = (first,) if second is None else (first, second)
        return (node for node in self.nodes if isinstance(node, kinds))

    @functools.cached_property
    def _parents(self) -> Mapping[ast.AST, ast.AST]:
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, from the innermost outwards. `if __name__ == …` is left out."""
        outer = self._parents.get(node)
        while outer is not None:
            if not _is_main(outer):
                yield outer
            outer = self._parents.get(outer)


def _is_main(node: ast.AST) -> bool:
    test = node.test if isinstance(node, ast.If) else None
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def read(source: str | bytes) -> ScriptTree:
    """Parse a script. Raises Unreadable, with line 0 if the place is unknown."""
    found = _read(source)
    if isinstance(found, Unreadable):
        raise found.with_traceback(None)
    return found


@functools.lru_cache(maxsize=MOST_FILES + 14)  # a plan reads a script and its imports about six times
def _read(source: str | bytes) -> ScriptTree | Unreadable:
    if len(source) > MOST_BYTES:
        return Unreadable(0, f"is too large to be read (more than {MOST_BYTES >> 10} KiB)")
    if (b"\0" in source) if isinstance(source, bytes) else ("\0" in source):
        return Unreadable(0, "is not text: it holds NUL bytes")
    try:
        module = syntax_tree(source)
    except SyntaxError as error:
        return InvalidSyntaxError(error.lineno or 1, _syntax_error(error))
    except ValueError:
        return Unreadable(0, "is not text: it holds characters that UTF-8 does not have")
    except (RecursionError, MemoryError):
        return Unreadable(0, "is too deeply nested to be read")
    nodes = list(itertools.islice(ast.walk(module), MOST_NODES + 1))
    if len(nodes) > MOST_NODES:
        return Unreadable(0, f"is too large to be read (more than {MOST_NODES:,} syntax nodes)")
    return ScriptTree(module, nodes)


def _syntax_error(error: SyntaxError) -> str:
    if error.msg.startswith("Missing parentheses in call to 'print'"):
        return "is Python 2: print without parentheses"
    return f"is not valid Python: {error.msg}"


def within_limits(script: str | bytes, beside: Iterable[tuple[str, bytes]]) -> dict[str, bytes | None]:
    """Return the imported files of a script that fit into the limits together with it.

    Files that do not fit are None. The first file after MOST_FILES is None, and later ones are left out.
    """
    fits: dict[str, bytes | None] = {}
    size, nodes = len(script), _count(script)
    for name, text in beside:
        is_read = len(fits) < MOST_FILES and size + len(text) <= MOST_BYTES
        if is_read:
            size += len(text)
            nodes += _count(text)
        fits[name] = text if is_read and nodes <= MOST_NODES else None
        if len(fits) > MOST_FILES:
            break
    return fits


def _count(source: str | bytes) -> int:
    """Return the nodes of a script, or 0 if it is not Python."""
    found = _read(source)
    return 0 if isinstance(found, Unreadable) else len(found.nodes)


def local_imports(source: str | bytes) -> list[str]:
    """Return paths, relative to the script's folder, that its imports would load if they exist. Never raises."""
    try:
        tree = read(source)
    except Unreadable:
        return []
    return imported_files(tree.of(ast.Import, ast.ImportFrom))
