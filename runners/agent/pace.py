"""From counts of optimizer steps to the pace of a rank. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Known:
    pid: int | None
    count: int
    last: float
    """Unix time of that step; 0 before the first."""
    step_s: float | None = None


class Paces:
    """What is known of each rank's steps, from one sample to the next."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def add(
        self, rank: int, pid: int | None, counted: tuple[int, float] | None
    ) -> tuple[int | None, float | None]:
        """Steps so far, and mean seconds a step since the last sample that saw one.

        `counted` is (steps, unix time of the last one); None where the hook did not answer in time: the count
        known last still holds, a pace does not. Another pid is another process: nothing is known of it.
        """
        known = self._known.get(rank)
        if known is not None and known.pid != pid:
            known = None
            del self._known[rank]
        if counted is None:
            return (None if known is None else known.count), None
        fresh = _Known(pid, *counted)
        if known is not None and fresh.count > known.count and known.last > 0:
            fresh.step_s = (fresh.last - known.last) / (fresh.count - known.count)
        elif known is not None and fresh.count == known.count:
            fresh.step_s = known.step_s
        self._known[rank] = fresh
        return fresh.count, fresh.step_s
