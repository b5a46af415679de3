"""A rank's settings from its environment (see __init__.py), and its place in the mesh."""

from __future__ import annotations

import inspect
import json
import math
import os
import warnings
from functools import lru_cache
from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

_Types = Dict[str, Tuple[type, ...]]
_YES_NO = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph", "device_mesh")
LAYERS = ("activation_checkpointing", "compile")
"""Options that act on the layers of the model."""
_LAYERS: _Types = dict.fromkeys(LAYERS, (bool,))
_DDP: _Types = {"bucket_cap_mb": (int, float), **dict.fromkeys(_YES_NO, (bool,)), **_LAYERS}
_FSDP: _Types = {"wrap": (list,), "cpu_offload": (bool,), **_LAYERS}
OPTIONS: Dict[str, _Types] = {
    "single": _LAYERS,
    "ddp": {**_DDP, "powersgd_rank": (int,)},
    "zero1": _DDP,
    "fsdp1": {"sharding": (str,), "limit_all_gathers": (bool,), **_FSDP},
    "fsdp2": {"reshard_after_forward": (bool, int), **_FSDP},
}
"""Strategy → its options and their types."""
_PIPELINE: _Types = {"pp": (int,), "schedule": (str,), "microbatches": (int,)}
MESH: Dict[str, _Types] = {
    "single": {},
    "ddp": {**_PIPELINE, "ep": (int,), "cp": (int,)},
    "zero1": {"cp": (int,)},
    "fsdp1": {"dp_replicate": (int,)},
    "fsdp2": {
        **_PIPELINE,
        "dp_replicate": (int,),
        "cp": (int,),
        "tp": (int,),
        "sequence_parallel": (bool,),
    },
}
"""Strategy → its keys of DISTUI_MESH and their types."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def name_of(dtype: torch.dtype) -> str:
    """Return a dtype's name in presets, for example "bf16"."""
    return next(name for name, value in DTYPES.items() if value == dtype)


class ParallelizeError(Exception):
    """The preset cannot be applied. The text is one sentence for the user."""


class Settings(NamedTuple):
    """The preset's settings for one rank."""

    strategy: str
    options: Dict[str, Any]
    mesh: Dict[str, Any]
    micro: Optional[int]
    """Samples per rank and pass; None: as in the script."""
    accumulation: int
    param: torch.dtype
    """Type of computations."""
    reduce: torch.dtype
    """Type of gradients in reductions."""

    def size(self, dimension: str) -> int:
        """Return the size of a dimension of the mesh. Not for the data's dimension, which has the remaining ranks."""
        return int(self.mesh.get(dimension, 1))


def current() -> Settings:
    """Read the settings from the environment. Raises ParallelizeError."""
    names = (
        "DISTUI_STRATEGY",
        "DISTUI_STRATEGY_OPTIONS",
        "DISTUI_MESH",
        "DISTUI_BATCH",
        "DISTUI_PRECISION",
    )
    return _read(*(os.environ.get(name, "") for name in names), several=world_size() > 1)


def strategy() -> str:
    """Return the current strategy. Raises ParallelizeError for invalid settings."""
    return current().strategy


def world_size() -> int:
    """Return the number of ranks; 1 in a plain process."""
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE") or 1)


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK") or 0)


def backend() -> str:
    """Return the backend: of the initialized group, else of the preset, else nccl if torch has a GPU and gloo if not."""
    if dist.is_initialized():
        return str(dist.get_backend())
    name = os.environ.get("DISTUI_BACKEND", "")
    if name not in ("", "nccl", "gloo"):
        raise ParallelizeError(f"DISTUI_BACKEND is {name!r}; parallelize() knows nccl, gloo")
    if name == "nccl" and not torch.cuda.is_available():
        raise ParallelizeError("DISTUI_BACKEND is nccl, but torch sees no GPU here; use gloo")
    return name or ("nccl" if torch.cuda.is_available() else "gloo")


def device() -> torch.device:
    """Return this rank's device: a GPU with NCCL, else the CPU."""
    if "nccl" not in backend():
        return torch.device("cpu")
    local_rank, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= count:
        raise ParallelizeError(
            f"local rank {local_rank} has no GPU: torch sees {count} here;"
            " start at most one rank per GPU, or use the gloo backend"
        )
    return torch.device("cuda", local_rank)


@lru_cache(maxsize=8)
def _read(name: str, options: str, mesh: str, batch: str, precision: str, several: bool) -> Settings:
    kind = name or ("ddp" if several else "single")
    if kind == "deepspeed":
        raise ParallelizeError(
            "strategy deepspeed acts in scripts on DeepSpeed, Accelerate or the HF Trainer, not in parallelize():"
            " take fsdp2 for this one"
        )
    if kind not in OPTIONS:
        raise ParallelizeError(f"DISTUI_STRATEGY is {kind!r}; parallelize() knows {', '.join(OPTIONS)}")
    sizes: _Types = {"micro": (int,), "accumulation": (int,)}
    asked = _checked("DISTUI_BATCH", batch, sizes, "a batch")
    param, reduce = _precision(precision)
    return Settings(
        strategy=kind,
        options=_checked("DISTUI_STRATEGY_OPTIONS", options, OPTIONS[kind], kind),
        mesh=_checked("DISTUI_MESH", mesh, MESH[kind], f"the mesh of {kind}"),
        micro=asked.get("micro"),
        accumulation=asked.get("accumulation", 1),
        param=param,
        reduce=reduce,
    )


def _object(variable: str, text: str) -> Dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise ParallelizeError(f"{variable} is not JSON ({error}): {text}") from None
    if isinstance(value, dict):
        return value
    raise ParallelizeError(f"{variable} must be a JSON object, and is {text}")


def _checked(variable: str, text: str, allowed: _Types, whose: str) -> Dict[str, Any]:
    values = _object(variable, text)
    for key, value in values.items():
        if key not in allowed:
            takes = ", ".join(allowed) or "none"
            raise ParallelizeError(f"{whose} has no option {key} ({variable}); known: {takes}")
        if type(value) not in allowed[key]:
            kinds = " or ".join(kind.__name__ for kind in allowed[key])
            raise ParallelizeError(f"{key} ({variable}) is {value!r}, and must be {kinds}")
        if type(value) is int and value < 1:
            raise ParallelizeError(f"{key} ({variable}) is {value}, and must be 1 or more")
    return values


def _precision(text: str) -> Tuple[torch.dtype, torch.dtype]:
    given = {"param": "fp32", "reduce": "fp32", **_object("DISTUI_PRECISION", text)}
    for key, value in given.items():
        if key not in ("param", "reduce") or value not in tuple(DTYPES):
            names = ", ".join(DTYPES)
            raise ParallelizeError(
                f"DISTUI_PRECISION has {key} {value!r}; known: param, reduce, each {names}"
            )
    if given["param"] == "fp16":
        warnings.warn("fp16 loses small gradients without torch.amp.GradScaler in the script", stacklevel=3)
    return DTYPES[given["param"]], DTYPES[given["reduce"]]


def sizes(config: Settings, world: int) -> Dict[str, int]:
    """Return dimension → size, outermost first. Raises ParallelizeError if the sizes do not divide the world size."""
    sharded = config.strategy in ("fsdp1", "fsdp2")
    data = "dp_shard" if sharded else "dp"
    names = ("pp", "dp_replicate", data, "ep", "cp", "tp")
    fixed = {name: config.size(name) for name in names if name != data}
    product = math.prod(fixed.values())
    if world % product:
        formula = " × ".join(f"{name} {size}" for name, size in fixed.items() if size > 1)
        raise ParallelizeError(f"{formula} = {product} does not divide the world size {world}")
    return {name: fixed.get(name, world // product) for name in names}


def coordinates() -> Dict[str, int]:
    """Return this rank's place in each dimension of the mesh: pp, dp_replicate, dp or dp_shard, ep, cp, tp (fastest)."""
    left, at = rank(), {}
    for name, size in reversed(list(sizes(current(), world_size()).items())):
        left, at[name] = divmod(left, size)
    return dict(reversed(list(at.items())))


def data_ranks() -> int:
    """Return the number of ranks with different samples."""
    config = current()
    return world_size() // (config.size("pp") * config.size("cp") * config.size("tp"))


def data_rank() -> int:
    """Return this rank's number among `data_ranks`. Ranks of a pipeline, sequence or tensor-parallel group share it."""
    all_sizes, at, number = sizes(current(), world_size()), coordinates(), 0
    for name in ("dp_replicate", "dp", "dp_shard", "ep"):
        if name in all_sizes:
            number = number * all_sizes[name] + at[name]
    return number


class Groups(NamedTuple):
    """Process groups of this rank; None for a dimension of size 1."""

    mesh: Any
    """DeviceMesh (pp, dp_replicate, data, tp) without dimensions of size 1 except "data": the ranks with other samples
    or other pieces of a sequence."""
    cp: Optional[dist.ProcessGroup]
    experts: Optional[DeviceMesh]
    """DeviceMesh (dp, ep)."""


def mesh_of(where: str, shape: Dict[str, int], on_host: bool) -> DeviceMesh:
    """Create a mesh of all ranks. `on_host`: with gloo for CPU tensors, to sum the norms of shards in host memory."""
    given: Dict[str, Any] = {}
    newer = "backend_override" in inspect.signature(init_device_mesh).parameters  # torch 2.9
    if on_host and newer and where != "cpu" and "cpu:" not in dist.get_backend_config():
        given["backend_override"] = dict.fromkeys(shape, f"cpu:gloo,{dist.get_backend_config()}")
    return init_device_mesh(where, tuple(shape.values()), mesh_dim_names=tuple(shape), **given)


def arrange(config: Settings) -> Groups:
    """Create the process groups. Every rank must call it. Raises ParallelizeError."""
    where, world = device().type, world_size()
    size = sizes(config, world)
    pp, replicate, cp, tp, ep = (size[name] for name in ("pp", "dp_replicate", "cp", "tp", "ep"))
    if ep > 1 and max(pp, cp) > 1:
        raise ParallelizeError("ep needs pure data parallelism: set pp and cp to 1")
    inside = world // (pp * replicate * tp)
    shape = {"pp": pp, "dp_replicate": replicate, "data": inside, "tp": tp}
    shape = {name: size for name, size in shape.items() if size > 1 or name == "data"}
    mesh = mesh_of(where, shape, config.strategy == "fsdp2" and bool(config.options.get("cpu_offload")))
    pieces = experts = None
    if cp > 1:
        shape = {"rest": world // (cp * tp), "cp": cp, "tp": tp}
        pieces = mesh_of(where, shape, on_host=False)["cp"].get_group()
    if ep > 1:
        experts = mesh_of(where, {"dp": world // ep, "ep": ep}, on_host=False)
    return Groups(mesh, pieces, experts)
