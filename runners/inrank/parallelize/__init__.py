"""Functions for a training script that applies a distui preset.

    model = parallelize(model)
    model, optimizer = parallelize(model, torch.optim.AdamW, lr=3e-4)
    loss = forward_backward(model, x, y)

They read the environment that distui gives each rank:

    DISTUI_STRATEGY          single | ddp | zero1 | fsdp1 | fsdp2
    DISTUI_STRATEGY_OPTIONS  JSON object; ddp and zero1: bucket_cap_mb, find_unused_parameters,
                             gradient_as_bucket_view, static_graph, device_mesh; fsdp1: sharding, wrap,
                             limit_all_gathers, cpu_offload; fsdp2: reshard_after_forward, wrap, cpu_offload
    DISTUI_MESH              JSON object: sizes of pp, dp_replicate, ep, cp, tp; schedule, microbatches,
                             sequence_parallel
    DISTUI_BATCH             JSON object: micro, accumulation
    DISTUI_PRECISION         JSON object {"param": P, "reduce": P}, P one of fp32, bf16, fp16
    DISTUI_BACKEND           nccl (CUDA) | gloo (CPU)

Without these variables the strategy is ddp under torchrun and single elsewhere. This folder and gloo_workers.py need
only the standard library and torch (2.7 or newer).
"""

from __future__ import annotations

import gc
import inspect
import os
from contextlib import nullcontext, suppress
from typing import Any, ContextManager, Dict, Optional, Tuple, Type, Union, overload

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

try:
    from ..gloo_workers import settle
except ImportError:  # a copy of this folder next to a script

    def settle() -> None:
        """Do nothing."""


from . import data, expert_parallel, layers, pipeline_stages, sequences, settings, tensor_parallel
from .layers import Around
from .pipeline import Pipeline
from .saving import SHAPES, load_saved, state_for_saving
from .settings import (
    Groups,
    ParallelizeError,
    Settings,
    coordinates,
    data_rank,
    data_ranks,
    device,
    strategy,
    world_size,
)

ARRANGED: Dict[str, int] = {}
"""Dimension → size of the divisions that parallelize() has made. distui's hook reports them."""

__all__ = [
    "ParallelizeError",
    "batch_size",
    "coordinates",
    "data_rank",
    "data_ranks",
    "device",
    "finish",
    "forward_backward",
    "load_saved",
    "parallelize",
    "positions",
    "state_for_saving",
    "strategy",
]


@overload
def parallelize(model: nn.Module) -> nn.Module: ...


@overload
def parallelize(
    model: nn.Module, optimizer: Type[torch.optim.Optimizer], **options: Any
) -> Tuple[nn.Module, torch.optim.Optimizer]: ...


def parallelize(
    model: nn.Module, optimizer: Optional[Type[torch.optim.Optimizer]] = None, **options: Any
) -> Union[nn.Module, Tuple[nn.Module, torch.optim.Optimizer]]:
    """Return the model parallelized according to the preset; with an optimizer class, also its optimizer.

    Initializes the process group if the script has not, and moves this rank's part of the model to `device()`; a divided
    model need not fit there completely. `options` are the optimizer's arguments. Raises ParallelizeError.
    """
    config = settings.current()
    _check_optimizer(optimizer, config)
    _join(config)
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    model = _made_parallel(model, config)
    SHAPES[model] = shapes
    sizes = settings.sizes(config, world_size())
    ARRANGED.update({name: size for name, size in sizes.items() if size > 1})
    if optimizer is None:
        return model
    return model, _made_optimizer(model, config, optimizer, options)


def _check_optimizer(optimizer: Optional[Type[torch.optim.Optimizer]], config: Settings) -> None:
    """Raise ParallelizeError for an optimizer that was already built, or is missing."""
    usage = "write model, optimizer = parallelize(model, torch.optim.AdamW, lr=3e-4)"
    if optimizer is not None and not isinstance(optimizer, type):
        raise ParallelizeError(f"parallelize() takes an optimizer's class, not one already built: {usage}")
    if config.strategy == "zero1" and optimizer is None:
        raise ParallelizeError(f"strategy zero1 shards the optimizer, so it has to construct it: {usage}")


def _made_optimizer(
    model: nn.Module, config: Settings, optimizer: Type[torch.optim.Optimizer], options: Dict[str, Any]
) -> torch.optim.Optimizer:
    if config.strategy == "zero1":
        return ZeroRedundancyOptimizer(model.parameters(), optimizer_class=optimizer, **options)
    if max(map(config.size, ("tp", "ep"))) > 1 and "foreach" in inspect.signature(optimizer).parameters:
        options = {"foreach": False, **options}  # a foreach call cannot mix parameters of several meshes
    return optimizer(model.parameters(), **options)


def forward_backward(model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    """Run forward and backward of one batch and return the detached mean loss; then call `optimizer.step()`.

    `inputs` are the arguments of `model`, with samples in dimension 0; `model` returns the loss. If the preset sets
    accumulation, the batch is cut into equal parts. A pipeline runs its schedule. Raises ParallelizeError.
    """
    if isinstance(model, Pipeline):
        return model.train_step(*inputs)
    passes, total = settings.current().accumulation, None
    if any(len(value) % passes for value in inputs):
        raise ParallelizeError(f"a batch of {len(inputs[0])} cannot be cut into {passes} equal parts")
    for number, parts in enumerate(zip(*(value.chunk(passes) for value in inputs))):
        with _synchronised(model, number == passes - 1) if passes > 1 else nullcontext():
            loss = model(*parts) / passes
            loss.backward()
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None
    return total


def batch_size(usual: int) -> int:
    """Return the samples per data-parallel rank and `forward_backward`. `usual`: micro batch if the preset sets none."""
    config = settings.current()
    return (config.micro or usual) * config.accumulation


def positions(length: int) -> torch.Tensor:
    """Return the positions of this rank's piece of a sequence, on `device()`. `length`: length of the piece."""
    at = coordinates().get("cp", 0) * length
    return torch.arange(at, at + length, device=device())


def finish(together: bool = True) -> None:
    """Destroy the process group so that the interpreter can exit safely. Before, `del model, optimizer`.

    `together=False` does not wait for the other ranks, for an exit after some of them may have exited.
    """
    gc.collect()
    if not dist.is_initialized():
        return
    backend = dist.get_backend()
    if together:
        with suppress(RuntimeError):  # a peer has exited: there is no need to wait for it
            dist.barrier()
    dist.destroy_process_group()
    if "gloo" in backend:
        settle()  # a live model keeps gloo's threads


def _join(config: Settings) -> None:
    """Set the device, and initialize the process group if the strategy needs one and the script has not."""
    here, world, name = device(), world_size(), config.strategy
    if here.type == "cuda":
        torch.cuda.set_device(here)
    if name == "single" and world > 1:
        raise ParallelizeError(
            f"strategy single is one process and the world size is {world}: start one, or choose ddp"
        )
    if name == "single" or dist.is_initialized():
        return
    if "RANK" not in os.environ:
        raise ParallelizeError(
            f"strategy {name} needs ranks, but this is a single process: start it with torchrun"
        )
    dist.init_process_group(settings.backend(), device_id=here if here.type == "cuda" else None)


def _made_parallel(model: nn.Module, config: Settings) -> nn.Module:
    """Cut, divide and wrap the model, from the outermost dimension of the mesh to the data."""
    if config.strategy == "single":
        _compute_in(model.to(device()), config.param)
        layers.prepare(layers.units(model, config), config)
        return model
    groups = settings.arrange(config)
    stage, stages, loss = coordinates()["pp"], config.size("pp"), None
    if config.strategy in ("fsdp1", "fsdp2") or max(stages, config.size("ep")) > 1:
        _make_equal(model)  # these, unlike DDP, require equal weights at the start
    if stages > 1:
        loss = pipeline_stages.cut(model, stage, stages)
    around = _divide(model, config, groups, is_first_stage=stage == 0)
    layers.prepare(layers.units(model, config), config, around)
    if config.strategy in ("ddp", "zero1"):
        _compute_in(model.to(device()), config.param)
    if loss is None:
        return data.wrap(model, config, groups)
    line, replicas = groups.mesh["pp"].get_group(), groups.mesh["data"].get_group()
    if config.strategy == "ddp":
        return Pipeline(model, loss, config, line, replicas)
    return Pipeline(data.wrap(model, config, groups), loss, config, line)


def _divide(model: nn.Module, config: Settings, groups: Groups, is_first_stage: bool) -> Around:
    """Divide layers, experts and sequences. Return the context around each forward pass of a layer."""
    if config.size("tp") > 1:
        by_sequence = bool(config.mesh.get("sequence_parallel"))
        tensor_parallel.divide_layers(model, groups.mesh["tp"], by_sequence, is_first_stage)
    if groups.experts is not None:
        ignored = expert_parallel.divide_experts(model, groups.experts)
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    if groups.cp is None:
        return nullcontext
    mode = sequences.divide_sequences(model, groups.cp)
    return lambda: mode


def _make_equal(model: nn.Module) -> None:
    """Give every rank the weights of rank 0, one tensor at a time: the model may not fit on the device."""
    for value in [*model.parameters(), *model.buffers()]:
        there = value.detach().to(device())
        dist.broadcast(there, src=0)
        if there.data_ptr() != value.data_ptr():
            value.detach().copy_(there)


def _compute_in(model: nn.Module, dtype: torch.dtype) -> None:
    if dtype != torch.float32:
        model.forward = torch.autocast(device().type, dtype=dtype)(model.forward)


def _synchronised(model: nn.Module, last: bool) -> ContextManager[Any]:
    """Return a context for a backward pass: ranks exchange gradients only in the `last` one."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
        return nullcontext()
    alone = not last and isinstance(model, (DistributedDataParallel, FullyShardedDataParallel))
    return model.no_sync() if alone else nullcontext()
