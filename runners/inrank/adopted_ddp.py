"""The preset at a script's own DistributedDataParallel call: DDP's options, precision, sharded optimizer steps (zero1).

The class stays torch's: its constructor gets what the preset asks for on top of what the script gives, so that whatever
the script does with the object goes on. An option that the preset leaves at torch's default leaves the script's value.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .accumulated_steps import AccumulatedSteps
from .adopted import AdoptionError, adopted, gives_closure, initialising, where
from .adopted_fsdp import AdoptedFSDP, prepared
from .agreement import Agreement
from .averaged_passes import AveragedPasses
from .parallelize import data
from .parallelize.settings import LAYERS, ParallelizeError, Settings, current, name_of
from .peer_service import PeerService, ScriptEnd
from .sharded_backward import Backwards
from .sharded_states import ShardedStates
from .sharded_steps import (
    BY_ELEMENT,
    UPDATES,
    ShardedSteps,
    by_parameter,
    check_kind,
    parameters_of,
    size_text,
)
from .sharded_uses import Uses
from .unwrapped_steps import EqualSteps

SWITCHES = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph")
LEAVE = "leave --adopt out"
Call = Callable[..., Any]


def arm() -> None:
    """Change torch in this process. Raises AdoptionError."""
    try:
        adoption = Adoption(current())
    except ParallelizeError as error:
        raise AdoptionError(str(error)) from error
    adoption.arm()


def changed(config: Settings, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of DDP's constructor that the preset changes. `given`: all of them as the script has them."""
    asked: dict[str, Any] = {
        name: True for name in SWITCHES if config.options.get(name) and not given.get(name)
    }
    bucket = config.options.get("bucket_cap_mb")
    if bucket is not None and bucket != given.get("bucket_cap_mb"):
        asked["bucket_cap_mb"] = bucket
    if (
        config.options.get("device_mesh")
        and given.get("process_group") is None
        and given.get("device_mesh") is None
    ):
        asked["device_mesh"] = True
    return asked


def in_full(value: Any) -> Any:
    """What a forward pass in half precision returns, with its tensors in fp32 as the script expects them."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    if isinstance(value, dict):
        full = {key: in_full(part) for key, part in value.items()}
        if type(value) is dict:
            return full
        for key, part in full.items():  # of a class of its own, as transformers have them
            value[key] = part
        return value
    if type(value) in (tuple, list):
        return type(value)(map(in_full, value))
    return type(value)(*map(in_full, value)) if hasattr(value, "_fields") else value


class Adoption:
    """One process's preset, and what it was applied to."""

    def __init__(self, config: Settings) -> None:
        self._config = config
        self._service: PeerService | None = None
        self._steps: ShardedSteps | None = None
        self._equal: EqualSteps | None = None
        self._agreement: Agreement | None = None
        self._backwards: Backwards | None = None
        self._uses: Uses | None = None
        self._accumulated = AccumulatedSteps(config.accumulation, self._inside)
        self._sharded: list[tuple[AdoptedFSDP, ShardedStates]] = []
        self._stepping = False
        self._numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        """Optimizers of sharded models, in the order of their first steps."""
        self._count = itertools.count()
        self._hooked: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """Wrapped models that have a communication hook of the preset's."""

    def _inside(self) -> AbstractContextManager[Any]:
        """In which gradients that are sharded can be changed on this rank."""
        return self._agreement.zone() if self._agreement is not None else nullcontext()

    def arm(self) -> None:
        """Change torch's classes and functions."""
        kind: Any = DistributedDataParallel
        constructed = self._constructor(kind.__init__)
        if self._config.strategy == "fsdp2":
            constructed = self._sharding(kind.__init__)
            kind.__new__ = staticmethod(
                lambda cls, *_, **__: object.__new__(AdoptedFSDP if cls is kind else cls)
            )
            for place in (nn.utils, nn.utils.clip_grad):
                for name in {"clip_grad_norm_", "get_total_norm"} & vars(place).keys():
                    setattr(place, name, self._in_full(getattr(place, name)))
        if self._accumulated.passes > 1:
            self._accumulated.arm()
            adopted.leaves_out = self._accumulated.leaves_out
        kind.__init__ = constructed
        kind.register_comm_hook = self._registration(kind.register_comm_hook)
        if self._config.param != torch.float32:
            kind.forward = self._forward(kind.forward)
        leave = self._destruction(dist.destroy_process_group)
        dist.destroy_process_group = dist.distributed_c10d.destroy_process_group = leave
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        if self._config.strategy == "zero1":
            functions: Any = sys.modules[Optimizer.__module__]
            for place, name in ((Optimizer, "register_step"), (functions, "register_optimizer_step")):
                for when, around in (("pre", self._showing), ("post", self._finishing)):
                    full = f"{name}_{when}_hook"
                    setattr(place, full, _around(getattr(place, full), around))
            kind.__getstate__ = _without_hooks(kind.__getstate__)
        if self._config.strategy in ("zero1", "fsdp2"):
            kind.join_hook = self._no_join

    def _no_join(self, *_: Any, **__: Any) -> Any:
        """Raises AdoptionError."""
        raise AdoptionError(
            f"{self._config.strategy} has no join(), which the script calls at {where()} for uneven inputs: take ddp"
        )

    def _showing(self, hook: Call) -> Call:
        """A hook of the script's before a step, which sees the gradients of all parameters."""

        @functools.wraps(hook)
        def called(optimizer: Optimizer, *given: Any) -> Any:
            with self._steps.shown(optimizer) if self._steps is not None else nullcontext():
                return hook(optimizer, *given)

        return called

    def _finishing(self, hook: Call) -> Call:
        """A hook of the script's behind a step, which sees all parameters as they are then."""

        @functools.wraps(hook)
        def called(optimizer: Optimizer, *given: Any) -> Any:
            if self._steps is not None:
                self._steps.finish(optimizer)
            return hook(optimizer, *given)

        return called

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
            done = prepared(module, self._config)
            theirs(*bound.args, **bound.kwargs)
            self._apply(ddp, [*(f"{name}={value}" for name, value in asked.items()), *done])

        return constructed

    def _sharding(self, theirs: Call) -> Call:
        signature = inspect.signature(theirs)
        kind: Any = AdoptedFSDP
        own = kind.__init__

        @functools.wraps(theirs)
        def constructed(ddp: Any, *args: Any, **named: Any) -> None:
            if type(ddp) is not AdoptedFSDP:
                raise AdoptionError(
                    f"fsdp2 cannot be applied at {where()}: {type(ddp).__name__} is a class of the script's own on "
                    "DistributedDataParallel; take zero1 or ddp"
                )
            given = signature.bind(ddp, *args, **named).arguments
            agreement, backwards, uses, service = self._agreed()
            agreement.note("call of DistributedDataParallel")
            with agreement.zone():
                own(ddp, given["module"], given, self._config, agreement, backwards)
                states = ShardedStates(ddp, len(self._sharded), service, agreement)
            uses.take(ddp.shards.values(), states)
            words = self._accumulating(ddp.shards.values())
            self._sharded.append((ddp, states))
            here, count = ddp.local_bytes(), len(ddp.units) - 1
            sizes = f"{size_text(ddp.whole_bytes)} → {size_text(here)} of parameters on this rank"
            blocks = "1 block" if count == 1 else f"{count} blocks"
            done = [blocks, sizes, *ddp.prepared, *words]
            adopted.calls.append(f"fsdp2 applied at {where()}: {', '.join(done)}")

        kind.__init__ = constructed
        return constructed

    def _accumulating(self, parameters: Iterable[torch.Tensor]) -> list[str]:
        """Accumulate for what trains these; what is done, in words."""
        if self._accumulated.passes == 1:
            return []
        self._accumulated.take(parameters)
        return [f"1 optimizer step of {self._accumulated.passes} made, with their mean gradient"]

    def _agreed(self) -> tuple[Agreement, Backwards, Uses, PeerService]:
        """What all sharded models of this process have in common, made at the first; every rank does."""
        if self._service is None or not (self._agreement and self._backwards and self._uses):
            self._service = PeerService()
            self._agreement = Agreement(self._service)
            self._agreement.watch()
            self._backwards, self._uses = Backwards(self._agreement), Uses(self._agreement)
            self._backwards.arm()
            self._uses.guard()
            ScriptEnd(self._service)
        return self._agreement, self._backwards, self._uses, self._service

    def _in_full(self, theirs: Call) -> Call:
        """A norm that no rank has to put together later."""

        @functools.wraps(theirs)
        def total(*args: Any, **named: Any) -> Any:
            if self._agreement is None:
                return theirs(*args, **named)
            if self._agreement.outside():
                self._agreement.note("norm of gradients")
            with self._agreement.zone():
                norm = theirs(*args, **named)
                return norm.full_tensor() if isinstance(norm, DTensor) else norm

        return total

    def _apply(self, ddp: Any, words: list[str]) -> None:
        """What the preset asks for beyond the constructor's arguments. Raises AdoptionError."""
        config = self._config
        if sent := data.compress(ddp, config, ddp.process_group):
            self._hooked.add(ddp)
            words.append(sent)
        if config.param != torch.float32:
            words.append(f"computed in {name_of(config.param)}")
        words += self._accumulating(ddp.module.parameters())
        adopted.calls.append(
            f"{config.strategy} applied at {where()}{': ' if words else ''}{', '.join(words)}"
        )
        if config.strategy == "zero1":
            self._shard(ddp)

    def _shard(self, ddp: Any) -> None:
        if dist.get_world_size(ddp.process_group) != dist.get_world_size():
            raise AdoptionError(
                f"zero1 cannot be applied at {where()}: the script gives DistributedDataParallel a process group of "
                "some ranks alone; take ddp"
            )
        self._sharded_steps("take ddp", wrapped=True)[0].take(ddp)

    def _sharded_steps(self, otherwise: str, wrapped: bool = False) -> tuple[ShardedSteps, PeerService]:
        """Made at the first call; every rank does."""
        if self._service is None or self._steps is None:
            self._service = PeerService()
            agreement = Agreement(self._service, UPDATES) if wrapped else None
            self._steps = ShardedSteps(self._service, agreement, otherwise)
            ScriptEnd(self._service)
            adopted.sharded = self._steps.described
        return self._steps, self._service

    def _unwrapped_step(self, optimizer: Optimizer) -> None:
        """zero1 at a step before which nothing was wrapped. Raises AdoptionError where the ranks differ."""
        if self._equal is not None and self._equal.has(optimizer):
            self._equal.check(optimizer)
            return
        check_kind(optimizer, LEAVE)
        self._equal = self._equal or EqualSteps()
        self._equal.meet(optimizer)
        first = self._steps is None
        steps, service = self._sharded_steps(LEAVE)
        if first:
            adopted.calls.append(f"zero1 applied at {where()}, where gradients are equal on all ranks")
            adopted.calls += self._accumulating(())
            self._equal.count_passes(service)
        steps.divide(parameters_of(optimizer))

    def _registration(self, theirs: Call) -> Call:
        @functools.wraps(theirs)
        def registered(ddp: Any, *args: Any, **named: Any) -> None:
            if ddp in self._hooked:
                ours, otherwise = "precision.reduce", "add --set precision.reduce=fp32"
                if "powersgd_rank" in self._config.options:
                    ours, otherwise = "strategy.powersgd_rank", "leave strategy.powersgd_rank out"
                raise AdoptionError(
                    f"the script registers a communication hook of its own at {where()}, and {ours} needs one, too: "
                    f"{otherwise}"
                )
            if self._steps is not None:
                self._steps.watched = True
            theirs(ddp, *args, **named)

        return registered

    def _forward(self, theirs: Call) -> Call:
        @functools.wraps(theirs)
        def forward(ddp: Any, *args: Any, **named: Any) -> Any:
            with torch.autocast(ddp.device_type, dtype=self._config.param):
                output = theirs(ddp, *args, **named)
            return in_full(output)

        return forward

    def _destruction(self, theirs: Call) -> Call:
        @functools.wraps(theirs)
        def destroyed(group: Any = None) -> None:
            if self._service is not None and (group is None or group == dist.group.WORLD):
                self._service.leave()
            theirs(group)

        return destroyed

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Raises AdoptionError where the script has wrapped nothing so far."""
        if initialising():
            return
        unwrapped = self._equal is not None or (not adopted.calls and _several())
        if unwrapped and self._equal is None:
            self._check_unwrapped()
        if unwrapped:
            self._accumulating(parameters_of(optimizer))
        if self._accumulated.hold(optimizer, args, kwargs):
            return
        if unwrapped:
            self._unwrapped_step(optimizer)
        if self._steps is not None:
            self._steps.begin(optimizer, args, kwargs)
        for model, states in self._sharded:
            self._begin_sharded(optimizer, model, states, gives_closure(args, kwargs))

    def _check_unwrapped(self) -> None:
        """Raises AdoptionError where nothing can be applied at a step before which nothing was wrapped."""
        config = self._config
        lead = (
            f"the script makes its first optimizer step at {where()}, and has not called DistributedDataParallel "
            "before"
        )
        if config.strategy != "zero1":
            raise AdoptionError(f"{lead}, where --adopt applies {config.strategy}: {LEAVE}")
        if not dist.is_initialized():
            raise AdoptionError(f"{lead}, nor init_process_group(): {LEAVE}")
        if config.reduce != torch.float32 or config.param != torch.float32:
            raise AdoptionError(
                f"{lead}, where precision acts: add --set precision.param=fp32 --set precision.reduce=fp32"
            )
        if changes := [name for name in LAYERS if config.options.get(name)]:
            raise AdoptionError(
                f"{lead}, where strategy.{changes[0]} acts: add --set strategy.{changes[0]}=false"
            )

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if initialising() or self._accumulated.release(optimizer):
            return
        if self._steps is not None:
            self._steps.finish(optimizer)
        for _, states in self._sharded:
            if states.has(optimizer):
                states.changed()
        if self._agreement is not None and self._stepping:
            self._stepping, self._agreement.inside = False, 0

    def _begin_sharded(
        self, optimizer: Optimizer, model: AdoptedFSDP, states: ShardedStates, closure: bool
    ) -> None:
        """Raises AdoptionError for an optimizer that may not step on shards."""
        shards = {id(parameter) for parameter in model.shards.values()}
        own = [each for each in parameters_of(optimizer) if id(each) in shards]
        if not own or self._agreement is None:
            return
        kind, why = type(optimizer), ""
        if not by_parameter(kind) or kind.__name__ not in BY_ELEMENT:
            why = (
                f"to {kind.__module__}.{kind.__name__}, which steps at {where()}: it shards what {', '.join(BY_ELEMENT)}"
                " of torch update, element by element"
            )
        elif model.is_local:
            why = f"at {where()}: the last pass was in no_sync(), and its gradients were not averaged"
        elif closure:
            why = (
                f"at {where()}: the script gives step() a closure, which computes gradients during the step"
            )
        elif model.static and any(each.grad is None for each in own if each.requires_grad):
            why = f"at {where()}: a parameter has no gradient, which static_graph=True lets DistributedDataParallel take"
        if why:
            raise AdoptionError(f"fsdp2 cannot be applied {why}; take ddp")
        model.rest()
        states.take(optimizer)
        if not self._stepping:
            if optimizer not in self._numbers:
                self._numbers[optimizer] = next(self._count)
            number = self._numbers[optimizer]
            self._agreement.same(f"step of optimizer {number}" if number else "optimizer step")
            self._stepping, self._agreement.inside = True, 1
        states.changed()

    _before_step._torchdynamo_disable = True  # type: ignore[attr-defined]
    _after_step._torchdynamo_disable = True  # type: ignore[attr-defined]


def _around(theirs: Call, around: Callable[[Call], Call]) -> Call:
    """A function that takes a hook as its last argument, and gets it within another."""

    @functools.wraps(theirs)
    def registered(*args: Any, **named: Any) -> Any:
        if "hook" in named:
            return theirs(*args, hook=around(named["hook"]))
        return theirs(*args[:-1], around(args[-1]))

    return registered


def _without_hooks(theirs: Call) -> Call:
    """What copies and pickles of a wrapped model hold: not the hooks that count its passes."""

    @functools.wraps(theirs)
    def held(ddp: DistributedDataParallel) -> dict[str, Any]:
        state: dict[str, Any] = theirs(ddp)
        for name in ("_forward_pre_hooks", "_forward_hooks"):
            hooks = state[name].items()
            state[name] = OrderedDict(
                (number, hook)
                for number, hook in hooks
                if not isinstance(getattr(hook, "__self__", None), (ShardedSteps, AveragedPasses))
            )
        return state

    return held


def _several() -> bool:
    """Whether there are other ranks."""
    ranks = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE") or 1)
    return ranks > 1


def _mesh(module: nn.Module) -> Any:
    """All ranks, on the kind of device that the model is on."""
    device = next((parameter.device.type for parameter in module.parameters()), "cpu")
    return init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("data",))
