"""Run all detectors over the state of a run every 2 s, and emit the changes.

One process judges a run: its agent, or the hub of its nodes.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...presets.finding import Finding
from ...presets.plan import Plan
from ..run import clock
from ..run.finding_ledger import FindingLedger, by_key
from ..run.model import Event, RankPhase, RunPhase
from ..run.pulse import Pulse
from ..run.state import LIVING, RunState
from . import (
    applied_preset,
    diagnosis_settings,
    died,
    expectations,
    gpu_throttling,
    hang,
    out_of_memory,
    slow_start,
    starting,
    straggler,
    training_health,
)
from .arrivals import Arrivals
from .diagnosis_settings import DiagnosisSettings
from .memory_curve import MemoryCurve, MemoryPoint
from .memory_growth import memory_limit
from .remedy_commands import with_run
from .view import PULSES_KEPT, Detector, View

AGAIN_S = 20.0
"""Seconds with pulses of every running rank before an inherited finding that no detector raises is dropped."""
LONGER_S = {
    "straggler": 60.0,
    "input-bound": 60.0,
    "mem-creep": 360.0,
    "loss-diverges": 360.0,
    "gpu-throttled": 60.0,
}
"""AGAIN_S for findings that need more data."""
SILENT_S = 120.0
"""Seconds before a rank without pulses no longer delays the decision."""
_WATCHED = re.compile(
    r"(hang|start|expect)-.*|straggler|input-bound|mem-creep|oom-near|version-mismatch|loss-.*|gpu-throttled:.*"
)
"""Findings from samples of a running attempt. All others follow from events, which the journal has at once."""
_VERDICT = re.compile(r"hang|start")
"""Kinds whose inherited finding a new finding replaces."""
_GOING_ON = (RunPhase.STARTING, RunPhase.RUNNING)


class Inherited:
    """The findings of an earlier process, each until it is confirmed or dropped."""

    def __init__(self, findings: Iterable[Finding], attempt: int) -> None:
        self._left = by_key(findings)
        self._attempt = attempt
        self._began: float | None = None
        self._first: dict[int, float] = {}
        """Unix time of the first judgement of each rank's pulses."""

    def judge(self, view: View, findings: list[Finding]) -> list[Finding]:
        """Return current findings and inherited ones that lack data. Equal texts keep the old finding."""
        if not self._left:
            return findings
        self._note_first(view)
        current = by_key(findings)
        changed = any(_settles(each) and at not in self._left for at, each in current.items())
        kept = {
            at: old for at, old in self._left.items() if self._stays(old, current.get(at), changed, view)
        }
        self._left = kept
        if any(map(_settles, kept.values())):
            current = {at: each for at, each in current.items() if each.alarm or not _verdict(each)}
        return list((current | kept).values())

    def _note_first(self, view: View) -> None:
        """Note the time of the first judgement, and of the first one with pulses of each rank."""
        if self._began is None:
            self._began = view.now
        for rank in view.history:
            self._first.setdefault(rank, view.now)

    def _stays(self, old: Finding, new: Finding | None, changed: bool, view: View) -> bool:
        """Whether an inherited finding is kept. `changed`: another finding explains why ranks wait."""
        if new is not None and (new.alarm or not old.alarm):
            return (new.severity, new.text) == (old.severity, old.text)
        return self._open(old, view) and not (changed and _verdict(old))

    def _open(self, old: Finding, view: View) -> bool:
        """Whether a detector may still raise it."""
        state = view.state
        if state.attempt != self._attempt or state.phase not in _GOING_ON or not _WATCHED.fullmatch(old.id):
            return False
        if state.ranks and not any(rank.phase in LIVING for rank in state.ranks.values()):
            return False
        began = self._began or view.now
        judged = (
            self._first.get(number, began + SILENT_S)
            for number, rank in state.ranks.items()
            if rank.phase is RankPhase.RUNNING
        )
        return view.now < max(judged, default=began) + LONGER_S.get(old.id.partition(":")[0], AGAIN_S)


def _verdict(finding: Finding) -> bool:
    return _VERDICT.match(finding.id) is not None


def _settles(finding: Finding) -> bool:
    """Whether it is an alarm that explains why ranks wait."""
    return _verdict(finding) and finding.alarm


DETECTORS: tuple[Detector, ...] = (
    died.find,
    died.find_torn_checkpoint,
    out_of_memory.find,
    starting.find,
    slow_start.find,
    hang.find,
    straggler.find,
    applied_preset.find_not_applied,
)
EVERY_S = 2.0
AT_ONCE = 450
"""Maximum number of pulses whose collectives are compared per pass. The rest follows in later passes."""
_OWN = re.compile(
    r"(hang|start|died|oom|expect|acted|checkpoint|loss)-.*|straggler|input-bound|mem-creep|gpu-throttled:.*"
)


_SHARED = "version-mismatch"
"""Raised with a node by the node's agent from its NCCL log, and without a node by a detector over all nodes."""


def owns(finding: Finding) -> bool:
    """Whether a finding comes from the detectors."""
    return _OWN.fullmatch(finding.id) is not None or (finding.id == _SHARED and finding.node is None)


@dataclass(slots=True)
class _Kept:
    pid: int | None
    pulses: deque[Pulse] = field(default_factory=lambda: deque(maxlen=PULSES_KEPT))


class Judging:
    """Run all detectors and keep the earlier pulses that they need."""

    def __init__(
        self,
        state: RunState,
        plan: Plan | None,
        emit: Callable[[Event], None],
        settings: DiagnosisSettings | None = None,
    ) -> None:
        """Begin without pulses. `settings`: by default those of this user."""
        self._state, self._plan = state, plan
        self._works_for_s = (settings or diagnosis_settings.load()).works_for_s
        self._kept: dict[int, _Kept] = {}
        self._arrivals = Arrivals()
        self._fresh: deque[Pulse] = deque()
        """Pulses whose collectives are not compared yet."""
        self._memory = defaultdict[int, MemoryCurve](MemoryCurve)
        self._memory_before = defaultdict[int, MemoryCurve](MemoryCurve)
        self._node_memory = defaultdict[int, MemoryCurve](MemoryCurve)
        self._attempt = 0
        self._ledger = FindingLedger(emit)
        self._inherited = Inherited((), 0)
        self._detectors = (
            *DETECTORS,
            expectations.Expectations().find,
            training_health.TrainingHealth().find,
            gpu_throttling.GpuThrottles().find,
        )

    def resume(self) -> None:
        """Take over the findings of an earlier process after a replay, to clear them once they can be judged."""
        self._ledger.adopt(finding for finding in self._state.findings.values() if owns(finding))
        self._inherited = Inherited(self._ledger.raised.values(), self._state.attempt)

    async def run(self) -> None:
        """Judge every EVERY_S seconds. Cancel to stop."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.judge_now()

    async def judge_now(self) -> None:
        self.judge()

    def judge(self, now: float | None = None) -> None:
        """Judge once. `now`: Unix time, by default the current time."""
        view = self.view(clock.now() if now is None else now)
        name = self._state.name
        found = [with_run(new, name) for detector in self._detectors for new in detector(view)]
        self._ledger.update(self._inherited.judge(view, found))

    def view(self, now: float) -> View:
        """Remember the newest pulses and return the input of the detectors."""
        self._remember()
        return View(
            state=self._state,
            plan=self._plan,
            now=now,
            history={rank: tuple(kept.pulses) for rank, kept in self._kept.items()},
            arrivals=self._arrivals,
            memory=_points(self._memory),
            memory_before=_points(self._memory_before),
            node_memory=_points(self._node_memory),
            works_for_s=self._works_for_s,
        )

    def _remember(self) -> None:
        if self._state.attempt != self._attempt:
            self._kept, self._attempt = {}, self._state.attempt
            self._forget_calls()
            self._memory_before, self._memory = self._memory, defaultdict(MemoryCurve)
        for number, rank in self._state.ranks.items():
            if rank.pulse is not None:
                self._remember_pulse(rank.pulse)
            sample = rank.sample
            if sample is not None and sample.rss_bytes is not None:
                point = MemoryPoint(rank.sampled, sample.rss_bytes, sample.gpu_mem)
                self._memory[number].add(point)
        self._compare()
        for number, node in self._state.nodes.items():
            if (memory := memory_limit(node)) is not None:
                self._node_memory[number].add(MemoryPoint(node.heard, memory.used))

    def _remember_pulse(self, pulse: Pulse) -> None:
        kept = self._kept.get(pulse.rank)
        if kept is None or kept.pid != pulse.pid:
            if kept is not None:  # a new process: calls of the previous one do not count
                self._forget_calls()
            kept = self._kept[pulse.rank] = _Kept(pulse.pid)
        if not kept.pulses or kept.pulses[-1].at < pulse.at:
            kept.pulses.append(pulse)
            self._fresh.append(pulse)

    def _forget_calls(self) -> None:
        self._arrivals = Arrivals()
        self._fresh.clear()

    def _compare(self) -> None:
        """Feed new pulses to the arrivals, in portions that keep a pass short."""
        world = self._state.world_size
        for _ in range(max(AT_ONCE, len(self._fresh) - 4 * AT_ONCE)):
            if not self._fresh:
                return
            self._arrivals.add(self._fresh.popleft(), world)


def _points(curves: Mapping[int, MemoryCurve]) -> dict[int, Sequence[MemoryPoint]]:
    return {number: curve.points for number, curve in curves.items()}
