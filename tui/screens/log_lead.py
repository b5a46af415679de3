"""Which rank the log shows while the user has not chosen one: the culprit of a failure, the rank under the cursor."""

from __future__ import annotations

from ...runners.state import RunState
from ..rows.log import Selection
from .log_view import LogView


def culprit(state: RunState) -> int | None:
    """The rank that failed first in the newest attempt; None where none did."""
    cause = state.attempts[-1].first_cause if state.attempts else None
    return cause.rank if cause is not None and cause.rank in state.ranks else None


class LogLead:
    """Moves the log to a rank, unless the user chose what it shows: a rank, a stream, a filter."""

    def __init__(self, log: LogView) -> None:
        self._log = log
        self._led: Selection | None = None
        self._culprit: int | None = None

    def to(self, rank: int | None) -> None:
        """Show this rank, or all, at its newest line."""
        if self._log.selection not in (Selection(), self._led):
            return
        self._led = Selection(rank=rank)
        if self._led != self._log.selection:
            self._log.select(self._led)
            self._log.set_follow(True)

    def to_culprit(self, state: RunState) -> None:
        """Once for each failure; all ranks again when the next attempt begins."""
        rank = culprit(state)
        if rank != self._culprit:
            self._culprit = rank
            self.to(rank)

    def chosen(self) -> None:
        """What the log shows now is the user's choice."""
        self._led = None
