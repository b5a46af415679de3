"""A JSON text as a tree of values with lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .nodes import MOST_DEPTH, MOST_NODES, Node, Unreadable

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)


def read(text: str) -> Node:
    """The document. Raises Unreadable."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise Unreadable(error.lineno, f"is not valid JSON: {error.msg} (column {error.colno})") from None
    except (RecursionError, ValueError):  # ValueError: a number of thousands of digits
        raise Unreadable(1, "is nested too deeply, or with numbers too long, to be read") from None
    return _Reader(text).value(0)


class _Reader:
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

    def value(self, depth: int, token: tuple[str, int] | None = None, key_line: int = 0) -> Node:
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
        return Node(key_line or line, made, line)

    def _mapping(self, depth: int) -> dict[str, Node]:
        made: dict[str, Node] = {}
        for word, line in self._tokens:
            if word == "}":
                break
            if word != ",":
                next(self._tokens)  # the colon
                made[json.loads(word)] = self.value(depth + 1, key_line=line)
        return made

    def _list(self, depth: int) -> list[Node]:
        made: list[Node] = []
        for word, line in self._tokens:
            if word == "]":
                break
            if word != ",":
                made.append(self.value(depth + 1, (word, line)))
        return made
