"""The samples of a past moment, out of windows of metrics. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec import Struct, structs

from ..runners.run.answers import MetricsWindow, Series
from ..runners.run.freshness import holds, usual_interval
from ..runners.run.samples import Gpu, Host, RankSample, TrainingSample
from ..runners.run.state import RunState
from ..runners.telemetry.metric_names import METRICS
from ..runners.telemetry.quantities import RATES

HOLD_S = 120.0
"""Maximum age in seconds of a training signal that still counts as current."""

GPU_CONSTANTS = ("index", "uuid", "name", "mem_total", "power_limit_w", "max_sm_mhz")
HOST_CONSTANTS = ("cores", "mem_total", "shm_total", "disk_total")
"""Fields that no curve has, because they never change."""

Sample = TypeVar("Sample", bound=Struct)

Taken = Mapping[tuple[str, int, int], Mapping[str, float]]
"""Values by field, for each kind of sample, node and index."""


def value_at(series: Series, window: MetricsWindow, at: float) -> float | None:
    """Return the mean of the bucket that contains a time, of a count its newest sample.

    Of a training signal the newest value before the time is returned.
    """
    if not window.seconds > 0:
        return None
    number = _bucket_at(series, window, at)
    back = int(HOLD_S / window.seconds) if series.metric.startswith("train.") else 0
    for place in range(min(number, len(series.mean) - 1 if back else number), number - back - 1, -1):
        value = series.mean[place] if 0 <= place < len(series.mean) else None
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value) if _held(series, place, number, window.seconds) else None
    return None


def _bucket_at(series: Series, window: MetricsWindow, at: float) -> int:
    """Return the number of the bucket for a time.

    One of several seconds may have samples after the time. A signal that belongs to a step therefore comes from the last
    bucket that is complete by then, together with its step.
    """
    number = math.floor((at - window.begin) / window.seconds)
    has_step = series.metric.startswith("train.") or series.metric == "rank.step"
    return number - 1 if has_step and window.seconds > 1 and number > 0 else number


def averaged_seconds(window: MetricsWindow) -> float:
    """Return the length of the buckets whose means a moment shows; 0.0 if they are samples."""
    return window.seconds if window.series and window.seconds > 1 else 0.0


def _held(series: Series, place: int, number: int, seconds: float) -> bool:
    """Whether a value holds in a later bucket; a rate holds only while reports arrive as usual."""
    if series.metric.removeprefix("train.") not in RATES:
        return True
    reports = [at for at, value in enumerate(series.mean[: place + 1]) if value is not None]
    usual = usual_interval(reports)
    return holds((number - place) * seconds, None if usual is None else usual * seconds)


def put_samples(state: RunState, window: MetricsWindow, at: float, now: RunState) -> None:
    """Put the samples of a moment into its state; `now` provides names and sizes of GPUs, which no curve has."""
    taken: dict[tuple[str, int, int], dict[str, float]] = {}
    for series in window.series:
        kind = series.metric.partition(".")[0]
        listed = METRICS.get(series.metric)
        name = series.metric if listed is None else listed.field
        value = value_at(series, window, at)
        if value is not None:
            index = -1 if series.index is None else series.index
            taken.setdefault((kind, series.node, index), {})[name] = value
    for node in state.nodes.values():
        node.heard = node.gpu_sampled = node.sampled = at
    state.log_sizes = dict(now.log_sizes)
    _put_gpus(state, taken, now)
    _put_training(state, taken, now, at)
    _put_ranks(state, taken, now, at)
    _put_hosts(state, taken, now)


def _with(sample: Sample, values: Mapping[str, float]) -> Sample:
    types = {each.name: each.type for each in structs.fields(sample)}
    changes = {
        name: round(value) if types[name] == int | None else value
        for name, value in values.items()
        if name in types
    }
    return structs.replace(sample, **changes)


def _put_gpus(state: RunState, taken: Taken, now: RunState) -> None:
    for number, node in state.nodes.items():
        live = now.nodes.get(number)
        known = {gpu.index: gpu for gpu in live.gpus} if live is not None else {}
        sampled = {
            index: values for (kind, on, index), values in taken.items() if (kind, on) == ("gpu", number)
        }
        gpus: list[Gpu] = []
        for index in sorted(known.keys() | sampled.keys()):
            gpu = known.get(index) or Gpu(index=index, uuid="", name="GPU")
            gpus.append(_with(_blank(gpu, GPU_CONSTANTS), sampled.get(index, {})))
        node.gpus = tuple(gpus)
        if live is not None:
            node.driver, node.gpu_problem = live.driver, live.gpu_problem if not sampled else None


def _put_hosts(state: RunState, taken: Taken, now: RunState) -> None:
    for (kind, number, _), values in taken.items():
        if kind == "host" and number in state.nodes:
            live = now.nodes.get(number)
            host = live.metrics if live is not None else None
            state.nodes[number].metrics = _with(_blank(host or Host(), HOST_CONSTANTS), values)


def _blank(sample: Sample, constants: Sequence[str]) -> Sample:
    """Return a sample that has only the values which never change."""
    return type(sample)(**{name: getattr(sample, name) for name in constants})


def _put_training(state: RunState, taken: Taken, now: RunState, at: float) -> None:
    state.training = {}
    for (kind, _, index), values in taken.items():
        if kind != "train":
            continue
        own = {
            name.removeprefix("train."): value
            for name, value in values.items()
            if name.startswith("train.")
        }
        sample = TrainingSample(rank=index, at=at, values=own)
        live = now.training.get(index)
        if live is not None:
            sample = structs.replace(sample, total=live.total, sources=live.sources)
        state.training[index] = _with(sample, values)


def _put_ranks(state: RunState, taken: Taken, now: RunState, at: float) -> None:
    for (kind, node, index), values in taken.items():
        rank = state.ranks.get(index)
        if kind != "rank" or rank is None or rank.place.node != node:
            continue
        live = now.ranks.get(index)
        gpu = None
        if live is not None and live.sample is not None and now.attempt == state.attempt:
            gpu = live.sample.gpu
        rank.sample = _with(RankSample(rank=index, pid=rank.pid, gpu=gpu), values)
        rank.sampled = at
