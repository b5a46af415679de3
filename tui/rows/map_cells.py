"""The values of the map of GPUs, and how far each is from the median of the run. Pure.

A cell is a GPU, or a rank on a node without GPUs. The deviation of a value is measured in robust standard deviations
(1.48 times the median of absolute deviations), so that a few broken GPUs do not hide themselves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter
from statistics import median

from msgspec import Struct

from ...runners.run.samples import Gpu
from ...runners.run.state import Node, Rank, RunState
from . import glyphs
from .frame import Frame, gpu_of, gpu_owners, gpu_places
from .map_metrics import METRICS, MapMetric, Unit, unit_of

FAR, VERY_FAR = 3.0, 6.0
"""Robust standard deviations from which a value is far from the median, and very far."""

_SIGMA = 1.4826
"""Standard deviation of a normal distribution per median of its absolute deviations."""

FEWEST = 3
"""Number of known values below which none is far from the median."""

_LOST = attrgetter("lost")


class MapNode(Struct, frozen=True):
    """One node, with a value per cell."""

    node: Node
    values: Sequence[float | None]
    """None for a value that is unknown or too old."""
    broken: Mapping[int, str] = {}
    """What is wrong with cells: "lost", or the state of a failed rank."""
    others: frozenset[int] = frozenset()
    """Cells of GPUs that the run does not use."""
    hidden: frozenset[int] = frozenset()
    """Cells that do not match the filter."""

    def value(self, cell: int) -> float | None:
        return None if cell in self.broken else self.values[cell]

    def counts(self, cell: int) -> bool:
        """Whether a cell is compared with the others of the run."""
        return cell not in self.others and cell not in self.broken

    def compared(self) -> list[float]:
        """Return the known values of the run."""
        if not self.others and not self.broken:
            return [value for value in self.values if value is not None]
        return [value for cell, value in enumerate(self.values) if value is not None and self.counts(cell)]


class MapCell(Struct, frozen=True):
    """What is known of one cell."""

    node: Node
    gpu: Gpu | None
    """None on a node without GPUs."""
    ranks: Sequence[Rank]
    value: float | None
    broken: str


class Scale(Struct, frozen=True):
    """The range of a metric in this run, and its median."""

    low: float
    high: float
    """Values of an empty and a full cell."""
    values: Sequence[float]
    """All known values of the run, sorted."""
    median: float | None
    """None if too few values are known."""
    spread: float
    """Robust standard deviation, or a FAR-th of the smallest deviation that counts."""
    low_is_bad: bool
    unit: Unit

    @property
    def sign(self) -> float:
        """1 if high values are bad, -1 if low ones are."""
        if self.low_is_bad:
            return -1.0
        return 1.0

    def height(self, value: float) -> float:
        """Return the height of a cell, 0 to 100."""
        return 100.0 * (value - self.low) / (self.high - self.low)

    def badness(self, value: float) -> float:
        """Return the deviation from the median in robust standard deviations; positive is bad."""
        if self.median is None:
            return 0.0
        return self.sign * (value - self.median) / self.spread

    def worst(self, count: int) -> float | None:
        """Return the best of the worst values, at most so many; None if no value is worse than the median."""
        if self.median is None:
            return None
        ordered = self.values
        if not self.low_is_bad:
            ordered = ordered[::-1]
        worse = [value for value in ordered[:count] if self.badness(value) > 0]
        return next(reversed(worse), None)

    @property
    def far(self) -> float | None:
        """The first value that is far from the median on the bad side."""
        if self.median is None:
            return None
        return self.median + self.sign * FAR * self.spread

    def count_far(self) -> int:
        """Return the number of values that are far from the median on the bad side."""
        if self.far is None:
            return 0
        if self.low_is_bad:
            return bisect_right(self.values, self.far)
        return len(self.values) - bisect_left(self.values, self.far)


def shown_nodes(state: RunState) -> list[Node]:
    """Return the nodes of the map: those with GPUs or ranks, and those with a link to a hub."""
    return [
        node
        for number, node in sorted(state.nodes.items())
        if node.gpus or node.link is not None or state.ranks_of(number)
    ]


def metric_of(frame: Frame) -> MapMetric:
    return METRICS[frame.view.metric]


# --- reading ---


def map_nodes(frame: Frame) -> list[MapNode]:
    """Return the values of all nodes; `frame.once` caches them."""
    metric, used = metric_of(frame), frame.state.once(gpu_places)
    nodes = []
    for node in shown_nodes(frame.state):
        if not node.gpus:
            nodes.append(_of_ranks(frame, metric, node))
        elif metric.gpu_field:
            nodes.append(_of_gpus(node, used, _gpu_values(frame, metric, node)))
        else:
            nodes.append(_of_gpus(node, used, _values_of_owners(frame, metric, node)))
    return nodes


def _gpu_values(frame: Frame, metric: MapMetric, node: Node) -> Sequence[float | None]:
    if not frame.fresh(node.node, node.gpu_sampled):
        return [None] * len(node.gpus)
    return list(map(attrgetter(metric.gpu_field), node.gpus))


def _values_of_owners(frame: Frame, metric: MapMetric, node: Node) -> Sequence[float | None]:
    """Return the value of the first rank of each GPU."""
    owners, ranks = frame.once(gpu_owners), frame.state.ranks
    values: list[float | None] = []
    for gpu in node.gpus:
        numbers = owners.get((node.node, gpu.index))
        values.append(_rank_value(frame, metric, ranks[numbers[0]]) if numbers else None)
    return values


def _of_gpus(node: Node, used: Mapping[int, set[int]], values: Sequence[float | None]) -> MapNode:
    """Return a node with GPUs; without any known GPU of the run all GPUs count."""
    others = frozenset[int]()
    if used and len(used.get(node.node, ())) < len(node.gpus):
        own = used.get(node.node, set())
        others = frozenset(cell for cell, gpu in enumerate(node.gpus) if gpu.index not in own)
    broken: dict[int, str] = {}
    if any(map(_LOST, node.gpus)):
        broken = {cell: "lost" for cell, gpu in enumerate(node.gpus) if gpu.lost}
    return MapNode(node, values, broken, others)


def _of_ranks(frame: Frame, metric: MapMetric, node: Node) -> MapNode:
    ranks = frame.state.ranks_of(node.node)
    broken = {
        cell: str(rank.phase) for cell, rank in enumerate(ranks) if glyphs.RANK[rank.phase][1] == "bad"
    }
    return MapNode(node, [_rank_value(frame, metric, rank) for rank in ranks], broken)


def _rank_value(frame: Frame, metric: MapMetric, rank: Rank) -> float | None:
    if rank.sample is None or not metric.rank_field or not frame.fresh(rank.place.node, rank.sampled):
        return None
    value: float | None = getattr(rank.sample, metric.rank_field)
    return value


def cell_of(frame: Frame, node: MapNode, cell: int) -> MapCell:
    """Return the known values of one cell."""
    ranks = frame.state.ranks_of(node.node.node)
    gpu: Gpu | None = None
    if node.node.gpus:
        gpu = node.node.gpus[cell]
        ranks = [rank for rank in ranks if gpu_of(rank, node.node) is gpu]
    else:
        ranks = [ranks[cell]]
    return MapCell(node.node, gpu, ranks, node.value(cell), node.broken.get(cell, ""))


def far_ranks(frame: Frame) -> set[int]:
    """Return the ranks whose value is far from the median on the bad side, by the metric of the map."""
    scale = frame.once(map_scale)
    far = set[int]()
    if not scale.count_far():
        return far
    for node in frame.once(map_nodes):
        for cell, value in enumerate(node.values):
            if value is not None and node.counts(cell) and scale.badness(value) >= FAR:
                far.update(rank.place.rank for rank in cell_of(frame, node, cell).ranks)
    return far


# --- the scale ---


def map_scale(frame: Frame) -> Scale:
    """Return the scale of the whole run, whatever the filter; `frame.once` caches it."""
    metric = metric_of(frame)
    values = sorted(chain.from_iterable(node.compared() for node in frame.once(map_nodes)))
    low, high = metric.scale or (0.0, _full(frame, metric, values))
    middle = median(values) if len(values) >= FEWEST else None
    spread = metric.least * (high - low) / FAR
    if middle is not None:
        spread = max(spread, _SIGMA * median([abs(value - middle) for value in values]))
    return Scale(low, high, values, middle, spread, metric.low_is_bad, unit_of(metric, high))


def _full(frame: Frame, metric: MapMetric, values: Sequence[float]) -> float:
    """Return the value of a full cell: the largest limit of a GPU, else the largest value."""
    limits: list[float] = []
    if metric.limit_field:
        gpus = chain.from_iterable(node.gpus for node in frame.state.nodes.values())
        limits = [limit for limit in map(attrgetter(metric.limit_field), gpus) if limit is not None]
    return max(limits or values, default=0.0) or 1.0
