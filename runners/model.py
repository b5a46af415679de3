"""What happened and what is asked: the Event and Command unions.

One definition serves as domain type, wire format (one JSON object a line) and validation: msgspec decodes
straight into these structs and rejects what does not fit. Events are past participles, commands imperatives.
Unknown is `None`, never 0.
"""

from __future__ import annotations

import enum

from msgspec import Struct, field

PROTOCOL = (1, 1)
"""Oldest and newest wire protocol this code speaks."""


class RunPhase(enum.StrEnum):
    """Where a run as a whole stands."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def ended(self) -> bool:
        return self in (RunPhase.SUCCEEDED, RunPhase.FAILED, RunPhase.STOPPED, RunPhase.LOST)


class RankPhase(enum.StrEnum):
    """Where one rank of the current attempt stands."""

    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"  # exit code 0
    FAILED = "failed"  # exit code other than 0
    KILLED = "killed"  # ended by a signal that distui did not send
    STOPPED = "stopped"  # ended because the group was stopped or restarted
    LOST = "lost"  # gone, and nobody saw how


class Outcome(enum.StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RESTARTED = "restarted"
    STOPPED = "stopped"
    LOST = "lost"


# --- values that events carry -------------------------------------------------------------------------------


class RankPlace(Struct, frozen=True):
    """A rank's coordinates in one attempt."""

    rank: int
    local_rank: int
    node: int = 0
    gpu: str | None = None
    """What the launch environment gives this rank: an index into NVML's order or a UUID; None without GPUs."""


class Gpu(Struct, frozen=True, omit_defaults=True):
    """One sample of one GPU. Fields are None where the driver does not serve them."""

    index: int
    uuid: str
    name: str
    util: float | None = None
    """Percent of the last sample period in which at least one kernel ran. A hung kernel shows 100."""
    mem_used: int | None = None
    """Bytes, without what the driver keeps for itself."""
    mem_total: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temp_c: float | None = None
    mem_temp_c: float | None = None
    sm_mhz: int | None = None
    mem_mhz: int | None = None
    max_sm_mhz: int | None = None
    throttle: tuple[str, ...] | None = None
    """Active clock event reasons, in words; () when nothing holds the clocks back."""
    pcie_tx_bps: float | None = None
    pcie_rx_bps: float | None = None
    nvlink_tx_bps: float | None = None
    nvlink_rx_bps: float | None = None
    energy_j: float | None = None
    ecc_uncorrected: int | None = None
    """Volatile uncorrected ECC errors."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    pcie_replays: int | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    recovery: str | None = None
    """What the driver asks for ("reset", "reboot", …); None when nothing, or not served."""
    mig: bool | None = None
    pids: tuple[int, ...] | None = None
    """Compute processes that NVML names on this GPU."""
    pid_mem: tuple[int | None, ...] | None = None
    """Bytes of each process in `pids`, in the same order."""
    lost: bool = False
    """The driver no longer reaches this GPU."""
    error: str | None = None
    """Why values are missing, in words."""


class Host(Struct, frozen=True, omit_defaults=True):
    """One sample of a node outside its GPUs. Bytes and bytes per second; percent of all cores together."""

    cpu_percent: float | None = None
    cores: int | None = None
    load1: float | None = None
    mem_used: int | None = None
    mem_total: int | None = None
    swap_used: int | None = None
    shm_used: int | None = None
    shm_total: int | None = None
    disk_free: int | None = None
    """On the file system that holds the run directory."""
    disk_total: int | None = None
    net_rx_bps: float | None = None
    net_tx_bps: float | None = None
    ib_rx_bps: float | None = None
    ib_tx_bps: float | None = None
    cpu_stall_percent: float | None = None
    """Share of the last 10 s in which some task waited for a core (PSI)."""
    cgroup_mem_max: int | None = None
    cgroup_oom_kills: int | None = None


class RankSample(Struct, frozen=True, omit_defaults=True):
    """One sample of one rank's process and of what its hook counted."""

    rank: int
    pid: int | None = None
    cpu_percent: float | None = None
    """Percent of one core, children included."""
    rss_bytes: int | None = None
    threads: int | None = None
    children: int | None = None
    read_bps: float | None = None
    write_bps: float | None = None
    gpu: int | None = None
    """NVML index of the GPU this rank uses."""
    gpu_source: str | None = None
    """How that is known: "nvml" (its pid was seen on the GPU) or "env" (the launch environment says so)."""
    gpu_mem: int | None = None
    step: int | None = None
    step_s: float | None = None
    """Mean seconds a step over the last sample period."""


class FirstCause(Struct, frozen=True, omit_defaults=True):
    """Which rank failed first in an attempt, and all that is known of why."""

    rank: int
    local_rank: int
    node: int
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    """Name of the signal that ended it, e.g. "SIGKILL"."""
    oom: str | None = None
    """Where the kernel says that it killed this rank for memory: the cgroup's counter or the kernel log line."""
    text: str = ""
    """One sentence."""
    last_lines: tuple[str, ...] = ()
    """The last lines of its stderr."""
    victims: tuple[int, ...] = ()
    """Ranks that ended after it in the same attempt."""


class Finding(Struct, frozen=True, omit_defaults=True):
    """A statement about the run with its evidence."""

    id: str
    severity: str
    """"info", "warn" or "error"."""
    text: str
    role: str = "cause"
    rank: int | None = None
    node: int | None = None
    remedy: str = ""
    evidence: tuple[str, ...] = ()


class PlanSummary(Struct, frozen=True, omit_defaults=True):
    """The part of a plan that every screen needs; the whole stands in plan.json."""

    preset: str
    strategy: str
    launcher: str
    """"torchrun" or "command"."""
    command: str
    """The user's script or command with its arguments, as one line."""
    nnodes: int = 1
    nproc_per_node: int | None = None
    backend: str | None = None
    """"nccl" or "gloo"; None where distui does not know."""
    obeys: str | None = None
    """How the script obeys the preset; None when it obeys nothing."""
    restart_limit: int = 0
    grace_s: float = 30.0
    notes: tuple[str, ...] = ()


# --- events -------------------------------------------------------------------------------------------------


class RunCreated(Struct, frozen=True, tag=True):
    """The first line of every journal."""

    run: str
    name: str
    host: str
    plan: PlanSummary


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
    | GpuTick
    | HostTick
    | RankTick
    | LogGrew
    | CaughtUp
)

TELEMETRY = (GpuTick, HostTick, RankTick, LogGrew, CaughtUp)
"""Events that no journal keeps."""


class Stamped(Struct, frozen=True, omit_defaults=True):
    """An event as it travels and as the journal keeps it."""

    time: float
    """Unix seconds on the node that saw it."""
    event: Event
    seq: int = 0
    """Line number in the journal, from 1; 0 for telemetry."""
    node: int = 0
    source: int = 0
    """Bytes of runner.jsonl consumed up to and including this event; 0 when it does not come from there."""


# --- commands -----------------------------------------------------------------------------------------------


class Hello(Struct, frozen=True, tag=True):
    """A viewer's first line."""

    proto: tuple[int, int] = PROTOCOL
    after: int = 0
    """Journal seq already seen."""
    telemetry: bool = True
    follow: bool = True
    """False: close after the history."""
    readonly: bool = False
    """True: the agent refuses commands on this connection."""


class Restart(Struct, frozen=True, tag=True):
    """Restart the worker group in place, with a changed environment."""

    id: str
    env: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()


class Stop(Struct, frozen=True, tag=True):
    """End the run: TERM, grace, KILL, marker sweep."""

    id: str
    grace_s: float | None = None


class SetNccl(Struct, frozen=True, tag=True):
    id: str
    level: str
    subsys: str = ""
    ranks: tuple[int, ...] = ()
    """() means all."""
    seconds: float | None = None
    restart: bool = False


class Signal(Struct, frozen=True, tag=True):
    id: str
    signal: str
    ranks: tuple[int, ...] = ()


class Dump(Struct, frozen=True, tag=True):
    id: str
    what: str
    """"stacks", "flight" or "memory"."""
    ranks: tuple[int, ...] = ()


class ReadLog(Struct, frozen=True, tag=True):
    """Ask for one window of a log file; answered by a LogWindow header and that many raw bytes."""

    id: str
    file: str
    """File id: path relative to the run directory."""
    offset: int
    """Bytes from the start; negative: from the end."""
    limit: int = 65536
    grep: str = ""
    """Only lines that match this regular expression."""


Command = Hello | Restart | Stop | SetNccl | Signal | Dump | ReadLog


class LogWindow(Struct, frozen=True, tag=True):
    """Header of a window; `length` raw bytes follow the line."""

    id: str
    file: str
    offset: int
    """Where the window begins, always at the start of a line where the file has one within reach."""
    next: int
    """Offset to ask for next."""
    size: int
    """Size of the file now."""
    length: int
    error: str = ""


class AgentHello(Struct, frozen=True, tag=True):
    """The agent's first line."""

    proto: tuple[int, int]
    version: str
    run: str
    seq: int
    """Newest journal seq."""
    caps: tuple[str, ...] = ()
    readonly: bool = False


Reply = AgentHello | LogWindow
