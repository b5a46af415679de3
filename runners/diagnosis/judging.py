"""Looks at a run every few seconds with all detectors, and tells what has changed since the last look.

One process judges a run: its agent where it has one, else the hub of its nodes.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...presets.plan import Plan
from ..model import Event, Finding, FindingRaised, Pulse
from ..state import RunState
from ..telemetry import health
from . import bugs
from .detectors import KEPT, Detector, View, died, hang, memory, promises, starting, straggler
from .detectors.arrivals import Arrivals
from .detectors.curve import Curve, Point, room
from .inherited import Inherited

DETECTORS: tuple[Detector, ...] = (
    died.find,
    memory.find,
    starting.find,
    hang.find,
    straggler.find,
    promises.find,
)
EVERY_S = 2.0
FAILED = "detectors-failed"
AT_ONCE = 450
"""Pulses of one look whose collectives are compared; those of more ranks follow with the next looks."""
_OWN = re.compile(r"(hang|start|died|oom|expect)-.*|straggler|input-bound|mem-creep")


_SHARED = "version-mismatch"
"""Told by an agent of one node, whose NCCL says so, and by the detectors over all nodes, of none in particular."""


def owns(one: Finding) -> bool:
    """Whether a finding comes from the detectors."""
    return _OWN.fullmatch(one.id) is not None or (one.id == _SHARED and one.node is None)


@dataclass(slots=True)
class _Kept:
    pid: int | None
    pulses: deque[Pulse] = field(default_factory=lambda: deque(maxlen=KEPT))


class Judging:
    """All detectors, and what they said last."""

    def __init__(self, state: RunState, plan: Plan | None, emit: Callable[[Event], None]) -> None:
        self._state, self._plan, self._emit = state, plan, emit
        self._kept: dict[int, _Kept] = {}
        self._arrivals = Arrivals()
        self._fresh: deque[Pulse] = deque()
        """Pulses whose collectives are not compared yet."""
        self._memory: dict[int, Curve] = {}
        self._memory_before: dict[int, Curve] = {}
        self._node_memory: dict[int, Curve] = {}
        self._attempt = 0
        self._raised: dict[health.Key, Finding] = {}
        self._inherited = Inherited((), 0)

    def resume(self) -> None:
        """After a replay: what the detectors of an earlier process found is ours to clear, once it can be judged."""
        self._raised = {at: one for at, one in self._state.findings.items() if owns(one)}
        self._inherited = Inherited(self._raised.values(), self._state.attempt)

    async def run(self) -> None:
        """Look for as long as the run lives; cancel to stop."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.guarded()

    async def guarded(self) -> None:
        """One look; a bug of a detector ends neither the process nor keeps a run from its end, and is seen."""

        async def look() -> None:
            self.look()

        (failed,) = await asyncio.gather(look(), return_exceptions=True)
        if failed is None or (FAILED, None, None) in self._state.findings:
            return
        what = "the detectors failed, and say less than they could"
        self._emit(FindingRaised(bugs.told(failed, FAILED, what)))

    def look(self, now: float | None = None) -> None:
        """One look; `now` in unix seconds, or this moment."""
        view = self.view(time.time() if now is None else now)
        found = self._inherited.judge(view, [one for detector in DETECTORS for one in detector(view)])
        for event in health.changes(self._raised, found):
            self._emit(event)
        self._raised = {health.key(finding): finding for finding in found}

    def view(self, now: float) -> View:
        """What the detectors look at, with the newest pulses remembered."""
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
        )

    def _remember(self) -> None:
        if self._state.attempt != self._attempt:
            self._kept, self._attempt = {}, self._state.attempt
            self._forget_calls()
            self._memory_before, self._memory = self._memory, {}
        for number, rank in self._state.ranks.items():
            if rank.pulse is not None:
                self._remember_pulse(rank.pulse)
            sample = rank.sample
            if sample is not None and sample.rss_bytes is not None:
                point = Point(rank.sampled, sample.rss_bytes, sample.gpu_mem)
                _curve(self._memory, number).add(point)
        self._compare()
        for number, node in self._state.nodes.items():
            if (known := room(node.metrics)) is not None:
                _curve(self._node_memory, number).add(Point(node.heard, known.used))

    def _remember_pulse(self, pulse: Pulse) -> None:
        kept = self._kept.get(pulse.rank)
        if kept is None or kept.pid != pulse.pid:
            if kept is not None:  # another process: what its predecessor called says nothing of it
                self._forget_calls()
            kept = self._kept[pulse.rank] = _Kept(pulse.pid)
        if not kept.pulses or kept.pulses[-1].at < pulse.at:
            kept.pulses.append(pulse)
            self._fresh.append(pulse)

    def _forget_calls(self) -> None:
        self._arrivals = Arrivals()
        self._fresh.clear()

    def _compare(self) -> None:
        """Feed what is fresh to the arrivals, in portions that keep a look short; nothing is kept for long."""
        world = self._state.attempts[-1].world_size if self._state.attempts else 0
        for _ in range(max(AT_ONCE, len(self._fresh) - 4 * AT_ONCE)):
            if not self._fresh:
                return
            self._arrivals.add(self._fresh.popleft(), world)


def _curve(curves: dict[int, Curve], number: int) -> Curve:
    found = curves.get(number)
    if found is None:
        found = curves[number] = Curve()
    return found


def _points(curves: Mapping[int, Curve]) -> dict[int, Sequence[Point]]:
    return {number: curve.points for number, curve in curves.items()}
