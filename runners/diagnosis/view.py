"""The input of the detectors: a run at one moment, with its newest pulses and its memory over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from ...presets.finding import Finding
from ...presets.plan import Plan
from ..run.formatting import spans_text
from ..run.pulse import Pulse
from ..run.samples import Gpu
from ..run.state import Attempt, RunState
from .arrivals import Arrivals
from .diagnosis_settings import DEFAULT_S
from .memory_curve import MemoryPoint

PULSES_KEPT = 8
"""Maximum number of pulses kept per rank."""


class RankFields(TypedDict):
    """The fields of a finding that name its ranks and node."""

    rank: int
    ranks: tuple[int, ...]
    node: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A run at one moment. Detectors read it and change nothing."""

    state: RunState
    plan: Plan | None
    """None if there is only a journal, as in a replay."""
    now: float
    history: Mapping[int, Sequence[Pulse]]
    """The newest pulses per rank of the current attempt, oldest first, at most PULSES_KEPT."""
    arrivals: Arrivals = field(default_factory=Arrivals)
    """Arrivals from all pulses of the attempt."""
    memory: Mapping[int, Sequence[MemoryPoint]] = field(default_factory=dict)
    """Memory over time per rank of the current attempt, oldest first, older points sparser."""
    memory_before: Mapping[int, Sequence[MemoryPoint]] = field(default_factory=dict)
    """`memory` of the previous attempt."""
    node_memory: Mapping[int, Sequence[MemoryPoint]] = field(default_factory=dict)
    """Memory in use per node, as `MemoryPoint.rss`."""
    works_for_s: float = DEFAULT_S
    """Seconds before a wait for a rank that works is a warning."""

    @property
    def attempt(self) -> Attempt | None:
        return self.state.newest

    def newest(self, rank: int) -> Pulse | None:
        pulses = self.history.get(rank)
        return pulses[-1] if pulses else None

    def raised_since(self, text: str) -> float | None:
        """Return the beginning of the raised finding with this text; None without one.

        The kept pulses do not reach back to the beginning of a state that lasts.
        """
        return next((each.since for each in self.state.findings.values() if each.text == text), None)

    def gpu(self, rank: int) -> Gpu | None:
        """Return the GPU of a rank in its node's newest sample; None if unknown."""
        entry = self.state.ranks.get(rank)
        node = None if entry is None else self.state.nodes.get(entry.place.node)
        if entry is None or node is None or entry.sample is None or entry.sample.gpu is None:
            return None
        return next((gpu for gpu in node.gpus if gpu.index == entry.sample.gpu), None)

    def host(self, node: int) -> str:
        """Return the name of a node for users."""
        entry = self.state.nodes.get(node)
        return (entry.host if entry is not None else "") or f"node {node}"

    def nodes_of(self, ranks: Iterable[int]) -> list[int]:
        return sorted({self.state.ranks[rank].place.node for rank in ranks if rank in self.state.ranks})

    def rank_fields(self, ranks: Sequence[int]) -> RankFields:
        """Return the finding's fields for these ranks: the first rank, all if several, and the node if only one."""
        nodes = self.nodes_of(ranks)
        return {
            "rank": ranks[0],
            "ranks": tuple(ranks) if len(ranks) > 1 else (),
            "node": nodes[0] if len(nodes) == 1 else None,
        }

    def has_several_nodes(self) -> bool:
        """Return whether ranks are on more than one node, so that findings name the node."""
        return len(self.nodes_of(self.state.ranks)) > 1

    def ranks_text(self, ranks: Sequence[int]) -> str:
        """Return "rank 9 on gpu-b": with the node only if the run has several, and these ranks are on one."""
        nodes = self.nodes_of(ranks)
        where = f" on {self.host(nodes[0])}" if len(nodes) == 1 and self.has_several_nodes() else ""
        return spans_text("rank", ranks) + where


Detector = Callable[[View], Iterable[Finding]]
"""Return the findings that hold now. A finding's text must not change while it holds, because a new text is a new event:
ages go into `since`, counts into `evidence`."""
