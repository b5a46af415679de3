"""A run at a past moment: its state folded from the journal up to then, and the samples of that second. Pure."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import fields
from typing import Any, TypeVar

from msgspec import Struct, structs

from ..runners.run.formatting import seconds_of, time_before, time_of_day
from ..runners.run.freshness import holds, usual_interval
from ..runners.run.model import (
    AttemptEnded,
    AttemptStarted,
    CaughtUp,
    Checkpoint,
    CheckpointSaved,
    FindingRaised,
    Gpu,
    Host,
    MetricsWindow,
    NcclChanged,
    RankSample,
    Series,
    Stamped,
    TrainingSample,
)
from ..runners.run.state import RunState
from ..runners.telemetry.metric_names import METRICS
from ..runners.telemetry.quantities import RATES
from .rows.plot import Mark

KEEP_EVERY = 2000
"""Events between two saved states; limits the cost of going back."""

MOST_EVENTS = 200_000
"""Maximum number of stored events; in a longer journal the earliest events are folded into one state."""

REPORTED_S = 60.0
"""Maximum seconds between a checkpoint's completion and its report, since its directory is polled."""


def copied(state: RunState) -> RunState:
    """Return an independent copy of the state: immutable values are shared, containers are copied."""
    fresh = RunState()
    for each in fields(RunState):
        if not each.name.startswith("_"):
            setattr(fresh, each.name, _copied(getattr(state, each.name)))
    return fresh


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _own(entry) for key, entry in value.items()}
    return [_own(entry) for entry in value] if isinstance(value, list) else value


def _own(value: Any) -> Any:
    return copy(value) if isinstance(value, Struct | dict | list | set) else value


class Timeline:
    """All events of a run, in the order of its journal."""

    def __init__(self, events: Iterable[Stamped] = ()) -> None:
        self._events: list[Stamped] = []
        self._times: list[float] = []
        """Time of each event, never decreasing: clocks can be set back, the order of the journal is fixed."""
        self._base = RunState()
        """State of the events that are no longer stored."""
        self._kept: dict[int, RunState] = {}
        self.seq = 0
        """Sequence number of the newest event."""
        self.add(events)

    def add(self, events: Iterable[Stamped]) -> None:
        """Add further events; events that no journal keeps are left out."""
        for stamped in events:
            if isinstance(stamped.event, CaughtUp) or (stamped.seq and stamped.seq <= self.seq):
                continue
            last = self._times[-1] if self._times else 0.0
            at = stamped.time if math.isfinite(stamped.time) else last
            self._events.append(stamped)
            self._times.append(max(at, last))
            self.seq = max(self.seq, stamped.seq)
        over = len(self._events) - MOST_EVENTS
        if over > 0:
            self._base.apply_all(self._events[:over])
            del self._events[:over], self._times[:over]
            self._kept.clear()

    @property
    def begin(self) -> float:
        """Unix time of the first event; 0.0 if there is none."""
        return self._times[0] if self._times else 0.0

    @property
    def end(self) -> float:
        return self._times[-1] if self._times else 0.0

    def state_at(self, when: float) -> RunState:
        """Return the state at that time; the caller may change it."""
        count = bisect_right(self._times, when)
        at = max((each for each in self._kept if each <= count), default=0)
        state = copied(self._kept[at] if at else self._base)
        for begin in range(at, count, KEEP_EVERY):
            end = min(begin + KEEP_EVERY, count)
            state.apply_all(self._events[begin:end])
            if end - begin == KEEP_EVERY:
                self._kept[end] = copied(state)
        for stamped in self._events[count : bisect_right(self._times, when + REPORTED_S)]:
            if isinstance(stamped.event, CheckpointSaved) and stamped.event.checkpoint.at <= when:
                state.apply(stamped)
        state.live = True
        return state

    def marks(self) -> tuple[Mark, ...]:
        """Return restarts, findings, checkpoints and changes of NCCL_DEBUG, including past ones."""
        return tuple(
            mark
            for at, stamped in zip(self._times, self._events, strict=True)
            if (mark := _mark(at, stamped.event)) is not None
        )

    def first_cause(self) -> float | None:
        """Return when the first rank failed in the newest failed attempt."""
        for at, stamped in zip(reversed(self._times), reversed(self._events), strict=True):
            event = stamped.event
            if isinstance(event, AttemptEnded) and event.first_cause is not None:
                return event.first_cause.at or at
        return None

    def checkpoint_of(self, step: int) -> Checkpoint | None:
        """Return the first checkpoint at or after a step."""
        for stamped in self._events:
            if isinstance(stamped.event, CheckpointSaved):
                checkpoint = stamped.event.checkpoint
                if checkpoint.step is not None and checkpoint.step >= step:
                    return checkpoint
        return None


def _mark(at: float, event: object) -> Mark | None:
    if isinstance(event, AttemptStarted) and event.attempt > 1:
        return Mark(at, "restart", f"attempt {event.attempt}")
    if isinstance(event, FindingRaised) and event.finding.alarm:
        return Mark(event.finding.since or at, "finding", event.finding.text)
    if isinstance(event, CheckpointSaved):
        return Mark(event.checkpoint.at, "checkpoint", event.checkpoint.path)
    if isinstance(event, NcclChanged):
        return Mark(at, "nccl", event.text)
    return None


# --- the samples of a moment ---

HOLD_S = 120.0
"""Maximum age in seconds of a training signal that still counts as current."""

Sample = TypeVar("Sample", bound=Struct)


def value_at(series: Series, window: MetricsWindow, at: float) -> float | None:
    """Return the mean of the bucket that contains a time; for a training signal the newest before it."""
    if not window.seconds > 0:
        return None
    number = math.floor((at - window.begin) / window.seconds)
    back = int(HOLD_S / window.seconds) if series.metric.startswith("train.") else 0
    for place in range(min(number, len(series.mean) - 1 if back else number), number - back - 1, -1):
        value = series.mean[place] if 0 <= place < len(series.mean) else None
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value) if _held(series, place, number, window.seconds) else None
    return None


def _held(series: Series, place: int, number: int, seconds: float) -> bool:
    """Whether a value holds in a later bucket; a rate holds only while reports arrive as usual."""
    if series.metric.removeprefix("train.") not in RATES:
        return True
    reports = [at for at, value in enumerate(series.mean[: place + 1]) if value is not None]
    usual = usual_interval(reports)
    return holds((number - place) * seconds, None if usual is None else usual * seconds)


def put_samples(state: RunState, windows: Iterable[MetricsWindow], at: float, now: RunState) -> None:
    """Put the samples of a moment into its state; `now` provides names and sizes of GPUs, which no curve has."""
    taken: dict[tuple[str, int, int], dict[str, float]] = {}
    for window in windows:
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
    _put_ranks(state, taken, now, at)
    for (kind, number, _), values in taken.items():
        if kind == "host" and number in state.nodes:
            state.nodes[number].metrics = _with(_blank_host(now, number), values)


def _with(sample: Sample, values: Mapping[str, float]) -> Sample:
    types = {each.name: each.type for each in structs.fields(sample)}
    changes = {
        name: round(value) if types[name] == int | None else value
        for name, value in values.items()
        if name in types
    }
    return structs.replace(sample, **changes)


def _put_gpus(
    state: RunState, taken: Mapping[tuple[str, int, int], Mapping[str, float]], now: RunState
) -> None:
    for number, node in state.nodes.items():
        live = now.nodes.get(number)
        standing = {gpu.index: gpu for gpu in live.gpus} if live is not None else {}
        sampled = {
            index: values for (kind, on, index), values in taken.items() if (kind, on) == ("gpu", number)
        }
        node.gpus = tuple(
            _with(_blank_gpu(standing.get(index), index), sampled.get(index, {}))
            for index in sorted(standing.keys() | sampled.keys())
        )
        if live is not None:
            node.driver, node.gpu_problem = live.driver, live.gpu_problem if not sampled else None


def _blank_gpu(live: Gpu | None, index: int) -> Gpu:
    """Return a GPU with only its constant values: name and sizes."""
    if live is None:
        return Gpu(index=index, uuid="", name="GPU")
    return Gpu(
        index=index,
        uuid=live.uuid,
        name=live.name,
        mem_total=live.mem_total,
        power_limit_w=live.power_limit_w,
        max_sm_mhz=live.max_sm_mhz,
    )


def _blank_host(now: RunState, number: int) -> Host:
    live = now.nodes.get(number)
    if live is None or live.metrics is None:
        return Host()
    metrics = live.metrics
    return Host(
        cores=metrics.cores,
        mem_total=metrics.mem_total,
        shm_total=metrics.shm_total,
        disk_total=metrics.disk_total,
    )


def _put_ranks(
    state: RunState, taken: Mapping[tuple[str, int, int], Mapping[str, float]], now: RunState, at: float
) -> None:
    state.training = {}
    for (kind, node, index), values in taken.items():
        if kind == "train":
            own = {
                name.removeprefix("train."): value
                for name, value in values.items()
                if name.startswith("train.")
            }
            fresh = TrainingSample(rank=index, at=at, values=own)
            live = now.training.get(index)
            if live is not None:
                fresh = structs.replace(fresh, total=live.total, sources=live.sources)
            state.training[index] = _with(fresh, values)
        rank = state.ranks.get(index) if kind == "rank" else None
        if rank is not None and rank.place.node == node:
            live_rank = now.ranks.get(index)
            gpu = None
            if live_rank is not None and live_rank.sample is not None and now.attempt == state.attempt:
                gpu = live_rank.sample.gpu
            rank.sample = _with(RankSample(rank=index, pid=rank.pid, gpu=gpu), values)
            rank.sampled = at


def step_of(state: RunState) -> int | None:
    """Return the step of a moment: the script's own count, else that of the slowest rank."""
    own = [sample.step for sample in state.training.values() if sample.step is not None]
    steps = [
        rank.sample.step for rank in state.ranks.values() if rank.sample and rank.sample.step is not None
    ]
    return max(own) if own else min(steps, default=None)


# --- a moment that was typed ---


class MomentError(Exception):
    """The typed text is no moment of the run; the message is one sentence."""


HINT = "type at 14:32:07, at -5m, at step 1200, at first-cause or at start"


def moment_of(text: str, timeline: Timeline, end: float) -> float:
    """Return the unix time of `14:32:07`, `-5m`, `step 1200`, `first-cause`, `start` or `end`. Raises MomentError.

    A time of day is the last one before `end`. A step is the time of its checkpoint.
    """
    words = text.split()
    word = words[0].lower() if words else ""
    if word == "step" and len(words) == 2 and words[1].isdecimal():
        checkpoint = timeline.checkpoint_of(int(words[1]))
        if checkpoint is None:
            raise MomentError(
                f"no sample has step {words[1]}: the run has not reached it, or its curve is no longer kept"
            )
        return checkpoint.at
    if len(words) != 1:
        raise MomentError(HINT)
    if word in ("start", "end"):
        return timeline.begin if word == "start" else end
    if word == "first-cause":
        cause = timeline.first_cause()
        if cause is None:
            raise MomentError("no attempt of this run has failed: it has no first cause")
        return cause
    ago = seconds_of(word[1:]) if word.startswith("-") else None
    at = time_before(word, end + 1) if ago is None else end - ago
    if at is None:
        raise MomentError(f"{text!r} is no time: {HINT}")
    begin = timeline.begin
    if at >= begin - 60:
        return min(max(at, begin), end)
    if ago is None and time.localtime(at)[:3] != time.localtime(end)[:3]:
        raise MomentError(f"{word} is after the newest known time of this run, {time_of_day(end)}")
    raise MomentError(f"{word} is before the start of this run at {time_of_day(begin)}")
