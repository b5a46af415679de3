"""Looks at a run every few seconds with all detectors, and tells what has changed since the last look.

One process judges a run: its agent where it has one, else the hub of its nodes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ...presets.plan import Plan
from ..model import Event, Finding, Pulse
from ..state import RunState
from ..telemetry import health
from .detectors import KEPT, Detector, View, died, hang, memory, promises, starting, straggler

DETECTORS: tuple[Detector, ...] = (
    died.find,
    memory.find,
    starting.find,
    hang.find,
    straggler.find,
    promises.find,
)
EVERY_S = 2.0


@dataclass(slots=True)
class _Kept:
    pid: int | None
    pulses: deque[Pulse] = field(default_factory=lambda: deque(maxlen=KEPT))


class Judging:
    """All detectors, and what they said last."""

    def __init__(self, state: RunState, plan: Plan | None, emit: Callable[[Event], None]) -> None:
        self._state, self._plan, self._emit = state, plan, emit
        self._kept: dict[int, _Kept] = {}
        self._attempt = 0
        self._raised: dict[health.Key, Finding] = {}

    def resume(self, owned: Callable[[str], bool]) -> None:
        """After a replay: findings that an earlier process raised are ours to clear, where `owned` knows the id."""
        self._raised = {at: one for at, one in self._state.findings.items() if owned(one.id)}

    async def run(self) -> None:
        """Look for as long as the run lives; cancel to stop."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.look()

    def look(self, now: float | None = None) -> None:
        """One look; `now` in unix seconds, or this moment."""
        view = self.view(time.time() if now is None else now)
        found = [finding for detector in DETECTORS for finding in detector(view)]
        for event in health.changes(self._raised, found):
            self._emit(event)
        self._raised = {health.key(finding): finding for finding in found}

    def view(self, now: float) -> View:
        """What the detectors look at, with the newest pulses remembered."""
        self._remember()
        history = {rank: tuple(kept.pulses) for rank, kept in self._kept.items()}
        return View(state=self._state, plan=self._plan, now=now, history=history)

    def _remember(self) -> None:
        if self._state.attempt != self._attempt:
            self._kept, self._attempt = {}, self._state.attempt
        for number, rank in self._state.ranks.items():
            pulse = rank.pulse
            if pulse is None:
                continue
            kept = self._kept.get(number)
            if kept is None or kept.pid != pulse.pid:
                kept = self._kept[number] = _Kept(pulse.pid)
            if not kept.pulses or kept.pulses[-1].at < pulse.at:
                kept.pulses.append(pulse)
