"""One rank's script reports, merged from its trackers (through the hook) and its output into one TrainingSample.

Each field has one source at a time: the tracker, unless the output reports the field much more often. Pure; the
caller passes the times of reading.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median_low

from ...presets.sanitize import clean_text
from ...presets.signal_patterns import FIELDS
from ..run.freshness import usual_interval
from ..run.samples import TrainingSample
from .output_signals import EVALUATED, HEADING
from .signal_names import AXIS, COUNTS, WITHIN, Reported, ReportedValue, best, of_trackers, plausible

MOST_VALUES = 32
LONGEST_NAME = 60
OFTEN = 3
"""Ratio of reports above which the output takes precedence over a tracker."""
PACE_S, PACE_LEAST_S = 60.0, 4.0
"""Seconds of the window for the time per step, and the minimum for a result."""
PAUSE = 3.0
"""Factor of the usual step time above which the time between two reports includes other work: a compile, a checkpoint
or an evaluation. Reading the reports at intervals may double the usual time."""
OWN_PATTERN = "output: --signal"
PACED = "computed: steps over time"
AXIS_FACTOR, AXIS_MARGIN = 0.5, 10
"""Share of the optimizer steps, with a margin, below which a tracker's axis counts epochs or evaluations."""


@dataclass(slots=True)
class _Kind:
    """The newest signals of the trackers, or of the output."""

    fields: dict[str, ReportedValue] = field(default_factory=dict)
    values: dict[str, ReportedValue] = field(default_factory=dict)
    updates: dict[str, int] = field(default_factory=dict)
    """Field → number of its updates."""

    def put(self, signals: Iterable[ReportedValue]) -> None:
        every = list(signals)
        for name, each in best(every).items():
            before = self.fields.get(name)
            if before is None or before.at != each.at:
                self.updates[name] = self.updates.get(name, 0) + 1
            self.fields[name] = each
        for each in every:
            most = (4 if EVALUATED.search(each.name.lower()) else 2) * MOST_VALUES
            if not each.field and (each.name in self.values or len(self.values) < most):
                self.values[each.name] = each


class _Pace:
    """The times of the step reports, and the time per step between them."""

    def __init__(self) -> None:
        self._reports: deque[tuple[float, int]] = deque()
        """Unix time and step of each report that advanced, oldest first."""

    def add(self, step: ReportedValue | None) -> None:
        """Add the newest step. None, a step that went back, or a time that went back starts over."""
        reports = self._reports
        if step is None:
            reports.clear()
            return
        at, count = step.at, int(step.value)
        if reports and (count < reports[-1][1] or at < reports[-1][0]):
            reports.clear()
        if not reports or count > reports[-1][1]:
            reports.append((at, count))
        while len(reports) > 2 and reports[-1][0] - reports[1][0] >= PACE_S:
            reports.popleft()

    def step_s(self) -> float | None:
        """Mean seconds per step over the last minute without pauses; None if it is unknown."""
        if len(self._reports) < 2:
            return None
        spans = [(end[0] - begin[0], end[1] - begin[1]) for begin, end in pairwise(self._reports)]
        longest = PAUSE * median_low([seconds / steps for seconds, steps in spans])
        total_s, total_steps = 0.0, 0
        for seconds, steps in spans:
            if seconds <= longest * steps:
                total_s += seconds
                total_steps += steps
        return total_s / total_steps if total_s >= PACE_LEAST_S else None

    def every_s(self) -> float | None:
        """Usual seconds between two reports."""
        return usual_interval(at for at, _ in self._reports)


class RankSignals:
    def __init__(self, rank: int, world: int = 1) -> None:
        """`world`: number of ranks of the attempt, for rates per GPU."""
        self.rank, self._world = rank, world
        self._trackers, self._output = _Kind(), _Kind()
        self._reported: Reported | None = None
        self._bad: dict[str, int | None] = {}
        """Output only: field → step of the first of its current values that are not finite."""
        self._pace = _Pace()
        self._own_pattern: set[str] = set()
        """Fields that a user's pattern reads: other patterns then do not apply."""
        self._cyclic: set[str] = set()
        """Sources with steps that restart: they count within an epoch."""
        self._is_headed = False
        """Whether each epoch has a heading, below which lines with a step and a total count within the epoch."""

    def trackers(self, reported: Reported) -> None:
        """Add the hook's newest report."""
        if reported is not self._reported:
            self._reported = reported
            self._trackers.put(of_trackers(reported))

    def output(self, signals: Iterable[ReportedValue], at: float) -> None:
        """Add signals of lines that were read at a unix time, oldest first."""
        fresh = self._without_replaced([each._replace(at=at) for each in signals])
        self._is_headed = self._is_headed or any(each.source == HEADING for each in fresh)
        if self._is_headed:
            fresh = _within_headings(fresh)
        step: int | None = None
        for index, each in enumerate(fresh):
            if not each.field:
                continue
            if each.field == "step":
                self._watch_cycle(each)
                step = int(each.value)
            if each.source in self._cyclic:
                fresh[index] = each._replace(field=WITHIN.get(each.field, each.field))
            if math.isfinite(each.value):
                self._bad.pop(each.field, None)
            else:
                self._bad.setdefault(each.field, step)
        self._output.put(_in_order(fresh))

    def _without_replaced(self, signals: list[ReportedValue]) -> list[ReportedValue]:
        """Remove signals of fields that a user's pattern reads, unless they are from that pattern."""
        for each in signals:
            if each.source == OWN_PATTERN and each.field:
                self._own_pattern.add(each.field)
        if not self._own_pattern:
            return signals
        return [
            each for each in signals if each.source == OWN_PATTERN or each.field not in self._own_pattern
        ]

    def _watch_cycle(self, step: ReportedValue) -> None:
        before = self._output.fields.get("step")
        if before is not None and before.source == step.source and step.value < before.value / 2:
            self._cyclic.add(step.source)

    def sample(self, optimizer_steps: int | None, total: tuple[int, str] | None) -> TrainingSample | None:
        """Build the current sample; None without signals. `total`: from the command line, with its source."""
        chosen = {name: each for name in FIELDS if (each := self._chosen(name)) is not None}
        if not chosen and not self._trackers.values:
            return None
        _check_steps(chosen, optimizer_steps or 0)
        self._pace.add(chosen.get("step"))
        values, sources = self._values(chosen, total)
        own = self._own()
        bad = _not_finite(own) | _not_finite(chosen)
        return TrainingSample(
            rank=self.rank,
            at=max([each.at for each in (*chosen.values(), *bad.values())], default=0.0),
            **values,  # type: ignore[arg-type]
            values={name: each.value for name, each in own.items() if math.isfinite(each.value)},
            sources=sources,
            not_finite={name: str(each.value) for name, each in bad.items()},
            not_finite_since=self._since(bad),
            every_s=self._pace.every_s(),
        )

    def _chosen(self, name: str) -> ReportedValue | None:
        tracked, printed = self._trackers.fields.get(name), self._output.fields.get(name)
        if name in WITHIN and printed is not None and printed.source in self._cyclic:
            printed = None
        if tracked is None or printed is None:
            return tracked or printed
        if name in self._own_pattern:
            return printed
        often = self._output.updates.get(name, 0) > OFTEN * self._trackers.updates.get(name, 0)
        return printed if often and printed.at > tracked.at else tracked

    def _values(
        self, chosen: dict[str, ReportedValue], total: tuple[int, str] | None
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Return the sample's finite values, and the source of each field."""
        values: dict[str, float] = {}
        sources: dict[str, str] = {}
        for name, each in chosen.items():
            sources[name] = clean_text(each.source)
            if name in COUNTS:
                values[name] = int(each.value)
            elif math.isfinite(each.value):
                values[name] = each.value * self._world if each.per_gpu else each.value
        if total is not None and "total" not in values and values.get("step", math.inf) <= total[0]:
            values["total"], sources["total"] = total
        step_s = self._pace.step_s()
        if step_s is not None:
            values["step_s"], sources["step_s"] = step_s, PACED
        return values, sources

    def _own(self) -> dict[str, ReportedValue]:
        """Values with the script's own names, evaluations first."""
        every = self._output.values | self._trackers.values
        order = sorted(every.values(), key=lambda each: EVALUATED.search(each.name.lower()) is None)
        return {clean_text(each.name)[:LONGEST_NAME]: each for each in order[:MOST_VALUES]}

    def _since(self, bad: dict[str, ReportedValue]) -> dict[str, int]:
        """Return the first step of each series of values that are not finite, if it is known."""
        since: dict[str, int] = {}
        for name, each in bad.items():
            step = each.since if each.since is not None else self._bad.get(name)
            if step is not None:
                since[name] = step
        return since


def _check_steps(chosen: dict[str, ReportedValue], optimizer_steps: int) -> None:
    """Remove a step that counts something else, and a total below the step."""
    step, total = chosen.get("step"), chosen.get("total")
    if step is not None and step.name == AXIS and step.value + AXIS_MARGIN < AXIS_FACTOR * optimizer_steps:
        del chosen["step"]
        step = None
    if total is None:
        return
    if step is None or total.value < max(1.0, step.value) or not plausible("total", total.value):
        del chosen["total"]


def _within_headings(signals: list[ReportedValue]) -> list[ReportedValue]:
    """Return signals whose lines with a step and a total count within an epoch. Bars count as their titles say."""
    counted = {
        (each.source, each.name) for each in signals if each.field == "total" and each.name != "total"
    }
    return [
        each._replace(field=WITHIN.get(each.field, each.field))
        if (each.source, each.name) in counted
        else each
        for each in signals
    ]


def _not_finite(signals: dict[str, ReportedValue]) -> dict[str, ReportedValue]:
    return {name: each for name, each in signals.items() if not math.isfinite(each.value)}


def _in_order(signals: list[ReportedValue]) -> list[ReportedValue]:
    """Order the newest line first, so that its signals count; within a line the names' order decides."""
    newest: dict[str, ReportedValue] = {}
    for each in signals:
        there = newest.get(each.field)
        if each.field and (there is None or there.source != each.source or each.order <= there.order):
            newest[each.field] = each
    return [*newest.values(), *(each for each in signals if not each.field)]
