"""The events of a YAML parser as trees of values with lines. Needs no parser itself: the caller has one.

Trees are built from events and not by the parser's own composer, because that follows aliases without counting
(a few lines can stand for billions of values) and nests without end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .nodes import MOST_DEPTH, MOST_NODES, Node, Unreadable

Event = Any
"""Of PyYAML, known here by the name of its class."""


@dataclass(slots=True)
class _Open:
    """A mapping or list whose end has not come yet."""

    line: int
    anchor: str | None
    is_mapping: bool
    members: dict[str, Node] = field(default_factory=dict)
    items: list[Node] = field(default_factory=list)
    merged: list[Node] = field(default_factory=list)
    """What `<<` brings: it stands behind the mapping's own keys."""
    key: str | None = None
    key_line: int = 0
    size: int = 1


class _Builder:
    """Takes one event after another."""

    def __init__(self, scalar: Callable[[Event], object]) -> None:
        self._scalar = scalar
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._total = 0
        self.documents: list[Node] = []

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
                self._open.append(_Open(line, event.anchor, kind == "MappingStartEvent"))
            case "MappingEndEvent" | "SequenceEndEvent":
                self._close()
            case "AliasEvent":
                if event.anchor not in self._anchors:
                    raise Unreadable(
                        line, f"has an alias *{event.anchor} that stands for nothing, or for itself"
                    )
                node, size = self._anchors[event.anchor]
                self._count(size, line)
                self._put(Node(line, node.value, node.text_line), size)
            case "ScalarEvent":
                self._count(1, line)
                block = event.style in ("|", ">")
                node = Node(line, self._scalar(event), line + block)
                if event.anchor:
                    self._anchors[event.anchor] = node, 1
                self._put(node, 1)

    def _close(self) -> None:
        done = self._open.pop()
        value: Any = done.items
        if done.is_mapping:
            value = {}
            for one in done.merged:
                value |= {key: node for key, node in one.mapping.items() if key not in value}
            value |= done.members
        node = Node(done.line, value, done.line)
        if done.anchor:
            self._anchors[done.anchor] = node, done.size
        self._put(node, done.size)

    def _count(self, size: int, line: int) -> None:
        self._total += size
        if self._total > MOST_NODES:
            raise Unreadable(
                line, f"holds more than {MOST_NODES:,} values, counting what its aliases stand for"
            )

    def _put(self, node: Node, size: int) -> None:
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
                into.members[into.key] = Node(into.key_line, node.value, node.text_line)
            into.key = None


def _key(node: Node) -> str:
    return "?" if isinstance(node.value, dict | list) else str(node.value)


def build(events: Iterable[Event], scalar: Callable[[Event], object]) -> list[Node]:
    """The documents of a text; `scalar`: what a scalar event means. Raises Unreadable."""
    builder = _Builder(scalar)
    for event in events:
        builder.take(event)
    return builder.documents
