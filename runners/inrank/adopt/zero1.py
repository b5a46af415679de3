"""zero1 for a script's own optimizers: each rank updates its share of the parameters and broadcasts it.

The optimizer stays the script's object. During each step zero1 hides the gradients of the other ranks' parameters, so
torch's optimizers skip these parameters and keep no state for them. Each rank then broadcasts its updated parameters.
Before each step all ranks compare checksums of their gradients and parameters. The results are equal to those of bare
DistributedDataParallel to the last bit, or the run stops.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer

from .meeting import Meeting
from .optimizers import BY_PARAMETER, check_kind, parameters_of, size_text
from .outputs import when_backward_begins
from .peers import Peers
from .refusals import refusal
from .report import adopted, gives_closure

KEPT = 8
"""Number of newest optimizers that stay after the script has dropped them: another rank may still save them."""
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes per element → integer type for reading its bits."""
WHY = "zero1 needs every rank in each pass and step, as each updates a part of the parameters; take ddp"
DIFFER = {
    "its gradients": "as after a last backward pass in no_sync() or through model.module, which "
    "DistributedDataParallel does not average, or with a communication hook of the script's own",
    "the values of its parameters": "as after a change on one rank only",
}
"""Values compared before each step → the usual reason why ranks differ in them."""


def shares(sizes: Sequence[int], ranks: int) -> list[int]:
    """Return the rank of each size, so that the sums per rank are about equal. All ranks compute the same list."""
    held, owners = [0] * ranks, [0] * len(sizes)
    for at in sorted(range(len(sizes)), key=lambda at: (-sizes[at], at)):
        rank = min(range(ranks), key=lambda rank: (held[rank], rank))
        owners[at] = rank
        held[rank] += sizes[at]
    return owners


def checksums(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Return the sum of each tensor's bits, read as integers. Waits once per device."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        plain = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        bits = plain.contiguous().view(INTEGERS[plain.element_size()])
        by_device.setdefault(tensor.device, []).append(bits.sum(dtype=torch.int64))
    return [number for sums in by_device.values() for number in torch.stack(sums).tolist()]


class _Divided:
    """Progress and hidden gradients of one divided optimizer."""

    def __init__(self, number: int) -> None:
        self.name = f"optimizer {number}"
        self.steps = 0
        self.is_whole = True
        """Whether this rank has all states: before the first step, and after loading a checkpoint."""
        self.is_stepping = False
        self.hidden: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Parameters with their gradients, during a step."""


class Zero1:
    """The optimizers of this process that hold parameters of wrapped models."""

    def __init__(self) -> None:
        self._meeting = Meeting(WHY)
        self.peers = Peers(self._meeting)
        self._owners: dict[int, tuple[Any, int]] = {}
        """Id of a parameter → a weak reference to it, and the rank that updates it."""
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, _Divided] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count(1)
        self._kept: deque[Optimizer] = deque(maxlen=KEPT)
        adopted.divided = self.described

    def take(self, ddp: Any) -> None:
        """Divide the parameters that this wrapped model trains. Raises AdoptionError."""
        if dist.get_world_size(ddp.process_group) != dist.get_world_size():
            raise refusal("group of some ranks")
        ignored = set(getattr(ddp, "parameters_to_ignore", ()))
        trained = [
            parameter
            for name, parameter in ddp.module.named_parameters()
            if name not in ignored and parameter.requires_grad and self._owner(parameter) is None
        ]
        for parameter, owner in zip(trained, shares([each.numel() for each in trained], self.peers.world)):
            self._owners[id(parameter)] = weakref.ref(parameter), owner

    def after_pass(self, ddp: Any, output: Any) -> None:
        """Have all ranks begin the backward pass after a wrapper's forward pass together: it averages gradients."""
        if torch.is_grad_enabled() and ddp.require_backward_grad_sync:
            when_backward_begins(output, functools.partial(self._meeting.meet, "backward pass"))

    def _owner(self, parameter: torch.Tensor) -> int | None:
        """Return the rank that updates a parameter; None if every rank does."""
        reference, owner = self._owners.get(id(parameter), (lambda: None, -1))
        return owner if reference() is parameter else None

    def _divided(self, optimizer: Optimizer) -> Iterator[tuple[torch.Tensor, int]]:
        """Yield the divided parameters of an optimizer with their ranks."""
        for parameter in parameters_of(optimizer):
            owner = self._owner(parameter)
            if owner is not None:
                yield parameter, owner

    def before_step(self, optimizer: Optimizer, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Hide the gradients of parameters that other ranks update. Raises AdoptionError."""
        parameters = list(self._divided(optimizer))
        if not parameters:
            return
        check_kind("zero1", optimizer, BY_PARAMETER, gives_closure(args, kwargs))
        mine = self._optimizers.get(optimizer) or self._first_step(optimizer)
        self._compare(mine, [parameter for parameter, _ in parameters])
        self.peers.settle()
        if mine.is_whole:
            for parameter, owner in parameters:
                if owner != self.peers.rank:
                    optimizer.state.pop(parameter, None)
            mine.is_whole = False
        mine.is_stepping = True
        for parameter, owner in parameters:
            if owner != self.peers.rank and parameter.grad is not None:
                mine.hidden.append((parameter, parameter.grad))
                parameter.grad = None

    def _first_step(self, optimizer: Optimizer) -> _Divided:
        mine = self._optimizers[optimizer] = _Divided(next(self._numbers))
        optimizer.register_state_dict_post_hook(self._whole_state)
        optimizer.register_load_state_dict_post_hook(self._loaded)
        return mine

    def _compare(self, mine: _Divided, parameters: Sequence[torch.Tensor]) -> None:
        """Raise AdoptionError if ranks differ in their step, gradients or parameters."""
        gradients = [each.grad for each in parameters if each.grad is not None]
        dense = [each for each in gradients if each.layout == torch.strided]
        there = [each.grad is not None for each in parameters]
        facts = (there, checksums(dense)), checksums(parameters)
        for what, is_equal in zip(DIFFER, self._meeting.meet(f"step of {mine.name}", facts)):
            if not is_equal:
                raise refusal("ranks differ", what=what, cause=DIFFER[what])

    def after_step(self, optimizer: Optimizer) -> None:
        """Restore the hidden gradients, and broadcast the updated parameters."""
        mine = self._optimizers.get(optimizer)
        if mine is None or not mine.is_stepping:
            return
        for parameter, gradient in mine.hidden:
            parameter.grad = gradient
        mine.hidden, mine.is_stepping = [], False
        sent = [
            dist.broadcast(parameter.detach(), src=owner, async_op=True)
            for parameter, owner in self._divided(optimizer)
        ]
        for broadcast in sent:
            broadcast.wait()
        mine.steps += 1
        self._serve(mine, optimizer)
        if optimizer not in self._kept:
            self._kept.append(optimizer)

    def _serve(self, mine: _Divided, optimizer: Optimizer) -> None:
        """Serve the current states to other ranks."""
        reference = weakref.ref(optimizer)
        self.peers.serve(mine.name, mine.steps, lambda _: self._own_states(reference()))

    def _own_states(self, optimizer: Optimizer | None) -> dict[int, Any]:
        """Return number → state of each parameter that this rank updates, or raise AdoptionError."""
        if optimizer is None:
            raise refusal("dropped optimizer")
        states = optimizer.state
        return {
            number: states[parameter]
            for number, parameter in enumerate(parameters_of(optimizer))
            if self._owner(parameter) == self.peers.rank and parameter in states
        }

    def _loaded(self, optimizer: Optimizer) -> None:
        mine = self._optimizers[optimizer]
        mine.is_whole = True
        self._serve(mine, optimizer)

    def _whole_state(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any] | None:
        """Add the states of the other ranks to the result of state_dict(). Raises AdoptionError."""
        mine = self._optimizers[optimizer]
        if mine.is_whole:
            return None
        states = dict(state["state"])
        for theirs in self.peers.ask(mine.name, mine.steps):
            states.update(theirs)
        numbers = sorted(number for number in states if isinstance(number, int))
        state["state"] = {**{number: states.pop(number) for number in numbers}, **states}
        return state

    def described(self) -> tuple[str, str] | None:
        """Return "zero1" and the sizes on this rank; None before its first step, or if it has another rank's state."""
        count = mine = numbers = own = here = 0
        for optimizer, divided in list(self._optimizers.items()):
            if divided.is_whole:
                continue
            for parameter, owner in self._divided(optimizer):
                state = optimizer.state.get(parameter, {})
                count, numbers, here = count + 1, numbers + parameter.numel(), here + _bytes(state)
                if owner == self.peers.rank:
                    mine, own = mine + 1, own + parameter.numel()
                elif state:
                    return None
        if not count:
            return None
        sizes = f", {size_text(here * numbers / own)} of states → {size_text(here)}" if here else ""
        return "zero1", f"{mine} of {count} parameters are updated on this rank{sizes}"


def _bytes(state: dict[str, Any]) -> int:
    return sum(
        each.numel() * each.element_size() for each in state.values() if isinstance(each, torch.Tensor)
    )
