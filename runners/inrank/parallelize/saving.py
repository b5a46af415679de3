"""Checkpoints that do not depend on the strategy: a checkpoint of one preset can be loaded under another."""

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

from .pipeline import Pipeline
from .settings import ParallelizeError, device, rank

Shapes = Dict[str, Tuple[int, ...]]
SHAPES: "weakref.WeakKeyDictionary[nn.Module, Shapes]" = weakref.WeakKeyDictionary()
"""Model returned by parallelize() → names and shapes of its parameters before the division."""


def state_for_saving(model: nn.Module, optimizer: torch.optim.Optimizer, **more: Any) -> Dict[str, Any]:
    """Return a full checkpoint on rank 0 and {} on other ranks. Every rank must call it.

    Parameters have names and not numbers, so a checkpoint of one strategy can be loaded under another. It also holds
    `more`, for example a step count. It is a copy: training may continue.
    """
    cut = isinstance(model, Pipeline)
    inner = model.module if cut else model
    # FSDP1 on the CPU crashes if it offloads tensors that already are on the CPU (torch 2.13).
    stays = cut or (isinstance(model, FullyShardedDataParallel) and device().type == "cpu")
    whole = dcp.StateDictOptions(full_state_dict=True, cpu_offload=not stays)
    weights = dcp.get_model_state_dict(inner, options=whole)
    if not isinstance(optimizer, ZeroRedundancyOptimizer):
        moments = dcp.get_optimizer_state_dict(inner, optimizer, options=whole)
    else:
        optimizer.consolidate_state_dict(to=0)
        moments = _renamed(optimizer.state_dict(), dict(enumerate(_names(model)))) if not rank() else {}
    if cut:
        weights, moments = _of_all_stages(weights, moments)
    state = {"model": weights, "optimizer": moments, "more": more} if not rank() else {}
    return copy.deepcopy(state) if device().type == "cpu" else state  # on the CPU they are the live tensors


def load_saved(
    model: nn.Module, optimizer: torch.optim.Optimizer, saved: Optional[Dict[str, Any]]
) -> Dict[str, Any]:
    """Load a checkpoint of `state_for_saving` and return its `more`; {} if `saved` is empty or None.

    Every rank must call it, but only rank 0 needs `saved`. Rank 0 sends it to the others, and each rank holds it in host
    memory during the call. Raises ParallelizeError if it is of another model.
    """
    saved = copy.deepcopy(saved)  # loading renames its keys, and the optimizer would update its tensors
    if dist.is_initialized():
        box = [saved]
        dist.broadcast_object_list(box, src=0)
        saved = box[0]
    if not saved:
        return {}
    if not {"model", "optimizer", "more"} <= set(saved):
        raise ParallelizeError(
            "the checkpoint is not from state_for_saving(): it lacks model, optimizer or more"
        )
    cut = isinstance(model, Pipeline)
    inner = model.module if cut else model
    weights, moments = saved["model"], saved["optimizer"]
    _same_model(weights, SHAPES.get(model))
    if cut:
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
    """Refuse weights with other names or shapes. Raises ParallelizeError."""
    if here is None:
        return
    there = {name: tuple(value.shape) for name, value in weights.items() if hasattr(value, "shape")}
    for name, size in here.items():
        if name not in there:
            raise ParallelizeError(f"the checkpoint is from another model: it lacks {name}")
        if there[name] != size:
            words = " and ".join(
                f"{' × '.join(map(str, shape)) or 'one number'} {where}"
                for shape, where in ((there[name], "there"), (size, "here"))
            )
            raise ParallelizeError(f"the checkpoint is from a model of other sizes: {name} is {words}")


def _of_all_stages(weights: Dict[str, Any], moments: Dict[str, Any]) -> Any:
    """Return the weights and optimizer states of all stages on rank 0, empty ones elsewhere."""
    mine = _on_cpu(weights), _on_cpu(moments)
    box: Optional[List[Any]] = [None] * dist.get_world_size() if not rank() else None
    dist.gather_object(mine, box)
    if box is None:
        return {}, {}
    all_weights: Dict[str, Any] = {}
    states: Dict[str, Any] = {}
    groups = [{**group, "params": []} for group in box[0][1]["param_groups"]]
    for part, part_moments in box:
        all_weights.update(part)
        states.update(part_moments["state"])
        for group, part_group in zip(groups, part_moments["param_groups"]):
            group["params"] += [name for name in part_group["params"] if name not in group["params"]]
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
    """Return the parameters' names in the order of the optimizer's numbers."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return [name for name, _ in inner.named_parameters()]


def _renamed(state: Dict[str, Any], new: Dict[Any, Any]) -> Dict[str, Any]:
    """Return an optimizer's state with `new` keys: names as in a checkpoint, or numbers as in torch.optim."""
    groups = [{**group, "params": [new[old] for old in group["params"]]} for group in state["param_groups"]]
    return {"state": {new[old]: value for old, value in state["state"].items()}, "param_groups": groups}
