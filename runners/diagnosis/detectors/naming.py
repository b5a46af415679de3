"""How findings name ranks, nodes, places and times, so that all of them read alike."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TypedDict

from ...model import Collective, Site
from ...spans import spans
from ...state import RunState

MOST = 8
"""Spans of ranks that one sentence names; of more it tells the number."""


def ranks_text(ranks: Sequence[int]) -> str:
    """ "rank 2", "ranks 0, 1, 3", "128 ranks (0, 8, …)"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    said = spans(ranks)
    if said.count(",") < MOST:
        return f"ranks {said}"
    return f"{len(ranks)} ranks ({', '.join(said.split(', ')[:2])}, …)"


def host(state: RunState, node: int) -> str:
    """What a user calls a node."""
    known = state.nodes.get(node)
    return (known.host if known is not None else "") or f"node {node}"


def nodes_of(state: RunState, ranks: Iterable[int]) -> list[int]:
    """Numbers of the nodes that some ranks are on."""
    return sorted({state.ranks[rank].place.node for rank in ranks if rank in state.ranks})


class About(TypedDict):
    """Whom a finding is about: its fields of these names."""

    rank: int
    ranks: tuple[int, ...]
    node: int | None


def about(state: RunState, ranks: Sequence[int]) -> About:
    """Some ranks as a finding names them: the first, all where there are several, and their node where it is one."""
    nodes = nodes_of(state, ranks)
    return {
        "rank": ranks[0],
        "ranks": tuple(ranks) if len(ranks) > 1 else (),
        "node": nodes[0] if len(nodes) == 1 else None,
    }


def several(state: RunState) -> bool:
    """Whether ranks are on more than one node, so that a node has to be named."""
    return len(nodes_of(state, state.ranks)) > 1


def who(state: RunState, ranks: Sequence[int]) -> str:
    """ "rank 9 on gpu-b"; the node only where there are several, and where it is one."""
    nodes = nodes_of(state, ranks)
    where = f" on {host(state, nodes[0])}" if len(nodes) == 1 and several(state) else ""
    return ranks_text(ranks) + where


def site_text(site: Site) -> str:
    """ "train.py:33 load"."""
    return f"{site.file.rpartition('/')[2]}:{site.line} {site.name}"


def stack_text(sites: Iterable[Site]) -> str:
    """Frames of a stack, innermost first, as one line."""
    return ", ".join(site_text(site) for site in sites)


def clock(at: float) -> str:
    """ "20:41:07 UTC"."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(at))


def call_text(call: Collective) -> str:
    """ "all_reduce #42"; one that only a stack tells of has no number."""
    return f"{call.op} #{call.seq}" if call.seq and not call.p2p else call.op


def verb(ranks: Sequence[int], one: str, many: str) -> str:
    """The form that goes with the number of ranks."""
    return one if len(ranks) == 1 else many
