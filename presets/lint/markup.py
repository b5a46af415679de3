"""JSON, YAML and TOML documents as values that know their lines."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# -----------------------------------------------------------------------------------------------------------
# A document as a tree of values that know their lines, whatever language it was written in.


MOST_BYTES = 1 << 20
"""Larger files are refused: none that lint knows is."""
MOST_NODES = 50_000
"""Values of a document, every use of a YAML alias counted with all that is in it."""
MOST_DEPTH = 60


class Unreadable(Exception):
    """A text cannot be read as what it should be; the text is one sentence, `line` counts from 1."""

    def __init__(self, line: int, sentence: str) -> None:
        super().__init__(sentence)
        self.line = line


def decoded(data: bytes) -> str:
    """The text of a file. Raises Unreadable."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(data.count(b"\n", 0, error.start) + 1, "is not UTF-8 text") from None
    if "\0" in text:
        raise Unreadable(text.count("\n", 0, text.index("\0")) + 1, "is no text: it holds NUL bytes")
    return text


def whole(text: str) -> int | None:
    """The whole number that a text is; None where it is none, or no count of anything."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


@dataclass(frozen=True, slots=True)
class MarkupNode:
    """One value."""

    line: int
    """Of its key, or of itself where it has none; 0 where there is no file."""
    value: Any
    """A text, number, boolean or None; a dict of texts to Nodes; a list of Nodes."""
    text_line: int = 0
    """Where the first line of a text stands."""

    @property
    def mapping(self) -> dict[str, MarkupNode]:
        """Its members, none where it is no mapping."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[MarkupNode]:
        """Its members in order, none where it is no list."""
        return self.value if isinstance(self.value, list) else []

    def get(self, *path: str) -> MarkupNode | None:
        """The member at a path, None where there is none or it is null."""
        at: MarkupNode | None = self
        for key in path:
            at = None if at is None else at.mapping.get(key)
        return None if at is None or at.value is None else at

    def number(self, *path: str) -> int | None:
        """The whole number at a path, also when it is written as a text."""
        at = self.get(*path)
        value = None if at is None else at.value
        if isinstance(value, str):
            return whole(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, *path: str) -> str:
        """The text at a path, "" where there is none."""
        at = self.get(*path)
        return at.value if at is not None and isinstance(at.value, str) else ""

    def on(self, *path: str) -> bool:
        """Whether there is a true there, also when it is written as a text."""
        at = self.get(*path)
        return at is not None and (at.value is True or str(at.value).lower() == "true")


def plain(value: object, depth: int = 0) -> MarkupNode:
    """Values without lines as a tree."""
    if depth > MOST_DEPTH:
        return MarkupNode(0, None)
    if isinstance(value, Mapping):
        return MarkupNode(0, {str(key): plain(part, depth + 1) for key, part in value.items()})
    if isinstance(value, list | tuple):
        return MarkupNode(0, [plain(part, depth + 1) for part in value])
    return MarkupNode(0, value)


def walk(node: MarkupNode, path: str = "") -> Iterator[tuple[str, MarkupNode]]:
    """Every value with its dotted path."""
    yield path, node
    for key, part in node.mapping.items():
        yield from walk(part, f"{path}.{key}" if path else key)
    for at, part in enumerate(node.items):
        yield from walk(part, f"{path}[{at}]")


def place(file: str, node: MarkupNode | None, path: str = "") -> str:
    """Where a finding is: "file:line", or the field's path where there is no file."""
    if node is None or not node.line:
        return f"{file}.{path}" if file and path else path or file
    return f"{file}:{node.line}"


# -----------------------------------------------------------------------------------------------------------
# A JSON text as a tree of values with lines.


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)


def read(text: str) -> MarkupNode:
    """The document. Raises Unreadable."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise Unreadable(error.lineno, f"is not valid JSON: {error.msg} (column {error.colno})") from None
    except (RecursionError, ValueError):  # ValueError: a number of thousands of digits
        raise Unreadable(1, "is nested too deeply, or with numbers too long, to be read") from None
    return _JsonReader(text).value(0)


class _JsonReader:
    """Reads a text that is known to be JSON; only the lines are new."""

    def __init__(self, text: str) -> None:
        self._tokens = self._scan(text)
        self._count = 0

    def _scan(self, text: str) -> Iterator[tuple[str, int]]:
        line, at = 1, 0
        for match in _TOKEN.finditer(text):
            line += text.count("\n", at, match.start())
            at = match.start()
            yield match.group(), line

    def value(self, depth: int, token: tuple[str, int] | None = None, key_line: int = 0) -> MarkupNode:
        """The next value; `token` where its first one was taken already."""
        word, line = next(self._tokens) if token is None else token
        self._count += 1
        if depth > MOST_DEPTH or self._count > MOST_NODES:
            raise Unreadable(
                line, f"holds more than {MOST_NODES:,} values, or {MOST_DEPTH} inside each other"
            )
        made: Any
        if word == "{":
            made = self._mapping(depth)
        elif word == "[":
            made = self._list(depth)
        else:
            made = json.loads(word)
        return MarkupNode(key_line or line, made, line)

    def _mapping(self, depth: int) -> dict[str, MarkupNode]:
        made: dict[str, MarkupNode] = {}
        for word, line in self._tokens:
            if word == "}":
                break
            if word != ",":
                next(self._tokens)  # the colon
                made[json.loads(word)] = self.value(depth + 1, key_line=line)
        return made

    def _list(self, depth: int) -> list[MarkupNode]:
        made: list[MarkupNode] = []
        for word, line in self._tokens:
            if word == "]":
                break
            if word != ",":
                made.append(self.value(depth + 1, (word, line)))
        return made


# -----------------------------------------------------------------------------------------------------------
# The events of a YAML parser as trees of values with lines. Needs no parser itself: the caller has one.
# Trees are built from events and not by the parser's own composer, because that follows aliases without counting
# (a few lines can stand for billions of values) and nests without end.


Event = Any
"""Of PyYAML, known here by the name of its class."""


@dataclass(slots=True)
class _OpenBranch:
    """A mapping or list whose end has not come yet."""

    line: int
    anchor: str | None
    is_mapping: bool
    members: dict[str, MarkupNode] = field(default_factory=dict)
    items: list[MarkupNode] = field(default_factory=list)
    merged: list[MarkupNode] = field(default_factory=list)
    """What `<<` brings: it stands behind the mapping's own keys."""
    key: str | None = None
    key_line: int = 0
    size: int = 1


class _Builder:
    """Takes one event after another."""

    def __init__(self, scalar: Callable[[Event], object]) -> None:
        self._scalar = scalar
        self._open: list[_OpenBranch] = []
        self._anchors: dict[str, tuple[MarkupNode, int]] = {}
        self._total = 0
        self.documents: list[MarkupNode] = []

    def take(self, event: Event) -> None:
        """Raises Unreadable."""
        kind, line = type(event).__name__, event.start_mark.line + 1
        match kind:
            case "DocumentStartEvent":
                self._anchors, count = {}, len(self.documents)
                if count > 100:
                    raise Unreadable(line, "holds more than 100 documents in one file")
            case "MappingStartEvent" | "SequenceStartEvent":
                if len(self._open) >= MOST_DEPTH:
                    raise Unreadable(line, f"holds more than {MOST_DEPTH} levels inside each other")
                self._count(1, line)
                self._open.append(_OpenBranch(line, event.anchor, kind == "MappingStartEvent"))
            case "MappingEndEvent" | "SequenceEndEvent":
                self._close()
            case "AliasEvent":
                if event.anchor not in self._anchors:
                    raise Unreadable(
                        line, f"has an alias *{event.anchor} that stands for nothing, or for itself"
                    )
                node, size = self._anchors[event.anchor]
                self._count(size, line)
                self._put(MarkupNode(line, node.value, node.text_line), size)
            case "ScalarEvent":
                self._count(1, line)
                block = event.style in ("|", ">")
                node = MarkupNode(line, self._scalar(event), line + block)
                if event.anchor:
                    self._anchors[event.anchor] = node, 1
                self._put(node, 1)

    def _close(self) -> None:
        done = self._open.pop()
        value: Any = done.items
        if done.is_mapping:
            value = {}
            for merged in done.merged:
                value |= {key: node for key, node in merged.mapping.items() if key not in value}
            value |= done.members
        node = MarkupNode(done.line, value, done.line)
        if done.anchor:
            self._anchors[done.anchor] = node, done.size
        self._put(node, done.size)

    def _count(self, size: int, line: int) -> None:
        self._total += size
        if self._total > MOST_NODES:
            raise Unreadable(
                line, f"holds more than {MOST_NODES:,} values, counting what its aliases stand for"
            )

    def _put(self, node: MarkupNode, size: int) -> None:
        """A whole value, into what is open."""
        if not self._open:
            self.documents.append(node)
            return
        into = self._open[-1]
        into.size += size
        if not into.is_mapping:
            into.items.append(node)
        elif into.key is None:
            into.key = node.value if isinstance(node.value, str) else _key(node)
            into.key_line = node.line
        else:
            if into.key == "<<":
                into.merged += node.items or [node]
            else:
                into.members[into.key] = MarkupNode(into.key_line, node.value, node.text_line)
            into.key = None


def _key(node: MarkupNode) -> str:
    return "?" if isinstance(node.value, dict | list) else str(node.value)


def build(events: Iterable[Event], scalar: Callable[[Event], object]) -> list[MarkupNode]:
    """The documents of a text; `scalar`: what a scalar event means. Raises Unreadable."""
    builder = _Builder(scalar)
    for event in events:
        builder.take(event)
    return builder.documents


# -----------------------------------------------------------------------------------------------------------
# A Python script's syntax tree, and what its imports make of a name. Nothing is executed.


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
        self._names: dict[str, str] = {}
        self._stars: list[str] = []
        self.imported: dict[str, int] = {}
        """Module as it is written, with dots in front where it is relative → line of its first import."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.split(".", 1)[0]
                    self.imported.setdefault(alias.name, node.lineno)
                    self._names.setdefault(alias.asname or top, alias.name if alias.asname else top)
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                self.imported.setdefault(module, node.lineno)
                for alias in node.names:
                    if alias.name == "*":
                        self._stars.append(module)
                    else:
                        self._names.setdefault(alias.asname or alias.name, f"{module}.{alias.name}")

    def full(self, node: ast.AST) -> str:
        """The dotted name behind `node`, "" when no import explains it; of a starred import the last one's."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        first = self._names.get(node.id) or (f"{self._stars[-1]}.{node.id}" if self._stars else "")
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
            for argument in node.args[:1]:
                if isinstance(argument, ast.Dict):
                    for key, value in zip(argument.keys, argument.values, strict=True):
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
