"""Events, commands and the values they carry: one msgspec definition for domain, wire and validation."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import ClassVar

from msgspec import Raw, Struct, field

from ..presets.finding import Finding
from ..presets.plurals import plural
from ..presets.secrets import mask
from .formatting import spans_text

# --- values that events carry; unknown is None, never 0 ---


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
    ENDED = "ended"  # of a job that distui did not start: its starter alone knows how
    EXPORTED = "exported"  # in an opened bundle alone: it was live when that was written, and no more comes

    @property
    def ended(self) -> bool:
        """Whether nothing of it changes any more."""
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
        """As a person reads it."""
        return "live when exported" if self is RunPhase.EXPORTED else str(self)


class RankPhase(enum.StrEnum):
    """Where one rank of the current attempt stands."""

    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"  # exit code 0
    FAILED = "failed"  # exit code other than 0
    KILLED = "killed"  # ended by a signal that distui did not send
    STOPPED = "stopped"  # ended because the group was stopped or restarted
    LOST = "lost"  # gone; exit status unknown
    ENDED = "ended"  # the same, of a job that distui did not start


HUB = -1
"""The node number of what concerns the run as a whole; a hub says it, no node."""


class LinkState(enum.StrEnum):
    """How a hub stands to one node."""

    CONNECTING = "connecting"
    UP = "up"
    LOST = "lost"
    """Not reachable; the next try is under way or has its time."""
    ENDED = "ended"
    """The node's part has ended, and everything was read."""


class Stage(enum.StrEnum):
    """What happens before the ranks of a launched cluster start, in this order."""

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
    ENDED = "ended"  # of a job that distui did not start


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
    throttled_percent: float | None = None
    """Share of the last sample period in which power or heat held the clocks back."""
    sm_active: float | None = None
    """Percent of cycles in which a warp was resident on an SM, mean of all SMs; by NVML's GPM, Hopper and newer."""
    tensor_active: float | None = None
    """Percent of cycles in which the tensor cores were busy; by GPM."""
    dram_active: float | None = None
    """Percent of the memory's bandwidth that was used; by GPM."""


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
    cgroup_mem_used: int | None = None
    """What counts against `cgroup_mem_max`, page cache left out."""
    steal_percent: float | None = None
    """Share of all cores' time that a hypervisor gave to other machines."""
    page_cache: int | None = None
    """Files that are kept in memory, without shared memory."""
    nic_errors: int | None = None
    """Errors, not drops, that network interfaces and InfiniBand ports counted in the last minute."""


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
    """Mean seconds per step since the sample before; None once the steps have stopped, see freshness.py."""
    still_s: float | None = None
    """Seconds since the newest step, once the steps have stopped."""
    throttled_percent: float | None = None
    """Share of its cgroup's quota periods in which the quota held it back; None without a quota."""
    cpus: str | None = None
    """Cores that it may run on, as in "0-3,8"."""
    wait_percent: float | None = None
    """Share of the last minute in which it waited for other ranks in a collective; 100 once it is blocked in one."""
    log_age_s: int | None = None
    """Seconds since it wrote to its standard output or error; None where it has written nothing."""


class TrainingSample(Struct, frozen=True, omit_defaults=True):
    """The newest training signals of one rank; each is what the script itself reports."""

    rank: int
    at: float
    """Unix time of the newest of them, by the node's clock."""
    step: int | None = None
    """As the script counts; `RankSample.step` counts optimizer steps since the start of the process."""
    total: int | None = None
    """Steps after which the training is over."""
    epoch: float | None = None
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    tokens_s: float | None = None
    """Tokens a second of the whole job, as the script reports them."""
    samples_s: float | None = None
    step_s: float | None = None
    mfu: float | None = None
    """Model FLOPs utilisation in percent: the script's own, else computed from the model's size."""
    values: dict[str, float] = {}
    """Further values by the script's own names ("eval/loss"); at most 32."""
    sources: dict[str, str] = {}
    """Field → where it comes from: "wandb", "tensorboard", "output: step {step} loss {loss}", "computed"."""
    not_finite: dict[str, str] = {}
    """Field or name of a value → "nan", "inf" or "-inf" where that is its newest value, which JSON cannot carry."""
    not_finite_since: dict[str, int] = {}
    """The same → the first step of which that was reported."""
    every_s: float | None = None
    """Usual seconds between two reports of a step; None before the second."""


class Checkpoint(Struct, frozen=True, omit_defaults=True):
    """A checkpoint that was saved or is being saved."""

    path: str
    at: float
    """Unix time at which it was complete; of one that is not, at which it was last seen to grow."""
    source: str
    """How that is known: "torch.save", "dcp", "safetensors", "save_pretrained", "accelerate", "deepspeed", "folder"."""
    step: int | None = None
    rank: int | None = None
    """Who reported it."""
    duration_s: float | None = None
    size: int | None = None
    """Bytes on disk."""
    complete: bool = True
    """False: torn, because its writer ended or the folder misses files."""
    count: int | None = None
    """Optimizer steps that the saving process had made, as `RankSample.step` counts them."""
    attempt: int = 0
    """Whose worker group saved it; 0 where that is unknown."""


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
    at: float | None = None
    """Unix time at which it failed, by its node's clock; in a hub's journal by the hub's."""
    symptom: bool = False
    """True when what it says is only that somebody else was gone."""
    kind: str = ""
    """Class of the failure, as in "died-<kind>": see inrank/failure_causes.py."""
    remedy: str = ""
    retry: str = ""
    """Whether a restart can help: "no", "maybe", "yes"."""
    where: str = ""
    """Path and line of the user's code that raised: "…/train.py:88"."""
    evidence: tuple[str, ...] = ()
    """What the kernel and the driver say of it, a line each."""


class Cluster(Struct, frozen=True, omit_defaults=True):
    """Where a launched run lives, and what that costs."""

    name: str = ""
    """SkyPilot's cluster name; "" for hosts that nobody provisioned."""
    infra: str = ""
    """As SkyPilot writes it: "slurm/lab/gpu", "aws/us-east-1"; "hosts" for hosts that the user named."""
    resources: str = ""
    """Of one node, in SkyPilot's words."""
    price_per_hour: float | None = None
    """US dollars an hour for all nodes; None when SkyPilot names no price."""
    job: int | None = None
    """SkyPilot's number of the job on the cluster."""
    managed: bool = False
    """A managed job: SkyPilot recovers it, and gives no ssh to its nodes."""
    recoveries: int = 0
    """How often SkyPilot has recovered the managed job on other nodes."""
    state: str = ""
    """SkyPilot's word for the cluster or the managed job."""
    autostop_min: int | None = None
    """Minutes without a job after which SkyPilot takes the cluster down; None: never."""
    since: float | None = None
    """Unix time from which it is paid for."""
    until: float | None = None
    """Unix time at which it was taken down; None while it is paid for."""
    down: bool = False
    """Taken down: nothing of it is left."""


class Wrapped(Struct, frozen=True, omit_defaults=True):
    """What a rank's model was wrapped with when it made its first step."""

    strategies: tuple[str, ...] = ()
    """Of ddp, zero1, fsdp1, fsdp2, deepspeed; () for a plain model."""
    zero_stage: int | None = None
    """Of DeepSpeed."""
    dims: dict[str, int] = {}
    """Named dimensions over which the model is divided, with their sizes."""
    param: str | None = None
    """"fp32", "bf16" or "fp16" where the wrapper says what it computes in."""
    params: int | None = None
    """Parameters of the whole model."""
    grouped: bool | None = None
    """Whether it had a process group by then; None where that is unknown, and where ranks may speak without one."""
    adopted: str = ""
    """What --adopt has done, as a sentence; "" for nothing."""


class PlanSummary(Struct, frozen=True, omit_defaults=True):
    """The part of a plan that every screen needs; the whole stands in plan.json."""

    preset: str
    strategy: str
    launcher: str
    """"torchrun" or "command"."""
    command: str
    """The user's script or command with its arguments, as one line."""
    nnodes: int = 1
    nnodes_min: int | None = None
    """Elastic runs go on with as few nodes as this; None: with all or not at all."""
    nproc_per_node: int | None = None
    backend: str | None = None
    """"nccl" or "gloo"; None where distui does not know."""
    obeys: str | None = None
    """How the script obeys the preset; None when it obeys nothing."""
    restart_limit: int = 0
    grace_s: float = 30.0
    notes: tuple[str, ...] = ()
    mesh: dict[str, int] = {}
    """Named dimensions of the ranks and their sizes, outermost first."""
    zero_stage: int | None = None
    """Of a preset for DeepSpeed."""
    precision: str | None = None
    """What the preset computes in: "fp32", "bf16" or "fp16"."""
    save_on: str = ""
    """What asks the script to save: "SIGUSR1", or "FILE:PATH"; "" where nothing does. See presets/save_on.py."""
    notify: tuple[str, ...] = ()
    log_cap: int = 0
    """Both as of the plan."""


# --- what a rank is doing at one moment: its stack, its collectives, its process ---


class Site(Struct, frozen=True, array_like=True):
    """One frame of a Python stack."""

    file: str
    line: int
    name: str
    """Of the function."""


class Collective(Struct, frozen=True, omit_defaults=True):
    """One entry of torch's flight recorder."""

    group: str
    """Name of the process group, as the entries have it: "0" is the default one. Where a group has NCCL and gloo,
    "0/gloo" is that of gloo, which counts for itself."""
    seq: int
    """Number of this collective in its group, from 1: the same on every rank that does the same."""
    op: str
    """Without the backend: "all_reduce"."""
    what: str = ""
    """Inputs as dtype and shape: "Float[20]"; "" where there are none."""
    created: float = 0.0
    """Unix time at which the rank called it, by its node's clock."""
    done: bool = False
    started: bool | None = None
    """Whether its kernel runs; None where the backend does not tell (gloo)."""
    sites: tuple[Site, ...] = ()
    """Who called it, innermost first, torch's own frames left out."""
    duration_ms: float | None = None
    p2p: bool = False


class ProcessGroup(Struct, frozen=True, omit_defaults=True):
    """A process group by its recorder, or as torch counts (`completed` -1); `backend`: "nccl2", …; "": unknown."""

    name: str
    ranks: tuple[int, ...] = ()
    """Global ranks; () for the default group, which has all, and where the recorder does not say."""
    enqueued: int = 0
    """Number of the collective that was called last; 0: none yet."""
    completed: int = 0
    desc: str = ""
    backend: str = ""


class Stall(Struct, frozen=True, omit_defaults=True):
    """A TCP connection of the rank that waits for the other end: from /proc/net/tcp."""

    local: str
    """ "address:port"."""
    remote: str
    state: str
    """ "SYN_SENT" or "ESTABLISHED"."""
    retransmits: int = 0
    unsent: int = 0
    """Bytes that the other end has not acknowledged."""


class RankThread(Struct, frozen=True, array_like=True):
    """A thread of a rank beside its main one."""

    name: str
    stack: tuple[Site, ...]
    error: str = ""
    """Of which it died, raised where `stack` begins; "" while it lives."""


class OwnLine(Struct, frozen=True, array_like=True):
    """A line that a rank wrote to its stdout or stderr, cut, with secrets masked."""

    text: str
    at: float | None = None
    """Unix time by which it was written; None where that is not sure to some seconds."""


class Pulse(Struct, frozen=True, omit_defaults=True):
    """One look at a rank, every few seconds, through its hook."""

    rank: int
    at: float
    """Unix time of the look, by the node's clock."""
    pid: int | None = None
    hook: bool = False
    """Whether the hook answered; else what is here comes from outside."""
    state: str | None = None
    """The kernel's letter of the process: "R", "S", "D", "T" (stopped), "Z"; None when it is gone."""
    stack: tuple[Site, ...] = ()
    """Of the main thread, innermost first; () when unknown."""
    sites: int | None = None
    """How many different innermost places (function and line) the samples of this look saw; of `samples`."""
    samples: int = 0
    cpu_s: float | None = None
    """Processor seconds of the main thread so far."""
    process_s: float | None = None
    """Processor seconds of all threads so far."""
    read_bytes: int | None = None
    """Read from storage so far, as the kernel counts it; None where it does not tell."""
    written_bytes: int | None = None
    torch: bool | None = None
    """Whether torch.distributed is imported."""
    step: int | None = None
    last_step: float | None = None
    """Unix time of the newest optimizer step; None before the first."""
    groups: tuple[ProcessGroup, ...] = ()
    active: tuple[Collective, ...] = ()
    """Not completed, oldest first; at most 16."""
    recent: tuple[Collective, ...] = ()
    """Newest completed ones, oldest first; at most 64, without sites but for the last 8."""
    recorder: bool | None = None
    """Whether torch has a flight recorder that could be read."""
    whole: bool = False
    """Whether this look saw every collective; else `active` and `recent` are empty, because each group moved since the
    look before, or waits for nothing. At least every 15 s, and while somebody waits."""
    stalls: tuple[Stall, ...] = ()
    """Looked for only while the rank waits."""
    world_size: str | None = None
    """WORLD_SIZE in the rank's environment."""
    master: str | None = None
    """MASTER_ADDR:MASTER_PORT there."""
    source: str = ""
    """Of a stack that the hook did not give: "signal" (SIGUSR2 to the hook's own thread) or "py-spy"."""
    waits_in: str | None = None
    """The kernel's function the main thread waits in ("hrtimer_nanosleep"); None where it runs, or that is hidden."""
    call: str | None = None
    """What the main thread waits in, by inrank/thread_waits.py; None where it runs or the kernel does not tell."""
    on: str = ""
    """What `call` waits for: a path, "FIFO PATH", "a pipe", "ADDRESS:PORT", a pid."""
    holder: int | None = None
    """Pid that holds the file lock it waits for; `holder_name`: its program, where it is none of the run's ranks."""
    holder_name: str = ""
    threads: tuple[RankThread, ...] = ()
    """Only while the main thread waits for what a thread may give, and not in a collective; those that died in any case,
    and first."""
    loops: int | None = None
    """Samples that found the innermost frame at a jump backwards: in a loop that calls nothing."""
    workers_busy: int | None = None
    """Workers of its data loaders that do not wait for a task; None where there are none, or the kernel hides it."""
    wrote: tuple[OwnLine, ...] = ()
    """Only while it waits or stands still: what it wrote last that may say why, oldest first; at most 2 lines."""


# --- events: past participles; `Event` is their union, `Stamped` the form in which they travel and are kept ---


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
    driver: str = ""
    """Version of NVIDIA's driver, as the kernel has it; "" without one."""
    gpus: tuple[str, ...] = ()
    """Models of the node's GPUs, as the driver's files name them."""


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
    code: dict[str, str] = field(default_factory=dict)
    """The script and the files beside it that it imports: path → digest; see inrank/script_files.py."""


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
    cause: FirstCause | None = None
    """Of a rank that failed: what is known of why, before its attempt has ended."""


class EnvironmentChanged(Struct, frozen=True, tag=True):
    """The runner has taken changes of the environment, for the next attempt."""

    env: dict[str, str | None]
    """Secrets are MASK; None means unset."""


class EnvironmentRestored(Struct, frozen=True, tag=True):
    """The newest changes were taken back: no rank could be started with them."""

    attempt: int
    names: tuple[str, ...]
    text: str


class EnvironmentReported(Struct, frozen=True, tag=True):
    """What the ranks of a node really have of the variables that changed with an attempt."""

    attempt: int
    ranks: tuple[int, ...]
    env: dict[str, str | None]
    """Of those ranks that have what was asked for."""
    differs: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """Of the others: rank ("0", "1", …) → what it has instead."""
    source: str = ""
    """"hook": as its interpreter sees them; "process": as it was started."""


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
    made: Wrapped | None = None
    """What the model was wrapped with at the first step; None before, and where that is not known."""


class CheckpointSaved(Struct, frozen=True, tag=True):
    """A checkpoint was saved, or found torn."""

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
    """How far each rank had come, how fast, and with how much memory: what no telemetry says once it has ended."""
    lasted_s: float | None = None
    """By a clock that nobody sets; None where no agent lived through all of it."""
    idle: str = ""
    """Of an attempt that succeeded without a step: that, and the last line; "" where it trained, or nobody knows."""
    training: tuple[TrainingSample, ...] = ()
    """The last training signals of the ranks of this node."""


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
    """See RunCommand."""


class Clause(Struct, frozen=True, omit_defaults=True):
    """One thing that an answer says; those of several nodes are merged by it."""

    text: str
    """"{ranks}" stands, once, where the ranks are named."""
    ranks: tuple[int, ...] = ()

    def words(self) -> str:
        """As a person reads it."""
        return self.text.replace("{ranks}", spans_text("rank", self.ranks), 1) if self.ranks else self.text


def sentence(clauses: Iterable[Clause]) -> str:
    """What an answer says, as one sentence."""
    return "; ".join(clause.words() for clause in clauses)


class CommandDone(Struct, frozen=True, tag=True):
    id: str
    ok: bool
    text: str
    data: dict[str, str] = field(default_factory=dict)
    """What a Dump or a Profile brought, by rank ("0", "1", …); not journaled."""
    clauses: tuple[Clause, ...] = ()
    """What `text` says, one by one; () where that is one statement about no ranks."""


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
    """One JSON object; see diagnosis/nccl_facts.py."""


class TrainingTick(Struct, frozen=True, tag=True):
    """The newest training signals of the ranks of a node that have any."""

    ranks: tuple[TrainingSample, ...]


class LogGrew(Struct, frozen=True, tag=True):
    """Sizes in bytes of the log files that grew, by file id (path in the run directory); -1: it has another name now."""

    sizes: dict[str, int]


class Folded(Struct, frozen=True, tag=True):
    """The fold of the journal up to `seq`, in place of its events, for a viewer that asked for it. Never journaled."""

    seq: int
    state: bytes
    """See `snapshot.packed`."""
    ended: bool
    """Whether the run has ended by then."""


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


# --- commands: imperatives; `Command` is their union ---

PROTOCOL = (1, 1)
"""Oldest and newest wire protocol this code speaks."""


def understood(proto: tuple[int, int]) -> bool:
    """Whether whoever speaks these protocols, oldest and newest, and this code have one in common."""
    return proto[0] <= PROTOCOL[1] and proto[1] >= PROTOCOL[0]


class Hello(Struct, frozen=True, tag=True):
    """A viewer's first line."""

    proto: tuple[int, int] = PROTOCOL
    after: int = 0
    """Journal seq already seen."""
    readonly: bool = False
    """True: the agent refuses commands on this connection."""
    fold: str = ""
    """Of the viewer's code that folds, see `snapshot.fold_id`: a long history may come as one `Folded`."""


class Destination(enum.Enum):
    """Where a hub has a command done."""

    RANKS = enum.auto()
    """On the nodes of the ranks that it names, or of all."""
    NODES = enum.auto()
    """On every node."""
    HUB = enum.auto()
    """In the hub itself; an agent refuses it."""


class RunCommand(Struct, frozen=True):
    """A command that is journaled, and answered by a CommandDone of the same id."""

    verb: ClassVar[str]
    """Its name in the journal."""
    goes_to: ClassVar[Destination] = Destination.RANKS
    after_end: ClassVar[bool] = False
    """Whether it makes sense after the end of the run."""
    changes_group: ClassVar[bool] = False
    """Whether it changes what the worker group runs with: an agent does one such command at a time."""

    id: str

    @property
    def restarts(self) -> bool:
        """Whether it restarts the worker group: a hub does one such command at a time, on all nodes at once."""
        return False

    @property
    def reads(self) -> bool:
        """Whether it only reads what was kept: not journaled, and answered on read-only links and after the end, too."""
        return False

    def requested(self) -> str:
        """Its line in the journal, secrets masked."""
        return f"{self.verb} requested"


class Restart(RunCommand, frozen=True, tag=True):
    """Restart the worker group in place, with a changed environment."""

    verb: ClassVar[str] = "restart"
    goes_to: ClassVar[Destination] = Destination.NODES
    changes_group: ClassVar[bool] = True

    env: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    reachable: bool = False
    """Go on where nodes do not answer; else such nodes are named and nothing is restarted."""

    @property
    def restarts(self) -> bool:
        return True

    def requested(self) -> str:
        changes = [f"{name}={mask(name, value)}" for name, value in self.env.items()]
        changes += [f"-{name}" for name in self.unset]
        return "restart requested" + (f": {' '.join(changes)}" if changes else "")


class Stop(RunCommand, frozen=True, tag=True):
    """End the run: TERM, grace, KILL, marker sweep."""

    verb: ClassVar[str] = "stop"
    goes_to: ClassVar[Destination] = Destination.NODES

    grace_s: float | None = None


class SetNccl(RunCommand, frozen=True, tag=True):
    """Change NCCL_DEBUG, live or by a restart."""

    verb: ClassVar[str] = "nccl"
    changes_group: ClassVar[bool] = True

    level: str
    subsys: str = ""
    ranks: tuple[int, ...] = ()
    """() means all."""
    seconds: float | None = None
    restart: bool = False
    reachable: bool = False
    """As for Restart."""

    @property
    def restarts(self) -> bool:
        return self.restart

    def requested(self) -> str:
        return f"NCCL_DEBUG={self.level} {self.subsys}".rstrip() + " requested"


class Signal(RunCommand, frozen=True, tag=True):
    """Send a signal to ranks."""

    verb: ClassVar[str] = "signal"

    signal: str
    ranks: tuple[int, ...] = ()

    def requested(self) -> str:
        return f"{self.signal} requested"


class Save(RunCommand, frozen=True, tag=True):
    """Ask every rank to save, the way the plan says, and wait for a new complete checkpoint."""

    verb: ClassVar[str] = "save"

    seconds: float = 120.0
    """How long to wait for it."""
    only: str = ""
    """A hub's parts, for each node: "check" whether every rank would take the request, which sends nothing; "ask",
    where nothing is waited for."""
    ranks: tuple[int, ...] = ()
    """Of a hub's part: those that the node has."""


class Dump(RunCommand, frozen=True, tag=True):
    """Ask ranks what they are doing."""

    verb: ClassVar[str] = "dump"

    what: str
    """"stacks", "flight", "memory", or "record": torch records allocations for later snapshots of its memory; "runner":
    nothing of the ranks, only whether the runner answers."""
    ranks: tuple[int, ...] = ()
    at: float = 0.0
    """Unix time: stacks that were kept by then, and no rank is asked."""

    @property
    def reads(self) -> bool:
        return bool(self.at)

    def requested(self) -> str:
        return f"dump of {self.what} requested"


class Profile(RunCommand, frozen=True, tag=True):
    """Have torch.profiler record the same steps of ranks."""

    verb: ClassVar[str] = "profile"

    ranks: tuple[int, ...] = ()
    """() means all."""
    steps: int = 3
    seconds: float | None = None
    """How long to wait for the traces; None: as the pace of the steps demands."""
    part: str = ""
    """What a coordinator asks of each node: "ready", "arm", "wait" or "cancel"; "read": a piece of a trace."""
    first: int = 0
    """Of "arm": the first step that is recorded, counted by the hooks."""
    folder: str = ""
    """Name of the folder of this profile's traces, below "profiles" of each node."""
    offset: int = 0
    """Of "read": where the piece of the only rank's trace begins, in bytes."""

    @property
    def reads(self) -> bool:
        return self.part in ("ready", "read")

    def requested(self) -> str:
        return f"profile of {plural(self.steps, 'step')} requested"


class Down(RunCommand, frozen=True, tag=True):
    """Take the cluster down, with everything on it."""

    verb: ClassVar[str] = "down"
    goes_to: ClassVar[Destination] = Destination.HUB
    after_end: ClassVar[bool] = True

    cluster: str
    """Its name, typed by whoever asks: another name is refused."""

    def requested(self) -> str:
        return f"teardown of {self.cluster} requested"


class SetAutostop(RunCommand, frozen=True, tag=True):
    """Have SkyPilot take the cluster down when it was idle for so long."""

    verb: ClassVar[str] = "autostop"
    goes_to: ClassVar[Destination] = Destination.HUB
    after_end: ClassVar[bool] = True

    minutes: int | None
    """None: never."""

    def requested(self) -> str:
        if not self.minutes:
            return "autostop disabled on request"
        return f"autostop after {self.minutes} min requested"


class Via(Struct, frozen=True, tag=True):
    """A hub's first line to the agent of the head: all that follows is for the agent of another node."""

    node: int


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
    line: int = 0
    """Where it is positive: from this line on, counted from 1, wherever `offset` is."""
    at: float = 0.0
    """Where it is positive: from the line on that stands before the first one written at this unix time or later."""


class ReadMetrics(Struct, frozen=True, tag=True):
    """Ask for curves from the metrics on disk; answered by a MetricsWindow. Changes nothing."""

    id: str
    begin: float
    """Unix seconds."""
    end: float
    buckets: int = 240
    """At most so many: the node chooses the shortest bucket of 1, 2, 5, 10, 30, 60, … s that fits."""
    metrics: tuple[str, ...] = ()
    """Names ("gpu.util", "rank.step_s", "train.loss"), or the part before the dot; () means all."""
    fold: str = "each"
    """"each" GPU or rank a series, one series a "node", or one of "all"."""
    indexes: tuple[int, ...] = ()
    """Only these ranks or GPUs; () means all."""
    counts: bool = False
    """Whether the series are to carry `samples`: a hub needs them to fold nodes."""


Action = Restart | Stop | SetNccl | Signal | Save | Dump | Profile | Down | SetAutostop
"""Every RunCommand."""

Command = Hello | Via | Action | ReadLog | ReadMetrics


class Series(Struct, frozen=True, omit_defaults=True):
    """One curve of a MetricsWindow: a value a bucket, None where no sample was."""

    metric: str
    node: int = 0
    """HUB where several nodes are folded."""
    index: int | None = None
    """NVML index of the GPU, or the rank; None of a node, and where several are folded."""
    of: int = 1
    """How many GPUs or ranks are folded into it."""
    mean: tuple[float | None, ...] = ()
    low: tuple[float | None, ...] = ()
    """The smallest sample of each bucket; () where every bucket equals its mean."""
    high: tuple[float | None, ...] = ()
    samples: tuple[int, ...] = ()
    """How many samples each bucket has, where that was asked for."""


class MetricsWindow(Struct, frozen=True, tag=True):
    """The answer to ReadMetrics. Bucket k covers the seconds from `begin + k * seconds`, aligned to the clock."""

    id: str
    begin: float = 0.0
    seconds: float = 1.0
    """Length of a bucket."""
    count: int = 0
    """Buckets."""
    series: tuple[Series, ...] = ()
    error: str = ""


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
    times: tuple[tuple[int, float], ...] = ()
    """When its lines were written, as far as the agent saw: (offset, unix time), no offset below the one before; what
    lies before that offset was there by that time, and after the time of the pair before."""
    starts: tuple[int, ...] = ()
    """With a pattern: where each line of the data begins in the file."""
    shift: float = 0.0
    """Seconds that are added to the node's times in `times`: what its lines themselves say needs the same."""


class AgentHello(Struct, frozen=True, tag=True):
    """The agent's first line."""

    proto: tuple[int, int]
    version: str
    run: str
    seq: int
    """Newest journal seq."""
    node: int = 0
    """Number of the node it serves; HUB for a hub."""
    now: float = 0.0
    """Unix time there: what a hub corrects clocks with; 0.0 from an agent that does not say."""
