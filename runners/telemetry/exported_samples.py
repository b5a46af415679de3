"""A run's state as samples of exported metrics. Pure.

Each metric has two names: one for Prometheus, with DCGM's labels for GPUs, and one by OpenTelemetry's semantic
conventions. prometheus_text.py and otlp_values.py write them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from ..run.freshness import Freshness, freshness
from ..run.model import RankPhase, RunPhase
from ..run.samples import TrainingSample
from ..run.state import Node, Rank, RunState
from .gpu_quantities import GPU
from .progress import advance_of
from .quantities import RANK, TRAINING, families
from .quantity import Holds, MetricFamily, Quantity, own_family

Labels = tuple[tuple[str, str], ...]

_UNPRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\ud800-\udfff]")


class MetricSample(NamedTuple):
    family: MetricFamily
    labels: Labels
    value: float


RUN_INFO = MetricFamily("distui_run_info", "1, with the name, preset, launcher and host of the run.")
RUN_STATE = own_family("run.state", "1 for the state that the run is in, 0 for the others.")
START_TIME = own_family("run.start_time", "Unix time at which the run began.", "seconds")
ATTEMPT = own_family("run.attempt", "Number of the current attempt, from 1 on.")
FAILURES = own_family(
    "run.failures", "Failures that the restart policy counted.", ucum="{failure}", kind="counter"
)
EXIT_CODE = own_family("run.exit_code", "Exit code of a run that has ended.")
FINDINGS = own_family(
    "run.findings", "Findings that hold now, by severity.", ucum="{finding}", kind="updowncounter"
)
RANKS = own_family(
    "ranks", "Ranks of the current attempt on this node, by state.", ucum="{rank}", kind="updowncounter"
)
RANK_INFO = own_family("rank.info", "1, with the local rank and GPU of the rank.")

_STATES = tuple(phase for phase in RunPhase if phase is not RunPhase.EXPORTED)


def samples_of(state: RunState, run: str, node: int, now: float) -> list[MetricSample]:
    """Return the known values of a run from its agent on one node.

    After the end, return only what remains true. `run`: the run's id; `now`: unix time by the node's clock.
    """
    base = (("run", printable(run)), ("node", str(node)))
    samples = list(_of_run(state, node, base))
    if state.phase.ended:
        return samples
    ranks = state.ranks_of(node)
    samples += _counted(ranks, base)
    running = [rank for rank in ranks if rank.phase is RankPhase.RUNNING]
    goes_on = advance_of(state, now).goes_on
    for rank in ranks:
        samples += _of_rank(rank, base, now)
    for rank in running:
        samples += _of_training(state, rank, base, goes_on)
    seen = state.nodes.get(node)
    if seen is not None and freshness(seen.gpu_sampled, now) is Freshness.HOLDS:
        samples += _of_gpus(seen, running, base)
    return samples


def printable(text: str) -> str:
    """Replace control characters and lone surrogates by U+FFFD, because parsers treat them differently."""
    return _UNPRINTABLE.sub("\ufffd", text)


def facts_of(state: RunState, node: int) -> dict[str, str]:
    """Known values of name, preset, launcher and host of a run."""
    facts = {"name": state.name}
    if state.plan is not None:
        facts |= {"preset": state.plan.preset, "launcher": state.plan.launcher}
    if node in state.nodes:
        facts["host"] = state.nodes[node].host
    return {key: printable(text) for key, text in facts.items() if text}


def _of_run(state: RunState, node: int, base: Labels) -> Iterator[MetricSample]:
    yield MetricSample(RUN_INFO, (*base, *facts_of(state, node).items()), 1)
    for phase in _STATES:
        yield MetricSample(RUN_STATE, (*base, ("state", str(phase))), int(state.phase is phase))
    if state.began:
        yield MetricSample(START_TIME, base, state.began)
    if state.attempts:
        yield MetricSample(ATTEMPT, base, state.attempt)
    yield MetricSample(FAILURES, base, state.failures)
    if state.phase.ended and state.exit_code is not None:
        yield MetricSample(EXIT_CODE, base, state.exit_code)
    severities = [finding.severity for finding in state.findings.values()]
    for severity in ("error", "warning"):
        yield MetricSample(FINDINGS, (*base, ("severity", severity)), severities.count(severity))


def _of_rank(rank: Rank, base: Labels, now: float) -> Iterator[MetricSample]:
    labels, sample = (*base, ("rank", str(rank.place.rank))), rank.sample
    gpu = () if sample is None or sample.gpu is None else (("gpu", str(sample.gpu)),)
    yield MetricSample(RANK_INFO, (*labels, ("local_rank", str(rank.place.local_rank)), *gpu), 1)
    if sample is None or rank.phase is not RankPhase.RUNNING:
        return
    if freshness(rank.sampled, now) is not Freshness.HOLDS:
        return
    yield from _exported(RANK, partial(getattr, sample), labels)


def _counted(ranks: Sequence[Rank], base: Labels) -> Iterator[MetricSample]:
    """How many ranks are in each phase; nothing before there are ranks."""
    if ranks:
        counts = Counter(rank.phase for rank in ranks)
        for phase in RankPhase:
            yield MetricSample(RANKS, (*base, ("state", str(phase))), counts[phase])


def _of_training(state: RunState, rank: Rank, base: Labels, goes_on: bool) -> Iterator[MetricSample]:
    """`goes_on`: whether the training advances; otherwise its rates are out of date, and omitted."""
    training = state.training.get(rank.place.rank)
    began = state.attempt_began
    if training is None or training.at < began:
        return
    labels = (*base, ("rank", str(training.rank)))
    quantities = [each for each in TRAINING if goes_on or each.holds is not Holds.STEPS]
    yield from _exported(quantities, partial(_newest, training), labels)


def _newest(training: TrainingSample, field: str) -> float | None:
    """Return the newest value of a field, including NaN and Inf."""
    text = training.not_finite.get(field)
    value: float | None = getattr(training, field)
    return value if text is None else float(text)


def _of_gpus(node: Node, running: Iterable[Rank], base: Labels) -> Iterator[MetricSample]:
    """Yield samples of the GPUs that running ranks use."""
    used = {rank.sample.gpu for rank in running if rank.sample is not None}
    host = (("Hostname", printable(node.host)),) if node.host else ()
    for gpu in node.gpus:
        if gpu.index in used and not gpu.lost:
            labels = (
                *base,
                ("gpu", str(gpu.index)),
                ("UUID", printable(gpu.uuid)),
                ("device", f"nvidia{gpu.index}"),
                ("modelName", printable(gpu.name)),
                *host,
            )
            yield from _exported(GPU, partial(getattr, gpu), labels)


def _exported(
    quantities: Iterable[Quantity],
    value_of: Callable[[str], float | None],
    labels: Labels,
) -> Iterator[MetricSample]:
    """Yield samples of the known values; `value_of` returns the value of a field."""
    for quantity in quantities:
        family = quantity.export
        if family is None:
            continue
        value = value_of(quantity.field)
        if value is not None:
            yield MetricSample(family, labels, value / family.divisor)


FAMILIES = (
    RUN_INFO,
    RUN_STATE,
    START_TIME,
    ATTEMPT,
    FAILURES,
    EXIT_CODE,
    FINDINGS,
    RANKS,
    RANK_INFO,
    *families("rank"),
    *families("train"),
    *families("gpu"),
)
"""All families, in their order of output."""
