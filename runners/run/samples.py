"""Samples of GPUs, hosts, ranks and training signals. An unknown value is None, never 0."""

from __future__ import annotations

from msgspec import Struct


class Gpu(Struct, frozen=True, omit_defaults=True):
    """One sample of one GPU. A field is None if the driver does not report it."""

    index: int
    uuid: str
    name: str
    util: float | None = None
    """Percent of the last sample period with at least one kernel running. A hung kernel shows 100."""
    mem_used: int | None = None
    """Bytes, without the driver's reserved memory."""
    mem_total: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temp_c: float | None = None
    mem_temp_c: float | None = None
    sm_mhz: int | None = None
    mem_mhz: int | None = None
    max_sm_mhz: int | None = None
    throttle: tuple[str, ...] | None = None
    """Active clock event reasons, in words; () if no reason lowers the clocks."""
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
    """Recovery action that the driver asks for ("reset", "reboot", …); None if no action or not reported."""
    mig: bool | None = None
    pids: tuple[int, ...] | None = None
    """Compute processes on this GPU, as NVML reports them."""
    pid_mem: tuple[int | None, ...] | None = None
    """Bytes of each process in `pids`, in the same order."""
    lost: bool = False
    """The driver no longer reaches this GPU."""
    error: str | None = None
    """Reason for missing values, in words."""
    throttled_percent: float | None = None
    """Percent of the last sample period with clocks lowered for power or heat."""
    sm_active: float | None = None
    """Percent of cycles with a warp resident on an SM, mean of all SMs; from NVML's GPM, Hopper and newer."""
    tensor_active: float | None = None
    """Percent of cycles with busy tensor cores; from GPM."""
    dram_active: float | None = None
    """Percent of the memory bandwidth in use; from GPM."""


class Host(Struct, frozen=True, omit_defaults=True):
    """One sample of a node outside its GPUs. Bytes and bytes per second; percent of all cores together."""

    cpu_percent: float | None = None
    cores: int | None = None
    load1: float | None = None
    mem_used: int | None = None
    mem_total: int | None = None
    shm_used: int | None = None
    shm_total: int | None = None
    disk_free: int | None = None
    """Free bytes on the file system of the run directory."""
    disk_total: int | None = None
    net_rx_bps: float | None = None
    net_tx_bps: float | None = None
    ib_rx_bps: float | None = None
    ib_tx_bps: float | None = None
    cpu_stall_percent: float | None = None
    """Percent of the last 10 s in which at least one task waited for a core (PSI)."""
    cgroup_mem_max: int | None = None
    cgroup_mem_used: int | None = None
    """Bytes that count against `cgroup_mem_max`, without page cache."""
    steal_percent: float | None = None
    """Percent of all cores' time that a hypervisor gave to other machines."""
    page_cache: int | None = None
    """Bytes of the page cache, without shared memory."""
    nic_errors: int | None = None
    """Errors, not drops, of network interfaces and InfiniBand ports in the last minute."""


class RankSample(Struct, frozen=True, omit_defaults=True):
    """One sample of one rank's process and of its hook's counters."""

    rank: int
    pid: int | None = None
    cpu_percent: float | None = None
    """Percent of one core, including children."""
    rss_bytes: int | None = None
    threads: int | None = None
    children: int | None = None
    read_bps: float | None = None
    write_bps: float | None = None
    gpu: int | None = None
    """NVML index of the GPU this rank uses."""
    gpu_source: str | None = None
    """Source of `gpu`: "nvml" (NVML lists the pid on the GPU) or "env" (from the launch environment)."""
    gpu_mem: int | None = None
    step: int | None = None
    step_s: float | None = None
    """Mean seconds per step since the previous sample; None once the steps have stopped, see freshness.py."""
    still_s: float | None = None
    """Seconds since the newest step, once the steps have stopped."""
    usual_s: float | None = None
    """Usual seconds per step, once the steps have stopped."""
    throttled_percent: float | None = None
    """Percent of the cgroup's quota periods that were throttled; None without a quota."""
    cpus: str | None = None
    """CPU affinity of the process, as in "0-3,8"."""
    wait_percent: float | None = None
    """Percent of the last minute that the rank waited for others in a collective; 100 once it is blocked in one."""
    log_age_s: int | None = None
    """Seconds since the last write to its stdout or stderr; None before the first write."""


class TrainingSample(Struct, frozen=True, omit_defaults=True):
    """The newest training signals of one rank, as the script itself reports them."""

    rank: int
    at: float
    """Unix time of the newest signal, by the node's clock."""
    step: int | None = None
    """Step by the script's own count; `RankSample.step` counts optimizer steps since the process started."""
    total: int | None = None
    """Number of steps of the whole training."""
    epoch: float | None = None
    epoch_step: int | None = None
    """Step within the current epoch."""
    epoch_total: int | None = None
    """Number of steps of an epoch."""
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    tokens_s: float | None = None
    """Tokens per second of the whole job, as the script reports them."""
    samples_s: float | None = None
    step_s: float | None = None
    mfu: float | None = None
    """Model FLOPs utilization in percent: the script's own value, else computed from the model's size."""
    values: dict[str, float] = {}
    """Other values by the script's own names ("eval/loss"); at most 32."""
    sources: dict[str, str] = {}
    """Field → its source: "wandb", "tensorboard", "output: step {step} loss {loss}", "computed"."""
    not_finite: dict[str, str] = {}
    """Field or value name → "nan", "inf" or "-inf" if that is its newest value: JSON has no such numbers."""
    not_finite_since: dict[str, int] = {}
    """Field or value name → the first step with that value."""
    every_s: float | None = None
    """Usual seconds between two step reports; None before the second report."""
