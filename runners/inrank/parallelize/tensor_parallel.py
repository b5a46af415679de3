"""Tensor parallelism: divide matrix products over ranks, as `tp_plan` of the model's class describes.

    tp_plan = {"layers.*.qkv": "colwise", "layers.*.out": "rowwise", "layers.*.norm": "sequence_parallel",
               "norm": "sequence_parallel", "head": "colwise_rep"}

Keys are names of layers with * for a number. The styles are those of transformers' plans: "colwise" divides a layer's
outputs, "rowwise" divides its inputs and sums, "colwise_rep" gathers the outputs again; "sequence_parallel" is a norm
that sees a piece of the sequence (dimension 1) with sequence parallelism.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, Tuple

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
HEADS = (
    "heads",
    "num_heads",
    "n_heads",
    "n_head",
    "nhead",
    "num_attention_heads",
    "kv_heads",
    "num_kv_heads",
    "n_kv_heads",
    "num_key_value_heads",
)
"""Attributes with the number of heads of an attention layer."""
ATTENTION = re.compile(r"(?:.*\.)?(?:w?[qkv]|qkv|wqkv|query|key|value|c_attn|in_proj)(?:_proj)?")
"""Names of layers whose outputs are split into heads."""
SHAPE = re.compile(
    r"shape '.*' is invalid for input|mat1 and mat2 shapes|must match the size|size mismatch"
)
"""Texts of torch's errors about sizes that do not match."""


def divide_layers(model: nn.Module, mesh: DeviceMesh, sequence: bool, first_stage: bool) -> None:
    """Divide the layers of `model` over the 1-dimensional `mesh`. Raises ParallelizeError."""
    plan = getattr(model, "tp_plan", None)
    if not plan:
        raise ParallelizeError(
            f"tp divides layers by the model's plan, and {type(model).__name__} has no tp_plan:"
            " docs/scripts.md shows one"
        )
    named = _layers(model, plan)
    for name, style in named.items():
        _check(name, model.get_submodule(name), style, mesh.size())
    _check_heads(model, named, mesh.size())
    styles = {name: _style(style, sequence) for name, style in named.items()}
    parallelize_module(model, mesh, {name: style for name, style in styles.items() if style is not None})
    if sequence and first_stage:
        _split_before_blocks(model, named, mesh)
    _explain(model, mesh.size())


def _layers(model: nn.Module, plan: Dict[str, str]) -> Dict[str, str]:
    """Return name → style of the layers in the plan. Raises ParallelizeError."""
    styles = {}
    names = [name for name, _ in model.named_modules() if name]
    for pattern, style in plan.items():
        if style not in STYLES:
            raise ParallelizeError(
                f"tp_plan gives {pattern} the style {style!r}; known: {', '.join(STYLES)}"
            )
        shape = re.compile(re.escape(pattern).replace(r"\*", r"\d+"))
        styles.update({name: style for name in names if shape.fullmatch(name)})
    if not styles:
        raise ParallelizeError(f"tp_plan names {', '.join(plan)}, but the model has no such layers")
    return styles


def _check(name: str, layer: nn.Module, style: str, ranks: int) -> None:
    weight = getattr(layer, "weight", None)
    if style == "sequence_parallel" or weight is None or weight.ndim != 2:
        return
    size = int(weight.shape[1 if style == "rowwise" else 0])
    if size % ranks:
        raise ParallelizeError(f"tp is {ranks}, which does not divide the {size} of {name}")


def _check_heads(model: nn.Module, named: Dict[str, str], ranks: int) -> None:
    """Check that the ranks divide the number of heads: one rank computes a whole head. Raises ParallelizeError."""
    for where, count in _heads(model, named):
        if count % ranks:
            raise ParallelizeError(
                f"{count} heads cannot be divided by tp {ranks} ({where}):"
                f" {count} / {ranks} is {count / ranks:.4g}; give the model a multiple of {ranks} heads,"
                " or change mesh.tp"
            )


def _heads(model: nn.Module, named: Dict[str, str]) -> Iterator[Tuple[str, int]]:
    """Yield the place and the value of each number of heads: of the parents of divided layers, and in `config`."""
    outputs = [name for name, style in named.items() if style == "colwise"]
    for name in outputs:
        parent = name.rpartition(".")[0]
        if parent:  # the root is seldom attention itself
            yield from _numbers(parent, model.get_submodule(parent))
    if any(ATTENTION.fullmatch(name) for name in outputs) and hasattr(model, "config"):
        yield from _numbers("config", model.config)


def _numbers(where: str, holder: Any) -> Iterator[Tuple[str, int]]:
    for attribute in HEADS:
        count = getattr(holder, attribute, None)
        if type(count) is int and count > 0:
            yield f"{where}.{attribute}", count


def _explain(model: nn.Module, ranks: int) -> None:
    """Explain errors about sizes in the divided model: each rank has only a part of them."""
    inner = model.forward

    def forward(*inputs: Any, **named: Any) -> Any:
        try:
            return inner(*inputs, **named)
        except RuntimeError as error:
            if not SHAPE.search(str(error)):
                raise
            raise ParallelizeError(
                f"sizes do not fit in {type(model).__name__}, of which tp {ranks} gives each rank a part:"
                f" {str(error).splitlines()[0]}; divide by tp every number of heads or features"
                " that forward() writes out"
            ) from error

    model.forward = forward


def _style(style: str, sequence: bool) -> Any:
    """Return torch's object for a style; None for a norm that sees the whole sequence."""
    inputs: Tuple[Any, ...] = (Shard(1),) if sequence else (Replicate(),)
    if style == "rowwise":
        return RowwiseParallel(output_layouts=Shard(1) if sequence else Replicate())
    if style == "sequence_parallel":
        return SequenceParallel(use_local_output=True) if sequence else None
    outputs = Replicate() if style == "colwise_rep" else Shard(-1)
    return ColwiseParallel(input_layouts=inputs[0], output_layouts=outputs)


def _split_before_blocks(model: nn.Module, named: Dict[str, str], mesh: DeviceMesh) -> None:
    """Give the first block this rank's piece of the sequence; backward gathers the pieces' gradients."""
    inside = next(match for match in (re.match(r"(.*?\.\d+)\.", name) for name in named) if match)
    block = model.get_submodule(inside[1])

    def split(_: nn.Module, inputs: Tuple[Any, ...]) -> Tuple[Any, ...]:
        h: torch.Tensor = inputs[0]
        if h.shape[1] % mesh.size():
            raise ParallelizeError(
                f"sequence_parallel divides {h.shape[1]} positions, which is not a multiple of tp {mesh.size()}"
            )
        whole = DTensor.from_local(h, mesh, [Replicate()], run_check=False)
        return (whole.redistribute(placements=[Shard(1)]).to_local(), *inputs[1:])

    block.register_forward_pre_hook(split)
