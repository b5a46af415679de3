"""Divide samples over ranks: DDP, FSDP1 or FSDP2 around a model or this rank's part of it."""

from __future__ import annotations

from typing import Any, Dict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

from .layers import units
from .settings import Groups, ParallelizeError, Settings, device, name_of

CONSTRUCTOR = (
    "bucket_cap_mb",
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "static_graph",
    "device_mesh",
)
"""Options that are arguments of DistributedDataParallel."""
HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
SHARDING = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", *HYBRID)


def wrap(model: nn.Module, config: Settings, groups: Groups) -> nn.Module:
    """Wrap the model so that gradients are averaged over the data-parallel ranks. Raises ParallelizeError."""
    if config.strategy == "fsdp1":
        return _fsdp1(model, config, groups)
    if config.strategy == "fsdp2":
        return _fsdp2(model, config, groups)
    return _ddp(model, config, groups)


def _ddp(model: nn.Module, config: Settings, groups: Groups) -> nn.Module:
    options = {name: value for name, value in config.options.items() if name in CONSTRUCTOR}
    mesh = groups.mesh["data"]
    where: Dict[str, Any] = {"process_group": mesh.get_group()}
    if options.pop("device_mesh", False):
        where = {"device_mesh": mesh}
    wrapped = DistributedDataParallel(model, **where, **options)
    compress(wrapped, config, mesh.get_group())
    return wrapped


def compress(ddp: Any, config: Settings, group: dist.ProcessGroup) -> str:
    """Register the communication hook that the preset requires; return its description, "" if there is none.

    powersgd_rank selects PowerSGD (Vogels and others, 2019): after torch's warm-up steps, each gradient is sent as two
    thin matrices, and the error is added to the next step's gradient.
    """
    rank = config.options.get("powersgd_rank")
    if rank is not None:
        ddp.register_comm_hook(PowerSGDState(group, matrix_approximation_rank=rank), powerSGD_hook)
        return f"gradients sent by PowerSGD with rank {rank}"
    if config.reduce == torch.float32:
        return ""
    # torch's bf16 hook refuses gloo. A lambda, because DDP refuses postponed annotations.
    ddp.register_comm_hook(None, lambda _, bucket: averaged(bucket, config.reduce, group))
    return f"gradients summed in {name_of(config.reduce)}"


def averaged(
    bucket: dist.GradBucket, dtype: torch.dtype, group: dist.ProcessGroup
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over the ranks with an all-reduce in `dtype`."""
    sent = bucket.buffer().to(dtype).div_(dist.get_world_size(group))
    summed = dist.all_reduce(sent, group=group, async_op=True).get_future()
    return summed.then(lambda future: bucket.buffer().copy_(future.value()[0]))


def _fsdp1(model: nn.Module, config: Settings, groups: Groups) -> nn.Module:
    sharding, offloads = config.options.get("sharding", "FULL_SHARD"), config.options.get("cpu_offload")
    _check_fsdp1(config, sharding)
    hybrid = sharding in HYBRID
    # The enum member of HYBRID_SHARD_ZERO2 begins with an underscore.
    member = f"_{sharding}" if sharding == "HYBRID_SHARD_ZERO2" else sharding
    mixed = (config.param, config.reduce) != (torch.float32, torch.float32)
    mesh = groups.mesh["dp_replicate", "data"] if hybrid else groups.mesh["data"]
    return FullyShardedDataParallel(
        model,
        device_mesh=mesh,
        sharding_strategy=ShardingStrategy[member],
        auto_wrap_policy=ModuleWrapPolicy({type(unit) for unit in units(model, config)}),
        mixed_precision=MixedPrecision(config.param, config.reduce, config.param) if mixed else None,
        cpu_offload=CPUOffload(offload_params=True) if offloads else None,
        limit_all_gathers=config.options.get("limit_all_gathers", True),
        device_id=device(),
        use_orig_params=True,
    )


def _check_fsdp1(config: Settings, sharding: str) -> None:
    """Raise ParallelizeError for options that do not go together."""
    if sharding not in SHARDING:
        raise ParallelizeError(f"sharding is {sharding!r}; fsdp1 knows {', '.join(SHARDING)}")
    if config.options.get("cpu_offload") and device().type == "cpu":
        raise ParallelizeError("cpu_offload of fsdp1 pins host memory for a GPU, and there is none here")
    if config.size("dp_replicate") > 1 and sharding not in HYBRID:
        raise ParallelizeError(f"dp_replicate above 1 goes with {' or '.join(HYBRID)}, not with {sharding}")


def _fsdp2(model: nn.Module, config: Settings, groups: Groups) -> nn.Module:
    """Apply fully_shard to each unit, and to the root with the remaining parameters."""
    replicas = config.size("dp_replicate")
    mesh = groups.mesh["dp_replicate", "data"] if replicas > 1 else groups.mesh["data"]
    offload = CPUOffloadPolicy(pin_memory=device().type == "cuda")
    settings: Dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": reshard(config, int(mesh.size(-1))),
        "offload_policy": offload if config.options.get("cpu_offload") else OffloadPolicy(),
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=None if config.param == torch.float32 else config.param,
            reduce_dtype=None if config.reduce == config.param else config.reduce,
        ),
    }
    for block in list(units(model, config)):
        fully_shard(block, **settings)
    return fully_shard(model, **settings)


def reshard(config: Settings, ranks: int) -> Any:
    """Return fully_shard's argument reshard_after_forward. Raises ParallelizeError."""
    parts = config.options.get("reshard_after_forward", True)
    if type(parts) is int and ranks % parts:
        raise ParallelizeError(f"reshard_after_forward is {parts}, which does not divide {ranks} ranks")
    return parts
