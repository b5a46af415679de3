"""Seconds per step of each rank, from sample to sample."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import NamedTuple

from ..run.freshness import holds


class Steps(NamedTuple):
    so_far: int | None = None
    step_s: float | None = None
    """Mean seconds per step since the previous sample. None after the steps have stopped."""
    still_s: float | None = None
    """Seconds since the newest step, after the steps have stopped."""
    usual_s: float | None = None
    """Usual seconds per step, after the steps have stopped."""


USUAL_OF = 5
"""Number of samples in the median of step times. A single checkpoint or evaluation does not change it."""


class _Counted:
    def __init__(self, pid: int | None) -> None:
        self.pid = pid
        self.count: int | None = None
        self.last = 0.0
        """Unix time of the newest step. 0 before the first."""
        self.paces = deque[float](maxlen=USUAL_OF)
        """Mean seconds per step of the newest samples with steps."""

    def add(self, count: int, last: float) -> None:
        if self.count is not None and count > self.count and self.last > 0:
            self.paces.append((last - self.last) / (count - self.count))
        self.count, self.last = count, last


class Paces:
    """The steps of each rank, from sample to sample."""

    def __init__(self) -> None:
        self._by_rank: dict[int, _Counted] = {}

    def add(
        self, rank: int, pid: int | None, counted: tuple[int | None, float] | None, now: float
    ) -> Steps:
        """Return a rank's steps for a sample at the Unix time `now`.

        `counted` is (steps, Unix time of the newest), or None if the hook did not answer in time, for example in a busy
        interpreter. It is then unknown if the steps have stopped. Steps are None until the script has an optimizer. A
        new pid is a new process.
        """
        known = self._by_rank.get(rank)
        if known is None or known.pid != pid:
            known = self._by_rank[rank] = _Counted(pid)
        if counted is not None and counted[0] is not None:
            known.add(counted[0], counted[1])
        if not known.paces:
            return Steps(known.count)
        still_s, usual_s = max(0.0, now - known.last), median(known.paces)
        if holds(still_s, usual_s):
            return Steps(known.count, known.paces[-1])
        if counted is None:
            return Steps(known.count)
        return Steps(known.count, still_s=still_s, usual_s=usual_s)

    def last(self, rank: int, pid: int | None) -> float | None:
        """Return the newest step time of a process, even after its steps have stopped."""
        known = self._by_rank.get(rank)
        if known is None or known.pid != pid or not known.paces:
            return None
        return known.paces[-1]
