"""Rings the terminal for the run on the screen while the user looks elsewhere; `due_alerts` has the rules."""

from __future__ import annotations

from collections.abc import Callable

from textual.events import AppBlur, AppFocus, Event, Key

from ..runners.run import clock
from ..runners.run.state import RunState
from .due_alerts import TerminalAlerts

TYPED_S = 60.0
"""A user counts as present for this many seconds after a key, if the terminal reports no focus."""


class TerminalFocus:
    """Whether the user looks at this terminal."""

    def __init__(self) -> None:
        self._reported: bool | None = None
        """Last DECSET 1004 report; None if the terminal has never sent one."""
        self._typed = float("-inf")

    def report(self, focused: bool) -> None:
        self._reported = focused

    def typed(self, now: float) -> None:
        self._typed = now

    def away(self, now: float) -> bool:
        """Whether the user looks elsewhere at a monotonic time.

        A terminal that never reports counts as unfocused TYPED_S seconds after the last key.
        """
        if self._reported is None:
            return now - self._typed > TYPED_S
        return not self._reported


class Alerts:
    """Rings the terminal while the user looks elsewhere."""

    def __init__(self, write: Callable[[str], None]) -> None:
        """Create the alerts; `write` writes to the terminal."""
        self._write = write
        self._focus = TerminalFocus()
        self._alerts_of_run = TerminalAlerts()

    def begin(self) -> None:
        """Reset the alerts for another run."""
        self._alerts_of_run = TerminalAlerts()

    def ring(self, state: RunState, now: float) -> None:
        """Write due alerts if the user looks elsewhere; drop those that the user sees. `now`: unix time."""
        due = self._alerts_of_run.due(state, now)
        if due and self._focus.away(clock.monotonic()):
            self._write("".join(due))

    def track_focus(self, event: Event) -> None:
        """Note from a key or a focus event whether the user looks at this terminal."""
        if isinstance(event, Key):
            self._focus.typed(clock.monotonic())
        elif isinstance(event, AppFocus | AppBlur):
            self._focus.report(isinstance(event, AppFocus))
