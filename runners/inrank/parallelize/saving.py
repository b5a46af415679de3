"""Checkpoints that are whole, with parameters by name: what one strategy saved goes on under another."""

from __future__ import annotations

import copy
import weakref
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .pipeline import pipeline_of
from .settings import ParallelizeError, device, rank

Shapes = Dict[str, Tuple[int, ...]]
SHAPES: "weakref.WeakKeyDictionary[nn.Module, Shapes]" = weakref.WeakKeyDictionary()
"""Of models that parallelize() made: the names and sizes of their parameters before they were divided."""


def shapes_of(model: nn.Module) -> Shapes:
    """Names and sizes of the parameters of a model that is whole."""
    return {name: tuple(value.shape) for name, value in model.named_parameters()}


def state_for_saving(model: nn.Module, optimizer: torch.optim.Optimizer, **more: Any) -> Dict[str, Any]:
    """A full checkpoint on rank 0 and {} elsewhere, the same under every strategy. Every rank must call it.

    Parameters are named, not numbered, so that a checkpoint of one strategy can be loaded under
    another; `more` (a step count, say) is kept beside them. It is a copy: training may go on.
    """
    pipeline = pipeline_of(model)
    inner = model if pipeline is None else pipeline.module
    # FSDP1 on the CPU dies of a signal when it moves there what is there already (torch 2.13).
    stays = pipeline is not None or (isinstance(model, FullyShardedDataParallel) and device().type == "cpu")
    whole = dcp.StateDictOptions(full_state_dict=True, cpu_offload=not stays)
    weights = dcp.get_model_state_dict(inner, options=whole)
    if not isinstance(optimizer, ZeroRedundancyOptimizer):
        moments = dcp.get_optimizer_state_dict(inner, optimizer, options=whole)
    else:
        optimizer.consolidate_state_dict(to=0)
        moments = _renamed(optimizer.state_dict(), dict(enumerate(_names(model)))) if not rank() else {}
    if pipeline is not None:
        weights, moments = _of_all_stages(weights, moments)
    state = {"model": weights, "optimizer": moments, "more": more} if not rank() else {}
    return copy.deepcopy(state) if device().type == "cpu" else state  # on the CPU they are the live tensors


def load_saved(
    model: nn.Module, optimizer: torch.optim.Optimizer, saved: Optional[Dict[str, Any]]
) -> Dict[str, Any]:
    """Load what `state_for_saving` returned and give `more` back; {} if there is nothing to load.

    Every rank must call it, but only rank 0 needs to have `saved`: it is sent to the others, each of
    which holds the whole of it in host memory meanwhile. Raises ParallelizeError for another model's.
    """
    saved = copy.deepcopy(saved)  # loading renames its keys, and the optimizer would go on in its tensors
    if dist.is_initialized():
        box = [saved]
        dist.broadcast_object_list(box, src=0)
        saved = box[0]
    if not saved:
        return {}
    if not {"model", "optimizer", "more"} <= set(saved):
        raise ParallelizeError(
            "the checkpoint was not made by state_for_saving(): it has no model, optimizer, more"
        )
    pipeline = pipeline_of(model)
    inner = model if pipeline is None else pipeline.module
    weights, moments = saved["model"], saved["optimizer"]
    _same_model(weights, SHAPES.get(model))
    if pipeline is not None:
        weights, moments = _of_this_stage(set(_names(inner)), weights, moments)
    whole = dcp.StateDictOptions(full_state_dict=True)
    dcp.set_model_state_dict(inner, weights, options=whole)
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        numbers = {name: number for number, name in enumerate(_names(model))}
        optimizer.load_state_dict(_renamed(moments, numbers))
    else:
        dcp.set_optimizer_state_dict(inner, optimizer, moments, options=whole)
    return dict(saved["more"])


def _same_model(weights: Dict[str, Any], here: Optional[Shapes]) -> None:
    """Refuse weights of other names or sizes. The strategy and the number of ranks may be others."""
    if here is None:
        return
    there = {name: tuple(value.shape) for name, value in weights.items() if hasattr(value, "shape")}
    for name, size in here.items():
        if name not in there:
            raise ParallelizeError(f"the checkpoint is of another model: it has no {name}")
        if there[name] != size:
            words = " and ".join(
                f"{' × '.join(map(str, shape)) or 'one number'} {where}"
                for shape, where in ((there[name], "there"), (size, "here"))
            )
            raise ParallelizeError(f"the checkpoint is of a model of other sizes: {name} is {words}")


def _of_all_stages(weights: Dict[str, Any], moments: Dict[str, Any]) -> Any:
    """Both, put together from every stage, on rank 0."""
    mine = _on_cpu(weights), _on_cpu(moments)
    box: Optional[List[Any]] = [None] * dist.get_world_size() if not rank() else None
    dist.gather_object(mine, box)
    if box is None:
        return {}, {}
    all_weights = {name: value for part, _ in box for name, value in part.items()}
    states = {name: value for _, part in box for name, value in part["state"].items()}
    groups = [dict(group) for group in box[0][1]["param_groups"]]
    for number, group in enumerate(groups):
        parts = [part["param_groups"][number]["params"] for _, part in box]
        group["params"] = list(dict.fromkeys(name for names in parts for name in names))
    return all_weights, {"state": states, "param_groups": groups}


def _of_this_stage(names: Any, weights: Dict[str, Any], moments: Dict[str, Any]) -> Any:
    groups = [
        {**group, "params": [name for name in group["params"] if name in names]}
        for group in moments["param_groups"]
    ]
    states = {name: value for name, value in moments["state"].items() if name in names}
    return (
        {name: value for name, value in weights.items() if name in names},
        {"state": states, "param_groups": groups},
    )


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {name: _on_cpu(part) for name, part in value.items()}
    return [_on_cpu(part) for part in value] if isinstance(value, list) else value


def _names(model: nn.Module) -> List[str]:
    """Parameters' names in the order in which the optimizer numbers them."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return [name for name, _ in inner.named_parameters()]


def _renamed(state: Dict[str, Any], new: Dict[Any, Any]) -> Dict[str, Any]:
    """An optimizer's state with `new` keys: by name as in a checkpoint, or by number as in torch.optim."""
    groups = [{**group, "params": [new[old] for old in group["params"]]} for group in state["param_groups"]]
    return {"state": {new[old]: value for old, value in state["state"].items()}, "param_groups": groups}
