"""A document as a tree of values that know their lines, whatever language it was written in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
class Node:
    """One value."""

    line: int
    """Of its key, or of itself where it has none; 0 where there is no file."""
    value: Any
    """A text, number, boolean or None; a dict of texts to Nodes; a list of Nodes."""
    text_line: int = 0
    """Where the first line of a text stands."""

    @property
    def mapping(self) -> dict[str, Node]:
        """Its members, none where it is no mapping."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[Node]:
        """Its members in order, none where it is no list."""
        return self.value if isinstance(self.value, list) else []

    def get(self, *path: str) -> Node | None:
        """The member at a path, None where there is none or it is null."""
        at: Node | None = self
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


def plain(value: object, depth: int = 0) -> Node:
    """Values without lines as a tree."""
    if depth > MOST_DEPTH:
        return Node(0, None)
    if isinstance(value, Mapping):
        return Node(0, {str(key): plain(part, depth + 1) for key, part in value.items()})
    if isinstance(value, list | tuple):
        return Node(0, [plain(part, depth + 1) for part in value])
    return Node(0, value)


def walk(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Every value with its dotted path."""
    yield path, node
    for key, part in node.mapping.items():
        yield from walk(part, f"{path}.{key}" if path else key)
    for at, part in enumerate(node.items):
        yield from walk(part, f"{path}[{at}]")


def place(file: str, node: Node | None, path: str = "") -> str:
    """Where a finding is: "file:line", or the field's path where there is no file."""
    if node is None or not node.line:
        return f"{file}.{path}" if file and path else path or file
    return f"{file}:{node.line}"
