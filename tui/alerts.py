"""Has the terminal call for the run on the screen while nobody looks at it: by the rules of notices, over its state."""

from __future__ import annotations

from textual.app import App
from textual.events import AppBlur, AppFocus, Event, Key

from ..runners import clock
from ..runners.state import RunState
from .due_alerts import TerminalAlerts

TYPED_S = 60.0
"""Where a terminal reports no focus, somebody sits there for so long after a key."""


class TerminalFocus:
    """Whether somebody looks at this terminal, as far as it reports that."""

    def __init__(self) -> None:
        self._reported: bool | None = None
        """By DECSET 1004; None where it has never reported."""
        self._typed = float("-inf")

    def report(self, focused: bool) -> None:
        self._reported = focused

    def typed(self, now: float) -> None:
        self._typed = now

    def away(self, now: float) -> bool:
        """Whether nobody looks. A terminal that never reports has lost the focus when nobody has typed for a while."""
        if self._reported is None:
            return now - self._typed > TYPED_S
        return not self._reported


class AlertingApp(App[None]):
    """Knows whether somebody sits at its terminal, and rings it."""

    _alerts: TerminalAlerts | None = None
    """Of the run on the screen; None while there is none."""

    def __init__(self) -> None:
        super().__init__()
        self._focus = TerminalFocus()

    def begin_alerts(self) -> None:
        """Another run is on the screen."""
        self._alerts = TerminalAlerts()

    def ring(self, state: RunState, now: float) -> None:
        """Write what is due, where nobody looks; what somebody sees is not written later."""
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
