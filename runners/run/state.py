"""RunState: one fold from events to the current state of ranks, nodes and attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec import Struct, structs

from ...presets.finding import Finding
from .checkpoints import joined, same_save
from .formatting import elapsed
from .growth_watch import keep_sizes
from .model import (
    HUB,
    AgentStarted,
    AttemptEnded,
    AttemptStarted,
    CaughtUp,
    Checkpoint,
    CheckpointSaved,
    Cluster,
    ClusterChanged,
    CommandDone,
    CommandReceived,
    EnvironmentChanged,
    EnvironmentReported,
    EnvironmentRestored,
    FindingCleared,
    FindingRaised,
    FirstCause,
    Folded,
    GpuTick,
    HookChanged,
    HostTick,
    LinkChanged,
    LinkState,
    LogGrew,
    NcclChanged,
    NcclTick,
    Outcome,
    PlanSummary,
    ProfileArmed,
    PulseTick,
    RankChanged,
    RankPhase,
    RankPlace,
    RankTick,
    RestartDelayed,
    RunCreated,
    RunEnded,
    RunnerLost,
    RunnerStarted,
    RunPhase,
    Stage,
    StageChanged,
    Stamped,
    TrainingTick,
    Wrapped,
)
from .pulse import Pulse
from .samples import Gpu, Host, RankSample, TrainingSample

T = TypeVar("T")

# --- the parts of a run's state ---


class Rank(Struct):
    """One rank of the current attempt."""

    place: RankPlace
    phase: RankPhase = RankPhase.STARTING
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    hook: str | None = None
    nccl_debug: str | None = None
    nccl_live: bool | None = None
    nccl_version: str | None = None
    made: Wrapped | None = None
    """Wrappers of its model at its first step."""
    sample: RankSample | None = None
    sampled: float = 0.0
    """Unix time of `sample`."""
    pulse: Pulse | None = None
    ended: float | None = None
    """Unix time of the report that its process has ended."""


class Node(Struct):
    """One node of the run; times are the node's own unix seconds."""

    node: int
    host: str = ""
    gpus: tuple[Gpu, ...] = ()
    gpu_problem: str | None = None
    driver: str | None = None
    models: tuple[str, ...] = ()
    """Models of its GPUs, from the agent's start."""
    gpu_sampled: float = 0.0
    metrics: Host | None = None
    sampled: float = 0.0
    """Time of `metrics`."""
    heard: float = 0.0
    """Time of the newest event or sample from this node."""
    source: int = 0
    """Newest seq of the node's own journal that was folded in."""
    link: LinkState | None = None
    """The hub's link to this node; None without a hub."""
    link_since: float = 0.0
    link_text: str = ""
    retry_at: float | None = None
    nccl: bytes | None = None
    """Facts from NCCL's logs on the node, as a JSON object; see diagnosis/nccl_facts.py."""
    phase: RunPhase | None = None
    """End of the node's part of the run; None while it continues."""


class StageProgress(Struct):
    """One launch stage on one node or, for HUB, on all nodes; times are unix seconds."""

    stage: Stage
    node: int
    began: float
    ended: float | None = None
    failed: bool = False
    text: str = ""


class OpenCommand(Struct):
    """A command without an answer."""

    received: CommandReceived
    attempt: int
    """Attempt at that time."""
    at: float
    """Unix time of the request."""
    armed: ProfileArmed | None = None
    """Steps that a profile will record."""


class Attempt(Struct):
    """One attempt in the run's history."""

    number: int
    began: float
    cause: str
    world_size: int
    env_diff: dict[str, str | None]
    ranks: tuple[RankPlace, ...]
    ended: float | None = None
    outcome: Outcome | None = None
    first_cause: FirstCause | None = None
    text: str = ""
    env_seen: dict[str, str | None] = {}
    """Actual values of `env_diff`, as the ranks report them."""
    env_differs: dict[str, dict[str, str | None]] = {}
    """Ranks with other values: rank → name → value."""
    lasted_s: float | None = None
    """Measured duration; see `lasted`."""
    idle: str = ""
    """For an attempt that succeeded without a training step: this fact and the last line."""
    steps: int = 0
    """Number of steps at its end."""
    code: dict[str, str] = {}
    """Its script and the modules in the script's folder: path → digest."""

    @property
    def unseen(self) -> bool:
        """Whether its end time is unknown."""
        return self.outcome is Outcome.LOST and self.lasted_s is None

    def lasted(self, until: float | None = None) -> float | None:
        """Duration in seconds; for a running attempt, up to the unix time `until`.

        None if the clock was set back, or if the end is unknown: `ended` is then the time of the last event.
        """
        if self.lasted_s is not None:
            return self.lasted_s
        if self.unseen and until is None:
            return None
        return elapsed(self.began, until if self.ended is None else self.ended)


# --- effect of each kind of event on a RunState ---
# A hub's journal has the events of several nodes: a node reports that its part ended, and only the hub itself
# (node HUB) reports the end of the run.

_MANAGED = {"RUNNING": RunPhase.RUNNING, "RECOVERING": RunPhase.RESTARTING}
"""SkyPilot's states of a managed job that has started; its ranks are not visible."""


def _link_changed(state: RunState, at: Stamped, event: LinkChanged) -> None:
    node = state.nodes[at.node]
    before, node.link = node.link, event.state
    node.host = event.host or node.host
    node.link_text, node.retry_at = event.text, event.retry_at
    if event.state is before:
        return
    node.link_since = at.time
    if node.link is LinkState.LOST:
        state.notice(at, f"the link is lost: {node.link_text}")
    elif node.link is LinkState.UP and before is LinkState.LOST:
        state.notice(at, "the link is back")


def _stage_changed(state: RunState, at: Stamped, event: StageChanged) -> None:
    progress = state.stages.get((event.stage, at.node))
    if progress is None or (event.state == "begun" and progress.ended is not None):
        progress = state.stages[(event.stage, at.node)] = StageProgress(event.stage, at.node, at.time)
    progress.text = event.text or progress.text
    if event.state != "begun":
        progress.ended, progress.failed = at.time, event.state == "failed"
    if event.text:
        state.notice(at, f"{event.stage}: {event.text}")


def _cluster_changed(state: RunState, at: Stamped, event: ClusterChanged) -> None:
    cluster = state.cluster = event.cluster
    if cluster.managed and not state.phase.ended and cluster.state in _MANAGED:
        state.phase = _MANAGED[cluster.state]


_WORST = (
    Outcome.FAILED,
    Outcome.LOST,
    Outcome.ENDED,
    Outcome.STOPPED,
    Outcome.RESTARTED,
    Outcome.SUCCEEDED,
)
"""Outcomes from the worst on: an attempt on several nodes has the worst that a node reports."""

LIVING = (RankPhase.STARTING, RankPhase.RUNNING)
"""Phases of ranks that have a process, or will have one."""

MOST_FINDINGS = 2000
"""Maximum number of findings in a state: a run has tens, a forged journal may have any number."""


def _created(state: RunState, at: Stamped, event: RunCreated) -> None:
    if at.node != HUB:
        state.nodes[at.node].host, state.nodes[at.node].phase = event.host, None
    if state.of_part(at):
        return
    state.run, state.name, state.plan, state.began = event.run, event.name, event.plan, at.time
    state.merged = event.merged
    if state.phase.ended:  # a restarted job continues in this run
        state.phase, state.ended, state.exit_code, state.end_text = RunPhase.STARTING, None, None, ""
        state.failures = 0


def _agent_started(state: RunState, at: Stamped, event: AgentStarted) -> None:
    if event.adopted:
        state.notice(at, f"a new agent (pid {event.pid}) adopted the run")
    if at.node != HUB:
        node = state.nodes[at.node]
        node.driver, node.models = event.driver or node.driver, event.gpus or node.models
    state.release = event.version or state.release
    if not state.of_part(at):
        state.agent_pid = event.pid


def _runner_started(state: RunState, at: Stamped, event: RunnerStarted) -> None:
    state.torch = event.torch or state.torch
    if not state.of_part(at):
        state.runner_pid = event.pid
        state.runner_socket = event.socket or state.runner_socket


def _runner_lost(state: RunState, at: Stamped, event: RunnerLost) -> None:
    if not state.of_part(at):
        state.runner_pid = None
    state.notice(at, event.text)


def _attempt_started(state: RunState, at: Stamped, event: AttemptStarted) -> None:
    state.changes |= event.env_diff
    state.pending = {}
    fresh = Attempt(
        event.attempt, at.time, event.cause, event.world_size, event.env_diff, event.ranks, code=event.code
    )
    if state.of_part(at) and event.attempt < state.attempt:
        return  # this node will follow the others
    if event.attempt > state.attempt:
        state.attempts.append(fresh)
        state.ranks = {}
    elif state.of_part(at):
        _join(state.attempts[-1], fresh, at.node)
        state.ranks = {number: rank for number, rank in state.ranks.items() if rank.place.node != at.node}
    else:  # a launcher inside a managed command takes over the running attempt
        before, state.attempts[-1] = state.attempts[-1], fresh
        fresh.began, fresh.cause, fresh.code = before.began, before.cause, before.code | fresh.code
        state.ranks = {}
    state.ranks |= {place.rank: Rank(place) for place in event.ranks}
    counted = state.failures if state.of_part(at) else 0
    state.delay, state.failures = None, max(event.failures, counted)
    if state.phase is not RunPhase.STOPPING and event.attempt > 1:
        state.phase = RunPhase.RESTARTING


def _environment_changed(state: RunState, at: Stamped, event: EnvironmentChanged) -> None:
    state.changes |= event.env
    state.pending |= event.env


def _environment_restored(state: RunState, at: Stamped, event: EnvironmentRestored) -> None:
    state.changes, state.pending = dict(state.settled), {}
    state.notice(at, event.text)


def _environment_reported(state: RunState, at: Stamped, event: EnvironmentReported) -> None:
    for attempt in state.attempts:
        if attempt.number == event.attempt:
            attempt.env_seen = attempt.env_seen | event.env
            attempt.env_differs = {
                rank: seen for rank, seen in attempt.env_differs.items() if int(rank) not in event.ranks
            } | event.differs


def _join(attempt: Attempt, fresh: Attempt, node: int) -> None:
    """Add another node's report of the current attempt."""
    attempt.ranks = (*(place for place in attempt.ranks if place.node != node), *fresh.ranks)
    attempt.env_diff = attempt.env_diff | fresh.env_diff
    attempt.world_size = fresh.world_size
    attempt.code = attempt.code or fresh.code
    if attempt.cause == "membership":  # the cause on a node that only followed others
        attempt.cause = fresh.cause


def _rank_changed(state: RunState, at: Stamped, event: RankChanged) -> None:
    rank = state.ranks.get(event.rank)
    if rank is None or event.attempt != state.attempt:
        return
    if state.of_part(at) and rank.place.node != at.node:
        return  # the rank was moved: the event is of its earlier node
    rank.phase = event.state
    rank.pid = event.pid if event.pid is not None else rank.pid
    rank.exit_code, rank.signal = event.exit_code, event.signal
    rank.ended = None if event.state in LIVING else at.time
    if event.state is not RankPhase.RUNNING:
        rank.hook = None
    if event.cause is not None:
        state.attempts[-1].first_cause = _earlier(state.attempts[-1].first_cause, event.cause)
    state.refresh_phase()


def _hook_changed(state: RunState, at: Stamped, event: HookChanged) -> None:
    rank = state.ranks.get(event.rank)
    if rank is None or event.attempt != state.attempt:
        return
    rank.hook = None if event.state == "gone" else event.state
    rank.nccl_debug = event.nccl_debug if event.nccl_debug is not None else rank.nccl_debug
    rank.nccl_live = event.nccl_live if event.nccl_live is not None else rank.nccl_live
    rank.nccl_version = event.nccl_version or rank.nccl_version
    rank.made = event.made or rank.made
    state.refresh_phase()


MOST_CHECKPOINTS = 500
"""Maximum number of checkpoints in a state; the newest are kept."""


def _checkpoint_saved(state: RunState, at: Stamped, event: CheckpointSaved) -> None:
    fresh = structs.replace(event.checkpoint, attempt=event.attempt)
    last = state.checkpoints[-1] if state.checkpoints else None
    if last is not None and last.attempt == fresh.attempt and same_save(last, fresh):
        state.checkpoints[-1] = joined(last, fresh)
        return
    state.checkpoints.append(fresh)
    del state.checkpoints[:-MOST_CHECKPOINTS]


def _restart_delayed(state: RunState, at: Stamped, event: RestartDelayed) -> None:
    state.delay, state.failures = event, event.failures
    text = f"failure {event.failures} of {event.limit}, restarting in {event.wait_s:.0f} s"
    state.notice(at, text)


def _attempt_ended(state: RunState, at: Stamped, event: AttemptEnded) -> None:
    for attempt in state.attempts:
        if attempt.number == event.attempt:
            _end(attempt, at.time, event)
    if event.attempt == state.attempt:
        _keep_last(state, at, event)
    if event.text:
        state.notice(at, event.text)
    if event.outcome in (Outcome.FAILED, Outcome.RESTARTED) and state.phase is not RunPhase.STOPPING:
        state.phase = RunPhase.RESTARTING


def _keep_last(state: RunState, at: Stamped, event: AttemptEnded) -> None:
    """Keep the last samples of ended ranks, because no more will come."""
    for sample in event.last:
        rank = state.ranks.get(sample.rank)
        if rank is not None and not (state.of_part(at) and rank.place.node != at.node):
            rank.sample, rank.sampled = sample, at.time
    state.training |= {sample.rank: sample for sample in event.training}


def _end(attempt: Attempt, time: float, event: AttemptEnded) -> None:
    """Merge a node's end of an attempt: the worst outcome and the earliest cause count."""
    before, attempt.ended = attempt.outcome, time
    attempt.steps = max((sample.step or 0 for sample in event.last), default=attempt.steps)
    if event.lasted_s is not None:
        attempt.lasted_s = max(attempt.lasted_s or 0.0, event.lasted_s)
    if before is None:
        attempt.outcome, attempt.text, attempt.idle = event.outcome, event.text, event.idle
        attempt.first_cause = event.first_cause or attempt.first_cause
        return
    if _WORST.index(event.outcome) <= _WORST.index(before):
        attempt.outcome, attempt.text = event.outcome, event.text
    if attempt.idle:  # needs all nodes
        attempt.idle = event.idle
    cause = attempt.first_cause = _earlier(attempt.first_cause, event.first_cause)
    if cause is not None and cause is not event.first_cause:
        attempt.text = f"attempt {attempt.number} {attempt.outcome}: {cause.text}"


def _earlier(first: FirstCause | None, reported: FirstCause | None) -> FirstCause | None:
    """Return the cause that counts: no symptom before a symptom, then by time."""
    if first is None or reported is None:
        return first or reported
    if first.symptom != reported.symptom:
        return reported if first.symptom else first
    return reported if is_earlier(reported.at, first.at) else first


def is_earlier(time: float | None, first: float | None) -> bool:
    """Whether a unix time precedes that of an earlier report. If one of them is unknown, the order of reports counts."""
    return time is not None and first is not None and time < first


def _nccl_changed(state: RunState, at: Stamped, event: NcclChanged) -> None:
    state.nccl = event
    if event.live:
        for number in event.ranks:
            if number in state.ranks:
                state.ranks[number].nccl_debug = event.level
    state.notice(at, event.text)


def _command_received(state: RunState, at: Stamped, event: CommandReceived) -> None:
    state.notice(at, event.text)
    if event.id and not state.of_part(at):
        state.open_commands[event.id] = OpenCommand(event, state.attempt, at.time)
    if event.verb == "stop":
        state.phase = RunPhase.STOPPING


def _command_done(state: RunState, at: Stamped, event: CommandDone) -> None:
    if not state.of_part(at):
        state.open_commands.pop(event.id, None)
    if state.nccl is None or event.text != state.nccl.text:  # the change was reported by its own event
        state.notice(at, event.text)


def _profile_armed(state: RunState, at: Stamped, event: ProfileArmed) -> None:
    if event.id in state.open_commands:
        state.open_commands[event.id].armed = event


def _finding_raised(state: RunState, at: Stamped, event: FindingRaised) -> None:
    finding = event.finding
    key = (finding.id, finding.rank, finding.node)
    if key not in state.findings and len(state.findings) >= MOST_FINDINGS:
        return
    known = state.findings.get(key)
    state.findings[key] = finding
    if known is None or (known.since, known.severity) != (finding.since, finding.severity):
        state.notice(at, finding.text, finding.since)


def _finding_cleared(state: RunState, at: Stamped, event: FindingCleared) -> None:
    state.findings.pop((event.id, event.rank, event.node), None)


def _run_ended(state: RunState, at: Stamped, event: RunEnded) -> None:
    state.notice(at, event.text)
    if state.of_part(at):
        state.nodes[at.node].phase = event.phase
        _lose(rank for rank in state.ranks.values() if rank.place.node == at.node)
        return
    state.phase, state.exit_code, state.end_text = event.phase, event.exit_code, event.text
    state.ended = at.time
    if event.phase is RunPhase.EXPORTED:
        return  # the rest stays as it was
    state.runner_pid, state.delay = None, None
    _lose(state.ranks.values())
    last = state.newest
    if last is not None and last.outcome is None:
        last.ended, last.outcome = at.time, Outcome.LOST


def _lose(ranks: Iterable[Rank]) -> None:
    """After the end no rank runs: mark ranks without a reported end as lost."""
    for rank in ranks:
        if rank.phase in LIVING:
            rank.phase, rank.hook = RankPhase.LOST, None


def _gpu_tick(state: RunState, at: Stamped, event: GpuTick) -> None:
    node = state.nodes[at.node]
    node.gpu_problem = event.problem
    node.driver = event.driver or node.driver
    if event.gpus:
        state.version += len(event.gpus) != len(node.gpus)
        node.gpus = event.gpus
        if event.problem is None:  # with a problem these are the last known values
            node.gpu_sampled = at.time


def _host_tick(state: RunState, at: Stamped, event: HostTick) -> None:
    node = state.nodes[at.node]
    node.metrics, node.sampled = event.host, at.time


def _rank_tick(state: RunState, at: Stamped, event: RankTick) -> None:
    for sample in event.ranks:
        rank = state.ranks.get(sample.rank)
        # The sample may be from the previous attempt's process.
        if rank is None or (sample.pid != rank.pid and sample.pid is not None):
            continue
        if rank.phase is RankPhase.RUNNING or not _is_late(rank, sample):
            state.version += sample.gpu != (rank.sample.gpu if rank.sample is not None else None)
            rank.sample, rank.sampled = sample, at.time


def _is_late(rank: Rank, sample: RankSample) -> bool:
    """Whether a sample is older than the one at its rank's end."""
    if rank.sample is None or rank.sample.step is None:
        return False
    return sample.step is None or sample.step < rank.sample.step


def _pulse_tick(state: RunState, at: Stamped, event: PulseTick) -> None:
    for pulse in event.pulses:
        rank = state.ranks.get(pulse.rank)
        if rank is not None and pulse.pid in (None, rank.pid):
            rank.pulse = pulse


def _nccl_tick(state: RunState, at: Stamped, event: NcclTick) -> None:
    if event.attempt == state.attempt:
        state.nodes[at.node].nccl = bytes(event.document)


def _training_tick(state: RunState, at: Stamped, event: TrainingTick) -> None:
    state.training |= {sample.rank: sample for sample in event.ranks}


def _log_grew(state: RunState, at: Stamped, event: LogGrew) -> None:
    keep_sizes(state.log_sizes, event.sizes)


def _folded(state: RunState, at: Stamped, event: Folded) -> None:
    """Do nothing: `snapshot.take` replaces the whole state."""


def _caught_up(state: RunState, at: Stamped, event: CaughtUp) -> None:
    state.live = True


FOLDS: dict[type, Callable[[RunState, Stamped, Any], None]] = {
    RunCreated: _created,
    AgentStarted: _agent_started,
    RunnerStarted: _runner_started,
    RunnerLost: _runner_lost,
    AttemptStarted: _attempt_started,
    RankChanged: _rank_changed,
    EnvironmentChanged: _environment_changed,
    EnvironmentRestored: _environment_restored,
    EnvironmentReported: _environment_reported,
    HookChanged: _hook_changed,
    CheckpointSaved: _checkpoint_saved,
    RestartDelayed: _restart_delayed,
    AttemptEnded: _attempt_ended,
    NcclChanged: _nccl_changed,
    CommandReceived: _command_received,
    CommandDone: _command_done,
    ProfileArmed: _profile_armed,
    FindingRaised: _finding_raised,
    FindingCleared: _finding_cleared,
    RunEnded: _run_ended,
    LinkChanged: _link_changed,
    StageChanged: _stage_changed,
    ClusterChanged: _cluster_changed,
    GpuTick: _gpu_tick,
    HostTick: _host_tick,
    RankTick: _rank_tick,
    PulseTick: _pulse_tick,
    NcclTick: _nccl_tick,
    TrainingTick: _training_tick,
    LogGrew: _log_grew,
    CaughtUp: _caught_up,
    Folded: _folded,
}


def _by_node(state: RunState) -> dict[int, list[Rank]]:
    index: dict[int, list[Rank]] = {}
    for _, rank in sorted(state.ranks.items()):
        index.setdefault(rank.place.node, []).append(rank)
    return index


# --- the fold ---
# Viewer, command line, agent and detectors share it, so that they always agree.

_SAMPLES = frozenset({GpuTick, HostTick, RankTick, PulseTick, NcclTick, TrainingTick, LogGrew})
_OF_LINK, _OF_HUB = frozenset({CaughtUp, Folded}), frozenset({LinkChanged, StageChanged})
"""Events about the viewer's own link; events that the hub emits about a node, which is no sign of life of it."""
_BEGUN = (RankPhase.RUNNING, RankPhase.SUCCEEDED)


@dataclass(slots=True)
class RunState:
    """Current state of a run. `version` grows per event, and with the GPUs in use; `telemetry_version` per sample."""

    run: str = ""
    name: str = ""
    plan: PlanSummary | None = None
    merged: bool = False
    """Whether a hub merges several nodes; otherwise one agent reports its own."""
    phase: RunPhase = RunPhase.STARTING
    began: float = 0.0
    ended: float | None = None
    exit_code: int | None = None
    end_text: str = ""
    seq: int = 0
    source: int = 0
    live: bool = False
    """False during the replay of the history."""
    agent_pid: int | None = None
    release: str = ""
    """Version of the distui agent that serves, or last served, the run."""
    runner_pid: int | None = None
    runner_socket: str = ""
    torch: str | None = None
    nodes: dict[int, Node] = field(default_factory=dict)
    ranks: dict[int, Rank] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    findings: dict[tuple[str, int | None, int | None], Finding] = field(default_factory=dict)
    stages: dict[tuple[Stage, int], StageProgress] = field(default_factory=dict)
    """Stages of a launch, each on one node or, for HUB, on all nodes."""
    cluster: Cluster | None = None
    changes: dict[str, str | None] = field(default_factory=dict)
    """Environment changes since the launch: name → value; MASK for a secret, None for unset."""
    settled: dict[str, str | None] = field(default_factory=dict)
    """`changes` at the newest attempt in which all ranks ran."""
    pending: dict[str, str | None] = field(default_factory=dict)
    """Changes that no attempt has used yet."""
    training: dict[int, TrainingSample] = field(default_factory=dict)
    """The newest training signals by rank; they remain after the end."""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    """Checkpoints, oldest first, including torn ones."""
    log_sizes: dict[str, int] = field(default_factory=dict)
    nccl: NcclChanged | None = None
    delay: RestartDelayed | None = None
    failures: int = 0
    """Failures that the restart policy has counted so far."""
    open_commands: dict[str, OpenCommand] = field(default_factory=dict)
    """Commands without an answer, by id."""
    notices: list[tuple[float, str]] = field(default_factory=list)
    """Sentences for the user: (time, sentence), oldest first; only the newest 200."""
    notice_count: int = 0
    """Number of all sentences so far."""
    version: int = 0
    telemetry_version: int = 0
    _derived: tuple[object, dict[object, Any]] = field(default=(None, {}), compare=False, repr=False)
    """Key of the state's version, and the cached results of `once`."""

    def once(self, find: Callable[[RunState], T]) -> T:
        """Return `find(self)`, cached until the next event other than a sample. The result must not be changed."""
        made = (id(self.ranks), len(self.ranks), self.version)
        if self._derived[0] != made:
            self._derived = (made, {})
        if find not in self._derived[1]:
            self._derived[1][find] = find(self)
        value: T = self._derived[1][find]
        return value

    def ranks_of(self, node: int) -> list[Rank]:
        """Return the ranks of one node in rank order; the list must not be changed."""
        return self.once(_by_node).get(node, [])

    def end(self, created: float = 0.0) -> float | None:
        """Return the unix time of the run's end; None if it has not ended or the time is unknown.

        The time is unknown if the run is lost, or if the clock was set back since the run was `created` or began.
        """
        if self.phase is RunPhase.LOST or not self.phase.ended:
            return None
        began = max(self.began, created)
        return None if began and elapsed(began, self.ended) is None else self.ended

    def lasted(self, now: float) -> float | None:
        """Seconds from the begin to the end, or to `now`; None if unknown, as for a lost run."""
        if self.phase is RunPhase.LOST:
            return None
        return elapsed(self.began, now if self.ended is None else self.ended)

    @property
    def newest(self) -> Attempt | None:
        """The current or last attempt; None before the first."""
        return self.attempts[-1] if self.attempts else None

    @property
    def attempt(self) -> int:
        """Its number, from 1; 0 before the first."""
        return self.attempts[-1].number if self.attempts else 0

    @property
    def attempt_began(self) -> float:
        """Its begin in unix seconds; 0 before the first."""
        return self.attempts[-1].began if self.attempts else 0.0

    @property
    def world_size(self) -> int:
        """Its number of ranks on all nodes; 0 before the first."""
        return self.attempts[-1].world_size if self.attempts else 0

    @property
    def first_cause(self) -> FirstCause | None:
        """Its first cause; None if it has none."""
        return self.attempts[-1].first_cause if self.attempts else None

    @property
    def idle(self) -> str:
        """Say that it succeeded without a training step; "" otherwise."""
        return self.attempts[-1].idle if self.attempts else ""

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest complete checkpoint, which a restart resumes from."""
        return next((each for each in reversed(self.checkpoints) if each.complete), None)

    def apply(self, stamped: Stamped) -> None:
        """Fold one event. Events of an unknown kind never come here, because decoding refuses them."""
        kind = type(stamped.event)
        self.seq = max(self.seq, stamped.seq)
        if stamped.node != HUB and kind not in _OF_LINK:
            node = self.nodes.get(stamped.node) or self.nodes.setdefault(stamped.node, Node(stamped.node))
            if kind not in _OF_HUB:
                node.heard = max(node.heard, stamped.time)
            node.source = max(node.source, stamped.source)
        self.source = max(self.source, stamped.source)
        FOLDS[kind](self, stamped, stamped.event)
        self.telemetry_version += kind in _SAMPLES
        self.version += kind not in _SAMPLES

    def apply_all(self, events: Iterable[Stamped]) -> RunState:
        for event in events:
            self.apply(event)
        return self

    def of_part(self, at: Stamped) -> bool:
        """Whether an event concerns one node's part of a merged run."""
        return self.merged and at.node != HUB

    def notice(self, at: Stamped, text: str, since: float | None = None) -> None:
        """Record a sentence for the user, with its host; `since` is when the fact began, if not with the event."""
        who = self.nodes[at.node].host or f"node {at.node}" if self.of_part(at) else ""
        began = at.time if since is None else since
        self.notices.append((began, f"{who}: {text}" if who else text))
        self.notice_count += 1
        del self.notices[:-200]

    def refresh_phase(self) -> None:
        """Set the phase to RUNNING once every rank of every node has a process.

        A rank with a step proves that the ranks of nodes without a report run, too.
        """
        if self.phase in (RunPhase.STARTING, RunPhase.RESTARTING) and self.ranks:
            expected = self.world_size if self.merged else 0
            newest_first = reversed(self.ranks.values())  # ranks begin in order, so the last decides
            complete = len(self.ranks) >= expected or any(rank.made for rank in self.ranks.values())
            if complete and all(rank.phase in _BEGUN for rank in newest_first):
                self.phase = RunPhase.RUNNING
                self.settled = dict(self.changes)
