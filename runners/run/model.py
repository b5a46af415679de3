"""Events and their values: one msgspec definition for domain, wire and validation.

`samples.py` and `pulse.py` have the values of telemetry, `commands.py` the commands.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from msgspec import Raw, Struct, field

from ...presets.finding import Finding
from .formatting import spans_text
from .pulse import Pulse
from .samples import Gpu, Host, RankSample, TrainingSample

# --- values of events; an unknown value is None, never 0 ---


class RunPhase(enum.StrEnum):
    """Phase of a run as a whole."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"
    ENDED = "ended"  # job that distui did not start: the phase is known only to its launcher
    EXPORTED = "exported"  # only in an opened bundle: the run was live at export, and no event follows

    @property
    def ended(self) -> bool:
        """True if the run no longer changes."""
        return self in (
            RunPhase.SUCCEEDED,
            RunPhase.FAILED,
            RunPhase.STOPPED,
            RunPhase.LOST,
            RunPhase.ENDED,
            RunPhase.EXPORTED,
        )

    @property
    def words(self) -> str:
        """The phase in plain words."""
        return "live when exported" if self is RunPhase.EXPORTED else str(self)


class RankPhase(enum.StrEnum):
    """Phase of one rank in the current attempt."""

    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"  # exit code 0
    FAILED = "failed"  # exit code other than 0
    KILLED = "killed"  # ended by a signal that distui did not send
    STOPPED = "stopped"  # ended because the group was stopped or restarted
    LOST = "lost"  # the process ended, exit status unknown
    ENDED = "ended"  # the process ended, exit status unknown, in a job that distui did not start


HUB = -1
"""Node number of events that concern the run as a whole; only a hub emits them."""


class LinkState(enum.StrEnum):
    """State of a hub's link to one node."""

    CONNECTING = "connecting"
    UP = "up"
    LOST = "lost"
    """Not reachable; the hub retries or waits before the next try."""
    ENDED = "ended"
    """The node's part has ended, and the hub has read everything."""


class Stage(enum.StrEnum):
    """Stages of a launch before the ranks of a cluster start, in this order."""

    PROVISION = "provision"
    SYNC = "sync"
    SETUP = "setup"
    START = "start"


class Outcome(enum.StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RESTARTED = "restarted"
    STOPPED = "stopped"
    LOST = "lost"
    ENDED = "ended"  # job that distui did not start


class RankPlace(Struct, frozen=True):
    """A rank's coordinates in one attempt."""

    rank: int
    local_rank: int
    node: int = 0
    gpu: str | None = None
    """GPU of this rank in the launch environment: an NVML index or a UUID; None without GPUs."""


class Checkpoint(Struct, frozen=True, omit_defaults=True):
    """A checkpoint that was saved or is being saved."""

    path: str
    at: float
    """Unix time of completion; for an incomplete checkpoint, the last time that it was seen to grow."""
    source: str
    """Detected by: "torch.save", "dcp", "safetensors", "save_pretrained", "accelerate", "deepspeed", "folder"."""
    step: int | None = None
    rank: int | None = None
    """Rank that reported it."""
    duration_s: float | None = None
    size: int | None = None
    """Bytes on disk."""
    complete: bool = True
    """False if torn: its writer ended, or files of the folder are missing."""
    count: int | None = None
    """Optimizer steps of the saving process at that time, as `RankSample.step` counts them."""
    attempt: int = 0
    """Attempt of the worker group that saved it; 0 if unknown."""


class FirstCause(Struct, frozen=True, omit_defaults=True):
    """The rank that failed first in an attempt, with all known reasons."""

    rank: int
    local_rank: int
    node: int
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    """Name of the signal that ended it, e.g. "SIGKILL"."""
    oom: str | None = None
    """Kernel evidence that the OOM killer ended this rank: the cgroup's counter or the kernel log line."""
    text: str = ""
    """One sentence."""
    last_lines: tuple[str, ...] = ()
    """The last lines of its stderr."""
    victims: tuple[int, ...] = ()
    """Ranks that ended later in the same attempt."""
    at: float | None = None
    """Unix time of the failure by its node's clock; in a hub's journal by the hub's clock."""
    symptom: bool = False
    """True if the error only says that another process or peer ended."""
    kind: str = ""
    """Class of the failure, as in "died-<kind>": see inrank/failure_causes.py."""
    remedy: str = ""
    retry: str = ""
    """Whether a restart can help: "no", "maybe", "yes"."""
    where: str = ""
    """Path and line of the user's code that raised: "…/train.py:88"."""
    evidence: tuple[str, ...] = ()
    """Lines from the kernel and the driver about it."""


class Cluster(Struct, frozen=True, omit_defaults=True):
    """Cluster of a launched run, with its price."""

    name: str = ""
    """SkyPilot's cluster name; "" for hosts that the user named."""
    infra: str = ""
    """Place in SkyPilot's notation: "slurm/lab/gpu", "aws/us-east-1"; "hosts" for hosts that the user named."""
    resources: str = ""
    """Resources of one node, in SkyPilot's notation."""
    price_per_hour: float | None = None
    """US dollars per hour for all nodes; None if SkyPilot has no price."""
    job: int | None = None
    """SkyPilot's job number on the cluster."""
    managed: bool = False
    """True for a managed job: SkyPilot recovers it, and gives no ssh access to its nodes."""
    recoveries: int = 0
    """Number of times that SkyPilot has recovered the managed job on other nodes."""
    state: str = ""
    """SkyPilot's state of the cluster or the managed job."""
    autostop_min: int | None = None
    """Minutes without a job before SkyPilot takes the cluster down; None: never."""
    since: float | None = None
    """Unix time of the first cost."""
    until: float | None = None
    """Unix time of the teardown; None while the cluster costs money."""
    down: bool = False
    """True after the teardown: nothing of the cluster is left."""


class Wrapped(Struct, frozen=True, omit_defaults=True):
    """The wrappers of a rank's model at its first step."""

    strategies: tuple[str, ...] = ()
    """Any of ddp, zero1, fsdp1, fsdp2, deepspeed; () for a plain model."""
    zero_stage: int | None = None
    """ZeRO stage of DeepSpeed."""
    dims: dict[str, int] = {}
    """Named dimensions of the mesh that shards the model, with their sizes."""
    param: str | None = None
    """Compute dtype, "fp32", "bf16" or "fp16", if the wrapper declares one."""
    params: int | None = None
    """Parameters of the whole model."""
    grouped: bool | None = None
    """Whether it had a process group by then; None if unknown, or if ranks may communicate without one."""
    adopted: str = ""
    """Result of --adopt as a sentence; "" for none."""


class PlanSummary(Struct, frozen=True, omit_defaults=True):
    """The part of a plan that every screen needs; plan.json holds the whole plan."""

    preset: str
    strategy: str
    launcher: str
    """Either "torchrun" or "command"."""
    command: str
    """The user's script or command with its arguments, as one line."""
    nnodes: int = 1
    nnodes_min: int | None = None
    """Smallest number of nodes with which an elastic run continues; None: all nodes are required."""
    nproc_per_node: int | None = None
    backend: str | None = None
    """Either "nccl" or "gloo"; None if unknown."""
    obeys: str | None = None
    """How the script follows the preset; None if it ignores it."""
    restart_limit: int = 0
    grace_s: float = 30.0
    notes: tuple[str, ...] = ()
    mesh: dict[str, int] = {}
    """Named dimensions of the ranks and their sizes, outermost first."""
    zero_stage: int | None = None
    """ZeRO stage of a DeepSpeed preset."""
    precision: str | None = None
    """Compute dtype of the preset: "fp32", "bf16" or "fp16"."""
    save_on: str = ""
    """Request that makes the script save: "SIGUSR1" or "FILE:PATH"; "" if none. See presets/save_on.py."""
    notify: tuple[str, ...] = ()
    log_cap: int = 0
    """`notify` and `log_cap` are copies of the plan's."""


# --- events: past participles; `Event` is their union, `Stamped` the form on the wire and in the journal ---


class RunCreated(Struct, frozen=True, tag=True):
    """The first line of every journal."""

    run: str
    name: str
    host: str
    plan: PlanSummary
    merged: bool = False
    """True in a hub's journal: the run is merged from several nodes, and only the hub emits its end."""


class AgentStarted(Struct, frozen=True, tag=True):
    pid: int
    version: str
    adopted: bool
    """True if the agent found a living runner of this run."""
    driver: str = ""
    """Version of the NVIDIA driver, from the kernel; "" without one."""
    gpus: tuple[str, ...] = ()
    """Models of the node's GPUs, from the driver's files."""


class RunnerStarted(Struct, frozen=True, tag=True):
    pid: int
    kind: str
    """Either "torchrun" or "command"."""
    socket: str = ""
    python: str = ""
    torch: str | None = None


class RunnerLost(Struct, frozen=True, tag=True):
    """The runner died without reporting the end of the run."""

    pid: int
    text: str


class AttemptStarted(Struct, frozen=True, tag=True):
    """The runner is about to spawn a new worker group."""

    attempt: int
    cause: str
    """One of "launch", "restart" (requested), "failure" (policy), "membership"."""
    world_size: int
    ranks: tuple[RankPlace, ...]
    env_diff: dict[str, str | None] = field(default_factory=dict)
    """Changes of the ranks' environment since the previous attempt; None means unset."""
    failures: int = 0
    """Failures counted by the restart policy so far."""
    code: dict[str, str] = field(default_factory=dict)
    """The script and the modules that it imports from its folder: path → digest; see inrank/script_files.py."""


class RankChanged(Struct, frozen=True, tag=True):
    attempt: int
    rank: int
    state: RankPhase
    local_rank: int
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    at: float | None = None
    """Unix time of the kernel's report, if earlier than this event."""
    cause: FirstCause | None = None
    """Known causes of a failed rank, before its attempt has ended."""


class EnvironmentChanged(Struct, frozen=True, tag=True):
    """The runner has accepted changes of the environment for the next attempt."""

    env: dict[str, str | None]
    """Secrets are MASK; None means unset."""


class EnvironmentRestored(Struct, frozen=True, tag=True):
    """The runner reverted the newest changes because no rank could start with them."""

    attempt: int
    names: tuple[str, ...]
    text: str


class EnvironmentReported(Struct, frozen=True, tag=True):
    """Actual values, in the ranks of a node, of the variables that an attempt changed."""

    attempt: int
    ranks: tuple[int, ...]
    env: dict[str, str | None]
    """Values in the ranks that have the requested values."""
    differs: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """Values in the other ranks: rank ("0", "1", …) → its values."""
    source: str = ""
    """Either "hook" (as the interpreter sees them) or "process" (as the process was started)."""


class HookChanged(Struct, frozen=True, tag=True):
    """The hook of a rank came up, armed, or ended."""

    attempt: int
    rank: int
    state: str
    """One of "up", "armed" (it counts optimizer steps) or "gone"."""
    pid: int | None = None
    nccl_debug: str | None = None
    nccl_live: bool | None = None
    """Whether this process can change NCCL_DEBUG without a restart; None until libnccl is loaded."""
    nccl_version: str | None = None
    made: Wrapped | None = None
    """Wrappers of the model at the first step; None before it, or if unknown."""


class CheckpointSaved(Struct, frozen=True, tag=True):
    """A checkpoint was saved, or was found torn."""

    attempt: int
    checkpoint: Checkpoint


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
    last: tuple[RankSample, ...] = ()
    """Last sample of each rank: steps, speed and memory, which no telemetry reports after the end."""
    lasted_s: float | None = None
    """Seconds by the monotonic clock; None if no agent ran during the whole attempt."""
    idle: str = ""
    """For an attempt that succeeded without a step: this fact and the last line; "" if it trained, or if unknown."""
    training: tuple[TrainingSample, ...] = ()
    """The last training signals of this node's ranks."""


class NcclChanged(Struct, frozen=True, tag=True):
    """NCCL_DEBUG changed, live or for the next attempt."""

    level: str
    subsys: str
    ranks: tuple[int, ...]
    live: bool
    text: str
    until: float | None = None
    """Unix time of the reset to the previous level."""


class CommandReceived(Struct, frozen=True, tag=True):
    id: str
    text: str
    verb: str = ""
    """See RunCommand."""
    grace_s: float | None = None
    """Seconds that the ranks have to end; None if it ends none."""


class Clause(Struct, frozen=True, omit_defaults=True):
    """One statement of an answer; answers of several nodes are merged by their clauses."""

    text: str
    """The text, with "{ranks}" at most once as a placeholder for the ranks."""
    ranks: tuple[int, ...] = ()

    def words(self) -> str:
        """Return the text with its ranks filled in."""
        return self.text.replace("{ranks}", spans_text("rank", self.ranks), 1) if self.ranks else self.text


def sentence(clauses: Iterable[Clause]) -> str:
    """Join the clauses of an answer into one sentence."""
    return "; ".join(clause.words() for clause in clauses)


class CommandDone(Struct, frozen=True, tag=True):
    id: str
    ok: bool
    text: str
    data: dict[str, str] = field(default_factory=dict)
    """Output of a Dump or a Profile by rank ("0", "1", …); not journaled."""
    clauses: tuple[Clause, ...] = ()
    """The statements in `text`; () if it is one statement about no ranks."""


class ProfileArmed(Struct, frozen=True, tag=True):
    """All ranks of a profile will record the same steps."""

    id: str
    """Id of the command."""
    ranks: tuple[int, ...]
    """Its ranks; () means all."""
    first: int
    """First recorded step, by the hooks' count."""
    steps: int


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
    """A hub's link to this event's node came up, broke, or is no longer needed."""

    state: LinkState
    host: str = ""
    text: str = ""
    """The reason as a sentence; for LOST with a remedy."""
    retry_at: float | None = None
    """Unix time of the next try."""


class StageChanged(Struct, frozen=True, tag=True):
    """A launch stage began, ended, or failed, on this event's node or, for HUB, on all nodes."""

    stage: Stage
    state: str
    """One of "begun", "done" or "failed"."""
    text: str = ""


class ClusterChanged(Struct, frozen=True, tag=True):
    """The current data of the cluster."""

    cluster: Cluster


class GpuTick(Struct, frozen=True, tag=True):
    """Sample of a node's GPUs. Telemetry: never journaled, the newest replaces the others."""

    gpus: tuple[Gpu, ...]
    driver: str | None = None
    problem: str | None = None
    """Reason for missing values, in words: no driver, a driver call that does not return, …"""


class HostTick(Struct, frozen=True, tag=True):
    host: Host


class RankTick(Struct, frozen=True, tag=True):
    ranks: tuple[RankSample, ...]


class PulseTick(Struct, frozen=True, tag=True):
    """Pulses of all ranks of a node; the detectors' evidence."""

    pulses: tuple[Pulse, ...]


class NcclTick(Struct, frozen=True, tag=True):
    """Facts from NCCL's logs on a node, for the current attempt."""

    attempt: int
    document: Raw
    """One JSON object; see diagnosis/nccl_facts.py."""


class TrainingTick(Struct, frozen=True, tag=True):
    """The newest training signals of a node's ranks that have any."""

    ranks: tuple[TrainingSample, ...]


class LogGrew(Struct, frozen=True, tag=True):
    """Sizes in bytes of the log files that grew, by file id (path in the run directory); -1: the file was renamed."""

    sizes: dict[str, int]


class Folded(Struct, frozen=True, tag=True):
    """The fold of the journal up to `seq`, sent instead of its events if the viewer supports it. Never journaled."""

    seq: int
    state: bytes
    """See `snapshot.packed`."""
    ended: bool
    """Whether the run had ended at `seq`."""


class CaughtUp(Struct, frozen=True, tag=True):
    """Marks the end of the history: later events are live. Never journaled."""

    seq: int


Event = (
    RunCreated
    | AgentStarted
    | RunnerStarted
    | RunnerLost
    | AttemptStarted
    | RankChanged
    | EnvironmentChanged
    | EnvironmentRestored
    | EnvironmentReported
    | HookChanged
    | CheckpointSaved
    | RestartDelayed
    | AttemptEnded
    | NcclChanged
    | CommandReceived
    | CommandDone
    | ProfileArmed
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
    | TrainingTick
    | LogGrew
    | Folded
    | CaughtUp
)

TELEMETRY = (GpuTick, HostTick, RankTick, PulseTick, NcclTick, TrainingTick, LogGrew, Folded, CaughtUp)
"""Events that are never journaled."""


class Stamped(Struct, frozen=True, omit_defaults=True):
    """An event with its time and origin, on the wire and in the journal."""

    time: float
    """Unix seconds on the event's node."""
    event: Event
    seq: int = 0
    """Line number in the journal, from 1; 0 for telemetry."""
    node: int = 0
    """Number of the event's node, from 0; HUB for events of the run as a whole."""
    source: int = 0
    """Position in the source journal. In an agent's journal, bytes of runner.jsonl consumed up to and including this
    event; in a hub's journal, the seq in the node's journal; 0 if this journal is the origin."""
