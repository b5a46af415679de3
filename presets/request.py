"""What a plan is made of beside the preset: what the user asked for, and facts of the place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from . import nccl_presets


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What the user asked for beside the preset. None: as the preset says."""

    script: str | None = None
    """Script, module (`module`) or program (`no_python`); None only in a request for a command."""
    args: tuple[str, ...] = ()
    """The script's own arguments."""
    module: bool = False
    """`script` is a module, run as `python -m` does."""
    no_python: bool = False
    """`script` is a program that is executed itself."""
    name: str | None = None
    """Name of the run; None: that of the script."""
    python: str | None = None
    """Interpreter; None: `Place.python`."""
    nnodes: int | str | None = None
    """A number, or "MIN:MAX" for an elastic run."""
    nproc_per_node: int | str | None = None
    """A number, "gpu", "cpu" or "auto"."""
    env: Mapping[str, str] = field(default_factory=dict)
    nccl: Mapping[str, str] = field(default_factory=dict)
    nccl_presets: tuple[str, ...] = ()
    """Names of settings of NCCL; `env` and `nccl` win over them."""
    hosts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Pattern of host names → variables of those nodes alone."""
    hook: bool | None = None
    grace_s: float | None = None
    restart_limit: int | None = None

    @property
    def wished(self) -> dict[str, str]:
        """All variables that were asked for. Raises PlanError."""
        return {**nccl_presets.combined(self.nccl_presets), **self.env, **self.nccl}


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Facts of where the run will be, measured by the caller."""

    run: str
    run_dir: str
    """Absolute."""
    port: int
    """A port for the rendezvous that is free on the head."""
    ras_port: int
    """A free port for NCCL's RAS."""
    gpus: int
    """GPUs that the driver names on this node, before CUDA_VISIBLE_DEVICES."""
    cores: int
    """Cores that this process may use."""
    cwd: str
    python: str
    """Interpreter of the training environment."""
    host: str = "127.0.0.1"
    """Address of the rendezvous, where there is one node."""
    nodes: int | None = 1
    """Nodes that there are; None: as many as asked for."""
    script_exists: bool = True
    """False when the caller looked for the script and did not find it."""
    script_source: str | bytes | None = None
    """Text (or raw bytes) of the script; None when it cannot be read."""
    user_env: Mapping[str, str] = field(default_factory=dict)
    """`environ.inherited` of the user's own environment."""
