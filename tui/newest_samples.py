"""The newest values of metrics in a frame, and the time that they belong to. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress

from msgspec import Struct

from ..runners.run.freshness import holds
from ..runners.telemetry.metric_names import find_metric
from .rows.frame import Frame, Sampled, SampleFields, fresh_gpus, gpu_fields, training_line
from .rows.value_axis import Value


class Want(Struct, frozen=True):
    """The content of a chart: a metric of all ranks or GPUs together, per node, or of each of them."""

    metric: str
    fold: str = "all"
    """"all", "node" or "each"."""
    indexes: tuple[int, ...] = ()
    """Ranks or GPUs; () means all."""


Key = tuple[int | None, int | None]
"""Node and index of one series of a Want; None for a folded dimension."""


def finite_or_none(value: object) -> Value:
    """Return a finite number, or None for anything else that an agent may send."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def time_of(frame: Frame) -> float:
    """Return the time of the newest report, by the nodes' own clock."""
    state = frame.state
    if state.ended is not None and state.phase.ended:
        return state.ended
    if state.merged or not state.nodes:
        return frame.now
    return frame.node_now(min(state.nodes))


def latest(frame: Frame) -> float:
    """Return the end of the time axis: now, or the end of the run."""
    return frame.moment.latest if frame.moment is not None else time_of(frame)


def newest_values(frame: Frame, want: Want) -> dict[Key, list[float]]:
    """Return the current values of a metric by series; all charts share one pass over the samples."""
    metric = find_metric(want.metric)
    if metric.kind not in _SOURCES:
        return {}
    if want.fold != "all" or want.indexes or metric.kind not in _FIELDS:
        return _by_series(frame.once(_SOURCES[metric.kind]), want)
    values: list[float] = []
    with suppress(AttributeError):
        fields = frame.once(_FIELDS[metric.kind])
        values = [value for value in fields.of(metric.field) if value is not None]
    return {(None, None): values} if values else {}


_IN_HEADER = ("loss", "lr", "grad_norm", "tokens_s", "samples_s", "mfu")
"""Fields of training samples that the header shows under the same names."""


def header_value(frame: Frame, name: str) -> Value:
    """Return the current value of a metric of the whole run as the header shows it; None if the header lacks it."""
    line = frame.once(training_line)
    if name == "rank.step_s":
        return line.step_s
    kind, _, field = name.partition(".")
    return getattr(line, field) if kind == "train" and field in _IN_HEADER else None


def _by_series(samples: Iterable[Sampled], want: Want) -> dict[Key, list[float]]:
    metric = find_metric(want.metric)
    kind, name = metric.kind, metric.field
    groups: dict[Key, list[float]] = {}
    for node, index, sample in samples:
        if want.indexes and index is not None and index not in want.indexes:
            continue
        value = finite_or_none(getattr(sample, name, None))
        if value is None and kind == "train":
            value = finite_or_none(sample.values.get(name))
        if value is not None:
            key: Key = (None if want.fold == "all" else node, index if want.fold == "each" else None)
            groups.setdefault(key, []).append(value)
    return groups


def _ranks(frame: Frame) -> list[Sampled]:
    samples: list[Sampled] = []
    of, fresh = None, False  # ranks of a node are sampled together
    for number, rank in frame.state.ranks.items():
        if rank.sample is not None:
            node, at = rank.place.node, rank.sampled
            if of != (node, at):
                of, fresh = (node, at), frame.fresh(node, at)
            if fresh:
                samples.append((node, number, rank.sample))
    return samples


def _hosts(frame: Frame) -> list[Sampled]:
    return [
        (number, None, node.metrics)
        for number, node in frame.state.nodes.items()
        if node.metrics is not None and frame.fresh(number, node.sampled)
    ]


def _training(frame: Frame) -> list[Sampled]:
    """Return values reported within the last one or two buckets: a held value is no sample."""
    now, ranks = time_of(frame), frame.state.ranks
    return [
        (ranks[number].place.node if number in ranks else 0, number, sample)
        for number, sample in frame.state.training.items()
        if holds(now - sample.at)
    ]


def _rank_fields(frame: Frame) -> SampleFields:
    return SampleFields(frame.once(_ranks), ("step_s", "write_bps", "wait_percent"))


def _host_fields(frame: Frame) -> SampleFields:
    return SampleFields(frame.once(_hosts), ("cpu_percent", "net_rx_bps"))


_SOURCES = {"gpu": fresh_gpus, "rank": _ranks, "host": _hosts, "train": _training}
_FIELDS = {"gpu": gpu_fields, "rank": _rank_fields, "host": _host_fields}
