"""Nodes as the screen names them, and how a hub stands to each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...runners.model import LinkState
from ...runners.state import Node, RunState
from . import glyphs
from .cells import duration, fit, plural
from .frame import Frame

MOST_NAMED = 4
"""Nodes named in a sentence before the others are only counted."""


def names(state: RunState) -> dict[int, str]:
    """By node: its host without the domain, unless two would look the same; "node 2" where nobody knows."""
    short = {number: _short(node.host) for number, node in state.nodes.items()}
    twice = Counter(short.values())
    return {
        number: (short[number] if twice[short[number]] == 1 else node.host) or f"node {number}"
        for number, node in state.nodes.items()
    }


def _short(host: str) -> str:
    first = host.partition(".")[0]
    return host if first.isdecimal() else first  # an address stays whole


def name_of(state: RunState, node: int) -> str:
    """The name of one node."""
    return names(state).get(node, f"node {node}")


def fit_name(name: str, width: int) -> str:
    """A name in exactly `width` columns; a long one loses its front, because hosts differ at their ends."""
    return fit(name if len(name) <= width else f"…{name[1 - width :]}", width)


def listed(found: Sequence[str]) -> str:
    """`c1, c2`, `c1, c2, c3, c4 and 12 more`."""
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return ", ".join(found[:MOST_NAMED]) + more


def silent(state: RunState) -> list[int]:
    """Nodes that do not answer although their part of the run goes on."""
    return [
        number
        for number, node in sorted(state.nodes.items())
        if node.phase is None and node.link in (LinkState.CONNECTING, LinkState.LOST)
    ]


def without(state: RunState, missing: Sequence[int]) -> str:
    """`c2`, `c2 and c3`, `5 nodes`."""
    named = [name_of(state, node) for node in missing]
    return " and ".join(named) if len(named) < 3 else plural(len(named), "node")


def link_state(frame: Frame, node: Node) -> tuple[str, str, str] | None:
    """Glyph, style and words where a node does not answer; None where it does or need not.

    The only place that says for how long: whatever counts is painted each second.
    """
    since = duration(frame.now - node.link_since)
    if frame.state.phase.ended or node.link not in (LinkState.CONNECTING, LinkState.LOST):
        return None
    if node.link is LinkState.CONNECTING:
        return glyphs.STALE, "warn", f"connecting {since}"
    wait = (node.retry_at or 0.0) - frame.now
    again = f"again in {duration(wait)}" if wait >= 1 else "trying now"
    return glyphs.BAD, "bad", f"lost {since}, {again}"
