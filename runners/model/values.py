"""Values that events carry: phases, samples, findings. Unknown is `None`, never 0."""

from __future__ import annotations

import enum

from msgspec import Struct


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
    """Mean seconds a step over the last sample period."""
    throttled_percent: float | None = None
    """Share of its cgroup's quota periods in which the quota held it back; None without a quota."""
    cpus: str | None = None
    """Cores that it may run on, as in "0-3,8"."""


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
    """Class of the failure, as in "died-<kind>": see inrank/classes.py."""
    remedy: str = ""
    retry: str = ""
    """Whether a restart can help: "no", "maybe", "yes"."""
    where: str = ""
    """Path and line of the user's code that raised: "…/train.py:88"."""
    evidence: tuple[str, ...] = ()
    """What the kernel and the driver say of it, a line each."""


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
    """A sentence or a line each: what the statement rests on."""
    ranks: tuple[int, ...] = ()
    """All ranks that it is about, where that is not `rank` alone."""
    since: float | None = None
    """Unix time from which it holds; the text itself names no age, so that it stays the same while it holds."""


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
