"""What a hub knows of each of its nodes, beside the fold."""

from __future__ import annotations

import time

from ..model import HUB, Event, LinkState, RunCreated, RunEnded
from ..state import RunState
from .ending import Part
from .links import Links


class Nodes:
    """The part of a hub that answers for nodes."""

    state: RunState
    links: Links
    stop_since: float = 0.0
    """When the run was asked to stop, in unix seconds."""

    def __init__(self) -> None:
        self._sources: dict[int, int] = {}
        self._ends: dict[int, RunEnded] = {}

    def note(self, event: Event, node: int, source: int) -> None:
        """What is remembered beside the fold."""
        if source:
            self._sources[node] = source
        if isinstance(event, RunEnded) and node != HUB:
            self._ends[node] = event
        elif isinstance(event, RunCreated) and node != HUB:
            self._ends.pop(node, None)  # a job that was started again goes on with its part

    def source(self, node: int) -> int:
        """The newest seq of a node's own journal that was taken over."""
        return self._sources.get(node, 0)

    def ended(self, node: int) -> bool:
        """Whether a node's part has ended."""
        return node in self._ends

    def read_to_the_end(self, node: int) -> bool:
        """Whether nothing more is wanted of a node."""
        known = self.state.nodes.get(node)
        return self.ended(node) and known is not None and known.link is LinkState.ENDED

    def node_numbers(self) -> list[int]:
        """All nodes that there are routes to."""
        return sorted(self.links.by_node.keys() | self._ends.keys())

    def all_read(self) -> bool:
        """Whether nothing more is wanted of any node."""
        return all(self.read_to_the_end(node) for node in self.node_numbers())

    def some_ended(self) -> bool:
        """Whether any node's part has ended."""
        return bool(self._ends)

    def link(self, node: int) -> LinkState | None:
        """How the hub stands to a node; None where it was never reached for."""
        known = self.state.nodes.get(node)
        return None if known is None else known.link

    def alive(self) -> list[int]:
        """Nodes whose parts have not ended."""
        return [node for node in self.node_numbers() if not self.ended(node)]

    def name(self, node: int) -> str:
        """ "node 1 (host)"."""
        known = self.state.nodes.get(node)
        return f"node {node} ({known.host})" if known is not None and known.host else f"node {node}"

    def describe_link(self, node: int) -> str:
        """Why a node does not answer, and for how long."""
        known = self.state.nodes.get(node)
        if known is None or not known.link_since:
            return f"{self.name(node)} was never reached"
        why = f": {known.link_text}" if known.link_text else ""
        return f"{self.name(node)} does not answer for {time.time() - known.link_since:.0f} s{why}"

    def part(self, node: int, now: float) -> Part:
        """What is known of a node's part; `now`: unix time."""
        known = self.state.nodes.get(node)
        if known is None:
            return Part(node, "")
        silent_s = now - max(known.link_since, self.stop_since)
        return Part(
            node, known.host, self._ends.get(node), self.read_to_the_end(node), known.link, silent_s
        )
