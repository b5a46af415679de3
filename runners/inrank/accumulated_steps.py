"""Gradient accumulation for a script whose loop is its own: 1 optimizer step of several is made, with the mean gradient.

Around the steps that are left out the gradients are added up aside and hidden, so that torch's optimizers do nothing;
then they are there again, for the script to clear as it does. Torch's functions that clip gradients act on the mean.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from .adopted import AdoptionError, gives_closure, where
from .sharded_steps import check_kind, parameters_of

LEAD = "gradient accumulation cannot be applied"
OTHERWISE = "leave batch.accumulation out"


class _Sums:
    """Of one optimizer."""

    def __init__(self) -> None:
        self.left_out = 0
        """Steps since the newest that was made."""
        self.totals: dict[torch.Tensor, torch.Tensor] = {}
        """Parameter → sum of its gradients at those steps."""
        self.hidden: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Parameters with their gradients, during a step that is left out."""
        self.averaged = False
        """Whether the gradients that are there now are the mean already."""


class AccumulatedSteps:
    """The optimizers of this process that train what the preset was applied to."""

    def __init__(
        self, passes: int, inside: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> None:
        """`passes`: how many of the script's steps make one; `inside`: what work on gradients is done in."""
        self.passes, self._inside = passes, inside
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, _Sums] = weakref.WeakKeyDictionary()
        self._taken: dict[int, Any] = {}
        """Id of each parameter that is trained with accumulation → a weak reference to it."""

    def take(self, parameters: Iterable[torch.Tensor]) -> None:
        """Accumulate for optimizers of these."""
        self._taken.update({id(each): weakref.ref(each) for each in parameters})

    def _has(self, parameter: torch.Tensor) -> bool:
        return self._taken.get(id(parameter), lambda: None)() is parameter

    def hold(self, optimizer: Optimizer, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Before a step: whether it is left out; else the gradients are the mean. Raises AdoptionError."""
        parameters = parameters_of(optimizer)
        if not any(map(self._has, parameters)):
            return False
        if optimizer not in self._optimizers:
            check_kind(optimizer, OTHERWISE, "gradient accumulation")
            self._optimizers[optimizer] = _Sums()
        if gives_closure(args, kwargs):
            raise AdoptionError(
                f"{LEAD} at {where()}: the script gives step() a closure, which computes gradients during the step; "
                f"{OTHERWISE}"
            )
        if getattr(optimizer, "grad_scale", None) is not None:
            raise AdoptionError(
                f"{LEAD} at {where()}: with fused=True the optimizer itself takes the scale of GradScaler out of the "
                f"gradients; {OTHERWISE}"
            )
        sums = self._optimizers[optimizer]
        if sums.left_out == self.passes - 1:
            self._average(parameters, sums)
            sums.left_out, sums.totals, sums.averaged = 0, {}, False
            return False
        sums.left_out += 1
        sums.hidden = [(each, each.grad) for each in parameters if each.grad is not None]
        with self._inside(), torch.no_grad():
            for parameter, gradient in sums.hidden:
                if parameter in sums.totals:
                    sums.totals[parameter].add_(gradient)
                else:
                    sums.totals[parameter] = gradient.detach().clone()
                parameter.grad = None
        return True

    def release(self, optimizer: Optimizer) -> bool:
        """After a step: whether it was left out."""
        if not self.leaves_out(optimizer):
            return False
        sums = self._optimizers[optimizer]
        for parameter, gradient in sums.hidden:
            parameter.grad = gradient
        sums.hidden = []
        return True

    def leaves_out(self, optimizer: Optimizer) -> bool:
        """Whether the step that it is in, or made last, is left out."""
        sums = self._optimizers.get(optimizer)
        return sums is not None and sums.left_out > 0

    def _average(self, parameters: Iterable[torch.Tensor], sums: _Sums) -> None:
        """Have the gradients be the mean of this step's and of those that were left out."""
        if sums.averaged:
            return
        sums.averaged = True
        with self._inside(), torch.no_grad():
            for parameter in parameters:
                total = sums.totals.pop(parameter, None)
                if parameter.grad is None:
                    parameter.grad = total
                elif total is not None:
                    parameter.grad.add_(total)
                if parameter.grad is not None:
                    parameter.grad.div_(self.passes)

    def arm(self) -> None:
        """Have torch's functions that clip gradients act on the mean."""
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            for place in (nn.utils, nn.utils.clip_grad):
                setattr(place, name, self._clipping(getattr(place, name)))

    def _clipping(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(theirs)

        @functools.wraps(theirs)
        def clipped(*args: Any, **named: Any) -> Any:
            bound = signature.bind(*args, **named)
            first, limit, *_ = bound.arguments
            given = bound.arguments[first]
            given = bound.arguments[first] = [given] if isinstance(given, torch.Tensor) else list(given)
            if any(map(self._has, given)) and not self._last(given):
                bound.arguments[limit] = float("inf")  # a norm is returned as the script expects it
            return theirs(*bound.args, **bound.kwargs)

        return clipped

    def _last(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether the next step of the optimizer that has these is made; their gradients are the mean then."""
        wanted = set(map(id, parameters))
        last = False
        for optimizer, sums in list(self._optimizers.items()):
            own = parameters_of(optimizer)
            if sums.left_out == self.passes - 1 and any(id(each) in wanted for each in own):
                self._average(own, sums)
                last = True
        return last
