"""Has the terminal call for the run on the screen while nobody looks at it: by the rules of notices, over its state."""

from __future__ import annotations

import os
import platform
import time

from textual.app import App
from textual.events import AppBlur, AppFocus, Event, Key

from ..runners.errors import RunError
from ..runners.notify import ways
from ..runners.notify.messages import text_of
from ..runners.notify.notice_rules import Rules, wanted_of
from ..runners.notify.rule_words import chosen
from ..runners.state import RunState
from .alert_bytes import alert_bytes

TYPED_S = 60.0
"""Where a terminal reports no focus, somebody sits there for so long after a key."""
EVERY_S = 1.0
MOST = 3
"""Notices that are written at once."""


class TerminalFocus:
    """Whether somebody looks at this terminal, as far as it reports that."""

    def __init__(self) -> None:
        self._reported: bool | None = None
        """By DECSET 1004; None where it has never reported."""
        self._typed = float("-inf")

    def report(self, focused: bool) -> None:
        """The terminal got the focus, or lost it."""
        self._reported = focused

    def typed(self, now: float) -> None:
        """A key came."""
        self._typed = now

    def away(self, now: float) -> bool:
        """Whether nobody looks. A terminal that never reports has lost the focus when nobody has typed for a while."""
        if self._reported is None:
            return now - self._typed > TYPED_S
        return not self._reported


class TerminalAlerts:
    """What the terminal is sent for one run."""

    def __init__(self) -> None:
        self._rules: Rules | None = None
        """None before the run is live, and where its terminal is not to ring."""
        self._decided = False
        self._sequence = "auto"
        self._judged = (-1, 0.0)
        """The state's version, and when, by the monotonic clock."""

    def due(self, state: RunState, now: float) -> list[str]:
        """What is to be written now. `now`: unix time. What was so when the run came on the screen is no news."""
        if not state.live:
            return []
        if not self._decided:
            self._decided = True
            self._decide(state, now)
        at = time.monotonic()
        if self._rules is None or (self._judged[0] == state.version and at - self._judged[1] < EVERY_S):
            return []
        self._judged = state.version, at
        host = platform.node()
        notices = self._rules.judge(state, now)[:MOST]
        texts = [text_of(notice, state.name, host) for notice in notices]
        return [alert_bytes(text, os.environ, self._sequence) for text in texts]

    def _decide(self, state: RunState, now: float) -> None:
        """By the plan of the run, and where that names no way, by the settings."""
        configured = ways.load()
        words = state.plan.notify if state.plan is not None else ()
        try:
            words = words or ways.resolved((), configured)
        except RunError:  # which every launch refuses in a sentence
            return
        rules = next((each.rules for each in chosen(words) if each.way == "terminal"), None)
        if rules is not None:
            self._sequence = configured.ways["terminal"].sequence
            self._rules = Rules(wanted_of([rules]))
            self._rules.prime(state, now)


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
        if due and self._driver is not None and self._focus.away(time.monotonic()):
            self._driver.write("".join(due))
            self._driver.flush()

    async def on_event(self, event: Event) -> None:
        if isinstance(event, Key):
            self._focus.typed(time.monotonic())
        elif isinstance(event, AppFocus | AppBlur):
            self._focus.report(isinstance(event, AppFocus))
        await super().on_event(event)
