"""The share of time that each rank waits for others, from the regular pulses."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..diagnosis.activity import Kind, position_of
from ..run.freshness import PULSE_S, holds
from ..run.pulse import Pulse

WINDOW_S = 60.0
"""Seconds that the share covers."""
LEAST = 3
"""Fewest pulses for a share."""
BLOCKED_S = 4.0
"""Seconds in one collective that make a rank blocked, if it started no other one between two pulses."""


class _Sampled(NamedTuple):
    at: float
    seconds: float
    """Seconds since the previous pulse."""
    share: float
    called: int
    """Number of collectives. While it does not change, a waiting rank is in one collective."""
    in_call_s: float = 0.0
    """Age of the oldest unfinished collective, in seconds."""


class WaitShares:
    def __init__(self) -> None:
        self._samples: dict[int, deque[_Sampled]] = {}
        self._before: dict[int, tuple[int | None, float]] = {}
        """Process and time of the newest pulse."""

    def take(self, pulses: Iterable[Pulse]) -> None:
        """Add the newest pulses of all ranks, and drop ranks without one."""
        pulses = tuple(pulses)
        ranks = {pulse.rank for pulse in pulses}
        for gone in self._before.keys() - ranks:
            del self._before[gone]
            self._samples.pop(gone, None)
        for pulse in pulses:
            pid, at = self._before.get(pulse.rank, (None, math.nan))
            self._before[pulse.rank] = (pulse.pid, pulse.at)
            if pid != pulse.pid:
                self._samples.pop(pulse.rank, None)
                continue
            seconds = pulse.at - at
            share = waited(pulse, seconds)
            samples = self._samples.setdefault(pulse.rank, deque(maxlen=64))
            if share is not None and seconds > 0:
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
        if len(samples) < LEAST:
            return None
        return round(
            100
            * sum(sample.share * sample.seconds for sample in samples)
            / sum(sample.seconds for sample in samples),
            1,
        )


def _is_blocked(samples: Sequence[_Sampled]) -> bool:
    """Return True if the newest samples found the rank in one collective. Earlier samples say nothing about now."""
    newest = samples[-1]
    if not newest.called or len(samples) < 2 or samples[-2].called != newest.called:
        return False  # it starts others, or torch does not report it
    since = newest.at
    for sample in reversed(samples):
        if sample.share < 1.0 or sample.called != newest.called:
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


def waited(pulse: Pulse, seconds: float) -> float | None:
    """Return the share of the seconds before a pulse that its rank was in collectives, or None if unknown. Pure.

    A collective that is older than the previous pulse fills them. Otherwise the current stack counts for all of them,
    so that many pulses give an estimate.
    """
    if not pulse.hook or pulse.torch is not True or seconds <= 0:
        return None
    if _in_call_s(pulse) >= seconds:
        return 1.0
    if not pulse.stack:
        return None
    if position_of(pulse.stack).kind is Kind.COLLECTIVE:
        return 1.0
    return 0.0 if _has_begun(pulse) else None
