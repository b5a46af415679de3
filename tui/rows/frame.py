"""What one paint is made of: the run's state, the link's, and how the user wants to look at it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...runners.formatting import elapsed
from ...runners.model import Gpu, LinkState
from ...runners.state import Node, Rank, RunState
from ..follower import LinkPhase, LinkStatus

STALE_S = 3.0
"""Seconds without a sample after which values are shown as old: three times the sampling interval."""

METRICS = ("util", "mem", "power", "temp", "step-time")
"""What the heat map can show, in the order of the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions:
    """How the user looks at the run; changed by keys, never by events."""

    pane: str = "overview"
    """"overview", "ranks", "log", "events", "findings" or "nccl"."""
    metric: str = "util"
    sort: str = "rank"
    reverse: bool = False
    marked: frozenset[int] = frozenset()
    paused: bool = False
    ascii: bool = False
    readonly: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """All that widgets need for one paint."""

    state: RunState
    link: LinkStatus
    now: float
    """Unix seconds on this machine."""
    heard: float
    """When the last event arrived, by this machine's clock; 0.0 before the first."""
    view: ViewOptions = field(default_factory=ViewOptions)

    @property
    def silence(self) -> float:
        """Seconds since the agent was last heard."""
        return max(0.0, self.now - self.heard) if self.heard else 0.0

    @property
    def quiet(self) -> bool:
        """Whether no sample arrives although a node samples: a hub emits none of its own each second."""
        nodes = self.state.nodes.values()
        sampled = not self.state.merged or any(node.link is LinkState.UP for node in nodes)
        return sampled and self.silence > STALE_S and not self.state.phase.ended

    @property
    def lost(self) -> bool:
        """Whether the agent cannot be reached now."""
        return self.link.phase is LinkPhase.LOST

    def node_now(self, node: int) -> float:
        """The node's own clock, as far as it can be known without trusting that both clocks agree.

        A hub runs where its viewer does, and has put the times of all nodes on its own clock.
        """
        if self.state.merged:
            return self.now
        entry = self.state.nodes.get(node)
        return (entry.heard if entry else self.now) + self.silence

    def age(self, node: int, sampled: float) -> float | None:
        """Seconds since a sample of this node was taken; None when there was none."""
        return elapsed(sampled, self.node_now(node))

    def fresh(self, node: int, sampled: float) -> bool:
        """Whether a sample may be shown as true now."""
        old = self.age(node, sampled)
        return old is not None and (self.state.phase.ended or (old <= STALE_S and self.answers(node)))

    def answers(self, node: int) -> bool:
        """Whether a node is heard, as far as the hub's link to it says."""
        entry = self.state.nodes.get(node)
        return entry is None or entry.link not in (LinkState.CONNECTING, LinkState.LOST)

    def gpus(self, node: Node) -> tuple[Gpu, ...]:
        """The node's GPUs if their values are fresh, else ()."""
        return node.gpus if self.fresh(node.node, node.gpu_sampled) else ()


def gpu_of(rank: Rank, node: Node | None) -> Gpu | None:
    """The GPU that a rank uses: as NVML saw it, else as its launch environment says."""
    if node is None:
        return None
    if rank.sample is not None and rank.sample.gpu is not None:
        wanted = rank.sample.gpu
        return next((gpu for gpu in node.gpus if gpu.index == wanted), None)
    place = rank.place.gpu
    if place is None:
        return None
    return next((gpu for gpu in node.gpus if place in (str(gpu.index), gpu.uuid)), None)


def ranks_on(state: RunState, node: int) -> list[Rank]:
    """The ranks of one node, by rank."""
    mine = [rank for rank in state.ranks.values() if rank.place.node == node]
    return sorted(mine, key=lambda rank: rank.place.rank)
