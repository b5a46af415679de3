"""Preset and its parts: what to run, without where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

StrategyKind = Literal["single", "ddp", "zero1", "fsdp1", "fsdp2", "deepspeed"]
Dtype = Literal["fp32", "bf16", "fp16"]
Sharding = Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"]
"""FSDP1's names; what each divides stands at Strategy.sharding."""
Offload = Literal["none", "cpu", "nvme"]

DDP_OPTIONS = (
    "bucket_cap_mb",
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "static_graph",
    "device_mesh",
)
STRATEGY_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "single": (),
    "ddp": DDP_OPTIONS,
    "zero1": DDP_OPTIONS,
    "fsdp1": ("sharding", "wrap", "limit_all_gathers", "cpu_offload"),
    "fsdp2": ("reshard_after_forward", "wrap", "cpu_offload"),
    "deepspeed": ("stage", "offload_optimizer", "offload_param", "nvme_path"),
}
"""Which options of Strategy act in which kind; zero1 is DDP with a partitioned optimizer."""
MESH_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "single": (),
    "ddp": ("pp", "ep", "cp", "schedule", "microbatches"),
    "zero1": ("cp",),
    "fsdp1": ("dp_replicate",),
    "fsdp2": ("pp", "dp_replicate", "cp", "tp", "sequence_parallel", "schedule", "microbatches"),
    "deepspeed": (),
}
"""Which fields of Mesh go with which kind of Strategy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """How the model is spread over the ranks."""

    kind: StrategyKind = "ddp"
    """"single" one process; "ddp" a replica a rank; "zero1" DDP with the optimizer state in shards
    (`ZeroRedundancyOptimizer`); "fsdp1" `FullyShardedDataParallel`; "fsdp2" parameters, gradients and
    optimizer state in shards (`fully_shard`); "deepspeed" a ZeRO stage of DeepSpeed."""
    bucket_cap_mb: int | None = None
    """MiB of gradients that one all-reduce takes together (ddp, zero1). None: torch's own choice."""
    find_unused_parameters: bool = False
    """Look each step for parameters that took no part (ddp, zero1); costs a walk over the graph."""
    gradient_as_bucket_view: bool = False
    """Gradients are views into the all-reduce buckets (ddp, zero1); saves one copy of the gradients."""
    static_graph: bool = False
    """Promise that every step uses the same parameters in the same order (ddp, zero1)."""
    reshard_after_forward: bool | int = True
    """fsdp2: true frees the gathered parameters after forward (least memory), false keeps them until
    backward (one all-gather less), a number re-shards to that many ranks."""
    device_mesh: bool = False
    """ddp, zero1: hand DDP a DeviceMesh instead of the default process group."""
    sharding: Sharding = "FULL_SHARD"
    """fsdp1: FULL_SHARD divides parameters, gradients and optimizer state; SHARD_GRAD_OP the latter two;
    NO_SHARD nothing; HYBRID_SHARD divides inside a node and replicates over nodes, _ZERO2 without parameters."""
    wrap: tuple[str, ...] = ()
    """fsdp1, fsdp2: class names of the layers that are gathered as one. Empty: the members of module lists."""
    limit_all_gathers: bool = True
    """fsdp1: the CPU waits rather than ask for more than two gathered layers ahead."""
    cpu_offload: bool = False
    """fsdp1, fsdp2: parameters, gradients and optimizer state rest in host memory; slow, for what fits nowhere else."""
    stage: Literal[0, 1, 2, 3] = 2
    """deepspeed: ZeRO stage. 1 divides the optimizer state, 2 the gradients too, 3 the parameters too."""
    offload_optimizer: Offload = "none"
    """deepspeed: where the optimizer state rests, "cpu" host memory or "nvme" a disk at `nvme_path`."""
    offload_param: Offload = "none"
    """deepspeed, stage 3: where the parameters rest."""
    nvme_path: str = "/local_nvme"
    """deepspeed: the folder for what is offloaded to "nvme": on a local disk, on every node."""

    def options(self) -> dict[str, object]:
        """The options that act in this kind, None left out: what `parallelize()` receives."""
        pairs = ((name, getattr(self, name)) for name in STRATEGY_OPTIONS[self.kind])
        return {name: value for name, value in pairs if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """How the ranks are arranged: sizes of the named dimensions. Data parallelism has the ranks that are left."""

    pp: int = 1
    """Pipeline stages: the layers are cut into so many pieces, one after the other."""
    dp_replicate: int = 1
    """fsdp1, fsdp2: so many replicas, each divided over the ranks that are left (HSDP)."""
    ep: int = 1
    """ddp: the experts of each mixture-of-experts layer are divided over so many ranks."""
    cp: int = 1
    """Ranks that share one sequence, each with a piece of it."""
    tp: int = 1
    """fsdp2: ranks that share each matrix product. Wants NVLink: at most the ranks of a node."""
    sequence_parallel: bool = False
    """With `tp`: norms and residuals are divided along the sequence; less memory for activations."""
    schedule: Literal["gpipe", "1f1b"] = "1f1b"
    """With `pp`: "gpipe" all forward passes, then all backward passes; "1f1b" in turn, less memory."""
    microbatches: int | None = None
    """With `pp`: pieces of each batch; the pipeline idles (pp-1)/(microbatches+pp-1) of the time. None: 2 × pp."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """How many samples one optimizer step sees."""

    micro: int | None = None
    """Samples that a rank takes at once. None: as the script says."""
    accumulation: int = 1
    """Backward passes before each optimizer step."""
    total: int | None = None
    """Samples of one optimizer step over all ranks, checked: micro × accumulation × data-parallel ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """Number formats inside the model."""

    param: Dtype = "fp32"
    """Format in which the forward and backward pass compute."""
    reduce: Dtype = "fp32"
    """Format in which gradients are summed over the ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launcher:
    """What starts the ranks."""

    kind: Literal["torchrun", "accelerate", "deepspeed"] = "torchrun"
    """"torchrun": torch's own elastic launcher; "accelerate" and "deepspeed": `accelerate launch` and `deepspeed`,
    each run as it is, restarted by stop and start."""
    rendezvous: Literal["c10d", "static", "standalone"] = "c10d"
    """torchrun: "c10d" ranks may come and go; "static" a fixed head and numbered nodes; "standalone" one node,
    a port chosen by torch."""
    grace_s: float = 30.0
    """Seconds between SIGTERM and SIGKILL when the ranks are stopped."""
    monitor_interval_s: float = 0.1
    """Seconds between two looks of the launcher at its ranks."""
    args: tuple[str, ...] = ()
    """Further arguments for the launcher, before the script."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """How many nodes and ranks."""

    nnodes: int = 1
    """Nodes."""
    nnodes_min: int | None = None
    """An elastic run goes on with as few nodes. None: `nnodes`, always."""
    nproc_per_node: int | Literal["gpu", "cpu", "auto"] = "auto"
    """Ranks on each node: a number, "gpu" one a GPU, "cpu" one a core, "auto" gpu where there are GPUs,
    else cpu."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Nccl:
    """Settings of NCCL and of torch's use of it."""

    env: Mapping[str, str] = field(default_factory=dict)
    """NCCL_*, TORCH_NCCL_* and TORCH_FR_* variables."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartPolicy:
    """When the worker group starts again after a rank failed."""

    limit: int = 3
    """Failures after which the run is given up. 0: never restart."""
    backoff_s: float = 1.0
    """Seconds before the first restart; doubled with each further failure."""
    backoff_max_s: float = 60.0
    """Upper bound of that wait, seconds."""
    reset_after_s: float = 600.0
    """Seconds without failure after which the count starts again at 0."""
    always: bool = False
    """Restart also after failures that would come again: a missing module, the same exception at the same step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """One named way to run a script."""

    name: str
    """How the user calls it: `distui launch NAME`."""
    title: str = ""
    """A few words for the list."""
    summary: str = ""
    """When to take it, in a sentence or two."""
    strategy: Strategy = field(default_factory=Strategy)
    """How the model is spread over the ranks."""
    mesh: Mesh = field(default_factory=Mesh)
    """How the ranks are arranged."""
    batch: Batch = field(default_factory=Batch)
    """How many samples a step sees."""
    precision: Precision = field(default_factory=Precision)
    """Number formats."""
    launcher: Launcher = field(default_factory=Launcher)
    """What starts the ranks."""
    topology: Topology = field(default_factory=Topology)
    """How many nodes and ranks."""
    nccl: Nccl = field(default_factory=Nccl)
    """NCCL's settings."""
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    """What happens after a failure."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Further environment of every rank."""
    hook: bool = True
    """Whether the hook is injected into the ranks."""
    hosts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Pattern of host names (as in "gpu0?") → variables for the ranks of those nodes alone; they win over `env`."""
    deepspeed: Mapping[str, object] = field(default_factory=dict)
    """Further keys of DeepSpeed's configuration, nested as in its JSON; they win over what the fields make."""
    accelerate: Mapping[str, object] = field(default_factory=dict)
    """Further keys of accelerate's YAML; they win over what the fields make."""
    sky: Mapping[str, object] = field(default_factory=dict)
    """Further keys of the SkyPilot task; they win over what the fields make."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A preset and where each of its values comes from."""

    preset: Preset
    origins: Mapping[str, str] = field(default_factory=dict)
    """Field path ("strategy.kind", "env.OMP_NUM_THREADS") → file or option that set it last. A path that
    is missing here holds the model's own default."""
