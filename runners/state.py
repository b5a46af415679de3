"""RunState.apply: the only fold from events to what is true now.

Viewer, command line, agent and detectors share it, so that they can never disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .members import Attempt, Node, Rank
from .model import (
    AgentStarted,
    AttemptEnded,
    AttemptStarted,
    CaughtUp,
    CommandDone,
    CommandReceived,
    Finding,
    FindingCleared,
    FindingRaised,
    GpuTick,
    HookChanged,
    HostTick,
    LogGrew,
    NcclChanged,
    Outcome,
    PlanSummary,
    RankChanged,
    RankPhase,
    RankTick,
    RestartDelayed,
    RunCreated,
    RunEnded,
    RunnerLost,
    RunnerStarted,
    RunPhase,
    Stamped,
)

__all__ = ["Attempt", "Node", "Rank", "RunState"]


@dataclass(slots=True)
class RunState:
    """What is true now. `version` grows with each change; `telemetry_version` with each sample."""

    run: str = ""
    name: str = ""
    plan: PlanSummary | None = None
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
        return self.nodes[0].host if 0 in self.nodes else ""

    def apply(self, stamped: Stamped) -> None:
        """Fold one event in. Events of an unknown kind never reach here: decoding refuses them."""
        self.seq = max(self.seq, stamped.seq)
        self.source = max(self.source, stamped.source)
        node = self.nodes.setdefault(stamped.node, Node(stamped.node))
        node.heard = max(node.heard, stamped.time)
        _FOLDS[type(stamped.event)](self, stamped, stamped.event)
        if isinstance(stamped.event, GpuTick | HostTick | RankTick | LogGrew):
            self.telemetry_version += 1
        else:
            self.version += 1

    def apply_all(self, events: Iterable[Stamped]) -> RunState:
        for event in events:
            self.apply(event)
        return self

    def _notice(self, time: float, text: str) -> None:
        self.notices.append((time, text))
        del self.notices[:-200]

    def _refresh_phase(self) -> None:
        """A group runs as soon as every rank has a process, and not before."""
        if self.phase in (RunPhase.STARTING, RunPhase.RESTARTING) and self.ranks:
            begun = (RankPhase.RUNNING, RankPhase.SUCCEEDED)
            if all(rank.phase in begun for rank in self.ranks.values()):
                self.phase = RunPhase.RUNNING


def _created(state: RunState, at: Stamped, event: RunCreated) -> None:
    state.run, state.name, state.plan, state.began = event.run, event.name, event.plan, at.time
    state.nodes[at.node].host = event.host


def _agent_started(state: RunState, at: Stamped, event: AgentStarted) -> None:
    if event.adopted:
        state._notice(at.time, f"a new agent (pid {event.pid}) adopted the run")
    state.agent_pid = event.pid


def _runner_started(state: RunState, at: Stamped, event: RunnerStarted) -> None:
    state.runner_pid, state.runner_kind = event.pid, event.kind
    state.runner_socket = event.socket or state.runner_socket
    state.torch = event.torch or state.torch


def _runner_lost(state: RunState, at: Stamped, event: RunnerLost) -> None:
    state.runner_pid = None
    state._notice(at.time, event.text)


def _attempt_started(state: RunState, at: Stamped, event: AttemptStarted) -> None:
    fresh = Attempt(event.attempt, at.time, event.cause, event.world_size, event.env_diff, event.ranks)
    if state.attempt == event.attempt:
        state.attempts[-1] = fresh  # a launcher inside a managed command takes over its attempt
    else:
        state.attempts.append(fresh)
    state.ranks = {place.rank: Rank(place) for place in event.ranks}
    state.delay, state.failures = None, event.failures
    if state.phase is not RunPhase.STOPPING and event.attempt > 1:
        state.phase = RunPhase.RESTARTING


def _rank_changed(state: RunState, at: Stamped, event: RankChanged) -> None:
    rank = state.ranks.get(event.rank)
    if rank is None or event.attempt != state.attempt:
        return
    rank.phase = event.state
    rank.pid = event.pid if event.pid is not None else rank.pid
    rank.exit_code, rank.signal = event.exit_code, event.signal
    if event.state is not RankPhase.RUNNING:
        rank.hook = None
    state._refresh_phase()


def _hook_changed(state: RunState, at: Stamped, event: HookChanged) -> None:
    rank = state.ranks.get(event.rank)
    if rank is None or event.attempt != state.attempt:
        return
    rank.hook = None if event.state == "gone" else event.state
    rank.nccl_debug = event.nccl_debug if event.nccl_debug is not None else rank.nccl_debug
    rank.nccl_live = event.nccl_live if event.nccl_live is not None else rank.nccl_live
    rank.nccl_version = event.nccl_version or rank.nccl_version


def _restart_delayed(state: RunState, at: Stamped, event: RestartDelayed) -> None:
    state.delay, state.failures = event, event.failures
    state._notice(
        at.time, f"failure {event.failures} of {event.limit} allowed: next attempt in {event.wait_s:.0f} s"
    )


def _attempt_ended(state: RunState, at: Stamped, event: AttemptEnded) -> None:
    for attempt in state.attempts:
        if attempt.number == event.attempt:
            attempt.ended, attempt.outcome = at.time, event.outcome
            attempt.first_cause, attempt.text = event.first_cause, event.text
    if event.text:
        state._notice(at.time, event.text)
    if event.outcome in (Outcome.FAILED, Outcome.RESTARTED) and state.phase is not RunPhase.STOPPING:
        state.phase = RunPhase.RESTARTING


def _nccl_changed(state: RunState, at: Stamped, event: NcclChanged) -> None:
    state.nccl = event
    if event.live:
        for number in event.ranks:
            if number in state.ranks:
                state.ranks[number].nccl_debug = event.level
    state._notice(at.time, event.text)


def _command_received(state: RunState, at: Stamped, event: CommandReceived) -> None:
    state._notice(at.time, event.text)
    if event.verb == "stop":
        state.phase = RunPhase.STOPPING


def _command_done(state: RunState, at: Stamped, event: CommandDone) -> None:
    state.last_command = event
    state._notice(at.time, event.text)


def _finding_raised(state: RunState, at: Stamped, event: FindingRaised) -> None:
    finding = event.finding
    state.findings[(finding.id, finding.rank, finding.node)] = finding
    state._notice(at.time, finding.text)


def _finding_cleared(state: RunState, at: Stamped, event: FindingCleared) -> None:
    state.findings.pop((event.id, event.rank, event.node), None)


def _run_ended(state: RunState, at: Stamped, event: RunEnded) -> None:
    state.phase, state.exit_code, state.end_text = event.phase, event.exit_code, event.text
    state.ended, state.runner_pid, state.delay = at.time, None, None
    state._notice(at.time, event.text)


def _gpu_tick(state: RunState, at: Stamped, event: GpuTick) -> None:
    node = state.nodes[at.node]
    node.gpu_problem = event.problem
    node.driver = event.driver or node.driver
    if event.gpus:
        node.gpus = event.gpus
        if event.problem is None:  # else these are the values last known
            node.gpu_sampled = at.time


def _host_tick(state: RunState, at: Stamped, event: HostTick) -> None:
    state.nodes[at.node].metrics = event.host


def _rank_tick(state: RunState, at: Stamped, event: RankTick) -> None:
    for sample in event.ranks:
        rank = state.ranks.get(sample.rank)
        # The newest sample may be of the attempt before: another process, whose numbers say nothing of this one.
        if rank is not None and sample.pid in (None, rank.pid):
            rank.sample, rank.sampled = sample, at.time


def _log_grew(state: RunState, at: Stamped, event: LogGrew) -> None:
    state.log_sizes.update(event.sizes)


def _caught_up(state: RunState, at: Stamped, event: CaughtUp) -> None:
    state.live = True


_FOLDS: dict[type, Callable[[RunState, Stamped, Any], None]] = {
    RunCreated: _created,
    AgentStarted: _agent_started,
    RunnerStarted: _runner_started,
    RunnerLost: _runner_lost,
    AttemptStarted: _attempt_started,
    RankChanged: _rank_changed,
    HookChanged: _hook_changed,
    RestartDelayed: _restart_delayed,
    AttemptEnded: _attempt_ended,
    NcclChanged: _nccl_changed,
    CommandReceived: _command_received,
    CommandDone: _command_done,
    FindingRaised: _finding_raised,
    FindingCleared: _finding_cleared,
    RunEnded: _run_ended,
    GpuTick: _gpu_tick,
    HostTick: _host_tick,
    RankTick: _rank_tick,
    LogGrew: _log_grew,
    CaughtUp: _caught_up,
}
