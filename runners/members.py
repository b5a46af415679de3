"""What a run is made of: ranks, nodes, and the ledger of its attempts."""

from __future__ import annotations

from dataclasses import dataclass

from .model import FirstCause, Gpu, Host, Outcome, RankPhase, RankPlace, RankSample


@dataclass(slots=True)
class Rank:
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
    sample: RankSample | None = None
    sampled: float = 0.0
    """Unix time of `sample`."""


@dataclass(slots=True)
class Node:
    """One node of the run; times are the node's own unix seconds."""

    node: int
    host: str = ""
    gpus: tuple[Gpu, ...] = ()
    gpu_problem: str | None = None
    driver: str | None = None
    gpu_sampled: float = 0.0
    metrics: Host | None = None
    heard: float = 0.0
    """Time of the newest event or sample from this node."""


@dataclass(slots=True)
class Attempt:
    """A line of the ledger."""

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
