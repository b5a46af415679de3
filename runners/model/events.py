"""What happened. Past participles; `Event` is their union, `Stamped` the form in which they travel and are kept."""

from __future__ import annotations

from msgspec import Raw, Struct, field

from .pulse import Pulse
from .values import (
    Cluster,
    Finding,
    FirstCause,
    Gpu,
    Host,
    LinkState,
    Outcome,
    PlanSummary,
    RankPhase,
    RankPlace,
    RankSample,
    RunPhase,
    Stage,
)


class RunCreated(Struct, frozen=True, tag=True):
    """The first line of every journal."""

    run: str
    name: str
    host: str
    plan: PlanSummary
    merged: bool = False
    """True in the journal of a hub: what several nodes tell is one run, and only the hub says how that ended."""


class AgentStarted(Struct, frozen=True, tag=True):
    pid: int
    version: str
    adopted: bool
    """True when it found a living runner of this run."""


class RunnerStarted(Struct, frozen=True, tag=True):
    pid: int
    kind: str
    """"torchrun" or "command"."""
    socket: str = ""
    python: str = ""
    torch: str | None = None


class RunnerLost(Struct, frozen=True, tag=True):
    """The runner died without reporting the end of the run."""

    pid: int
    text: str


class AttemptStarted(Struct, frozen=True, tag=True):
    """A new incarnation of the worker group is about to be spawned."""

    attempt: int
    cause: str
    """"launch", "restart" (asked for), "failure" (policy), "membership"."""
    world_size: int
    ranks: tuple[RankPlace, ...]
    env_diff: dict[str, str | None] = field(default_factory=dict)
    """What changed in the ranks' environment since the attempt before; None means unset."""
    failures: int = 0
    """Failures counted by the restart policy so far."""


class RankChanged(Struct, frozen=True, tag=True):
    attempt: int
    rank: int
    state: RankPhase
    local_rank: int
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    at: float | None = None
    """Unix time at which the kernel reported it, where that is earlier than this event."""


class HookChanged(Struct, frozen=True, tag=True):
    """The hook inside a rank came up, armed, or went away."""

    attempt: int
    rank: int
    state: str
    """"up", "armed" (it counts optimizer steps) or "gone"."""
    pid: int | None = None
    nccl_debug: str | None = None
    nccl_live: bool | None = None
    """Whether this process can change NCCL_DEBUG without a restart; None until libnccl is loaded."""
    nccl_version: str | None = None


class RestartDelayed(Struct, frozen=True, tag=True):
    """The restart policy waits before the next attempt."""

    wait_s: float
    failures: int
    limit: int


class AttemptEnded(Struct, frozen=True, tag=True):
    attempt: int
    outcome: Outcome
    first_cause: FirstCause | None = None
    text: str = ""


class NcclChanged(Struct, frozen=True, tag=True):
    """NCCL_DEBUG changed, live or for the next attempt."""

    level: str
    subsys: str
    ranks: tuple[int, ...]
    live: bool
    text: str
    until: float | None = None
    """Unix time at which the level goes back."""


class CommandReceived(Struct, frozen=True, tag=True):
    id: str
    text: str
    verb: str = ""
    """"restart", "stop", "nccl", "signal" or "dump"."""


class CommandDone(Struct, frozen=True, tag=True):
    id: str
    ok: bool
    text: str
    data: dict[str, str] = field(default_factory=dict)
    """What a Dump brought, by rank ("0", "1", …); not journaled."""


class FindingRaised(Struct, frozen=True, tag=True):
    finding: Finding


class FindingCleared(Struct, frozen=True, tag=True):
    id: str
    rank: int | None = None
    node: int | None = None


class RunEnded(Struct, frozen=True, tag=True):
    phase: RunPhase
    exit_code: int | None
    text: str


class LinkChanged(Struct, frozen=True, tag=True):
    """A hub's link to the node of this line came up, broke, or is no longer needed."""

    state: LinkState
    host: str = ""
    text: str = ""
    """Why, in a sentence; for LOST what to do."""
    retry_at: float | None = None
    """Unix time of the next try."""


class StageChanged(Struct, frozen=True, tag=True):
    """A launch went on: a stage began, ended, or failed, on the node of this line or (HUB) on all."""

    stage: Stage
    state: str
    """"begun", "done" or "failed"."""
    text: str = ""


class ClusterChanged(Struct, frozen=True, tag=True):
    """What is known of the cluster now."""

    cluster: Cluster


class GpuTick(Struct, frozen=True, tag=True):
    """Telemetry; never journaled, newest wins."""

    gpus: tuple[Gpu, ...]
    took_ms: float
    driver: str | None = None
    problem: str | None = None
    """Why there are no values, in words: no driver, a driver call that does not return, …"""


class HostTick(Struct, frozen=True, tag=True):
    host: Host


class RankTick(Struct, frozen=True, tag=True):
    ranks: tuple[RankSample, ...]


class PulseTick(Struct, frozen=True, tag=True):
    """What every rank of a node is doing; the detectors' evidence."""

    pulses: tuple[Pulse, ...]


class NcclTick(Struct, frozen=True, tag=True):
    """What NCCL's logs on a node say so far, of the current attempt."""

    attempt: int
    document: Raw
    """One JSON object; see diagnosis/live.py."""


class LogGrew(Struct, frozen=True, tag=True):
    """Sizes in bytes of the log files that grew, by file id (path relative to the run directory)."""

    sizes: dict[str, int]


class CaughtUp(Struct, frozen=True, tag=True):
    """Everything before this line was history; what follows is live. Never journaled."""

    seq: int


Event = (
    RunCreated
    | AgentStarted
    | RunnerStarted
    | RunnerLost
    | AttemptStarted
    | RankChanged
    | HookChanged
    | RestartDelayed
    | AttemptEnded
    | NcclChanged
    | CommandReceived
    | CommandDone
    | FindingRaised
    | FindingCleared
    | RunEnded
    | LinkChanged
    | StageChanged
    | ClusterChanged
    | GpuTick
    | HostTick
    | RankTick
    | PulseTick
    | NcclTick
    | LogGrew
    | CaughtUp
)

TELEMETRY = (GpuTick, HostTick, RankTick, PulseTick, NcclTick, LogGrew, CaughtUp)
"""Events that no journal keeps."""


class Stamped(Struct, frozen=True, omit_defaults=True):
    """An event as it travels and as the journal keeps it."""

    time: float
    """Unix seconds on the node that saw it."""
    event: Event
    seq: int = 0
    """Line number in the journal, from 1; 0 for telemetry."""
    node: int = 0
    """Number of the node that saw it, from 0; HUB for what concerns the run as a whole."""
    source: int = 0
    """Where it was read: in an agent's journal the bytes of runner.jsonl consumed up to and including it, in a
    hub's journal its seq in the journal of its node; 0 when it was first said here."""
