"""Preset and its parts: what to run, without where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

StrategyKind = Literal["single", "ddp", "fsdp2", "zero1"]
Dtype = Literal["fp32", "bf16", "fp16"]

DDP_OPTIONS = ("bucket_cap_mb", "find_unused_parameters", "gradient_as_bucket_view", "static_graph")
STRATEGY_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "single": (),
    "ddp": DDP_OPTIONS,
    "fsdp2": ("reshard_after_forward",),
    "zero1": DDP_OPTIONS,
}
"""Which options of Strategy act in which kind; zero1 is DDP with a partitioned optimizer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """How the model is spread over the ranks."""

    kind: StrategyKind = "ddp"
    """"single" one process; "ddp" a replica a rank; "fsdp2" parameters, gradients and optimizer state in
    shards (`fully_shard`); "zero1" DDP with the optimizer state in shards (`ZeroRedundancyOptimizer`)."""
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

    def options(self) -> dict[str, object]:
        """The options that act in this kind, None left out: what `parallelize()` receives."""
        pairs = ((name, getattr(self, name)) for name in STRATEGY_OPTIONS[self.kind])
        return {name: value for name, value in pairs if value is not None}


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

    kind: Literal["torchrun"] = "torchrun"
    """"torchrun": torch's own elastic launcher."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A preset and where each of its values comes from."""

    preset: Preset
    origins: Mapping[str, str] = field(default_factory=dict)
    """Field path ("strategy.kind", "env.OMP_NUM_THREADS") → file or option that set it last. A path that
    is missing here holds the model's own default."""
