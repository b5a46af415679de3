"""The metrics of a run: name, title, unit and range of each. Pure data, for writers and viewers.

A name is `<source>.<what>`. The source is the owner of a series: "gpu" one GPU (by NVML index), "rank" and "train" one
rank, "host" the node. In addition there is `train.<name>` for each value with a script's own name ("train.eval/loss").
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from .quantities import BY_KIND, NO_TRAINING
from .quantity import Curve, Holds, Quantity

METRICS: dict[str, Quantity] = {
    each.name: each for each in chain.from_iterable(BY_KIND.values()) if each.name
}
SOURCES = tuple(BY_KIND)
"""First parts of metric names, before the dot."""
NO_INDEX = -1
"""Index of series that belong to no GPU and no rank."""


def source_of(name: str) -> str:
    """Return the part of a name before the dot."""
    return name.partition(".")[0]


def find_metric(name: str) -> Quantity:
    """Return the quantity of a metric. Of a script's own metric, or of a newer distui's, only the name is known."""
    listed = METRICS.get(name)
    if listed is not None:
        return listed
    kind, _, own = name.partition(".")
    unlisted = Quantity(own or name, curve=Curve(name, own or name, low=None))
    if kind != "train":
        return unlisted
    return unlisted._replace(why=NO_TRAINING, holds=Holds.NEXT_REPORT)


def selected(name: str, wanted: Iterable[str]) -> bool:
    """Whether `wanted` includes this metric: by its full name, by its source, or () for all."""
    wanted = tuple(wanted)
    return not wanted or name in wanted or source_of(name) in wanted


def unknown(wanted: Iterable[str]) -> list[str]:
    """Names without a metric; a script's own names are never unknown, because it may report them later."""
    return [name for name in wanted if name not in METRICS and name not in SOURCES and not _own(name)]


def _own(name: str) -> bool:
    source, dot, own = name.partition(".")
    return source == "train" and bool(dot) and bool(own)
