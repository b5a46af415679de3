"""The stacks that a cockpit has taken of a run, to be shown again: the journal has only when they were taken."""

from __future__ import annotations

from collections.abc import Mapping

MOST = 20
"""Answers that are kept."""
SAME_S = 2.0
"""Maximum seconds between an answer and its event in the journal."""

Stacks = Mapping[str, str]
"""Stack by rank."""


class KeptStacks:
    """The newest answers with stacks, by the time of the run's node."""

    def __init__(self) -> None:
        self._by_time: dict[float, Stacks] = {}

    def keep(self, at: float, stacks: Stacks) -> None:
        """Keep stacks that came at a Unix time; the oldest are dropped."""
        self._by_time[at] = stacks
        while len(self._by_time) > MOST:
            del self._by_time[min(self._by_time)]

    def taken_at(self, at: float) -> Stacks | None:
        """Return the stacks of an event, by its Unix time; None if they are not kept."""
        nearest = min(self._by_time, key=lambda then: abs(then - at), default=None)
        if nearest is None or abs(nearest - at) > SAME_S:
            return None
        return self._by_time[nearest]
