"""What a detector looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ....presets.plan import Plan
from ...model import Finding, Pulse
from ...state import RunState

KEPT = 8
"""Pulses of a rank that are kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A run at one moment. Detectors read it and change nothing."""

    state: RunState
    plan: Plan | None
    """None where only a journal is known, as in a replay."""
    now: float
    """Unix time."""
    history: Mapping[int, Sequence[Pulse]]
    """Of each rank's process of the current attempt the newest pulses, oldest first, at most KEPT."""


Detector = Callable[[View], Iterable[Finding]]
"""The text of a finding stays the same while it holds: ages belong into `since`, counts into `evidence`."""
