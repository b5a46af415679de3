"""Rings the terminal for the run on the screen while the user looks elsewhere, by the notification rules."""

from __future__ import annotations

from textual.app import App
from textual.events import AppBlur, AppFocus, Event, Key

from ..runners.run import clock
from ..runners.run.state import RunState
from .due_alerts import TerminalAlerts

TYPED_S = 60.0
"""A user counts as present for so many seconds after a key, if the terminal reports no focus."""


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
        """Whether the user looks elsewhere.

        A terminal that never reports counts as unfocused TYPED_S seconds after the last key.
        """
        if self._reported is None:
            return now - self._typed > TYPED_S
        return not self._reported


class AlertingApp(App[None]):
    """An app that tracks the focus of its terminal, and rings it."""

    _alerts: TerminalAlerts | None = None
    """Alerts of the run on the screen; None if there is none."""

    def __init__(self) -> None:
        super().__init__()
        self._focus = TerminalFocus()

    def begin_alerts(self) -> None:
        """Reset the alerts for another run."""
        self._alerts = TerminalAlerts()

    def ring(self, state: RunState, now: float) -> None:
        """Write due alerts if the user looks elsewhere. Alerts that the user sees on the screen are dropped."""
        due = [] if self._alerts is None else self._alerts.due(state, now)
        if due and self._driver is not None and self._focus.away(clock.monotonic()):
            self._driver.write("".join(due))
            self._driver.flush()

    async def on_event(self, event: Event) -> None:
        if isinstance(event, Key):
            self._focus.typed(clock.monotonic())
        elif isinstance(event, AppFocus | AppBlur):
            self._focus.report(isinstance(event, AppFocus))
        await super().on_event(event)
