"""How much memory a training takes on each GPU under each strategy: an estimate, by component. Pure.

Model states as in "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (Rajbhandari and others,
2020, section 3); activations as in "Reducing Activation Recomputation in Large Transformer Models" (Korthikanti and
others, 2022, section 4), with the attention scores left out, which fused attention does not keep.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .errors import PlanError
from .hardware import GB

CONTEXT_BYTES = 1.5 * GB
"""CUDA context, kernels and NCCL's buffers on each GPU: a rough constant."""
USABLE = 0.92
"""Share of a GPU's memory that an allocator fills before it fails for fragments."""
LAYER_BYTES = 34
"""Kept for the backward pass in 16 bit: bytes for each position, sequence and unit of the hidden size of one layer."""
LOGIT_BYTES = 6
"""For each position, sequence and word: logits in 16 bit, and in 32 bit for the loss."""
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """Bytes of model states for each parameter."""

    name: str
    weights: int
    gradients: int
    optimizer: int
    """Adam's two moments in 32 bit, and a 32 bit copy of the weights where there is one."""
    text: str


FORMATS: Mapping[str, Format] = {
    one.name: one
    for one in (
        Format(name="bf16", weights=2, gradients=2, optimizer=8, text="bf16 weights, Adam in fp32"),
        Format(name="mixed", weights=2, gradients=2, optimizer=12,
               text="bf16 weights, Adam and a copy of the weights in fp32"),
        Format(name="fp32", weights=4, gradients=4, optimizer=8, text="all in fp32, also under autocast"),
    )
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A decoder-only transformer and its batch."""

    parameters: int
    layers: int
    hidden: int
    vocab: int = 32_000
    seq: int = 2048
    """Positions of a sequence."""
    micro_batch: int = 1
    """Sequences that one GPU takes at once."""
    recompute: bool = False
    """Activation checkpointing of every layer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """What is spread over the ranks, and how distui does it."""

    key: str
    title: str
    words: str
    """Of `distui launch`: the preset and its options."""
    weights: bool = False
    """Whether the weights are in shards."""
    gradients: bool = False
    optimizer: bool = False
    why: str


STRATEGIES: Sequence[Strategy] = (
    Strategy(key="single", title="one GPU", words="single", why="nothing is exchanged, nothing can go wrong"),
    Strategy(key="ddp", title="DDP", words="ddp", why="a replica a rank and one all-reduce a step, the fastest"),
    Strategy(key="zero1", title="ZeRO-1", words="zero1", optimizer=True,
             why="DDP with the optimizer's states in shards, the same traffic and much less memory"),
    Strategy(key="zero2", title="ZeRO-2", words="fsdp2 --set strategy.reshard_after_forward=false",
             gradients=True, optimizer=True,
             why="gradients in shards, too; the weights are gathered once a step and kept until backward"),
    Strategy(key="zero3", title="ZeRO-3", words="fsdp2", weights=True, gradients=True, optimizer=True,
             why="everything in shards, the least memory and half as much traffic again"),
)  # fmt: skip
"""From the simplest on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Bytes on each GPU."""

    strategy: Strategy
    weights: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    """Buckets, gathered layers, and CONTEXT_BYTES."""
    limit: float
    """Of the GPU."""

    @property
    def states(self) -> float:
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        return self.states + self.activations + self.buffers

    @property
    def fits(self) -> bool:
        return self.total <= USABLE * self.limit


def parse_parameters(text: str) -> int:
    """ "7B", "350M", "1.3b", "124_000_000" → a number. Raises PlanError."""
    cleaned = text.strip().replace("_", "").replace(",", "").upper()
    unit = cleaned[-1:] if cleaned[-1:] in "KMBT" else ""
    try:
        number = float(cleaned.removesuffix(unit)) * _UNITS[unit]
    except ValueError:
        number = 0.0
    if not 1 <= number <= 1e15:  # also false for nan
        raise PlanError(f"--params {text}: write a number of parameters, as in 7B or 350M.")
    return round(number)


def shape(
    parameters: int, layers: int | None = None, hidden: int | None = None, vocab: int = 32_000
) -> Shape:
    """A transformer of so many parameters; what is not given as usual models of its size have it.

    A layer has 12 h² parameters, and the usual hidden size is 128 times the number of layers (7B: 4096 × 32).
    """
    if hidden is None:
        free = (
            (parameters / (12 * layers)) ** 0.5 if layers else 128 * (parameters / (12 * 128**2)) ** (1 / 3)
        )
        step = 512 if free >= 2048 else 64
        hidden = max(64, step * round(free / step))
    if layers is None:
        layers = max(1, round((parameters - 2 * vocab * hidden) / (12 * hidden**2)))
    return Shape(parameters=parameters, layers=layers, hidden=hidden, vocab=vocab)


def activations(model: Shape, form: Format) -> float:
    """Bytes that one GPU keeps between forward and backward."""
    positions = model.seq * model.micro_batch
    scale = 2 if form.weights == 4 else 1
    layer = LAYER_BYTES * scale * positions * model.hidden
    kept = (
        2 * scale * positions * model.hidden * model.layers + layer
        if model.recompute
        else layer * model.layers
    )
    return kept + LOGIT_BYTES * positions * model.vocab


def buffers(strategy: Strategy, model: Shape, form: Format) -> float:
    """Bytes beside states and activations."""
    if strategy.key in ("ddp", "zero1"):  # the buckets are a second copy of the gradients
        return CONTEXT_BYTES + form.gradients * model.parameters
    if strategy.gradients:  # this layer's and the next one's weights, and a layer's gradients, whole
        return CONTEXT_BYTES + (2 * form.weights + form.gradients) * model.parameters / model.layers
    return CONTEXT_BYTES


def estimate(strategy: Strategy, model: Shape, form: Format, ranks: int, limit: float) -> Estimate:
    """One strategy on so many ranks. `limit`: bytes of a GPU."""

    def share(sharded: bool, size: int) -> float:
        return size * model.parameters / (ranks if sharded else 1)

    return Estimate(
        strategy=strategy,
        weights=share(strategy.weights, form.weights),
        gradients=share(strategy.gradients, form.gradients),
        optimizer=share(strategy.optimizer, form.optimizer),
        activations=activations(model, form),
        buffers=buffers(strategy, model, form),
        limit=limit,
    )


def compare(model: Shape, form: Format, ranks: int, limit: float) -> list[Estimate]:
    """All strategies that make sense with so many ranks, from the simplest on."""
    fitting = [one for one in STRATEGIES if (one.key == "single") == (ranks == 1)]
    return [estimate(one, model, form, ranks, limit) for one in fitting]


def needed(model: Shape, form: Format, limit: float) -> int | None:
    """The fewest ranks on which ZeRO-3 fits; None where no number helps: what is not in shards is too much."""
    whole = estimate(STRATEGIES[-1], model, form, 1, limit)
    room = USABLE * limit - whole.activations - whole.buffers
    return math.ceil(whole.states / room) if room > 0 else None
