"""fsdp2 at a script's own DistributedDataParallel call: the script gets an object of that class, sharded by fully_shard.

The script may train with it as with DistributedDataParallel if every rank makes the same passes and steps, and uses
parameters as listed in `uses`. fully_shard reshards all units after each forward pass, so a script never sees a whole
parameter outside of a pass. A pass that DistributedDataParallel would not average stops the run.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from ..parallelize.settings import Settings
from .meeting import Meeting
from .optimizers import BY_ELEMENT, check_kind, parameters_of, size_text
from .outputs import unseen, when_backward_begins
from .peers import Peers
from .refusals import refusal
from .report import adopted, frames, gives_closure, where
from .sharding import check, ignored, shard_model
from .states import WholeStates
from .uses import guard

WHY = (
    "under fsdp2 every rank has to do the same, as each has a part of the parameters; have all ranks do it, or take "
    "zero1"
)

WATCHED = 2
"""Number of training passes that check each unit for parameters changed by its forward pass."""


class Fsdp2:
    """The sharded models of this process, and the optimizers of their parameters."""

    def __init__(self) -> None:
        self.meeting = Meeting(WHY)
        self.peers = Peers(self.meeting)
        self._models: list[tuple[ShardedDDP, WholeStates]] = []
        self._numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._count = itertools.count(1)
        guard()

    def take(self, ddp: ShardedDDP, given: Mapping[str, Any], config: Settings) -> None:
        """Shard a model that the script wraps. `given`: the constructor's arguments. Raises AdoptionError."""
        ddp.shard(given, config, self.meeting)
        name = f"model {len(self._models)}"
        self._models.append((ddp, WholeStates(name, ddp.module, self.peers, self.meeting)))
        count = len(ddp.units) - 1
        here = sum(each.to_local().numel() * each.element_size() for each in ddp.shards)
        done = [
            "1 block" if count == 1 else f"{count} blocks",
            f"{size_text(ddp.whole_bytes)} → {size_text(here)} of parameters on this rank",
        ]
        adopted.calls.append(f"fsdp2 applied at {where()}: {', '.join(done)}")

    def before_step(self, optimizer: Optimizer, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Raise AdoptionError for a step that would differ from bare DistributedDataParallel's."""
        held = {id(parameter) for parameter in parameters_of(optimizer)}
        taken = [(ddp, states) for ddp, states in self._models if held & set(map(id, ddp.shards))]
        if not taken:
            return
        check_kind("fsdp2", optimizer, BY_ELEMENT, gives_closure(args, kwargs))
        for ddp, _ in taken:
            _check_gradients(ddp, held)
        self.peers.settle()
        there = [parameter.grad is not None for parameter in parameters_of(optimizer)]
        number = self._numbers.get(optimizer) or next(self._count)
        self._numbers[optimizer] = number
        if self.meeting.meet(f"step of optimizer {number}", [there]) != [True]:
            raise refusal("other gradients")
        for _, states in taken:
            states.take(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        """Serve the states as they are now."""
        for _, states in self._models:
            if states.has(optimizer):
                states.changed()

    def whole_norm(self, theirs: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call a function that clips gradients, together with all ranks. Return the whole norm."""
        self.meeting.meet("norm of gradients")
        norm = theirs(*args, **named)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _check_gradients(ddp: ShardedDDP, held: set[int]) -> None:
    """Raise AdoptionError if an optimizer's gradients are not those of DistributedDataParallel."""
    if ddp.is_local:
        raise refusal("step after no_sync")
    trained = [each for each in ddp.shards if each.requires_grad and id(each) in held]
    if ddp.is_static and any(each.grad is None for each in trained):
        raise refusal("static_graph")


class ShardedDDP(DistributedDataParallel):  # type: ignore[misc]
    """A model that the script wraps in DistributedDataParallel, and that fully_shard has sharded."""

    def __init__(self, *args: Any, **named: Any) -> None:
        """Do nothing: call.py replaces this method and passes the script's arguments to shard()."""

    def shard(self, given: Mapping[str, Any], config: Settings, meeting: Meeting) -> None:
        """Shard `given["module"]`; every rank does. Raises AdoptionError and ParallelizeError."""
        nn.Module.__init__(self)
        module = given["module"]
        check(module, given)
        self.module = module
        self.device = next(parameter.device for parameter in module.parameters())
        self.device_type, self.dim = self.device.type, int(given.get("dim", 0))
        self.process_group = dist.group.WORLD
        self._meeting = meeting
        self._moves_inputs = bool(given.get("device_ids"))
        self._sent_names = dict(module.named_buffers()).keys() - ignored(module)
        at_init, self._sends_buffers = _buffers_sent(given)
        self._sends_next = self._averages = True
        self.is_static = bool(given.get("static_graph"))
        self.is_local = False
        """Whether the gradients of the last training pass stay on this rank."""
        self._passes = 0
        self._gathered: dict[nn.Module, list[tuple[nn.Module, str, torch.Tensor]]] = {}
        """Unit in its forward pass → its gathered parameters: module, name, and a copy."""
        self._is_wrapped = self._is_inside = False
        """Whether the script has called this object, and whether the model computes its forward pass."""
        if given.get("init_sync", True):
            for value in [*module.parameters(), *(self._sent_buffers() if at_init else ())]:
                dist.broadcast(value.detach(), src=0)
        self.whole_bytes = sum(each.numel() * each.element_size() for each in module.parameters())
        self.units = shard_model(module, config)
        self.shards = list(module.parameters())
        self._places = list(_places(module))
        for unit in self.units:
            unit.register_forward_pre_hook(self._enter, prepend=True)
            unit.register_forward_pre_hook(self._remember)  # once fully_shard has gathered it
            unit.register_forward_hook(self._leave, prepend=True, always_call=True)

    def _sent_buffers(self) -> list[torch.Tensor]:
        """Return the buffers that rank 0 broadcasts."""
        return [value for name, value in self.module.named_buffers() if name in self._sent_names]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Compute the forward pass like DistributedDataParallel: rank 0 broadcasts the buffers first."""
        trains = torch.is_grad_enabled()
        self._passes += trains
        kind = "training pass" if self._averages else "training pass in no_sync()"
        self._meeting.meet(kind if trains else "evaluation")
        if self._moves_inputs:
            inputs, named = _moved(inputs, self.device), _moved(named, self.device)
        if self._sends_buffers and self._sends_next:
            for value in self._sent_buffers():
                dist.broadcast(value, src=0)
        self._is_wrapped = True
        try:
            output = self.module(*inputs, **named)
        finally:
            self._is_wrapped = False
        self._sends_next = trains and self._averages
        if trains:
            self.is_local = not self._averages
        return output

    def _begin_backward(self, earlier: list[str]) -> Callable[[], None]:
        """Return the function to call at the beginning of each backward pass after one forward pass."""

        def begin() -> None:
            if torch.is_grad_enabled():
                raise refusal("create_graph")
            if earlier:
                raise refusal("second backward")
            earlier.append(where())
            self._meeting.meet("backward pass")

        return begin

    def _enter(self, module: nn.Module, args: Any) -> None:
        """Check the caller before a unit's forward pass. Raises AdoptionError."""
        if module is not self.module:
            if not self._is_inside and not _is_in_backward():
                raise refusal("part of the model")
            return
        if not self._is_wrapped:
            if torch.is_grad_enabled():
                raise refusal("model.module")
            self._meeting.meet("evaluation")
        self._is_inside = True
        for place, name, parameter in self._places:
            if getattr(place, name, None) is not parameter:
                raise refusal("another parameter", name=name, kind=_kind(place))

    def _remember(self, module: nn.Module, args: Any) -> None:
        if torch.is_grad_enabled() and self._passes <= WATCHED and not torch.compiler.is_compiling():
            self._gathered[module] = [
                (place, name, parameter.detach().clone())
                for place, name, parameter in _places(module)
                if not isinstance(parameter, DTensor)
            ]

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Check a unit's output before fully_shard reads it. Raises AdoptionError."""
        if module is self.module:
            self._is_inside = False
            when_backward_begins(output, self._begin_backward([]))
        for place, name, before in self._gathered.pop(module, ()):
            if not torch.equal(before, getattr(place, name)):
                raise refusal("changed parameter", name=name, kind=_kind(place))
        if torch.is_grad_enabled() and (hidden := next(unseen(output), None)) is not None:
            raise refusal("hidden tensors", kind=_kind(module), hidden=type(hidden).__name__)

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether the next backward pass averages gradients over the ranks."""
        return self._averages

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, value: bool) -> None:
        self._averages = bool(value)
        self.module.set_requires_gradient_sync(bool(value))

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on this rank within the context."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def register_comm_hook(self, state: object, hook: Any) -> None:
        """Raise AdoptionError."""
        raise refusal("communication hook")

    def __deepcopy__(self, memo: Any) -> Any:
        """Raise AdoptionError."""
        raise refusal("copy")

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raise AdoptionError."""
        raise refusal("pickle")


def _is_in_backward() -> bool:
    """Whether autograd runs: a checkpointed layer then makes its forward pass again."""
    if threading.current_thread() is not threading.main_thread():
        return True
    return any(frame.f_globals.get("__name__") == "torch.autograd.graph" for frame in frames())


def _places(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Yield each place of each parameter: its module, its name there, and the parameter."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            yield module, name, parameter


def _buffers_sent(given: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether rank 0 sends buffers at the call, and before forward passes. torch 2.13 has two names for it."""
    if given.get("forward_sync_buffers") is not None:
        return True, bool(given["forward_sync_buffers"])
    sends = given.get("broadcast_buffers") is not False
    return sends, sends


def _kind(module: nn.Module) -> str:
    """Return the name of a module's class without the prefix of fully_shard."""
    return type(module).__name__.removeprefix("FSDP")


def _moved(value: Any, device: torch.device) -> Any:
    """Move inputs to the model's device, as DistributedDataParallel does."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if type(value) in (tuple, list):
        return type(value)(_moved(each, device) for each in value)
    return {key: _moved(each, device) for key, each in value.items()} if type(value) is dict else value
