"""Classes of torch's optimizers by how they update a parameter, and the parameters of an optimizer."""

from __future__ import annotations

import torch
from torch.optim.optimizer import Optimizer

from .refusals import refusal

BY_ELEMENT = ("Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD")
"""Optimizers of torch that update each element independently: they may step on shards."""
BY_PARAMETER = (*BY_ELEMENT, "ASGD", "Adadelta", "Adafactor", "Muon", "Rprop")
"""Optimizers of torch that update each parameter independently, and skip those without a gradient."""


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return an optimizer's parameters in the order of their numbers in state_dict()."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def is_one_of(kind: type, names: tuple[str, ...]) -> bool:
    """Whether a class is torch's own class with one of these names: a subclass may compute something else."""
    return kind.__name__ in names and getattr(torch.optim, kind.__name__, None) is kind


def check_kind(strategy: str, optimizer: Optimizer, names: tuple[str, ...], closure: bool) -> None:
    """Raise AdoptionError if this optimizer, or this step of it, cannot be divided."""
    kind = type(optimizer)
    if not is_one_of(kind, names):
        full_name = f"{kind.__module__}.{kind.__name__}"
        raise refusal("another optimizer", strategy=strategy, kind=full_name, names=", ".join(names))
    if closure:
        raise refusal("closure", strategy=strategy)


def size_text(size: float) -> str:
    """ "8.1 GB"."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
