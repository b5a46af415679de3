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
from ..run.model import TrainingSample
from .output_signals import EVALUATED
from .signal_names import AXIS, Reported, ReportedValue, best, of_trackers, plausible

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


class RankSignals:
    def __init__(self, rank: int, world: int = 1) -> None:
        """`world`: number of ranks of the attempt, for rates per GPU."""
        self.rank, self._world = rank, world
        self._trackers, self._output = _Kind(), _Kind()
        self._reported: Reported | None = None
        self._bad: dict[str, int | None] = {}
        """Output only: field → step of the first of its current values that are not finite."""
        self._paced: deque[tuple[float, int]] = deque()
        self._own_pattern: set[str] = set()
        """Fields that a user's pattern reads: other patterns then do not apply."""
        self._cyclic: set[str] = set()
        """Sources with steps that restart: they count within an epoch."""

    def trackers(self, reported: Reported) -> None:
        """Add the hook's newest report."""
        if reported is not self._reported:
            self._reported = reported
            self._trackers.put(of_trackers(reported))

    def output(self, signals: Iterable[ReportedValue], at: float) -> None:
        """Add signals of lines that were read at a unix time, oldest first."""
        fresh = [each._replace(at=at) for each in signals]
        self._own_pattern |= {each.field for each in fresh if each.source == OWN_PATTERN and each.field}
        fresh = [
            each for each in fresh if each.source == OWN_PATTERN or each.field not in self._own_pattern
        ]
        step: int | None = None
        for each in fresh:
            if each.field == "step":
                self._watch_cycle(each)
                step = int(each.value)
            if each.field and math.isfinite(each.value):
                self._bad.pop(each.field, None)
            elif each.field:
                self._bad.setdefault(each.field, step)
        self._output.put(_in_order(fresh))

    def _watch_cycle(self, step: ReportedValue) -> None:
        before = self._output.fields.get("step")
        if before is not None and before.source == step.source and step.value < before.value / 2:
            self._cyclic.add(step.source)

    def sample(self, optimizer_steps: int | None, total: tuple[int, str] | None) -> TrainingSample | None:
        """Build the current sample; None without signals. `total`: from the command line, with its source."""
        chosen = {name: each for name in FIELDS if (each := self._chosen(name)) is not None}
        if not chosen and not self._trackers.values:
            return None
        self._check_steps(chosen, optimizer_steps)
        values = {name: each.value for name, each in chosen.items() if math.isfinite(each.value)}
        sources = {name: clean_text(each.source) for name, each in chosen.items()}
        for name in ("tokens_s", "samples_s"):
            if name in values and chosen[name].per_gpu:
                values[name] *= self._world
        if "total" not in values and total is not None and "step" in values and values["step"] <= total[0]:
            values["total"], sources["total"] = total
        pace = self._pace(chosen.get("step"))
        if pace is not None:
            values["step_s"], sources["step_s"] = pace, PACED
        own, bad = self._own()
        bad |= {name: each for name, each in chosen.items() if not math.isfinite(each.value)}
        since = {name: self._since(name, each) for name, each in bad.items()}
        at = max([each.at for each in (*chosen.values(), *bad.values())], default=0.0)
        whole = {name: int(values.pop(name)) for name in ("step", "total") if name in values}
        return TrainingSample(
            rank=self.rank,
            at=at,
            **(values | whole),  # type: ignore[arg-type]
            values=own,
            sources=sources,
            not_finite={name: str(each.value) for name, each in bad.items()},
            not_finite_since={name: step for name, step in since.items() if step is not None},
            every_s=usual_interval(at for at, _ in self._paced),
        )

    def _chosen(self, name: str) -> ReportedValue | None:
        tracked, printed = self._trackers.fields.get(name), self._output.fields.get(name)
        if name in ("step", "total") and printed is not None and printed.source in self._cyclic:
            printed = None
        if tracked is None or printed is None:
            return tracked or printed
        if name in self._own_pattern:
            return printed
        often = self._output.updates.get(name, 0) > OFTEN * self._trackers.updates.get(name, 0)
        return printed if often and printed.at > tracked.at else tracked

    def _check_steps(self, chosen: dict[str, ReportedValue], optimizer_steps: int | None) -> None:
        """Remove a step that counts something else, and a total below the step."""
        step, total = chosen.get("step"), chosen.get("total")
        counted = optimizer_steps or 0
        if step is not None and step.name == AXIS and step.value + AXIS_MARGIN < AXIS_FACTOR * counted:
            del chosen["step"]
            step = None
        if total is None:
            return
        known = step is not None and total.value > 0 and plausible("total", total.value)
        if step is None or not known or step.value > total.value:
            del chosen["total"]

    def _pace(self, step: ReportedValue | None) -> float | None:
        """Mean seconds per step over the last minute without pauses, from the times of the step reports."""
        if step is None:
            self._paced.clear()
            return None
        paced, here = self._paced, (step.at, int(step.value))
        if paced and (here[1] < paced[-1][1] or here[0] < paced[-1][0]):
            paced.clear()
        if not paced or here[1] > paced[-1][1]:
            paced.append(here)
        while len(paced) > 2 and paced[-1][0] - paced[1][0] >= PACE_S:
            paced.popleft()
        spans = [(end[0] - begin[0], end[1] - begin[1]) for begin, end in pairwise(paced)]
        usual = median_low([seconds / steps for seconds, steps in spans] or [0.0])
        spans = [span for span in spans if span[0] <= PAUSE * usual * span[1]]
        seconds, steps = sum(span[0] for span in spans), sum(span[1] for span in spans)
        return seconds / steps if steps > 0 and seconds >= PACE_LEAST_S else None

    def _own(self) -> tuple[dict[str, float], dict[str, ReportedValue]]:
        """Values with the script's own names, evaluations first, in two parts: finite, and not finite."""
        every = self._output.values | self._trackers.values
        order = sorted(every.values(), key=lambda each: EVALUATED.search(each.name.lower()) is None)
        named = {clean_text(each.name)[:LONGEST_NAME]: each for each in order[:MOST_VALUES]}
        finite = {name: each.value for name, each in named.items() if math.isfinite(each.value)}
        return finite, {name: each for name, each in named.items() if name not in finite}

    def _since(self, name: str, signal: ReportedValue) -> int | None:
        return signal.since if signal.since is not None else self._bad.get(name)


def _in_order(signals: list[ReportedValue]) -> list[ReportedValue]:
    """Order the newest line first, so that its signals count; within a line the names' order decides."""
    newest: dict[str, ReportedValue] = {}
    for each in signals:
        there = newest.get(each.field)
        if each.field and (there is None or there.source != each.source or each.order <= there.order):
            newest[each.field] = each
    return [*newest.values(), *(each for each in signals if not each.field)]
