"""Change torch for --adopt: DistributedDataParallel's constructor, optimizer steps, the end of the process group.

The class stays torch's. If an option of the preset has torch's default, the script's value stays.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..parallelize import data
from ..parallelize.settings import ParallelizeError, Settings, current, name_of
from .fsdp2 import Fsdp2, ShardedDDP
from .outputs import in_full
from .refusals import refusal
from .report import AdoptionError, adopted, initialising, registered_by_script, where
from .zero1 import Zero1

SWITCHES = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph")
Call = Callable[..., Any]


def arm() -> None:
    """Change torch in this process. Raises AdoptionError."""
    try:
        Adoption(current()).arm()
    except ParallelizeError as error:
        raise AdoptionError(str(error)) from error


def changed(config: Settings, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of DDP's constructor that the preset changes. `given`: the script's arguments."""
    asked: dict[str, Any] = {
        name: True for name in SWITCHES if config.options.get(name) and not given.get(name)
    }
    bucket = config.options.get("bucket_cap_mb")
    if bucket is not None and bucket != given.get("bucket_cap_mb"):
        asked["bucket_cap_mb"] = bucket
    has_ranks = given.get("process_group") is not None or given.get("device_mesh") is not None
    if config.options.get("device_mesh") and not has_ranks:
        asked["device_mesh"] = True
    return asked


class Adoption:
    """The preset of one process, and the models that it was applied to."""

    def __init__(self, config: Settings) -> None:
        self._config = config
        self._zero1: Zero1 | None = None
        self._fsdp2: Fsdp2 | None = None
        self._hooked: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """Wrapped models that have a communication hook of the preset."""

    @property
    def _divided(self) -> Zero1 | Fsdp2 | None:
        """The strategy that divides this process's models; None until the script wraps one."""
        return self._zero1 or self._fsdp2

    def arm(self) -> None:
        """Change torch's classes and functions."""
        kind: Any = DistributedDataParallel
        if self._config.strategy == "fsdp2":
            kind.__new__ = staticmethod(
                lambda cls, *_, **__: object.__new__(ShardedDDP if cls is kind else cls)
            )
            self._replace(kind, "__init__", self._shard)
            ShardedDDP.__init__ = kind.__init__  # type: ignore[method-assign]
            for place in (nn.utils, nn.utils.clip_grad):
                self._replace(place, "clip_grad_norm_", self._clip)
        else:
            self._replace(kind, "__init__", self._construct)
            self._replace(kind, "register_comm_hook", self._register)
            self._replace(kind, "forward", self._forward)
        if self._config.strategy in ("zero1", "fsdp2"):
            self._replace(kind, "join_hook", self._refuse_join)
            for place in (dist, dist.distributed_c10d):
                self._replace(place, "destroy_process_group", self._destroy)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        if self._config.strategy == "zero1":
            functions = sys.modules[Optimizer.__module__]
            for when in ("pre", "post"):
                self._replace(Optimizer, f"register_step_{when}_hook", self._refuse_hook)
                self._replace(functions, f"register_optimizer_step_{when}_hook", self._refuse_hook)

    def _replace(self, owner: Any, name: str, ours: Call) -> None:
        """Replace a function of torch by `ours`, which gets the original as its first argument."""
        theirs = getattr(owner, name)

        @functools.wraps(theirs)
        def replaced(*args: Any, **named: Any) -> Any:
            return ours(theirs, *args, **named)

        setattr(owner, name, replaced)

    def _construct(self, theirs: Call, ddp: Any, *args: Any, **named: Any) -> None:
        """Construct a DistributedDataParallel with the preset's arguments. Raises AdoptionError."""
        bound = inspect.signature(theirs).bind(ddp, *args, **named)
        asked = changed(self._config, bound.arguments)
        bound.arguments.update(asked)
        if asked.get("device_mesh"):
            bound.arguments["device_mesh"] = _mesh(bound.arguments["module"])
        theirs(*bound.args, **bound.kwargs)
        self._apply(ddp, [f"{name}={value}" for name, value in asked.items()])

    def _apply(self, ddp: Any, done: list[str]) -> None:
        """Apply options of the preset that are no arguments of the constructor. Raises AdoptionError."""
        config = self._config
        if sent := data.compress(ddp, config, ddp.process_group):
            self._hooked.add(ddp)
            done.append(sent)
        if config.param != torch.float32:
            done.append(f"computed in {name_of(config.param)}")
        lead = f"{config.strategy} applied at {where()}"
        adopted.calls.append(f"{lead}: {', '.join(done)}" if done else lead)
        if config.strategy == "zero1":
            self._zero1 = self._zero1 or Zero1()
            self._zero1.take(ddp)

    def _shard(self, theirs: Call, ddp: Any, *args: Any, **named: Any) -> None:
        """Shard a model instead of constructing a DistributedDataParallel. Raises AdoptionError."""
        if type(ddp) is not ShardedDDP:
            raise refusal("own class", kind=type(ddp).__name__)
        self._fsdp2 = self._fsdp2 or Fsdp2()
        self._fsdp2.take(ddp, inspect.signature(theirs).bind(ddp, *args, **named).arguments, self._config)

    def _clip(self, theirs: Call, *args: Any, **named: Any) -> Any:
        if self._fsdp2 is None:
            return theirs(*args, **named)
        return self._fsdp2.whole_norm(theirs, *args, **named)

    def _register(self, theirs: Call, ddp: Any, state: object, hook: Any) -> None:
        """Register a communication hook, unless the preset has registered one. Raises AdoptionError."""
        if ddp in self._hooked:
            ours, otherwise = "precision.reduce", "add --set precision.reduce=fp32"
            if "powersgd_rank" in self._config.options:
                ours, otherwise = "strategy.powersgd_rank", "leave strategy.powersgd_rank out"
            raise refusal("second communication hook", ours=ours, otherwise=otherwise)
        theirs(ddp, state, hook)

    def _forward(self, theirs: Call, ddp: Any, *args: Any, **named: Any) -> Any:
        """Compute a forward pass in the preset's precision."""
        if self._config.param == torch.float32:
            output = theirs(ddp, *args, **named)
        else:
            with torch.autocast(ddp.device_type, dtype=self._config.param):
                output = theirs(ddp, *args, **named)
            output = in_full(output)
        if self._zero1 is not None:
            self._zero1.after_pass(ddp, output)
        return output

    def _refuse_join(self, *_: Any, **__: Any) -> Any:
        """Raise AdoptionError."""
        raise refusal("join", strategy=self._config.strategy)

    def _refuse_hook(self, theirs: Call, *args: Any, **named: Any) -> Any:
        """Refuse the script's hooks around optimizer steps: they would see the gradients of only this rank's share."""
        if registered_by_script():
            raise refusal("hook around steps")
        return theirs(*args, **named)

    def _destroy(self, theirs: Call, group: Any = None) -> None:
        """Destroy a process group; before the job's group, wait until the scripts of all ranks have ended."""
        if self._divided is not None and (group is None or group == dist.group.WORLD):
            self._divided.peers.leave()
        theirs(group)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Raise AdoptionError if the script has wrapped no model so far, or the step cannot be divided."""
        if initialising():
            return
        if not adopted.calls and _several():
            raise refusal("step before the call", strategy=self._config.strategy)
        if self._divided is not None:
            self._divided.before_step(optimizer, args, kwargs)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._divided is not None and not initialising():
            self._divided.after_step(optimizer)


def _several() -> bool:
    """Whether the job has more than one rank."""
    ranks = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE") or 1)
    return ranks > 1


def _mesh(module: nn.Module) -> Any:
    """Return a mesh of all ranks, on the model's type of device."""
    device = next((parameter.device.type for parameter in module.parameters()), "cpu")
    return init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("data",))
