"""How much of its time each rank waits for others, from the pulses that are taken anyway."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from ..diagnosis.activity import Kind, place
from ..model import Pulse

WINDOW_S = 60.0
"""The share is that of so many seconds."""
LEAST = 3
"""Pulses that are needed before there is a share."""
STALE_S = 15.0
"""A share without newer pulses is none any more."""


class _Sampled(NamedTuple):
    at: float
    seconds: float
    """Since the pulse before."""
    share: float


class WaitShares:
    """Shares by rank."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[_Sampled]] = {}
        self._before: dict[int, tuple[int | None, float]] = {}
        """Process and time of the newest pulse."""

    def take(self, pulses: Iterable[Pulse]) -> None:
        """The newest pulses of all ranks; those of ranks that are gone are dropped."""
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
                samples.append(_Sampled(pulse.at, seconds, share))
            while samples and samples[0].at < pulse.at - WINDOW_S:
                samples.popleft()

    def percent(self, rank: int, pid: int | None, now: float) -> float | None:
        """Percent of the last minute in which it waited; None where that is not known. `now` in unix seconds."""
        samples = self._samples.get(rank)
        if (
            not samples
            or len(samples) < LEAST
            or self._before[rank][0] != pid
            or now - samples[-1].at > STALE_S
        ):
            return None
        return round(
            100
            * sum(sample.share * sample.seconds for sample in samples)
            / sum(sample.seconds for sample in samples),
            1,
        )


def waited(pulse: Pulse, seconds: float) -> float | None:
    """The share of the seconds before a pulse that its rank was in collectives; None where it does not say. Pure.

    A collective that is older than the pulse before took all of them. Else the stack of the moment counts for the
    whole time, which many pulses make an estimate.
    """
    if not pulse.hook or pulse.torch is not True or seconds <= 0:
        return None
    oldest = min((call.created for call in pulse.active if not call.done), default=math.inf)
    if pulse.at - oldest >= seconds:
        return 1.0
    if not pulse.stack:
        return None
    return 1.0 if place(pulse.stack).kind is Kind.COLLECTIVE else 0.0
