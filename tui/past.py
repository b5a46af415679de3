"""A run at a past moment: its state, folded from the journal up to then. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from copy import copy
from dataclasses import fields
from typing import Any

from msgspec import Struct

from ..runners.run.model import (
    AttemptEnded,
    AttemptStarted,
    CaughtUp,
    Checkpoint,
    CheckpointSaved,
    FindingRaised,
    NcclChanged,
    Stamped,
)
from ..runners.run.state import RunState
from .rows.marks import Mark

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
        """Saved states by the number of folded events, a multiple of KEEP_EVERY."""
        self.seq = 0
        """Sequence number of the newest event."""
        self.add(events)

    def add(self, events: Iterable[Stamped]) -> None:
        """Add further events; CaughtUp, and events that it already has, are skipped."""
        for stamped in events:
            if isinstance(stamped.event, CaughtUp) or (stamped.seq and stamped.seq <= self.seq):
                continue
            last = self._times[-1] if self._times else 0.0
            at = stamped.time if math.isfinite(stamped.time) else last
            self._events.append(stamped)
            self._times.append(max(at, last))
            self.seq = max(self.seq, stamped.seq)
        while len(self._events) > MOST_EVENTS:
            self._base.apply_all(self._events[:KEEP_EVERY])
            del self._events[:KEEP_EVERY], self._times[:KEEP_EVERY]
            self._kept = {at - KEEP_EVERY: state for at, state in self._kept.items() if at > KEEP_EVERY}

    @property
    def begin(self) -> float:
        """Unix time of the first stored event; 0.0 if there is none."""
        return self._times[0] if self._times else 0.0

    @property
    def end(self) -> float:
        return self._times[-1] if self._times else 0.0

    def state_at(self, when: float) -> RunState:
        """Return the state at that time; the caller may change it."""
        count = bisect_right(self._times, when)
        kept = max((each for each in self._kept if each <= count), default=0)
        state = copied(self._kept[kept] if kept else self._base)
        for begin in range(kept, count, KEEP_EVERY):
            end = min(begin + KEEP_EVERY, count)
            state.apply_all(self._events[begin:end])
            if end - begin == KEEP_EVERY:
                self._kept[end] = copied(state)
        # A checkpoint that was complete by then may have been reported later.
        for stamped in self._events[count : bisect_right(self._times, when + REPORTED_S)]:
            if isinstance(stamped.event, CheckpointSaved) and stamped.event.checkpoint.at <= when:
                state.apply(stamped)
        state.live = True
        return state

    def marks(self) -> tuple[Mark, ...]:
        """Return restarts, findings (also those that were cleared), checkpoints and changes of NCCL_DEBUG."""
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

    def checkpoint_from(self, step: int) -> Checkpoint | None:
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


def step_of(state: RunState) -> int | None:
    """Return the step of a moment: the script's own count, else that of the slowest rank."""
    own = [sample.step for sample in state.training.values() if sample.step is not None]
    steps = [
        rank.sample.step for rank in state.ranks.values() if rank.sample and rank.sample.step is not None
    ]
    return max(own) if own else min(steps, default=None)
