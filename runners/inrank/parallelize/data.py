"""Divide data over ranks: samples with DDP, FSDP1 or FSDP2 around a model or this rank's part of it, and sequences.

With context parallelism each rank has a piece of a sequence. Attention gathers keys and values, as in "The Llama 3 Herd
of Models" (2024, section 3.3.2), instead of using a ring. It overrides `scaled_dot_product_attention` with (batch,
heads, sequence, size) inside the model's forward, and cuts the model's inputs along dimension 1. `positions()` returns
the positions of this rank's piece.
"""

from __future__ import annotations

from typing import Any, Dict, Tuple

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
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

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
    sharding = config.options.get("sharding", "FULL_SHARD")
    if sharding not in SHARDING:
        raise ParallelizeError(f"sharding is {sharding!r}; fsdp1 knows {', '.join(SHARDING)}")
    here, hybrid = device(), sharding in HYBRID
    if config.options.get("cpu_offload") and here.type == "cpu":
        raise ParallelizeError("cpu_offload of fsdp1 pins host memory for a GPU, and there is none here")
    if config.size("dp_replicate") > 1 and not hybrid:
        raise ParallelizeError(f"dp_replicate above 1 goes with {' or '.join(HYBRID)}, not with {sharding}")
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
        cpu_offload=CPUOffload(offload_params=True) if config.options.get("cpu_offload") else None,
        limit_all_gathers=config.options.get("limit_all_gathers", True),
        device_id=here,
        use_orig_params=True,
    )


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


def divide_sequences(model: nn.Module, group: dist.ProcessGroup) -> TorchFunctionMode:
    """Cut this rank's piece from each input of `model`. Return the mode that is active during its forward pass."""
    inner, mode = model.forward, _Gathered(group)

    def forward(*inputs: Any, **named: Any) -> Any:
        pieces = [_piece(value, group) for value in inputs]
        with mode:
            return inner(*pieces, **{name: _piece(value, group) for name, value in named.items()})

    model.forward = forward
    return mode


def _piece(value: Any, group: dist.ProcessGroup) -> Any:
    if not isinstance(value, torch.Tensor) or value.ndim < 2:
        return value
    ranks = dist.get_world_size(group)
    if value.shape[1] % ranks:
        raise ParallelizeError(f"cp is {ranks}, which does not divide a sequence of {value.shape[1]}")
    return value.chunk(ranks, dim=1)[dist.get_rank(group)].contiguous()


class _Gathered(TorchFunctionMode):  # type: ignore[misc]
    """Computes attention of this rank's queries over the keys and values of all ranks."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def __torch_function__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given: Dict[str, Any] = dict(kwargs or {})
        if func is not F.scaled_dot_product_attention:
            return func(*args, **given)
        given.update(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args))
        if given.get("attn_mask") is not None:
            raise ParallelizeError("cp supports only causal and full attention, without an attn_mask")
        if given.pop("is_causal", False):
            given["attn_mask"] = self._causal(given["query"])
        for name in ("key", "value"):
            given[name] = _Gather.apply(given[name], self.group)
        return func(**given)

    def _causal(self, query: torch.Tensor) -> torch.Tensor:
        length, here = query.shape[-2], dist.get_rank(self.group)
        rows = torch.arange(here * length, (here + 1) * length, device=query.device)
        columns = torch.arange(dist.get_world_size(self.group) * length, device=query.device)
        return rows[:, None] >= columns[None, :]


class _Gather(torch.autograd.Function):  # type: ignore[misc]
    """Gathers all ranks' pieces along dimension -2; backward sums each piece's gradients on its rank."""

    @staticmethod
    def forward(ctx: Any, piece: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        parts = [torch.empty_like(piece) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, piece.contiguous(), group=group)
        return torch.cat(parts, dim=-2)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        whole = gradient.contiguous()
        dist.all_reduce(whole, group=ctx.group)
        ranks, here = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
        return whole.chunk(ranks, dim=-2)[here].contiguous(), None
