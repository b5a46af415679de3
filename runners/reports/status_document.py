"""The JSON of `distui status`: its construction from a run's state, and its types, the source of docs/schemas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, cast

import msgspec
from msgspec import Struct, structs

from ...presets.finding import RunFinding, worst_first
from ..diagnosis.applied_preset import Applied, check_applied
from ..diagnosis.first_step import no_step_yet
from ..diagnosis.mesh import coordinates, sizes
from ..diagnosis.missing_data import missing
from ..diagnosis.rank_activity import Activities, pause_of
from ..diagnosis.status import attempts_unknown
from ..run import clock
from ..run.formatting import elapsed
from ..run.freshness import Freshness, freshness
from ..run.model import HUB, Checkpoint, Cluster, FirstCause, PlanSummary, Wrapped
from ..run.samples import Gpu, Host, RankSample
from ..run.state import LIVING, Attempt, Node, Rank, RunState, StageProgress
from ..run.under_way import under_way
from ..telemetry.progress import Progress, hung, progress

S = TypeVar("S", bound=Struct)

if TYPE_CHECKING:

    class Whole(dict[str, Any], Generic[S]):
        """The JSON of a struct with all its fields, also those that are omitted on the wire."""
else:

    class Whole:
        """The struct itself, the source of docs/schemas."""

        def __class_getitem__(cls, struct: type[Struct]) -> type[Struct]:
            return struct


class NewestCheckpoint(Checkpoint, kw_only=True, frozen=True, omit_defaults=False):
    """The newest complete checkpoint."""

    age_s: float | None
    saved: int
    """Number of checkpoints that the run has saved."""


class NodeStatus(TypedDict):
    node: int
    host: str
    state: str
    age_s: float | None
    problem: str | None
    outcome: str | None
    gpus: list[Whole[Gpu]]
    gpus_age_s: float | None
    gpu_problem: str | None
    host_metrics: Whole[Host] | None


class RankStatus(TypedDict):
    rank: int
    local_rank: int
    node: int
    pid: int | None
    state: str
    activity: str
    """Kind of its activity: "steps", "waits" (in a collective), "blocked", "still", "pauses", "begins" or "stopping".

    "phase" if only the state of its process is known.
    """
    doing: str
    """Its activity in a few words: "step 600 ms", "all_reduce 12 s"."""
    culprit: bool
    """Whether a finding names it as the rank that others wait for."""
    exit_code: int | None
    signal: int | str | None
    cpu_percent: float | None
    rss_bytes: int | None
    gpu: int | None
    gpu_source: str | None
    gpu_mem: int | None
    step: int | None
    step_s: float | None
    still_s: float | None
    usual_s: float | None
    wait_percent: float | None
    age_s: float | None
    log_age_s: float | None
    nccl_debug: str | None
    hook: str | None
    made: Whole[Wrapped] | None
    mesh: dict[str, int]


class AttemptStatus(TypedDict):
    number: int
    began: float
    ended: float | None
    lasted_s: float | None
    cause: str
    env_diff: dict[str, str | None]
    env_seen: dict[str, str | None]
    env_differs: dict[str, Any]
    outcome: str | None
    first_cause: Whole[FirstCause] | None
    text: str
    idle: str | None


class StageStatus(TypedDict):
    stage: str
    node: int | None
    state: str
    began: float
    ended: float | None
    text: str


class RunStatus(TypedDict):
    """State of a run: JSON of `wait`, and of the end of `launch`."""

    run: str
    name: str
    state: str
    hung: bool
    attempt: int | None
    began: float | None
    ended: float | None
    exit_code: int | None
    text: str
    plan: Whole[PlanSummary] | None
    applied: Whole[Applied] | None
    training: Whole[Progress]
    no_step_yet: str | None
    pause: str | None
    """Known reason for steps that have stopped: "checkpoint", "evaluation", "compiling"."""
    under_way: list[str]
    """Progress of a launch, a restart, a stop or a profile: "restarting: stopping ranks 3/30 s"."""
    checkpoint: Whole[NewestCheckpoint] | None
    nodes: list[NodeStatus]
    ranks: list[RankStatus]
    findings: list[RunFinding]
    attempts: list[AttemptStatus]
    cluster: Whole[Cluster] | None
    stages: list[StageStatus]
    agent_pid: int | None
    runner_pid: int | None


class MarkedStatus(RunStatus):
    """JSON of `status`: with the user's tags and note."""

    tags: list[str]
    note: str | None


class WatchedStatus(RunStatus):
    """JSON of `watch`: a job that distui did not start."""

    missing: list[str]
    """Facts that cannot be known about it, one sentence each."""


class LiveDiagnosis(TypedDict):
    """Part `live` of `diagnose`: current findings about a run."""

    state: str
    hung: bool
    attempt: int
    findings: list[RunFinding]
    missing: list[str]


def status_json(state: RunState, now: float | None = None) -> RunStatus:
    """Return the whole state of a run.

    Unknown values are null. Ages are in seconds, sizes in bytes, times in unix seconds.
    """
    now = clock.now() if now is None else now
    arranged, ended, activities = sizes(state), state.phase.ended, Activities(state, now)
    return {
        "run": state.run,
        "name": state.name,
        "state": str(state.phase),
        "hung": hung(state),
        "attempt": None if attempts_unknown(state) else state.attempt,
        "began": state.began or None,
        "ended": state.end(),
        "exit_code": state.exit_code,
        "text": state.end_text,
        "plan": None if state.plan is None else _plan(state.plan),
        "applied": _whole_or_none(check_applied(state)),
        "training": _whole(progress(state, now)),
        "no_step_yet": no_step_yet(state, now) or None,
        "pause": pause_of(state, now) or None,
        "under_way": under_way(state, now),
        "checkpoint": _checkpoint(state, now),
        "nodes": [_node(node, ended, now) for _, node in sorted(state.nodes.items())],
        "ranks": [
            _rank(number, rank, coordinates(arranged, number), activities, ended, now)
            for number, rank in sorted(state.ranks.items())
        ],
        "findings": [finding.of_run() for finding in state.findings.values()],
        "attempts": [_attempt(attempt) for attempt in state.attempts],
        "cluster": _whole_or_none(state.cluster),
        "stages": [_stage(progress) for progress in state.stages.values()],
        "agent_pid": state.agent_pid,
        "runner_pid": state.runner_pid,
    }


def _whole_or_none(struct: S | None) -> Whole[S] | None:
    return None if struct is None else _whole(struct)


def _checkpoint(state: RunState, now: float) -> Whole[NewestCheckpoint] | None:
    newest = state.checkpoint
    if newest is None:
        return None
    shown = NewestCheckpoint(
        **structs.asdict(newest), age_s=elapsed(newest.at, now), saved=len(state.checkpoints)
    )
    return _whole(shown)


_OF_PLAN = (
    "preset",
    "nnodes",
    "nproc_per_node",
    "backend",
    "obeys",
    "notes",
    "mesh",
    "zero_stage",
    "precision",
)
"""Fields of a plan that are never omitted."""


def _plan(plan: PlanSummary) -> Whole[PlanSummary]:
    """Return a plan without the other fields that have their default."""
    always = {name: msgspec.to_builtins(getattr(plan, name)) for name in _OF_PLAN}
    return cast("Whole[PlanSummary]", msgspec.to_builtins(plan) | always)


def _node(node: Node, ended: bool, now: float) -> NodeStatus:
    gpus_hold = ended or freshness(node.gpu_sampled, now) is Freshness.HOLDS
    host_holds = ended or freshness(node.sampled, now) is Freshness.HOLDS
    return {
        "node": node.node,
        "host": node.host,
        "state": _link_state(node),
        "age_s": round(max(0.0, now - node.heard), 3) if node.heard else None,
        "problem": node.link_text or None,
        "outcome": None if node.phase is None else str(node.phase),
        "gpus": [_whole(gpu if gpus_hold else unsampled(gpu)) for gpu in node.gpus],
        "gpus_age_s": elapsed(node.gpu_sampled, now),
        "gpu_problem": node.gpu_problem,
        "host_metrics": _whole(node.metrics) if node.metrics is not None and host_holds else None,
    }


def _link_state(node: Node) -> str:
    if node.link:
        return str(node.link)
    return "up" if node.heard else "unknown"


def _whole(struct: S) -> Whole[S]:
    """Return a struct as JSON with all fields, including those with their default."""
    fields = {name: msgspec.to_builtins(getattr(struct, name)) for name in struct.__struct_fields__}
    return cast("Whole[S]", fields)


def _stage(progress: StageProgress) -> StageStatus:
    if progress.failed:
        state = "failed"
    elif progress.ended is None:
        state = "begun"
    else:
        state = "done"
    return {
        "stage": str(progress.stage),
        "node": None if progress.node == HUB else progress.node,
        "state": state,
        "began": progress.began,
        "ended": _end(progress.began, progress.ended),
        "text": progress.text,
    }


def _end(began: float, ended: float | None) -> float | None:
    """Return the end; None if unknown, or implausible because a clock was set back."""
    return None if elapsed(began, ended) is None else ended


def unsampled(gpu: Gpu) -> Gpu:
    """Return a GPU without the values that need a current sample."""
    return Gpu(gpu.index, gpu.uuid, gpu.name, mem_total=gpu.mem_total, lost=gpu.lost, error=gpu.error)


def _rank(
    number: int, rank: Rank, mesh: dict[str, int], activities: Activities, ended: bool, now: float
) -> RankStatus:
    unknown = RankSample(number)
    newest = sample = live = rank.sample or unknown
    if rank.phase not in LIVING:
        live = unknown  # the other values are facts of its end
    elif not ended and freshness(rank.sampled, now) is not Freshness.HOLDS:
        sample = live = unknown
    doing = activities.of(rank, None if live is unknown else live)
    return {
        "rank": number,
        "local_rank": rank.place.local_rank,
        "node": rank.place.node,
        "pid": rank.pid,
        "state": str(rank.phase),
        "activity": str(doing.now),
        "doing": doing.text,
        "culprit": doing.culprit,
        "exit_code": rank.exit_code,
        "signal": rank.signal,
        "cpu_percent": live.cpu_percent,
        "rss_bytes": sample.rss_bytes,
        "gpu": sample.gpu,
        "gpu_source": sample.gpu_source,
        "gpu_mem": sample.gpu_mem,
        "step": newest.step,
        "step_s": sample.step_s,
        "still_s": live.still_s,
        "usual_s": live.usual_s,
        "wait_percent": live.wait_percent,
        "age_s": elapsed(rank.sampled, now),
        "log_age_s": live.log_age_s,
        "nccl_debug": rank.nccl_debug,
        "hook": rank.hook,
        "made": _whole_or_none(rank.made),
        "mesh": mesh,
    }


def _attempt(attempt: Attempt) -> AttemptStatus:
    return {
        "number": attempt.number,
        "began": attempt.began,
        "ended": None if attempt.unseen else _end(attempt.began, attempt.ended),
        "lasted_s": attempt.lasted(),
        "cause": attempt.cause,
        "env_diff": attempt.env_diff,
        "env_seen": attempt.env_seen,
        "env_differs": attempt.env_differs,
        "outcome": None if attempt.outcome is None else str(attempt.outcome),
        "first_cause": _whole_or_none(attempt.first_cause),
        "text": attempt.text,
        "idle": attempt.idle or None,
    }


def standing_json(state: RunState, logs: Sequence[str]) -> LiveDiagnosis:
    """Part `live` of `diagnose --json`."""
    return {
        "state": str(state.phase),
        "hung": hung(state),
        "attempt": state.attempt,
        "findings": [finding.of_run() for finding in worst_first(state.findings.values())],
        "missing": missing(state, logs),
    }
