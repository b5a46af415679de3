"""Tensor parallelism: matrix products divided as the model's `tp_plan` says.

    tp_plan = {"layers.*.qkv": "colwise", "layers.*.out": "rowwise", "layers.*.norm": "sequence_parallel",
               "norm": "sequence_parallel", "head": "colwise_rep"}

Names of layers with * for a number, and the words of transformers' plans: "colwise" divides a layer's outputs,
"rowwise" its inputs and sums, "colwise_rep" gathers the outputs again; "sequence_parallel" is a norm that, with
sequence parallelism, sees a piece of the sequence (dimension 1).
"""

from __future__ import annotations

import re
from typing import Any, Dict, Tuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from .settings import ParallelizeError

STYLES = ("colwise", "rowwise", "colwise_rep", "sequence_parallel")


def divide(model: nn.Module, mesh: DeviceMesh, sequence: bool, first_stage: bool) -> None:
    """Divide the layers of `model` over `mesh`, of one dimension. Raises ParallelizeError."""
    plan = getattr(model, "tp_plan", None)
    if not plan:
        raise ParallelizeError(
            f"tp divides layers by the model's plan, and {type(model).__name__} has no tp_plan:"
            " docs/scripts.md shows one"
        )
    named = _layers(model, plan)
    for name, style in named.items():
        _check(name, model.get_submodule(name), style, mesh.size())
    styles = {name: _style(style, sequence) for name, style in named.items()}
    parallelize_module(model, mesh, {name: style for name, style in styles.items() if style is not None})
    if sequence and first_stage:
        _split_before_blocks(model, named, mesh)


def _layers(model: nn.Module, plan: Dict[str, str]) -> Dict[str, str]:
    """Name of a layer → style."""
    found = {}
    names = [name for name, _ in model.named_modules() if name]
    for pattern, style in plan.items():
        if style not in STYLES:
            raise ParallelizeError(
                f"tp_plan gives {pattern} the style {style!r}; known: {', '.join(STYLES)}"
            )
        shape = re.compile(re.escape(pattern).replace(r"\*", r"\d+"))
        found.update({name: style for name in names if shape.fullmatch(name)})
    if not found:
        raise ParallelizeError(f"tp_plan names {', '.join(plan)}, and the model has no such layers")
    return found


def _check(name: str, layer: nn.Module, style: str, ranks: int) -> None:
    weight = getattr(layer, "weight", None)
    if style == "sequence_parallel" or weight is None or weight.ndim != 2:
        return
    size = int(weight.shape[1 if style == "rowwise" else 0])
    if size % ranks:
        raise ParallelizeError(f"tp is {ranks}, which does not divide the {size} of {name}")


def _style(style: str, sequence: bool) -> Any:
    """torch's object for a style; None for a norm that sees the whole sequence."""
    inputs: Tuple[Any, ...] = (Shard(1),) if sequence else (Replicate(),)
    if style == "rowwise":
        return RowwiseParallel(output_layouts=Shard(1) if sequence else Replicate())
    if style == "sequence_parallel":
        return SequenceParallel(use_local_output=True) if sequence else None
    outputs = Replicate() if style == "colwise_rep" else Shard(-1)
    return ColwiseParallel(input_layouts=inputs[0], output_layouts=outputs)


def _split_before_blocks(model: nn.Module, named: Dict[str, str], mesh: DeviceMesh) -> None:
    """The first block gets this rank's piece of the sequence; in backward the pieces come together again."""
    inside = next(found for found in (re.match(r"(.*?\.\d+)\.", name) for name in named) if found)
    block = model.get_submodule(inside[1])

    def split(_: nn.Module, inputs: Tuple[Any, ...]) -> Tuple[Any, ...]:
        h: torch.Tensor = inputs[0]
        if h.shape[1] % mesh.size():
            raise ParallelizeError(
                f"sequence_parallel divides {h.shape[1]} positions, which are no multiple of tp {mesh.size()}"
            )
        whole = DTensor.from_local(h, mesh, [Replicate()], run_check=False)
        return (whole.redistribute(placements=[Shard(1)]).to_local(), *inputs[1:])

    block.register_forward_pre_hook(split)
