"""RunState.apply: the only fold from events to what is true now.

Viewer, command line, agent and detectors share it, so that they can never disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .folds import FOLDS
from .members import Attempt, Node, Progress, Rank
from .model import (
    HUB,
    CaughtUp,
    Cluster,
    CommandDone,
    Finding,
    GpuTick,
    HostTick,
    LinkChanged,
    LogGrew,
    NcclChanged,
    NcclTick,
    PlanSummary,
    PulseTick,
    RankPhase,
    RankTick,
    RestartDelayed,
    RunPhase,
    Stage,
    StageChanged,
    Stamped,
)

__all__ = ["Attempt", "Node", "Progress", "Rank", "RunState"]

_SAMPLES = (GpuTick, HostTick, RankTick, PulseTick, NcclTick, LogGrew)
_BEGUN = (RankPhase.RUNNING, RankPhase.SUCCEEDED)


@dataclass(slots=True)
class RunState:
    """What is true now. `version` grows with each change; `telemetry_version` with each sample."""

    run: str = ""
    name: str = ""
    plan: PlanSummary | None = None
    merged: bool = False
    """Whether a hub tells of several nodes; else one agent tells of its own."""
    phase: RunPhase = RunPhase.STARTING
    began: float = 0.0
    ended: float | None = None
    exit_code: int | None = None
    end_text: str = ""
    seq: int = 0
    source: int = 0
    live: bool = False
    """False while history is still being replayed."""
    agent_pid: int | None = None
    runner_pid: int | None = None
    runner_kind: str = ""
    runner_socket: str = ""
    torch: str | None = None
    nodes: dict[int, Node] = field(default_factory=dict)
    ranks: dict[int, Rank] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    findings: dict[tuple[str, int | None, int | None], Finding] = field(default_factory=dict)
    stages: dict[tuple[Stage, int], Progress] = field(default_factory=dict)
    """Stages of a launch, each on one node or (HUB) on all."""
    cluster: Cluster | None = None
    log_sizes: dict[str, int] = field(default_factory=dict)
    nccl: NcclChanged | None = None
    delay: RestartDelayed | None = None
    failures: int = 0
    """Failures that the restart policy counted so far."""
    last_command: CommandDone | None = None
    notices: list[tuple[float, str]] = field(default_factory=list)
    """What a user should have read: (time, sentence), oldest first."""
    version: int = 0
    telemetry_version: int = 0

    @property
    def attempt(self) -> int:
        """Number of the current attempt, from 1; 0 before the first."""
        return self.attempts[-1].number if self.attempts else 0

    @property
    def host(self) -> str:
        """Of the only node, or of the head."""
        return self.nodes[min(self.nodes)].host if self.nodes else ""

    def apply(self, stamped: Stamped) -> None:
        """Fold one event in. Events of an unknown kind never reach here: decoding refuses them."""
        self.seq = max(self.seq, stamped.seq)
        if stamped.node != HUB and not isinstance(stamped.event, CaughtUp):  # which tells of the link alone
            node = self.nodes.setdefault(stamped.node, Node(stamped.node))
            if not isinstance(stamped.event, LinkChanged | StageChanged):  # which a hub says of it
                node.heard = max(node.heard, stamped.time)
            node.source = max(node.source, stamped.source)
        self.source = max(self.source, stamped.source)
        FOLDS[type(stamped.event)](self, stamped, stamped.event)
        if isinstance(stamped.event, _SAMPLES):
            self.telemetry_version += 1
        else:
            self.version += 1

    def apply_all(self, events: Iterable[Stamped]) -> RunState:
        for event in events:
            self.apply(event)
        return self

    def of_part(self, at: Stamped) -> bool:
        """Whether one node tells of its part, where a hub tells of the whole."""
        return self.merged and at.node != HUB

    def notice(self, at: Stamped, text: str) -> None:
        """Keep a sentence for the user, with the host that it is about."""
        who = self.nodes[at.node].host or f"node {at.node}" if self.of_part(at) else ""
        self.notices.append((at.time, f"{who}: {text}" if who else text))
        del self.notices[:-200]

    def refresh_phase(self) -> None:
        """A group runs as soon as every rank of every node has a process, and not before."""
        if self.phase in (RunPhase.STARTING, RunPhase.RESTARTING) and self.ranks:
            expected = self.attempts[-1].world_size if self.merged and self.attempts else 0
            if len(self.ranks) >= expected and all(rank.phase in _BEGUN for rank in self.ranks.values()):
                self.phase = RunPhase.RUNNING
