"""Describe the wrappers and the division of a rank's model from its objects: only they prove that a preset acted.

Standard library only: this module reads modules that the user's script has imported, and calls nothing that changes
objects.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterable
from typing import Any

from .adopt.report import adopted
from .import_watch import PATCH_ERRORS
from .model_size import parameters_of

KINDS = (
    ("ddp", "torch.nn.parallel.distributed", "DistributedDataParallel"),
    ("fsdp1", "torch.distributed.fsdp", "FullyShardedDataParallel"),
    ("fsdp2", "torch.distributed.fsdp", "FSDPModule"),
    ("zero1", "torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer"),
    ("deepspeed", "deepspeed.runtime.engine", "DeepSpeedEngine"),
    ("pipeline", "torch.distributed.pipelining.stage", "_PipelineStageBase"),
)
"""Strategy, and the module and name of the class whose objects prove it."""
DTYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
HALF = ("torch.bfloat16", "torch.float16")


def describe(optimizer: Any) -> dict[str, Any]:
    """Return the wrappers and the division of this process's model, after the first step of `optimizer`."""
    items = gc.get_objects()
    objects = _objects(items)
    size = _size(objects, optimizer, items)
    del items
    divided, applied = adopted.described()
    return {
        "strategies": sorted((objects.keys() | divided) - {"pipeline"}),
        "zero_stage": _zero_stage(objects.get("deepspeed")),
        "dims": dict(_dimensions(objects.get("pipeline"), optimizer)),
        "param": _computes_in(objects, optimizer),
        "params": size,
        "grouped": grouped(),
        "adopted": applied,
    }


def _size(objects: dict[str, Any], optimizer: Any, items: list[Any]) -> int | None:
    try:
        return parameters_of(objects, optimizer, items)
    except PATCH_ERRORS:
        return None


def optimizers() -> list[Any]:
    kind = _class("torch.optim.optimizer", "Optimizer")
    return [] if kind is None else [item for item in gc.get_objects() if issubclass(type(item), kind)]


OTHER_WAYS = ("horovod", "byteps", "mpi4py", "jax", "torch_xla")
"""Modules that let ranks communicate without torch.distributed."""


def grouped() -> bool | None:
    """Whether torch.distributed had a process group at any time; None if unknown, or with one of OTHER_WAYS."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    if any(name in sys.modules for name in OTHER_WAYS):
        return None
    if module is None:
        return False
    if not hasattr(module, "_backend"):
        return None
    return module._backend is not None  # set with the first default group, and never reset


def _class(module: str, name: str) -> Any:
    value = getattr(sys.modules.get(module), name, None)
    return value if isinstance(value, type) else None


def _objects(items: list[Any]) -> dict[str, Any]:
    """Return one object of each kind in this process: any one of nested wrappers."""
    kinds = [(name, _class(module, kind)) for name, module, kind in KINDS]
    wanted = [(name, kind) for name, kind in kinds if kind is not None]
    of_type: dict[type, str | None] = {}
    objects: dict[str, Any] = {}
    for item in items:
        kind = type(item)
        if kind not in of_type:
            of_type[kind] = next((name for name, base in wanted if issubclass(kind, base)), None)
        name = of_type[kind]
        if name is not None:
            objects.setdefault(name, item)
    return objects


def _zero_stage(engine: Any) -> int | None:
    if engine is not None:
        try:
            return int(engine.zero_optimization_stage())
        except PATCH_ERRORS:
            pass
    return None


def _parameters(optimizer: Any) -> Iterable[Any]:
    for group in getattr(optimizer, "param_groups", ()):
        yield from group.get("params", ())


def _dimensions(stage: Any, optimizer: Any) -> Iterable[tuple[str, int]]:
    """Yield names and sizes of the dimensions that divide the model."""
    for name, module in list(sys.modules.items()):
        arranged = getattr(module, "ARRANGED", None) if name.endswith("parallelize") else None
        if isinstance(arranged, dict):
            yield from arranged.items()
    kind = _class("torch.distributed.tensor", "DTensor")
    for parameter in _parameters(optimizer) if kind is not None else ():
        if isinstance(parameter, kind):
            with contextlib.suppress(*PATCH_ERRORS):
                yield from _sharded(parameter)
    if isinstance(getattr(stage, "num_stages", None), int):
        yield "pp", stage.num_stages


def _sharded(parameter: Any) -> Iterable[tuple[str, int]]:
    """Yield the dimensions of the mesh that shard a DTensor."""
    mesh = parameter.device_mesh
    for at, (name, placed) in enumerate(zip(mesh.mesh_dim_names or (), parameter.placements)):
        if placed.is_shard():
            yield str(name), int(mesh.size(at))


def _computes_in(objects: dict[str, Any], optimizer: Any) -> str | None:
    """Return the wrapper's compute type, else the parameters' type if it is half precision: fp32 may hide autocast."""
    try:
        wrapper = _wrapper_computes_in(objects)
    except PATCH_ERRORS:
        return None
    if wrapper is not None:
        return DTYPES.get(wrapper, wrapper)
    types = {str(getattr(parameter, "dtype", "")) for parameter in _parameters(optimizer)}
    only = types.pop() if len(types) == 1 else ""
    return DTYPES[only] if only in HALF else None


def _wrapper_computes_in(objects: dict[str, Any]) -> str | None:
    """Return the compute type of a wrapper, as torch names it or as DTYPES does; None if none sets it."""
    engine, fsdp1, fsdp2 = (objects.get(name) for name in ("deepspeed", "fsdp1", "fsdp2"))
    if engine is not None:
        if engine.bfloat16_enabled():
            return "bf16"
        return "fp16" if engine.fp16_enabled() else "fp32"
    dtype = None
    if fsdp2 is not None:
        dtype = fsdp2._get_fsdp_state()._mp_policy.param_dtype
    elif fsdp1 is not None:
        dtype = getattr(fsdp1.mixed_precision, "param_dtype", None)
    return None if dtype is None else str(dtype)
