"""Count the parameters of the whole model in one rank without communication, if that is possible.

The result is None if 6 × parameters would not be the FLOPs per token: frozen parts (LoRA), experts that a token skips,
parts of the model in plain tensors on other ranks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

UNKNOWN_SIZE = re.compile(r"moe|expert|(column|row|vocab)parallel", re.IGNORECASE)
"""Class names of modules with parameters that a token skips, or that are split over ranks."""
FROZEN = 0.01
"""Largest share of frozen parameters in a model that counts as fully trained."""
ELSEWHERE = ("megatron.core", "megatron.training")
"""Packages that keep parts of a model on other ranks in plain tensors."""


def parameters_of(objects: dict[str, Any], optimizer: Any, items: Iterable[Any]) -> int | None:
    """Return the number of parameters, or None.

    `objects`: one object per wrapper (see wrapping.py). `optimizer`: it has made its first step. `items`: all objects of
    this process.
    """
    torch = sys.modules.get("torch")
    if torch is None or _is_elsewhere(objects):
        return None
    relevant = _relevant(items, torch)
    if relevant is None:
        return None
    optimizers, tensors = relevant
    trained = _trained(objects, [optimizer, *optimizers])
    others = {key: each for key, each in _unique(tensors).items() if key not in trained}
    frozen = [each for each in others.values() if _is_frozen(each, torch)]
    size = sum(map(_size, trained.values()))
    return size if size and sum(map(_size, frozen)) <= FROZEN * size else None


def _trained(objects: dict[str, Any], optimizers: list[Any]) -> dict[int, Any]:
    """Return the parameters that an optimizer updates on some rank, by their id."""
    if "deepspeed" in objects:
        return _unique(objects["deepspeed"].module.parameters())
    if "zero1" in objects:
        return _unique(_grouped([objects["zero1"]]))
    return _unique(_grouped(optimizers))


def _is_elsewhere(objects: dict[str, Any]) -> bool:
    """Whether other ranks may have parts of the model in plain tensors."""
    return not objects.keys().isdisjoint(("pipeline", "fsdp1")) or any(map(sys.modules.get, ELSEWHERE))


def _is_frozen(tensor: Any, torch: Any) -> bool:
    return isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad


def _relevant(items: Iterable[Any], torch: Any) -> tuple[list[Any], list[Any]] | None:
    """Return the optimizers, and tensors that may be parameters; None if a module hides the model's size."""
    kinds: dict[type, str] = {}
    found: dict[str, list[Any]] = {"optimizer": [], "tensor": []}
    for item in items:  # the hot loop: millions of objects
        word = kinds.get(type(item))
        if word is None:
            word = kinds[type(item)] = _kind(type(item), torch)
        if word == "-":
            continue
        if word == "unknown":
            return None
        found[word].append(item)
    return found["optimizer"], found["tensor"]


def _kind(kind: type, torch: Any) -> str:
    """Classify a class: "optimizer", "tensor" (maybe parameters), "unknown" (hides the model's size), or "-"."""
    if issubclass(kind, torch.nn.Module):
        return "unknown" if UNKNOWN_SIZE.search(kind.__name__) else "-"
    if issubclass(kind, torch.optim.Optimizer):
        return "optimizer"
    return "tensor" if issubclass(kind, torch.Tensor) and kind is not torch.Tensor else "-"


def _grouped(optimizers: Iterable[Any]) -> Iterable[Any]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group.get("params", ())


def _unique(parameters: Iterable[Any]) -> dict[int, Any]:
    return {id(parameter): parameter for parameter in parameters}


def _size(parameter: Any) -> int:
    """Return the size of the whole parameter: DeepSpeed's ds_numel, else numel(), which is global for a DTensor."""
    whole = getattr(parameter, "ds_numel", None)
    return int(parameter.numel() if whole is None else whole)
