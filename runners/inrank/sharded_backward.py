"""Backward passes through models in shards: one call behind each forward pass, as DistributedDataParallel averages them.

Of a second call it averages nothing, so that its ranks come to differ; fully_shard would, and compute something else
than the script does without it. Such a script stops with its line, and so does one that needs gradients of gradients.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .adopted import AdoptionError, where
from .agreement import Agreement

BACKWARD = "backward pass"


def tensors(value: Any, objects: bool = False, depth: float = math.inf) -> Iterator[torch.Tensor]:
    """Of what a model returns, down to a depth; `objects`: also those in attributes of objects."""
    inner: Iterable[Any] = ()
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        inner = value
    elif isinstance(value, dict):
        inner = value.values()
    elif objects and not isinstance(value, torch.nn.Module):
        inner = getattr(value, "__dict__", {}).values()
    for each in inner if depth else ():
        yield from tensors(each, objects, depth - 1)


class Backwards:
    """The calls of backward() in this process."""

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._calls, self._place = 0, ""
        self._awaited = False
        """Whether a model has computed something since the last call."""
        self._first: dict[int, int | None] = {}
        """Number of a model → the call that came first behind its last forward pass."""

    def arm(self) -> None:
        """Have every call come by here."""
        for name in ("backward", "grad"):
            setattr(torch.autograd, name, self._noted(name, getattr(torch.autograd, name)))

    def expect(self, model: int, output: Any) -> None:
        """What a model has computed."""
        self._first[model] = None
        for each in tensors(output):
            if each.requires_grad:
                self._awaited = True
                each.register_hook(functools.partial(self._reached, model))

    def refuse(self, output: Any, why: str) -> None:
        """Have a backward pass from here raise AdoptionError."""

        def raised(_: Any) -> None:
            raise AdoptionError(f"{self._place} {why}")

        for each in tensors(output):
            if each.requires_grad:
                each.register_hook(raised)

    def _reached(self, model: int, _: Any) -> None:
        first = self._first[model]
        if first is not None and first != self._calls:
            raise AdoptionError(
                f"{self._place} makes a second backward pass behind one forward pass, whose gradients "
                "DistributedDataParallel does not average: add the losses and call backward() once"
            )
        self._first[model] = self._calls

    def _noted(self, name: str, theirs: Callable[..., Any]) -> Any:
        signature = inspect.signature(theirs)

        @functools.wraps(theirs)
        def called(*args: Any, **named: Any) -> Any:
            if not self._agreement.outside():
                return theirs(*args, **named)
            given = signature.bind(*args, **named).arguments
            wanted = given.get("inputs")
            few = (wanted,) if isinstance(wanted, torch.Tensor) else wanted or ()
            if any(isinstance(each, DTensor) for each in few):
                raise AdoptionError(
                    f"{where()} asks for gradients of parameters by torch.autograd.{name}(), which fsdp2 has in shards: "
                    "call backward() and take their .grad, or take zero1"
                )
            if given.get("create_graph") and self._awaited:
                raise AdoptionError(
                    f"{where()} asks for a graph of gradients (create_graph), which fully_shard does not keep: "
                    "take zero1"
                )
            self._calls, self._place = self._calls + 1, where()
            if self._awaited:
                self._awaited = False
                self._agreement.note(BACKWARD)
            with self._agreement.zone():
                return theirs(*args, **named)

        return called
