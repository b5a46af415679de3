"""The metrics that a run keeps: name, title, unit and domain of each. Pure data, for writers and viewers alike.

A name is `<source>.<what>`. The source says what a series belongs to: "gpu" one GPU (by NVML index), "rank" and "train"
one rank, "host" the node. Beside the names here there is `train.<name>` for each value that a script reports by a name
of its own ("train.eval/loss").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .quantities import BY_SOURCE, with_curve


class Metric(NamedTuple):
    title: str
    unit: str
    """"%", "B", "B/s", "W", "°C", "MHz", "s", "/s", "core %" (percent of one core), "" for plain numbers."""
    low: float | None = None
    """Where its axis begins; None: with the smallest value."""
    high: float | None = None
    """Where its axis ends; None: with the largest value."""
    last: bool = False
    """A count: the value of a bucket is the newest in it, not the mean."""
    sparse: bool = False
    """Reported every so often: a bucket without a value is no gap, and points are to be connected."""


METRICS: dict[str, Metric] = {
    curve.name: Metric(
        curve.title, quantity.unit, curve.low, curve.high, curve.last, curve.name.startswith("train.")
    )
    for quantity, curve in with_curve()
}

SOURCES = tuple(BY_SOURCE)
"""What stands before the dot."""
HOST = -1
"""Index of what belongs to no GPU and no rank."""


def source_of(name: str) -> str:
    """The part before the dot."""
    return name.partition(".")[0]


def metric(name: str) -> Metric:
    """What is known of a metric; of a script's own name, or of a newer distui's metric, only the name."""
    listed = METRICS.get(name)
    if listed is not None:
        return listed
    source, _, own = name.partition(".")
    return Metric(own or name, "", sparse=source == "train")


def selected(name: str, wanted: Iterable[str]) -> bool:
    """Whether `wanted` names this metric: in full, by the part before the dot, or () for all."""
    wanted = tuple(wanted)
    return not wanted or name in wanted or source_of(name) in wanted


def unknown(wanted: Iterable[str]) -> list[str]:
    """Those that name nothing; a script's own names cannot be known before they were reported."""
    return [name for name in wanted if name not in METRICS and name not in SOURCES and not _own(name)]


def _own(name: str) -> bool:
    source, dot, own = name.partition(".")
    return source == "train" and bool(dot) and bool(own)
