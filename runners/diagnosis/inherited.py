"""Findings that an earlier process raised: kept until enough is seen again to tell whether they hold. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..model import Finding, RankPhase, RunPhase
from ..telemetry import health
from .detectors import View

AGAIN_S = 20.0
"""Seconds with pulses of every running rank after which what is not found again does not hold."""
LONGER_S = {"straggler": 60.0, "input-bound": 60.0, "mem-creep": 360.0}
"""The same of what only more data tells."""
SILENT_S = 120.0
"""Seconds after which a rank without pulses is not waited for."""
_WATCHED = re.compile(r"(hang|start|expect)-.*|straggler|input-bound|mem-creep|oom-near|version-mismatch")
"""Found by looks at what runs; the others by what has happened, which the journal tells at once."""
_VERDICT = re.compile(r"hang|start")
"""Of these a new one takes the place of an old one."""
_GOING_ON = (RunPhase.STARTING, RunPhase.RUNNING)
_ALIVE = (RankPhase.STARTING, RankPhase.RUNNING)


class Inherited:
    """The findings of an earlier process, each until it is judged anew."""

    def __init__(self, findings: Iterable[Finding], attempt: int) -> None:
        self._left = {health.key(one): one for one in findings}
        self._attempt = attempt
        self._began: float | None = None
        self._first: dict[int, float] = {}
        """Rank → when its first pulse was looked at."""

    def judge(self, view: View, found: list[Finding]) -> list[Finding]:
        """What holds: what is found, and what cannot be found again yet. What says the same stays as it was."""
        if not self._left:
            return found
        self._began = view.now if self._began is None else self._began
        for rank in view.history:
            self._first.setdefault(rank, view.now)
        current = {health.key(one): one for one in found}
        changed = any(
            _verdict(one) and not _mild(one) and at not in self._left for at, one in current.items()
        )
        kept: dict[health.Key, Finding] = {}
        for at, one in self._left.items():
            new = current.get(at)
            if new is None or (_mild(new) and not _mild(one)):
                if self._open(one, view) and not (changed and _verdict(one)):
                    kept[at] = one
            elif (new.severity, new.text) == (one.severity, one.text):
                kept[at] = one
        self._left = kept
        if any(_verdict(one) and not _mild(one) for one in kept.values()):
            current = {at: one for at, one in current.items() if not (_verdict(one) and _mild(one))}
        return list((current | kept).values())

    def _open(self, one: Finding, view: View) -> bool:
        """Whether it may still be found again."""
        state = view.state
        ranks = [(rank, known.phase) for rank, known in state.ranks.items() if known.phase in _ALIVE]
        if state.attempt != self._attempt or state.phase not in _GOING_ON or not _WATCHED.fullmatch(one.id):
            return False
        if state.ranks and not ranks:
            return False
        began = self._began or view.now
        running = [rank for rank, phase in ranks if phase is RankPhase.RUNNING]
        seen = max((self._first.get(rank, began + SILENT_S) for rank in running), default=began)
        return view.now < seen + LONGER_S.get(one.id, AGAIN_S)


def _mild(one: Finding) -> bool:
    return one.severity == "info"


def _verdict(one: Finding) -> bool:
    return _VERDICT.match(one.id) is not None
