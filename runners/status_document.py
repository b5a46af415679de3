"""The fields of `distui status --json`, as types; docs/schemas is made from them and docs/cli.md explains them.

Typed dicts, because their parts are structs of the wire, which leave defaults out there and have all fields here.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from msgspec import Struct

from ..presets.finding import RunFinding
from .model import Checkpoint, Cluster, FirstCause, Gpu, Host, PlanSummary, Wrapped
from .progress import Progress


class Applied(Struct, frozen=True):
    """Whether the preset acted on the models of the ranks."""

    state: Literal["applied", "not applied", "unknown"]
    text: str
    """A few words why."""


class NewestCheckpoint(Checkpoint, kw_only=True, frozen=True, omit_defaults=False):
    """The newest complete checkpoint."""

    age_s: float | None
    saved: int
    """How many the run has saved."""


class NodeStatus(TypedDict):
    node: int
    host: str
    state: str
    age_s: float | None
    problem: str | None
    outcome: str | None
    gpus: list[Gpu]
    gpus_age_s: float | None
    gpu_problem: str | None
    host_metrics: Host | None


class RankStatus(TypedDict):
    rank: int
    local_rank: int
    node: int
    pid: int | None
    state: str
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
    wait_percent: float | None
    age_s: float | None
    log_age_s: float | None
    nccl_debug: str | None
    hook: str | None
    made: Wrapped | None
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
    first_cause: FirstCause | None
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
    """A run: `wait`, and the end of `launch`."""

    run: str
    name: str
    state: str
    hung: bool
    attempt: int | None
    began: float | None
    ended: float | None
    exit_code: int | None
    text: str
    plan: PlanSummary | None
    applied: Applied | None
    training: Progress
    no_step_yet: str | None
    checkpoint: NewestCheckpoint | None
    nodes: list[NodeStatus]
    ranks: list[RankStatus]
    findings: list[RunFinding]
    attempts: list[AttemptStatus]
    cluster: Cluster | None
    stages: list[StageStatus]
    agent_pid: int | None
    runner_pid: int | None


class MarkedStatus(RunStatus):
    """`status`: with the user's own words."""

    tags: list[str]
    note: str | None


class WatchedStatus(RunStatus):
    """`watch`: a job that distui did not start."""

    missing: list[str]
    """What cannot be known about it, a sentence each."""


class LiveDiagnosis(TypedDict):
    """`live` of `diagnose`: what the detectors say about a run."""

    state: str
    hung: bool
    attempt: int
    findings: list[RunFinding]
    missing: list[str]
