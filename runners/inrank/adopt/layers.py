"""Choose the modules of a model that fully_shard gathers together."""

from __future__ import annotations

from collections import Counter

from torch import nn

from ..parallelize import layers
from ..parallelize.settings import Settings

LEAST_SHARE = 0.5
"""A class of modules that repeats makes blocks if they have at least this share of the parameters."""


def blocks(model: nn.Module, config: Settings) -> list[nn.Module]:
    """Return the preset's layers, else members of module lists, else `_repeated()`. Raises ParallelizeError.

    A layer that shares a parameter with modules outside of it is left out.
    """
    uses = _uses(model)

    def shares_nothing(block: nn.Module) -> bool:
        return all(uses[key] == count for key, count in _uses(block).items())

    chosen = list(layers.units(model, config)) or _repeated(model)
    return [block for block in chosen if block is not model and shares_nothing(block)]


def _repeated(model: nn.Module) -> list[nn.Module]:
    """Return the outermost modules of the repeating class with most parameters; [] if it has less than half of them."""
    classes: dict[type, list[nn.Module]] = {}
    for module in model.modules():
        is_layer = module is not model and next(module.children(), None) is not None
        if is_layer and type(module) not in (nn.Sequential, nn.ModuleList, nn.ModuleDict):
            classes.setdefault(type(module), []).append(module)
    candidates = [outer for modules in classes.values() if len(outer := _outermost(modules)) > 1]
    best = max(candidates, key=_elements, default=[])
    return best if _elements(best) >= LEAST_SHARE * _elements([model]) else []


def _outermost(modules: list[nn.Module]) -> list[nn.Module]:
    inner = {id(child) for module in modules for child in module.modules() if child is not module}
    return [module for module in modules if id(module) not in inner]


def _uses(model: nn.Module) -> Counter[int]:
    """Id of each parameter → number of its places."""
    return Counter(
        id(parameter)
        for module in model.modules()
        for _, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
    )


def _elements(modules: list[nn.Module]) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())
