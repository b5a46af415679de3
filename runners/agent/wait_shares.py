"""The share of time that each rank waits for others.

It comes from the times of the same collectives on all ranks, as in the finding about a slow rank. Where a rank waits
for ranks of other nodes or torch records no times, it is estimated from the regular pulses.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..diagnosis.activity import Kind, in_backward, position_of
from ..diagnosis.arrivals import Arrivals, GroupArrivals
from ..run.freshness import PULSE_S, holds
from ..run.pulse import ProcessGroup, Pulse

WINDOW_S = 60.0
"""Seconds that the share covers."""
LEAST = 3
"""Fewest pulses, or steps, for a share."""
KNOWN_S = 30.0
"""Maximum age in seconds of the newest collective whose times count: pulses read them every 15 s."""
UNKNOWN = 0.1
"""Maximum share of the window in which it is unknown whether the rank waits."""
HOST_BACKENDS = ("", "gloo", "mpi")
"""Backends whose collectives make the host wait. Those of other backends wait on the GPU, where no stack shows it."""
BLOCKED_S = 4.0
"""Seconds in one collective that make a rank blocked, if it started no other one between two pulses."""


class _Sampled(NamedTuple):
    at: float
    seconds: float
    """Seconds since the previous pulse."""
    share: float | None
    """Share of these seconds that it waited, None if unknown."""
    called: int
    """Number of collectives. While it does not change, a waiting rank is in one collective."""
    in_call_s: float = 0.0
    """Age of the oldest unfinished collective, in seconds."""


class WaitShares:
    def __init__(self) -> None:
        self._samples: dict[int, deque[_Sampled]] = {}
        self._before: dict[int, tuple[int | None, float]] = {}
        """Process and time of the newest pulse."""
        self._arrivals = Arrivals()
        self._timed: dict[int, float] = {}
        """Percentage by the times of collectives, by rank."""

    def take(self, pulses: Iterable[Pulse], world: int = 1) -> None:
        """Add the newest pulses of all ranks, and drop ranks without one. `world`: number of ranks of the attempt."""
        pulses = tuple(pulses)
        ranks = {pulse.rank for pulse in pulses}
        for gone in self._before.keys() - ranks:
            del self._before[gone]
            self._samples.pop(gone, None)
        if any(self._is_new(pulse) for pulse in pulses):
            self._arrivals = Arrivals()
        for pulse in pulses:
            self._arrivals.add(pulse, world)
            self._sample(pulse)
        self._timed = _timed_percents(self._arrivals, pulses)

    def _is_new(self, pulse: Pulse) -> bool:
        """Return True if the pulse is of another process than the one before."""
        return pulse.rank in self._before and self._before[pulse.rank][0] != pulse.pid

    def _sample(self, pulse: Pulse) -> None:
        pid, at = self._before.get(pulse.rank, (None, math.nan))
        self._before[pulse.rank] = (pulse.pid, pulse.at)
        if pid != pulse.pid:
            self._samples.pop(pulse.rank, None)
            return
        seconds = pulse.at - at
        samples = self._samples.setdefault(pulse.rank, deque(maxlen=64))
        share = waited(pulse, seconds)
        if share is not None or (_is_measured(pulse) and _has_begun(pulse) and seconds > 0):
            samples.append(_Sampled(pulse.at, seconds, share, _called(pulse), _in_call_s(pulse)))
        while samples and samples[0].at < pulse.at - WINDOW_S:
            samples.popleft()

    def percent(self, rank: int, pid: int | None, now: float) -> float | None:
        """Return the percentage of the last minute that it waited, 100 if it is blocked, None if unknown.

        `now`: Unix time.
        """
        samples = self._samples.get(rank)
        if not samples or self._before[rank][0] != pid or not holds(now - samples[-1].at, PULSE_S):
            return None
        if _is_blocked(samples):
            return 100.0
        if rank in self._timed:
            return self._timed[rank]
        return _sampled_percent(samples)


def _sampled_percent(samples: Sequence[_Sampled]) -> float | None:
    """Return the percentage that the samples show, None if they are few or the unknown ones could change it much."""
    known = [sample for sample in samples if sample.share is not None]
    total = sum(sample.seconds for sample in samples)
    seconds = sum(sample.seconds for sample in known)
    if len(known) < LEAST or total - seconds > UNKNOWN * total:
        return None
    return round(100 * sum((sample.share or 0.0) * sample.seconds for sample in known) / seconds, 1)


def _timed_percents(arrivals: Arrivals, pulses: Sequence[Pulse]) -> dict[int, float]:
    """Return the percentages of the ranks whose collectives are all of one group, with known times of all members."""
    busy = [group for group in arrivals.groups if group.progress]
    percents: dict[int, float] = {}
    for pulse in pulses:
        own = [group for group in busy if pulse.rank in group.index]
        if len(own) == 1 and len([group for group in pulse.groups if group.enqueued]) == 1:
            percent = _timed_percent(own[0], pulse)
            if percent is not None:
                percents[pulse.rank] = percent
    return percents


def _timed_percent(group: GroupArrivals, pulse: Pulse) -> float | None:
    """Return the percentage of the last minute's steps that a member waited for the last one, None if unknown."""
    steps = [step for step in group.steps(margin=0.0) if step.ends > pulse.at - WINDOW_S]
    if len(steps) < LEAST or steps[-1].ends < pulse.at - KNOWN_S:
        return None
    member, waits_s = group.index[pulse.rank], 0.0
    for step in steps:
        waits_s += sum(call.latest - call.arrivals[member] for call in step.waits)
    return round(min(100.0, 100 * waits_s / sum(step.seconds for step in steps)), 1)


def _is_blocked(samples: Sequence[_Sampled]) -> bool:
    """Return True if the newest samples found the rank in one collective. Earlier samples say nothing about now."""
    newest = samples[-1]
    if not newest.called or len(samples) < 2 or samples[-2].called != newest.called:
        return False  # it starts others, or torch does not report it
    since = newest.at
    for sample in reversed(samples):
        if sample.share != 1.0 or sample.called != newest.called:
            break
        since = sample.at
    return newest.share == 1.0 and max(newest.at - since, newest.in_call_s) >= BLOCKED_S


def _in_call_s(pulse: Pulse) -> float:
    """Return the age of the oldest unfinished collective, or 0.0."""
    oldest = min((call.created for call in pulse.active if not call.done), default=pulse.at)
    return max(0.0, pulse.at - oldest)


def _has_begun(pulse: Pulse) -> bool:
    """Return True if the rank has made a step, or called a collective without an optimizer."""
    return bool(_called(pulse) if pulse.step is None else pulse.step)


def _called(pulse: Pulse) -> int:
    return sum(group.enqueued for group in pulse.groups)


def _is_measured(pulse: Pulse) -> bool:
    """Return True if the pulse shows what a rank with torch.distributed does."""
    return pulse.hook and pulse.torch is True and bool(pulse.stack or pulse.active)


def waited(pulse: Pulse, seconds: float) -> float | None:
    """Return the share of the seconds before a pulse that its rank was in collectives, or None if unknown. Pure.

    A collective that is older than the previous pulse fills them. Otherwise the current position counts for all of
    them, so that many pulses give an estimate.
    """
    if not _is_measured(pulse) or seconds <= 0:
        return None
    if _in_call_s(pulse) >= seconds:
        return 1.0
    if not pulse.stack:
        return None
    if position_of(pulse.stack).kind is Kind.COLLECTIVE:
        return 1.0
    if not _has_begun(pulse):
        return None
    return _waits_without_a_call(pulse)


def _waits_without_a_call(pulse: Pulse) -> float | None:
    """Return the share for a rank whose stack is in no collective: others may be open, in C++ or on the GPU."""
    backward = in_backward(pulse.stack)
    if not pulse.groups:
        return None if backward else 0.0
    backends = {group.backend for group in pulse.groups if _is_open(group)}
    if not backends.issubset(HOST_BACKENDS):
        return None
    if not backends or pulse.call != "futex":
        return 0.0
    return 1.0 if backward else None


def _is_open(group: ProcessGroup) -> bool:
    """Return True if the group has a collective that is not complete, or may have one."""
    return group.enqueued > group.completed
