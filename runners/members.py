"""What a run is made of: ranks, nodes, and the ledger of its attempts."""

from __future__ import annotations

from dataclasses import dataclass

from .model import (
    FirstCause,
    Gpu,
    Host,
    LinkState,
    Outcome,
    Pulse,
    RankPhase,
    RankPlace,
    RankSample,
    RunPhase,
    Stage,
)


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
    pulse: Pulse | None = None


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
    source: int = 0
    """Newest seq of the node's own journal that was folded in."""
    link: LinkState | None = None
    """How the hub stands to this node; None where no hub is between."""
    link_since: float = 0.0
    link_text: str = ""
    retry_at: float | None = None
    nccl: bytes | None = None
    """What NCCL's logs there say, as a JSON object; see diagnosis/live.py."""
    phase: RunPhase | None = None
    """How the node's part of the run ended; None while it goes on."""


@dataclass(slots=True)
class Progress:
    """One stage of a launch, on one node or (HUB) on all; times are unix seconds."""

    stage: Stage
    node: int
    began: float
    ended: float | None = None
    failed: bool = False
    text: str = ""


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
