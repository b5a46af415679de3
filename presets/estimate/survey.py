"""Compare the memory of a model under all strategies that suit some nodes. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ..load import builtin_library, load
from .memory import Estimate, MemoryStrategy, estimate
from .workload import Format, Shape

MOST_RANKS = 1 << 17
"""Most ranks to try."""


def strategy_of(key: str, title: str, words: str, why: str) -> MemoryStrategy:
    """Return a strategy by the arguments of `distui launch`: a shipped preset and its options."""
    name, *options = words.split()
    overrides = [option for option in options if option != "--set"]
    preset = load(name, overrides, presets=builtin_library()).preset
    return MemoryStrategy(key=key, title=title, words=words, why=why, preset=preset)


_DATA_PARALLEL = (
    ("single", "one GPU", "single", "nothing is exchanged, nothing can go wrong"),
    ("ddp", "DDP", "ddp", "a replica per rank and one all-reduce per step, the fastest"),
    (
        *("zero1", "ZeRO-1", "zero1"),
        "DDP with the optimizer's states in shards, the same traffic and much less memory",
    ),
    (
        *("zero2", "ZeRO-2", "fsdp2-zero2"),
        "gradients in shards, too; the weights are gathered once per step and kept until backward",
    ),
    ("zero3", "ZeRO-3", "fsdp2", "everything in shards, the least memory and half as much traffic again"),
)
_OFFLOADED = (
    (
        *("offload", "ZeRO-3, host", "fsdp2-offload"),
        "all states rest in host memory and travel each step: several times slower",
    ),
    (
        *("ds-cpu", "DeepSpeed, host", "ds-zero3-cpu"),
        "as fsdp2-offload, for scripts on DeepSpeed, Accelerate or the HF Trainer",
    ),
    (
        *("ds-nvme", "DeepSpeed, NVMe", "ds-zero3-nvme"),
        "all states rest on a local disk of each node: very slow, for what has no room elsewhere",
    ),
)


@functools.cache
def data_parallel() -> Sequence[MemoryStrategy]:
    """Return the strategies with only data parallelism, the simplest first."""
    return [strategy_of(*row) for row in _DATA_PARALLEL]


@functools.cache
def offloaded() -> Sequence[MemoryStrategy]:
    """Return the strategies that offload to host memory or disk, the fastest first."""
    return [strategy_of(*row) for row in _OFFLOADED]


def simple(ranks: int) -> list[MemoryStrategy]:
    """Return the data-parallel strategies that suit this number of ranks."""
    return [strategy for strategy in data_parallel() if (strategy.key == "single") == (ranks == 1)]


@functools.cache
def hybrid(nodes: int) -> MemoryStrategy:
    """Return the strategy with shards inside a node and one replica per node."""
    words = "hsdp" + _set("dp_replicate", nodes, 2)
    return strategy_of(
        "hsdp", "HSDP", words, "shards inside a node, and between nodes no more traffic than DDP has"
    )


@functools.cache
def tensor(ranks: int) -> MemoryStrategy:
    """Return the strategy that divides each matrix over `ranks` of a node, and the rest as in ZeRO-3."""
    why = "matrices and activations are divided inside a node, too; wants NVLink and a tp_plan"
    return strategy_of("tp", f"ZeRO-3 + TP {ranks}", "fsdp2-tp" + _set("tp", ranks, 2), why)


@functools.cache
def pipeline(stages: int) -> MemoryStrategy:
    """Return the strategy with `stages` pipeline stages and two microbatches per stage."""
    words = "pp-1f1b" + _set("pp", stages, 2) + _set("microbatches", 2 * stages, 4)
    why = f"stages exchange only activations, for slow links; wants batches of {2 * stages} and a pp_plan"
    return strategy_of("pp", f"PP {stages}", words, why)


def _set(name: str, value: int, shipped: int) -> str:
    return "" if value == shipped else f" --set mesh.{name}={value}"


def compare(model: Shape, form: Format, ranks: int, limit: float) -> list[Estimate]:
    """Estimate the strategies with only data parallelism that suit this number of ranks, the simplest first."""
    return [estimate(strategy, model, form, ranks, limit) for strategy in simple(ranks)]


def survey(
    model: Shape, form: Format, per_node: int, nodes: int, limit: float, host_limit: float | None = None
) -> list[Estimate]:
    """Estimate all strategies that suit these nodes, the simplest first.

    `limit`: bytes of a GPU. `host_limit`: bytes of a node's host memory, or None if unknown.
    """
    ranks = per_node * nodes

    def weigh(strategy: MemoryStrategy) -> Estimate:
        plain = estimate(strategy, model, form, ranks, limit)
        return replace(plain, host_limit=None if host_limit is None else host_limit / per_node)

    *first, last = map(weigh, simple(ranks))
    estimates = [*first, *([weigh(hybrid(nodes))] if min(nodes, per_node) > 1 else []), last]
    estimates += _least(tensor, _products(per_node, model), weigh)
    estimates += _least(pipeline, _stages(ranks, model), weigh)
    return [*estimates, *map(weigh, offloaded())]


def _least(
    make: Callable[[int], MemoryStrategy], sizes: Sequence[int], weigh: Callable[[MemoryStrategy], Estimate]
) -> list[Estimate]:
    """Return the smallest size that fits, else the one with the least memory, or [] without sizes."""
    estimates = [weigh(make(size)) for size in sizes]
    fitting = [each for each in estimates if each.fits]
    return (fitting or sorted(estimates, key=lambda each: each.total))[:1]


def _products(per_node: int, model: Shape) -> list[int]:
    """Return the numbers of ranks of a node that can divide a matrix."""
    return [size for size in _powers(per_node) if per_node % size == 0 and model.hidden % size == 0]


def _stages(ranks: int, model: Shape) -> list[int]:
    """Return the possible numbers of pipeline stages."""
    return [size for size in _powers(min(ranks, model.layers)) if ranks % size == 0]


def _powers(most: int) -> Iterable[int]:
    return (1 << power for power in range(1, most.bit_length()) if 1 << power <= most)


def needed(model: Shape, form: Format, limit: float) -> int | None:
    """Return the fewest ranks that ZeRO-3 fits on, or None if its unsharded part is already too large."""

    def fits(ranks: int) -> bool:
        return estimate(data_parallel()[-1], model, form, ranks, limit).fits

    if not fits(MOST_RANKS):
        return None
    low, high = 0, MOST_RANKS  # too few, enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
