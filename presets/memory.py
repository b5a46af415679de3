"""How much memory a training takes on each GPU under each strategy: an estimate, by component. Pure.

The formulas are in memory_parts, what a preset divides in memory_layout, the strategies in memory_rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from .memory_layout import layout_of
from .memory_model import (
    CONTEXT_BYTES,
    CPU,
    FORMATS,
    GPU,
    USABLE,
    Device,
    Format,
    Shape,
    parse_parameters,
    shape,
)
from .memory_parts import activations, parts
from .memory_rows import STRATEGIES, Strategy, hybrid, of_preset, offloaded, pipeline, simple, tensor
from .model import Preset

__all__ = [
    "CONTEXT_BYTES", "CPU", "FORMATS", "GPU", "STRATEGIES", "USABLE", "Device", "Estimate", "Format", "Shape",
    "Strategy", "activations", "compare", "estimate", "estimate_for", "format_for", "needed", "parse_parameters",
    "shape", "survey",
]  # fmt: skip

MOST_RANKS = 1 << 17
"""No more are tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Bytes on each GPU."""

    strategy: Strategy
    weights: float
    gradients: float
    optimizer: float
    activations: float
    """Beyond the gradients: where each step frees these, they come in backward as the activations go."""
    buffers: float
    """Buckets, gathered layers, what the optimizer's step needs beyond the activations, and the device's own."""
    limit: float
    """Of the GPU."""
    kept: float = 0.0
    """Activations by themselves."""
    host: float = 0.0
    """Bytes of host memory for each rank."""
    host_limit: float | None = None
    """Bytes of host memory that each rank may take; None: not known."""
    disk: float = 0.0
    """Bytes on a local disk for each rank."""
    notes: tuple[str, ...] = ()
    """What the numbers do not say, a sentence each."""

    @property
    def states(self) -> float:
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        return self.states + self.activations + self.buffers

    @property
    def fits(self) -> bool:
        """On the GPU, and in host memory where its size is known."""
        return self.total <= USABLE * self.limit and (
            self.host_limit is None or self.host <= self.host_limit
        )


def estimate(
    strategy: Strategy, model: Shape, form: Format, ranks: int, limit: float, device: Device = GPU
) -> Estimate:
    """One strategy on so many ranks. `limit`: bytes of a GPU. Raises PlanError where its mesh does not divide them."""
    layout = layout_of(strategy.preset, ranks)
    found = parts(layout, model, form, device)
    return Estimate(
        strategy=strategy,
        weights=found.weights,
        gradients=found.gradients,
        optimizer=found.optimizer,
        activations=found.activations,
        buffers=found.buffers,
        limit=limit,
        kept=found.kept,
        host=found.host,
        disk=found.disk,
        notes=layout.notes,
    )


def estimate_for(
    preset: Preset, model: Shape, form: Format, ranks: int, limit: float, device: Device = GPU
) -> Estimate:
    """Any preset on so many ranks in all, as it is: with its mesh, its offloading and its number formats.

    `limit`: bytes of a GPU; `format_for` says which format the preset implies. Raises PlanError where the mesh does
    not divide the ranks.
    """
    return estimate(of_preset(preset), model, form, ranks, limit, device)


def format_for(preset: Preset) -> Format:
    """The format of a preset's model states: as the script makes them, fp32 if it says nothing; DeepSpeed in half
    precision casts them and keeps a copy in fp32."""
    half = preset.strategy.kind == "deepspeed" and preset.precision.param != "fp32"
    return FORMATS["mixed" if half else "fp32"]


def compare(model: Shape, form: Format, ranks: int, limit: float) -> list[Estimate]:
    """The strategies of data parallelism that make sense with so many ranks, from the simplest on."""
    return [estimate(one, model, form, ranks, limit) for one in simple(ranks)]


def survey(
    model: Shape, form: Format, per_node: int, nodes: int, limit: float, host_limit: float | None = None
) -> list[Estimate]:
    """All strategies that make sense on so many nodes of so many GPUs, from the simplest on.

    `limit`: bytes of a GPU; `host_limit`: bytes of host memory of a node, None where that is not known.
    """
    ranks = per_node * nodes

    def one(strategy: Strategy) -> Estimate:
        found = estimate(strategy, model, form, ranks, limit)
        return replace(found, host_limit=None if host_limit is None else host_limit / per_node)

    *first, last = map(one, simple(ranks))
    found = [*first, *([one(hybrid(nodes))] if min(nodes, per_node) > 1 else []), last]
    found += _least(tensor, _products(per_node, model), one)
    found += _least(pipeline, _stages(ranks, model), one)
    return [*found, *map(one, offloaded())]


def _least(
    make: Callable[[int], Strategy], sizes: Sequence[int], one: Callable[[Strategy], Estimate]
) -> list[Estimate]:
    """The smallest size that fits, else the one that needs least; none where there is no size."""
    found = [one(make(size)) for size in sizes]
    fitting = [each for each in found if each.fits]
    return (fitting or sorted(found, key=lambda each: each.total))[:1]


def _products(per_node: int, model: Shape) -> list[int]:
    """Over how many ranks of a node a matrix may be divided."""
    return [size for size in _powers(per_node) if per_node % size == 0 and model.hidden % size == 0]


def _stages(ranks: int, model: Shape) -> list[int]:
    """Into how many stages the layers may be cut."""
    return [size for size in _powers(min(ranks, model.layers)) if ranks % size == 0]


def _powers(most: int) -> Iterable[int]:
    return (1 << power for power in range(1, most.bit_length()) if 1 << power <= most)


def needed(model: Shape, form: Format, limit: float) -> int | None:
    """The fewest ranks on which ZeRO-3 fits; None where no number helps: what is not in shards is too much."""

    def fits(ranks: int) -> bool:
        return estimate(STRATEGIES[-1], model, form, ranks, limit).fits

    if not fits(MOST_RANKS):
        return None
    low, high = 0, MOST_RANKS  # too few, enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
