"""What each kind of event does to a RunState; `state.RunState.apply` is the only caller.

A hub's journal holds the events of several nodes: there a node says what became of its own part, and only
the hub itself (node HUB) says what became of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .launch_folds import LAUNCH_FOLDS
from .members import Attempt, Rank
from .model import (
    HUB,
    AgentStarted,
    AttemptEnded,
    AttemptStarted,
    CaughtUp,
    CommandDone,
    CommandReceived,
    FindingCleared,
    FindingRaised,
    FirstCause,
    GpuTick,
    HookChanged,
    HostTick,
    LogGrew,
    NcclChanged,
    NcclTick,
    Outcome,
    PulseTick,
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

if TYPE_CHECKING:
    from .state import RunState

_WORST = (Outcome.FAILED, Outcome.LOST, Outcome.STOPPED, Outcome.RESTARTED, Outcome.SUCCEEDED)
"""An attempt on several nodes ended as the first of these that one of them tells."""

_ALIVE = (RankPhase.STARTING, RankPhase.RUNNING)


def _created(state: RunState, at: Stamped, event: RunCreated) -> None:
    if at.node != HUB:
        state.nodes[at.node].host, state.nodes[at.node].phase = event.host, None
    if state.of_part(at):
        return
    state.run, state.name, state.plan, state.began = event.run, event.name, event.plan, at.time
    state.merged = event.merged
    if state.phase.ended:  # its job was started again, and goes on with it
        state.phase, state.ended, state.exit_code, state.end_text = RunPhase.STARTING, None, None, ""
        state.failures = 0


def _agent_started(state: RunState, at: Stamped, event: AgentStarted) -> None:
    if event.adopted:
        state.notice(at, f"a new agent (pid {event.pid}) adopted the run")
    if not state.of_part(at):
        state.agent_pid = event.pid


def _runner_started(state: RunState, at: Stamped, event: RunnerStarted) -> None:
    state.torch = event.torch or state.torch
    state.runner_kind = event.kind
    if not state.of_part(at):
        state.runner_pid = event.pid
        state.runner_socket = event.socket or state.runner_socket


def _runner_lost(state: RunState, at: Stamped, event: RunnerLost) -> None:
    if not state.of_part(at):
        state.runner_pid = None
    state.notice(at, event.text)


def _attempt_started(state: RunState, at: Stamped, event: AttemptStarted) -> None:
    fresh = Attempt(event.attempt, at.time, event.cause, event.world_size, event.env_diff, event.ranks)
    if state.of_part(at) and event.attempt < state.attempt:
        return  # the others are further: this node will follow
    if event.attempt > state.attempt:
        state.attempts.append(fresh)
        state.ranks = {}
    elif state.of_part(at):
        _join(state.attempts[-1], fresh, at.node)
        state.ranks = {number: rank for number, rank in state.ranks.items() if rank.place.node != at.node}
    else:
        state.attempts[-1] = fresh  # a launcher inside a managed command takes over its attempt
        state.ranks = {}
    state.ranks |= {place.rank: Rank(place) for place in event.ranks}
    state.delay, state.failures = None, max(event.failures, state.failures * state.of_part(at))
    if state.phase is not RunPhase.STOPPING and event.attempt > 1:
        state.phase = RunPhase.RESTARTING


def _join(known: Attempt, fresh: Attempt, node: int) -> None:
    """A further node tells of an attempt that is known already."""
    known.ranks = (*(place for place in known.ranks if place.node != node), *fresh.ranks)
    known.env_diff = known.env_diff | fresh.env_diff
    known.world_size = fresh.world_size
    if known.cause == "membership":  # what a node says that only followed the others
        known.cause = fresh.cause


def _rank_changed(state: RunState, at: Stamped, event: RankChanged) -> None:
    rank = state.ranks.get(event.rank)
    if rank is None or event.attempt != state.attempt:
        return
    if state.of_part(at) and rank.place.node != at.node:
        return  # ranks move between nodes: the one that had this number before
    rank.phase = event.state
    rank.pid = event.pid if event.pid is not None else rank.pid
    rank.exit_code, rank.signal = event.exit_code, event.signal
    if event.state is not RankPhase.RUNNING:
        rank.hook = None
    state.refresh_phase()


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
    state.notice(
        at,
        f"failure {event.failures} of {event.limit} allowed: next attempt in {event.wait_s:.0f} s",
    )


def _attempt_ended(state: RunState, at: Stamped, event: AttemptEnded) -> None:
    for attempt in state.attempts:
        if attempt.number == event.attempt:
            _end(attempt, at.time, event)
    if event.text:
        state.notice(at, event.text)
    if event.outcome in (Outcome.FAILED, Outcome.RESTARTED) and state.phase is not RunPhase.STOPPING:
        state.phase = RunPhase.RESTARTING


def _end(attempt: Attempt, time: float, event: AttemptEnded) -> None:
    """The worst that one of the nodes tells is how it ended, the earliest cause is the first."""
    before = attempt.outcome
    if before is None or _WORST.index(event.outcome) <= _WORST.index(before):
        attempt.outcome, attempt.text = event.outcome, event.text
    attempt.ended = time
    attempt.first_cause = _earlier(attempt.first_cause, event.first_cause)
    if (
        attempt.first_cause is not None
        and attempt.first_cause is not event.first_cause
        and before is not None
    ):
        attempt.text = f"attempt {attempt.number} {attempt.outcome}: {attempt.first_cause.text}"


def _earlier(one: FirstCause | None, other: FirstCause | None) -> FirstCause | None:
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda cause: (cause.symptom, cause.at or 0.0))


def _nccl_changed(state: RunState, at: Stamped, event: NcclChanged) -> None:
    state.nccl = event
    if event.live:
        for number in event.ranks:
            if number in state.ranks:
                state.ranks[number].nccl_debug = event.level
    state.notice(at, event.text)


def _command_received(state: RunState, at: Stamped, event: CommandReceived) -> None:
    state.notice(at, event.text)
    if event.verb == "stop":
        state.phase = RunPhase.STOPPING


def _command_done(state: RunState, at: Stamped, event: CommandDone) -> None:
    if not state.of_part(at):
        state.last_command = event
    state.notice(at, event.text)


def _finding_raised(state: RunState, at: Stamped, event: FindingRaised) -> None:
    finding = event.finding
    state.findings[(finding.id, finding.rank, finding.node)] = finding
    state.notice(at, finding.text)


def _finding_cleared(state: RunState, at: Stamped, event: FindingCleared) -> None:
    state.findings.pop((event.id, event.rank, event.node), None)


def _run_ended(state: RunState, at: Stamped, event: RunEnded) -> None:
    state.notice(at, event.text)
    if state.of_part(at):
        state.nodes[at.node].phase = event.phase
        _lose(rank for rank in state.ranks.values() if rank.place.node == at.node)
        return
    state.phase, state.exit_code, state.end_text = event.phase, event.exit_code, event.text
    state.ended, state.runner_pid, state.delay = at.time, None, None
    _lose(state.ranks.values())
    last = state.attempts[-1] if state.attempts else None
    if last is not None and last.outcome is None:
        last.ended, last.outcome = at.time, Outcome.LOST


def _lose(ranks: Iterable[Rank]) -> None:
    """In what has ended no rank runs: where nobody saw how one ended, that is what is known of it."""
    for rank in ranks:
        if rank.phase in _ALIVE:
            rank.phase, rank.hook = RankPhase.LOST, None


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


def _pulse_tick(state: RunState, at: Stamped, event: PulseTick) -> None:
    for pulse in event.pulses:
        rank = state.ranks.get(pulse.rank)
        if rank is not None and pulse.pid in (None, rank.pid):
            rank.pulse = pulse


def _nccl_tick(state: RunState, at: Stamped, event: NcclTick) -> None:
    if event.attempt == state.attempt:
        state.nodes[at.node].nccl = bytes(event.document)


def _log_grew(state: RunState, at: Stamped, event: LogGrew) -> None:
    state.log_sizes.update(event.sizes)


def _caught_up(state: RunState, at: Stamped, event: CaughtUp) -> None:
    state.live = True


FOLDS: dict[type, Callable[[RunState, Stamped, Any], None]] = {
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
    **LAUNCH_FOLDS,
    GpuTick: _gpu_tick,
    HostTick: _host_tick,
    RankTick: _rank_tick,
    PulseTick: _pulse_tick,
    NcclTick: _nccl_tick,
    LogGrew: _log_grew,
    CaughtUp: _caught_up,
}
