"""What a detector looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ....presets.finding import Finding
from ....presets.plan import Plan
from ...model import Pulse
from ...state import RunState
from .arrivals import Arrivals
from .memory_curve import Point

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
    arrivals: Arrivals | None = None
    """When the ranks called their collectives, of all pulses of the attempt; None: `history` is all there is."""
    memory: Mapping[int, Sequence[Point]] = field(default_factory=dict)
    """Of each rank of the current attempt its memory over time, oldest first, the older the sparser."""
    memory_before: Mapping[int, Sequence[Point]] = field(default_factory=dict)
    """The same of the attempt before."""
    node_memory: Mapping[int, Sequence[Point]] = field(default_factory=dict)
    """Of each node what is in use there, as `Point.rss`."""


Detector = Callable[[View], Iterable[Finding]]
"""The text of a finding stays the same while it holds: ages belong into `since`, counts into `evidence`."""
