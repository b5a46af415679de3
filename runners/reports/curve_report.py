"""The curves of a run as numbers: the content of `distui metrics --json`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ...presets.spelling import nearest_names
from ..run import clock, run_directories
from ..run.answers import Series
from ..run.commands import ReadMetrics
from ..run.errors import RefusedError, RunError
from ..run.model import HUB
from ..run.wire.client import Link, new_id
from ..telemetry.curves import DISTANT, finite
from ..telemetry.metric_names import METRICS, find_metric, source_of, unknown

BUCKETS = 240
"""Maximum number of values per curve."""


class CurveRequest(Struct, frozen=True, kw_only=True):
    """The requested curves of a run, and their time."""

    metrics: Sequence[str] = ()
    """Names of metrics, or of sources (gpu, rank, host, train). () for all."""
    last: float | None = None
    """Seconds before now, or before the end of a run that has ended. Excludes `since` and `until`."""
    since: float | None = None
    """Unix seconds."""
    until: float | None = None
    """Unix seconds."""
    ranks: Sequence[int] = ()
    gpus: Sequence[int] = ()
    fold: bool = False
    """One curve per metric: the values of all ranks and GPUs merged."""


class Curve(Struct, frozen=True):
    """One series with its numbers."""

    metric: str
    title: str
    unit: str
    node: int | None
    index: int | None
    of: int
    last: float | None
    min: float | None
    mean: float | None
    max: float | None
    means: Sequence[float | None]
    lows: Sequence[float | None]
    highs: Sequence[float | None]
    samples: Sequence[int]


class Curves(Struct, frozen=True):
    """`metrics RUN`."""

    run: str
    begin: float
    seconds: float
    count: int
    series: list[Curve]


class MetricName(Struct, frozen=True):
    """A row of `metrics --list`."""

    metric: str
    unit: str
    title: str


def named(metrics: Sequence[str]) -> list[MetricName]:
    """Return metrics with their units and titles, each once."""
    rows = []
    for name in dict.fromkeys(metrics):
        about = find_metric(name)
        rows.append(MetricName(name, about.unit, about.title))
    return rows


def check_names(metrics: Sequence[str]) -> None:
    """Raise RunError for a name that no metric and no source has."""
    strange = unknown(metrics)
    if strange:
        raise RunError(
            f"there is no metric {strange[0]!r}: {_meant(strange[0])}`distui metrics --list` lists all"
        )


def _meant(word: str) -> str:
    """Return a question with metrics that a word may mean (`loss` is train.loss), or ""."""
    near = [name for name in METRICS if name.endswith(f".{word}")] or nearest_names(word, METRICS, 0.6, 1)
    return f"did you mean {' or '.join(near)}? " if near else ""


async def read_curves(entry: run_directories.Entry, link: Link, asked: CurveRequest) -> Curves:
    """Read curves of a run, whose names are checked. Raises RunError, and RefusedError if they cannot be read."""
    begin, end = window_of(asked, clock.now(), _ended(entry))
    fold = "all" if asked.fold else "each"
    window = await link.read_metrics(
        ReadMetrics(new_id(), begin, end, BUCKETS, tuple(asked.metrics), fold, counts=True)
    )
    if window.error:
        raise RefusedError(window.error)
    series = chosen(window.series, asked.ranks, asked.gpus, bool(asked.metrics))
    return Curves(entry.record.run, window.begin, window.seconds, window.count, [*map(curve_of, series)])


def _ended(entry: run_directories.Entry) -> float | None:
    """Return the unix time of the last event of a run that has ended; None for a live one."""
    if not run_directories.phase(entry).ended:
        return None
    return max((stamped.time for stamped in entry.history().events), default=None)


# --- pure --------------------------------------------------------------------------------------------------------


def window_of(asked: CurveRequest, now: float, ended: float | None) -> tuple[float, float]:
    """Return begin and end in unix seconds; `last` counts back from now, or from the end of a run. Raises RunError."""
    if asked.last is not None and (asked.since is not None or asked.until is not None):
        raise RunError("--last excludes --since and --until: give one or the other")
    newest = now if ended is None else ended + 1
    begin, end = asked.since or 0.0, now if ended is None else DISTANT
    if asked.last is not None:
        begin, end = newest - asked.last, newest
    elif asked.until is not None:
        end = asked.until
    if begin >= end:
        raise RunError("the window is empty: --since has to be before --until, and --last above 0")
    return begin, end


def chosen(
    series: Sequence[Series], ranks: Sequence[int], gpus: Sequence[int], named: bool
) -> list[Series]:
    """Return the series of these ranks and GPUs; other series only if a metric was named."""
    if not ranks and not gpus:
        return [*series]
    wanted = {"rank": ranks, "train": ranks, "gpu": gpus}
    shown = []
    for each in series:
        indexes = wanted.get(source_of(each.metric), ())
        if each.index in indexes or (named and not indexes):
            shown.append(each)
    return shown


def curve_of(series: Series) -> Curve:
    """Return a series with its numbers: a spike counts as largest value, and the mean is over all samples."""
    about, means = find_metric(series.metric), finite(series.mean)
    lows, highs = series.low or series.mean, series.high or series.mean
    return Curve(
        series.metric,
        about.title,
        about.unit,
        None if series.node == HUB else series.node,
        series.index,
        series.of,
        last=means[-1] if means else None,
        min=min(finite(lows), default=None),
        mean=_mean(series),
        max=max(finite(highs), default=None),
        means=series.mean,
        lows=lows,
        highs=highs,
        samples=series.samples,
    )


def _mean(series: Series) -> float | None:
    """Return the mean of all samples; a bucket without their number counts as one sample."""
    total, samples = 0.0, 0
    for at, value in enumerate(series.mean):
        if value is not None:
            count = series.samples[at] if series.samples else 1
            total, samples = total + value * count, samples + count
    return total / samples if samples else None
