"""The layout of a Megatron-LM training, from its own arguments. Pure.

Every rank holds bf16 weights and fp32 gradients of its part. `--use-distributed-optimizer` divides Adam's states over
the data-parallel ranks ("Distributed Optimizer" in Megatron-LM's documentation: 6 + 12/d bytes per parameter).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..launchers import megatron
from .layout import Layout
from .workload import Shape

DISTRIBUTED = "--use-distributed-optimizer"
SEQUENCE = "--sequence-parallel"
MICRO = "--micro-batch-size"
RECOMPUTE = (
    "--recompute-granularity",
    "full",
    "--recompute-method",
    "uniform",
    "--recompute-num-layers",
    "1",
)


def layout_of(args: Sequence[str], ranks: int) -> Layout | None:
    """Return the layout, or None if the arguments name no sizes of Megatron-LM that fit the ranks."""
    asked = megatron.read(args)
    sizes = {} if asked is None else megatron.dimensions(asked, ranks)
    if asked is None or not sizes:
        return None
    pp, cp = asked.size("pp"), asked.size("cp")
    return Layout(
        engine="megatron",
        data=ranks // (pp * asked.size("tp")),
        optimizer=DISTRIBUTED in args,
        lasting=True,
        compute=2,
        tp=asked.size("tp"),
        sequence_parallel=SEQUENCE in args,
        divides_vocabulary=True,
        ep=asked.size("ep"),
        cp=cp,
        pp=pp,
        flying=pp,
        foreach=False,  # Megatron-LM brings its own Adam
    )


def changed(model: Shape, args: Sequence[str]) -> Shape:
    """Return the model with the batch and the recomputation that the arguments say."""
    if RECOMPUTE[0] in args:
        model = replace(model, recompute=True)
    if MICRO not in args[:-1]:
        return model
    size = args[list(args).index(MICRO) + 1]
    return replace(model, micro_batch=int(size)) if size.isdecimal() and int(size) else model
