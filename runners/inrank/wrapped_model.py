"""What a rank's model was wrapped with, by the objects that are there: whether a preset acted shows here alone.

Only modules that the script imported are looked at; nothing is called that changes anything.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from typing import Any

KINDS = (
    ("ddp", "torch.nn.parallel.distributed", "DistributedDataParallel"),
    ("fsdp1", "torch.distributed.fsdp", "FullyShardedDataParallel"),
    ("fsdp2", "torch.distributed.fsdp", "FSDPModule"),
    ("zero1", "torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer"),
    ("deepspeed", "deepspeed.runtime.engine", "DeepSpeedEngine"),
    ("pipeline", "torch.distributed.pipelining.stage", "_PipelineStageBase"),
)
"""Strategy → module and class whose objects show it."""
UNREADABLE = (AttributeError, RuntimeError, TypeError, ValueError, LookupError)
"""What looking into objects of a version that nobody has seen yet may raise."""
DTYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}


def describe(optimizer: Any) -> dict[str, Any]:
    """What there is in this process, whose `optimizer` made its first step."""
    objects = _objects()
    named = sorted(objects.keys() - {"pipeline"})
    return {
        "strategies": named,
        "zero_stage": _zero_stage(objects.get("deepspeed")),
        "dims": dict(_dimensions(objects.get("pipeline"), optimizer)),
        "param": _computes_in(objects, optimizer),
    }


def optimizers() -> list[Any]:
    """The optimizers of torch's that there are."""
    kind = _class("torch.optim.optimizer", "Optimizer")
    return [] if kind is None else [item for item in gc.get_objects() if issubclass(type(item), kind)]


def grouped() -> bool | None:
    """Whether torch.distributed had a process group at any time; None where that cannot be told."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    if module is None:
        return False
    if not hasattr(module, "_backend"):
        return None
    return module._backend is not None  # set with the first default group, and never taken back


def _class(module: str, name: str) -> Any:
    value = getattr(sys.modules.get(module), name, None)
    return value if isinstance(value, type) else None


def _objects() -> dict[str, Any]:
    """One object of each kind that there is; of wrappers within wrappers any."""
    kinds = [(name, _class(module, kind)) for name, module, kind in KINDS]
    wanted = [(name, kind) for name, kind in kinds if kind is not None]
    of_type: dict[type, str | None] = {}
    objects: dict[str, Any] = {}
    for item in gc.get_objects():
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
        except UNREADABLE:
            pass
    return None


def _parameters(optimizer: Any) -> Iterable[Any]:
    for group in getattr(optimizer, "param_groups", ()):
        yield from group.get("params", ())


def _dimensions(stage: Any, optimizer: Any) -> Iterable[tuple[str, int]]:
    """Named dimensions over which the model is divided, with their sizes."""
    arranged = [
        vars(module).get("ARRANGED")
        for name, module in list(sys.modules.items())
        if name.endswith("parallelize") and module is not None
    ]
    for sizes in arranged:
        if isinstance(sizes, dict):
            yield from sizes.items()
    kind = _class("torch.distributed.tensor", "DTensor")
    for parameter in _parameters(optimizer) if kind is not None else ():
        if isinstance(parameter, kind):
            try:
                mesh = parameter.device_mesh
                for at, (name, placed) in enumerate(zip(mesh.mesh_dim_names or (), parameter.placements)):
                    if placed.is_shard():
                        yield str(name), int(mesh.size(at))
            except UNREADABLE:
                continue
    if isinstance(getattr(stage, "num_stages", None), int):
        yield "pp", stage.num_stages


def _computes_in(objects: dict[str, Any], optimizer: Any) -> str | None:
    """The type that the wrapper computes in; else of the parameters, where no autocast can be behind it."""
    engine, fsdp1, fsdp2 = (objects.get(name) for name in ("deepspeed", "fsdp1", "fsdp2"))
    try:
        if engine is not None:
            return "bf16" if engine.bfloat16_enabled() else "fp16" if engine.fp16_enabled() else "fp32"
        dtype = None
        if fsdp2 is not None:
            dtype = fsdp2._get_fsdp_state()._mp_policy.param_dtype
        elif fsdp1 is not None:
            dtype = getattr(fsdp1.mixed_precision, "param_dtype", None)
        if dtype is not None:
            return DTYPES.get(str(dtype), str(dtype))
    except UNREADABLE:
        return None
    types = {str(getattr(parameter, "dtype", "")) for parameter in _parameters(optimizer)}
    return "bf16" if types == {"torch.bfloat16"} else "fp16" if types == {"torch.float16"} else None
