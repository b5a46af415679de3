"""Numbers and curves of a run or attempt for a comparison; `telemetry/quantities.py` lists their metrics. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from ..run.answers import MetricsWindow, Series
from ..run.state import Attempt, RunState
from ..telemetry.curves import finite
from ..telemetry.metric_names import METRICS, find_metric
from ..telemetry.progress import STEPS_SOURCE, Progress, progress, value_text
from ..telemetry.quantity import Quantity as Measured
from .account import MetricCurve, Quantity
from .outcome_facts import chosen

COMPARED = sorted(
    (each for each in METRICS.values() if each.curve.compared.number),
    key=lambda each: each.curve.compared.number,
)
"""Metrics with a number, in their order."""
DRAWN = tuple(
    each.name
    for each in sorted(METRICS.values(), key=lambda each: each.curve.compared.drawn)
    if each.curve.compared.drawn
)
"""Metrics whose curves are drawn over each other, in their order."""
OF_GPUS = tuple(each.name for each in COMPARED if each.kind == "gpu")
STEPS = ("train.step", "rank.step")
"""Metrics with the step at a time, the better first."""


def quantities(window: MetricsWindow) -> tuple[Quantity, ...]:
    """Return the numbers of a window with one series per metric."""
    series = {each.metric: each for each in window.series}
    found = (_quantity(about, series[about.name]) for about in COMPARED if about.name in series)
    return tuple(each for each in found if each is not None)


def _quantity(about: Measured, series: Series) -> Quantity | None:
    """Return the number of a series; None without a value."""
    better = about.curve.compared.better
    means = finite(series.mean)
    match about.curve.compared.how:
        case "median" if means:
            middle = statistics.median(means)
            return Quantity(
                about.name, about.title, about.unit, middle, len(means), _quartiles(means), better
            )
        case "peak" if tops := finite(series.high or series.mean):
            title = f"{about.title}, peak"
            return Quantity(f"peak:{about.name}", title, about.unit, max(tops), len(tops), better=better)
        case "last" if values := _counts(about.name, series):
            return _last(about, values[-1], len(values))
    return None


def _counts(name: str, series: Series) -> list[float]:
    """Return the values of a count; of steps those of the slowest rank."""
    return finite(series.low if name in STEPS and series.low else series.mean)


def _last(about: Measured, value: float | None, samples: int = 1, text: str = "") -> Quantity:
    return Quantity(f"last:{about.name}", f"{about.title}, last", about.unit, value, samples, text=text)


def extents(state: RunState, number: int | None, now: float) -> tuple[Quantity, ...]:
    """Return duration, steps and checkpoints, which metrics do not have or not up to the end."""
    attempt = chosen(state, number)
    lasted: float | None = None
    if number is None:
        lasted = state.lasted(now)
    elif attempt is not None:
        lasted = attempt.lasted(now if attempt.outcome is None else None)
    complete = sum(each.complete and number in (None, each.attempt) for each in state.checkpoints)
    made = [] if lasted is None else [Quantity("last:lasted", "lasted", "s", lasted, 1)]
    if steps := _steps_made(state, attempt):
        made.append(_last(find_metric("rank.step"), float(steps)))
    if attempt is not None and attempt.number == state.attempt:
        made.extend(_reported_last(progress(state, now), attempt.number == number))
    return (*made, Quantity("last:checkpoints", "checkpoints", "", float(complete), 1))


def _reported_last(line: Progress, of_attempt: bool) -> Iterable[Quantity]:
    """Yield the last values that the script reported, even non-finite ones, which metrics omit."""
    if line.earlier and of_attempt:
        return
    for name in ("step", "loss"):
        value, word = getattr(line, name), line.not_finite.get(name, "")
        if line.sources.get(name) in (None, STEPS_SOURCE) or (value is None and not word):
            continue
        text = value_text(line, name) if value is None else ""
        yield _last(find_metric(f"train.{name}"), value, text=text)


def _steps_made(state: RunState, attempt: Attempt | None) -> int:
    """Return the optimizer steps of an attempt at its end or now; 0 if unknown."""
    if attempt is None:
        return 0
    samples = [rank.sample for rank in state.ranks.values()] if attempt.number == state.attempt else []
    return attempt.steps or max((sample.step or 0 for sample in samples if sample is not None), default=0)


def _quartiles(values: Sequence[float]) -> tuple[float, float] | None:
    if len(values) < 4:
        return None
    lower, _, upper = statistics.quantiles(values, n=4)
    return lower, upper


def curves(window: MetricsWindow, began: float) -> tuple[MetricCurve, ...]:
    """Return the curves of a window by the time since `began` (Unix time)."""
    return tuple(
        MetricCurve(each.metric, window.begin - began, window.seconds, each.mean)
        for each in window.series
        if each.metric in (*DRAWN, *STEPS) or each.metric.startswith("train.")
    )
