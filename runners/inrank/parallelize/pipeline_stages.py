"""Cut a model along its blocks into the stages of a pipeline.

    pp_plan = {"first": ("tokens",), "blocks": "layers", "last": ("norm", "head")}
    def embed(self, x): ...          returns the input of the first block
    def logits(self, h): ...         of the last block's output
    def loss(self, logits, y): ...   of one microbatch, a mean: the losses of all are averaged; uses no parameters

Each member of `blocks` is called as `block(h)`. Parts of `first` and `last` cannot share parameters (a tied embedding
and head): they are on different stages, and each stage would train its own copy.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, cast

import torch
from torch import nn

from .settings import ParallelizeError

CUT_NEEDS = ("pp_plan", "embed", "logits", "loss")


class Blocks(nn.ModuleDict):  # type: ignore[misc]
    """The blocks of this stage, named by their numbers in the whole model."""


def cut(model: nn.Module, stage: int, stages: int) -> Callable[[Any, Any], Any]:
    """Remove the parts of other stages from `model`; parameters keep their names. Return the model's loss function.

    Raises ParallelizeError.
    """
    missing = [name for name in CUT_NEEDS if not hasattr(model, name)]
    if missing:
        raise ParallelizeError(
            f"pp cuts the model, and {type(model).__name__} has no {', '.join(missing)}:"
            " docs/scripts.md shows what such a model defines"
        )
    plan, loss = cast(Dict[str, Any], model.pp_plan), cast(Callable[[Any, Any], Any], model.loss)
    blocks = list(cast(nn.ModuleList, getattr(model, plan["blocks"])))
    if len(blocks) < stages:
        raise ParallelizeError(
            f"pp is {stages}, and the model has only {len(blocks)} blocks to cut:"
            " give it more, or change mesh.pp"
        )
    _check_untied(model, plan)
    mine = range(len(blocks) * stage // stages, len(blocks) * (stage + 1) // stages)
    setattr(model, plan["blocks"], Blocks({str(number): blocks[number] for number in mine}))
    of_other_stages = []
    if stage > 0:
        of_other_stages += plan["first"]
    if stage < stages - 1:
        of_other_stages += plan["last"]
    for name in of_other_stages:
        setattr(model, name, None)
    model.forward = _StageForward(model, plan["blocks"], stage == 0, stage == stages - 1)
    return loss


def _check_untied(model: nn.Module, plan: Dict[str, Any]) -> None:
    """Raise ParallelizeError if the first and the last stage would each train a copy of one parameter."""
    first: Dict[int, str] = {}
    last: Dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        part = name.partition(".")[0]
        if part in plan["first"]:
            first[id(parameter)] = name
        elif part in plan["last"]:
            last[id(parameter)] = name
    for shared in first.keys() & last.keys():
        raise ParallelizeError(
            f"{first[shared]} and {last[shared]} are one parameter, and pp puts them on different stages:"
            " untie them, or use a preset without pp"
        )


class _StageForward:
    """The `forward` of a stage."""

    def __init__(self, model: nn.Module, blocks: str, first: bool, last: bool) -> None:
        self.model, self.blocks, self.first, self.last = model, blocks, first, last

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        model: Any = self.model
        h = model.embed(x) if self.first else x
        for block in getattr(model, self.blocks).values():
            h = block(h)
        return cast(torch.Tensor, model.logits(h) if self.last else h)
