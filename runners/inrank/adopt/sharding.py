"""Shard a model with fully_shard, and have the optimizers that were made of its parameters hold the shards.

fully_shard replaces parameters with other objects, and this module puts the new ones into optimizers. If the script
keeps an old parameter elsewhere, the run stops: at the call if the script may compare it by identity, else at its use.
"""

from __future__ import annotations

import gc
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.optimizer import Optimizer

from ..parallelize.settings import ParallelizeError, Settings, mesh_of
from . import layers
from .optimizers import parameters_of
from .refusals import refusal

CONTAINERS = (set, frozenset, dict, OrderedDict, defaultdict, list)
MOST_MEMBERS = 1_000_000
"""Larger containers are not searched."""


def ignored(module: nn.Module) -> set[str]:
    """Return the parameters and buffers that the script has DistributedDataParallel ignore."""
    return set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))


def check(module: nn.Module, given: Mapping[str, Any]) -> None:
    """Raise AdoptionError for inputs that fully_shard accepts but handles differently from DistributedDataParallel."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    modules = list(module.modules())
    refused = {
        "find_unused_parameters=True, as ranks may then gather different parameters": given.get(
            "find_unused_parameters"
        ),
        "a process group or mesh of the script's own": given.get("process_group")
        or given.get("device_mesh"),
        "mixed_precision or delay_all_reduce_named_params": given.get("mixed_precision")
        or given.get("delay_all_reduce_named_params"),
        "ignored parameters": ignored(module) & parameters.keys(),
        "a model that is compiled already": type(module).__name__ == "OptimizedModule"
        or isinstance(module, torch.jit.ScriptModule),
        "parameters that have gradients already": any(p.grad is not None for p in parameters.values()),
        "parameters that have hooks": any(map(_has_hooks, parameters.values())),
        "an embedding with sparse gradients": any(getattr(each, "sparse", False) for each in modules),
    }
    for what, is_there in refused.items():
        if is_there:
            raise refusal("unsuited model", what=what)


def _has_hooks(parameter: nn.Parameter) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def shard_model(module: nn.Module, config: Settings) -> list[nn.Module]:
    """Shard a model. Return its units, the whole model last. Raises AdoptionError and ParallelizeError."""
    before = dict(module.named_parameters())
    holders = _holders({id(parameter) for parameter in before.values()})
    check_kept(before, holders)
    attributes = {name: dict(vars(parameter)) for name, parameter in before.items()}
    units = [*layers.blocks(module, config), module]
    try:
        _fully_shard(units, config, next(iter(before.values())).device.type)
    except ParallelizeError:
        raise
    except Exception as error:
        raise refusal("fully_shard", error=error) from error
    after = dict(module.named_parameters())
    for name, parameter in after.items():
        parameter.__dict__.update(attributes[name])
    for optimizer in holders:
        _point(optimizer, {id(parameter): after[name] for name, parameter in before.items()})
    for parameter in before.values():
        parameter.__class__ = Replaced
    return units


def _fully_shard(units: list[nn.Module], config: Settings, device: str) -> None:
    """Shard each unit. The last is the whole model, and returns fp32. Raises ParallelizeError."""
    settings, half = _settings(config, device), None if config.param == torch.float32 else config.param
    reduce = None if config.reduce == config.param else config.reduce
    for unit in units:
        output = torch.float32 if half and unit is units[-1] else None
        policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=reduce, output_dtype=output)
        fully_shard(unit, mp_policy=policy, **settings)


def _holders(ids: set[int]) -> list[Optimizer]:
    """Return the optimizers of this process that have any of these parameters."""
    optimizers = [each for each in gc.get_objects() if issubclass(type(each), Optimizer)]
    return [each for each in optimizers if not ids.isdisjoint(map(id, parameters_of(each)))]


def _settings(config: Settings, device: str) -> dict[str, Any]:
    """Return the arguments of fully_shard. Raises ParallelizeError."""
    world, replicas = dist.get_world_size(), config.size("dp_replicate")
    if world % replicas:
        raise ParallelizeError(f"dp_replicate {replicas} does not divide the world size {world}")
    shape = {"dp_replicate": replicas, "dp_shard": world // replicas}
    if replicas == 1:
        del shape["dp_replicate"]
    offloads = bool(config.options.get("cpu_offload"))
    offload = CPUOffloadPolicy(pin_memory=device == "cuda") if offloads else OffloadPolicy()
    return {
        "mesh": mesh_of(device, shape, offloads),
        "reshard_after_forward": True,
        "offload_policy": offload,
    }


def _point(optimizer: Optimizer, new: Mapping[int, Any]) -> None:
    """Put the sharded parameters into an existing optimizer, and shard its states."""
    for group in optimizer.param_groups:
        group["params"] = [new.get(id(each), each) for each in group["params"]]
    for old in [key for key in optimizer.state if id(key) in new]:
        parameter = new[id(old)]
        states = optimizer.state.pop(old)
        optimizer.state[parameter] = {name: as_shard(value, parameter) for name, value in states.items()}


def as_shard(value: Any, parameter: Any) -> Any:
    """Shard a whole tensor of the parameter's shape like the parameter; return any other value unchanged."""
    if (
        not isinstance(value, torch.Tensor)
        or isinstance(value, DTensor)
        or value.shape != parameter.shape
        or not value.ndim
    ):
        return value
    mesh = parameter.device_mesh
    there = value.to(parameter.to_local().device)
    if there.device.type == mesh.device_type:
        return distribute_tensor(there, mesh, parameter.placements, src_data_rank=None)
    part = there.chunk(mesh.size(-1))  # shards that rest in host memory
    at = mesh.get_local_rank(mesh.ndim - 1)
    local = part[at] if at < len(part) else there[:0]
    return DTensor.from_local(
        local.clone(), mesh, parameter.placements, run_check=False, shape=value.shape, stride=value.stride()
    )


class Replaced(nn.Parameter):  # type: ignore[misc]
    """Class of a parameter object after fully_shard has replaced it in the model: every use stops the run."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise refusal("earlier parameter")


def check_kept(before: Mapping[str, nn.Parameter], optimizers: Iterable[Any]) -> None:
    """Raise AdoptionError if the script keeps parameters as keys, or their ids: the new objects would not match them.

    Scripts choose parameters like that for an optimizer's groups: `[p for p in model.parameters() if id(p) in decayed]`.
    """
    ids = {id(parameter) for parameter in before.values()}
    own = {id(ids), *(id(optimizer.state) for optimizer in optimizers)}
    for container in _containers():
        if id(container) not in own and 0 < len(container) <= MOST_MEMBERS and _keeps(container, ids):
            raise refusal("kept parameters", container=type(container).__name__)


def _keeps(container: Any, ids: set[int]) -> bool:
    """Whether a container has one of these ids, or a parameter of such an id as a key."""
    first = next(iter(container))
    if type(first) is int:
        return any(type(each) is int and each in ids for each in container)
    if isinstance(container, list) or not isinstance(first, nn.Parameter):
        return False  # a parameter in a list becomes Replaced, and stops the run at its use
    return any(id(each) in ids for each in container)


def _containers() -> Iterator[Any]:
    """Yield containers of this process. The collector does not track a dict of plain numbers, but its owner."""
    objects = gc.get_objects()
    yield from (each for each in objects if type(each) in CONTAINERS)
    for each in gc.get_referents(*objects):
        if type(each) is dict and not gc.is_tracked(each):
            yield each
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield from (each for each in list(frame.f_locals.values()) if type(each) is dict)
        frame = frame.f_back
