"""The metrics of a run: name, title, unit and range of each. Pure data, for writers and viewers.

A name is `<source>.<what>`. The source is the owner of a series: "gpu" one GPU (by NVML index), "rank" and "train" one
rank, "host" the node. In addition there is `train.<name>` for each value with a script's own name ("train.eval/loss").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .quantities import BY_SOURCE, with_curve


class Metric(NamedTuple):
    title: str
    unit: str
    """One of "%", "B", "B/s", "W", "°C", "MHz", "s", "/s", "core %" (percent of one core), "" for plain numbers."""
    low: float | None = None
    """Begin of its axis; None: the smallest value."""
    high: float | None = None
    """End of its axis; None: the largest value."""
    last: bool = False
    """True for a count: the value of a bucket is its newest value instead of the mean."""
    sparse: bool = False
    """Reported only now and then: a bucket without a value is no gap, and a plot connects the points."""


METRICS: dict[str, Metric] = {
    curve.name: Metric(
        curve.title, quantity.unit, curve.low, curve.high, curve.last, curve.name.startswith("train.")
    )
    for quantity, curve in with_curve()
}

SOURCES = tuple(BY_SOURCE)
"""Parts of names before the dot."""
HOST = -1
"""Index of series that belong to no GPU and no rank."""


def source_of(name: str) -> str:
    """The part of a name before the dot."""
    return name.partition(".")[0]


def metric(name: str) -> Metric:
    """Data of a metric; for a script's own name, or a newer distui's metric, only the name."""
    listed = METRICS.get(name)
    if listed is not None:
        return listed
    source, _, own = name.partition(".")
    return Metric(own or name, "", sparse=source == "train")


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
