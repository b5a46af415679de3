"""A Python script's syntax tree, and what its imports make of a name. Nothing is executed."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from .nodes import Unreadable


def parse(source: str | bytes) -> ast.Module:
    """The tree. Raises Unreadable."""
    text = source.removeprefix("\ufeff") if isinstance(source, str) else source
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in the user's strings
            return ast.parse(text)
    except SyntaxError as error:
        raise Unreadable(error.lineno or 1, f"is not Python that can be read: {error.msg}") from None
    except ValueError:
        raise Unreadable(1, "is no text: it holds NUL bytes") from None
    except (RecursionError, MemoryError):
        raise Unreadable(1, "is too deeply nested to be read") from None


def nodes(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether an `if` other than `if __name__ == "__main__"` (or an `except`) decides about it."""
    stack: list[tuple[ast.AST, bool]] = [(tree, False)]
    while stack:
        node, decided = stack.pop()
        yield node, decided
        inside = decided or (
            isinstance(node, ast.If | ast.IfExp | ast.ExceptHandler | ast.Match) and not _is_main(node)
        )
        stack += [(child, inside) for child in ast.iter_child_nodes(node)]


def _is_main(node: ast.AST) -> bool:
    test = node.test if isinstance(node, ast.If) else None
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


class Names:
    """What the imports of a script make of a name."""

    def __init__(self, tree: ast.Module) -> None:
        self._known: dict[str, str] = {}
        self._stars: list[str] = []
        self.imported: dict[str, int] = {}
        """Module as it is written, with dots in front where it is relative → line of its first import."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.split(".", 1)[0]
                    self.imported.setdefault(alias.name, node.lineno)
                    self._known.setdefault(alias.asname or top, alias.name if alias.asname else top)
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                self.imported.setdefault(module, node.lineno)
                for alias in node.names:
                    if alias.name == "*":
                        self._stars.append(module)
                    else:
                        self._known.setdefault(alias.asname or alias.name, f"{module}.{alias.name}")

    def full(self, node: ast.AST) -> str:
        """The dotted name behind `node`, "" when no import explains it; of a starred import the last one's."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        first = self._known.get(node.id) or (f"{self._stars[-1]}.{node.id}" if self._stars else "")
        return ".".join([first, *reversed(parts)]) if first else ""


@dataclass(frozen=True, slots=True)
class Write:
    """A variable that the script puts into its environment."""

    name: str
    value: str | None
    """None: computed."""
    line: int
    gentle: bool
    """Whether it is left alone where it is set, or an `if` decides."""


def writes(node: ast.AST, names: Names, decided: bool) -> Iterator[Write]:
    """What one node puts into os.environ."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and names.full(target.value) == "os.environ":
                yield from _write(target.slice, node.value, node.lineno, decided)
    elif isinstance(node, ast.Call):
        full = names.full(node.func)
        if full in ("os.environ.setdefault", "os.putenv") and len(node.args) == 2:
            yield from _write(
                node.args[0], node.args[1], node.lineno, decided or full.endswith("setdefault")
            )
        elif full == "os.environ.update":
            for one in node.args[:1]:
                if isinstance(one, ast.Dict):
                    for key, value in zip(one.keys, one.values, strict=True):
                        yield from _write(key, value, value.lineno, decided)
            for word in node.keywords:
                if word.arg:
                    yield from _write(ast.Constant(word.arg), word.value, word.value.lineno, decided)


def _write(key: ast.expr | None, value: ast.expr, line: int, gentle: bool) -> Iterator[Write]:
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        literal = str(value.value) if isinstance(value, ast.Constant) else None
        yield Write(key.value, literal, line, gentle)


def reads(node: ast.AST, names: Names) -> str:
    """The variable that one node reads from the environment; "" for none."""
    key: ast.AST | None = None
    if (
        isinstance(node, ast.Call)
        and names.full(node.func) in ("os.getenv", "os.environ.get")
        and node.args
    ):
        key = node.args[0]
    elif (
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and names.full(node.value) == "os.environ"
    ):
        key = node.slice
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
