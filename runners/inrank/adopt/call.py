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
from contextlib import nullcontext
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
from . import layers
from .fsdp2 import Fsdp2, ShardedDDP
from .outputs import in_full
from .report import AdoptionError, adopted, called_by_script, initialising, where
from .zero1 import Zero1

SWITCHES = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph")
EQUAL_HOOKS = ("default_hooks", "powerSGD_hook")
"""Modules of torch.distributed.algorithms.ddp_comm_hooks with hooks that leave all ranks with equal gradients."""
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
        sharded: Any = ShardedDDP
        if self._config.strategy == "fsdp2":
            kind.__new__ = staticmethod(
                lambda cls, *_, **__: object.__new__(ShardedDDP if cls is kind else cls)
            )
            kind.__init__ = sharded.__init__ = self._sharding(kind.__init__)
            for place in (nn.utils, nn.utils.clip_grad):
                place.clip_grad_norm_ = self._clipping(place.clip_grad_norm_)
        else:
            kind.__init__ = self._constructor(kind.__init__)
            kind.register_comm_hook = self._registration(kind.register_comm_hook)
            kind.forward = self._forward(kind.forward)
        if self._config.strategy in ("zero1", "fsdp2"):
            kind.join_hook = self._refused_join
            leave = self._destruction(dist.destroy_process_group)
            dist.destroy_process_group = dist.distributed_c10d.destroy_process_group = leave
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        if self._config.strategy == "zero1":
            functions: Any = sys.modules[Optimizer.__module__]
            for when in ("pre", "post"):
                for place, name in ((Optimizer, "register_step"), (functions, "register_optimizer_step")):
                    full = f"{name}_{when}_hook"
                    setattr(place, full, self._refused_hook(getattr(place, full)))

    def _constructor(self, theirs: Call) -> Call:
        signature = inspect.signature(theirs)

        @functools.wraps(theirs)
        def constructed(ddp: Any, *args: Any, **named: Any) -> None:
            bound = signature.bind(ddp, *args, **named)
            asked = changed(self._config, bound.arguments)
            bound.arguments.update(asked)
            module = bound.arguments["module"]
            if asked.get("device_mesh"):
                bound.arguments["device_mesh"] = _mesh(module)
            done = [f"{name}={value}" for name, value in asked.items()] + layers.prepare(
                module, self._config
            )
            theirs(*bound.args, **bound.kwargs)
            self._apply(ddp, done)

        return constructed

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

    def _sharding(self, theirs: Call) -> Call:
        signature = inspect.signature(theirs)

        @functools.wraps(theirs)
        def constructed(ddp: Any, *args: Any, **named: Any) -> None:
            if type(ddp) is not ShardedDDP:
                raise AdoptionError(
                    f"fsdp2 cannot be applied at {where()}: {type(ddp).__name__} is a class of the script's own on "
                    "DistributedDataParallel; take zero1 or ddp"
                )
            self._fsdp2 = self._fsdp2 or Fsdp2()
            self._fsdp2.take(ddp, signature.bind(ddp, *args, **named).arguments, self._config)

        return constructed

    def _clipping(self, theirs: Call) -> Call:
        @functools.wraps(theirs)
        def clipped(*args: Any, **named: Any) -> Any:
            return self._fsdp2.whole_norm(theirs, *args, **named) if self._fsdp2 else theirs(*args, **named)

        return clipped

    def _registration(self, theirs: Call) -> Call:
        @functools.wraps(theirs)
        def registered(ddp: Any, state: object, hook: Any) -> None:
            if ddp in self._hooked:
                ours, otherwise = "precision.reduce", "add --set precision.reduce=fp32"
                if "powersgd_rank" in self._config.options:
                    ours, otherwise = "strategy.powersgd_rank", "leave strategy.powersgd_rank out"
                raise AdoptionError(
                    f"the script registers a communication hook of its own at {where()}, and {ours} needs one, too: "
                    f"{otherwise}"
                )
            if (
                self._zero1 is not None
                and str(getattr(hook, "__module__", "")).split(".")[-1] not in EQUAL_HOOKS
            ):
                raise AdoptionError(
                    f"zero1 cannot be applied at {where()}: it takes communication hooks of torch's {EQUAL_HOOKS} only, "
                    "as others may leave ranks with different gradients; take ddp"
                )
            theirs(ddp, state, hook)

        return registered

    def _forward(self, theirs: Call) -> Call:
        half = self._config.param != torch.float32

        @functools.wraps(theirs)
        def forward(ddp: Any, *args: Any, **named: Any) -> Any:
            with torch.autocast(ddp.device_type, dtype=self._config.param) if half else nullcontext():
                output = theirs(ddp, *args, **named)
            if half:
                output = in_full(output)
            if self._zero1 is not None:
                self._zero1.after_pass(ddp, output)
            return output

        return forward

    def _refused_join(self, *_: Any, **__: Any) -> Any:
        """Raise AdoptionError."""
        raise AdoptionError(
            f"{self._config.strategy} has no join(), which the script calls at {where()} for uneven inputs; take ddp"
        )

    def _refused_hook(self, theirs: Call) -> Call:
        """Refuse the script's hooks around optimizer steps: they would see the gradients of only this rank's share."""

        @functools.wraps(theirs)
        def registered(*args: Any, **named: Any) -> Any:
            if called_by_script():
                raise AdoptionError(
                    f"zero1 cannot be applied at {where()}: the script registers a hook around optimizer steps, which "
                    "would see a part of the gradients and parameters; take ddp"
                )
            return theirs(*args, **named)

        return registered

    def _destruction(self, theirs: Call) -> Call:
        @functools.wraps(theirs)
        def destroyed(group: Any = None) -> None:
            if self._divided is not None and (group is None or group == dist.group.WORLD):
                self._divided.peers.leave()
            theirs(group)

        return destroyed

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Raise AdoptionError if the script has wrapped no model so far, or the step cannot be divided."""
        if initialising():
            return
        if not adopted.calls and _several():
            raise AdoptionError(
                f"the script makes its first optimizer step at {where()}, and has not called DistributedDataParallel "
                f"before, where --adopt applies {self._config.strategy}: leave --adopt out"
            )
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
