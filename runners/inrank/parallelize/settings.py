"""What distui asks of a rank, read from its environment (the variables are listed in __init__.py)."""

from __future__ import annotations

import json
import os
import warnings
from functools import lru_cache
from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

_Types = Dict[str, Tuple[type, ...]]
_YES_NO = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph", "device_mesh")
_DDP: _Types = {"bucket_cap_mb": (int, float), **dict.fromkeys(_YES_NO, (bool,))}
_FSDP: _Types = {"wrap": (list,), "cpu_offload": (bool,)}
OPTIONS: Dict[str, _Types] = {
    "single": {},
    "ddp": _DDP,
    "zero1": _DDP,
    "fsdp1": {"sharding": (str,), "limit_all_gathers": (bool,), **_FSDP},
    "fsdp2": {"reshard_after_forward": (bool, int), **_FSDP},
}
"""Every strategy with the options it takes and their types."""
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
"""Which parts of a mesh go with each strategy."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class ParallelizeError(Exception):
    """What keeps the preset from being obeyed, as one sentence for the user."""


class Settings(NamedTuple):
    """One rank's orders."""

    strategy: str
    options: Dict[str, Any]
    mesh: Dict[str, Any]
    micro: Optional[int]
    """Samples that a rank takes at once; None: as the script says."""
    accumulation: int
    param: torch.dtype
    """Type to compute in."""
    reduce: torch.dtype
    """Type to sum gradients in."""

    def size(self, dimension: str) -> int:
        """Of a dimension of the mesh, beside that of the data, which has the ranks that are left."""
        return int(self.mesh.get(dimension, 1))


def current() -> Settings:
    """What the environment says now. Raises ParallelizeError."""
    names = (
        "DISTUI_STRATEGY",
        "DISTUI_STRATEGY_OPTIONS",
        "DISTUI_MESH",
        "DISTUI_BATCH",
        "DISTUI_PRECISION",
    )
    return _read(*(os.environ.get(name, "") for name in names), several=world_size() > 1)


def world_size() -> int:
    """How many ranks there are; 1 in a plain process."""
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE") or 1)


def rank() -> int:
    """This one among them."""
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK") or 0)


def backend() -> str:
    """The backend in force: the script's own group first, then the preset's, then what fits here."""
    if dist.is_initialized():
        return str(dist.get_backend())
    name = os.environ.get("DISTUI_BACKEND", "")
    if name not in ("", "nccl", "gloo"):
        raise ParallelizeError(f"DISTUI_BACKEND is {name!r}; parallelize() knows nccl, gloo")
    if name == "nccl" and not torch.cuda.is_available():
        raise ParallelizeError("DISTUI_BACKEND is nccl, but torch sees no GPU here; use gloo")
    return name or ("nccl" if torch.cuda.is_available() else "gloo")


def device() -> torch.device:
    """Where this rank computes: its own GPU where the ranks talk over NCCL, else the CPU."""
    if "nccl" not in backend():
        return torch.device("cpu")
    local_rank, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= count:
        raise ParallelizeError(
            f"local rank {local_rank} has no GPU: torch sees {count} here;"
            " start at most one rank a GPU, or use the gloo backend"
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


def _checked(variable: str, text: str, known: _Types, whose: str) -> Dict[str, Any]:
    found = _object(variable, text)
    for key, value in found.items():
        if key not in known:
            takes = ", ".join(known) or "none"
            raise ParallelizeError(f"{whose} has no option {key} ({variable}); known: {takes}")
        if type(value) not in known[key]:
            kinds = " or ".join(kind.__name__ for kind in known[key])
            raise ParallelizeError(f"{key} ({variable}) is {value!r}, and must be {kinds}")
        if type(value) is int and value < 1:
            raise ParallelizeError(f"{key} ({variable}) is {value}, and must be 1 or more")
    return found


def _precision(text: str) -> Tuple[torch.dtype, torch.dtype]:
    given = {"param": "fp32", "reduce": "fp32", **_object("DISTUI_PRECISION", text)}
    for key, value in given.items():
        if key not in ("param", "reduce") or value not in tuple(DTYPES):
            known = ", ".join(DTYPES)
            raise ParallelizeError(
                f"DISTUI_PRECISION has {key} {value!r}; known: param, reduce, each {known}"
            )
    if given["param"] == "fp16":
        warnings.warn("fp16 loses small gradients without torch.amp.GradScaler in the script", stacklevel=3)
    return DTYPES[given["param"]], DTYPES[given["reduce"]]
