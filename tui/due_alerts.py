"""What the terminal is sent for a run, by the rules of notices over its state; and a terminal that is no cockpit's."""

from __future__ import annotations

import os
import platform
import signal

from ..runners import clock
from ..runners.errors import RunError
from ..runners.notify import ways
from ..runners.notify.messages import text_of
from ..runners.notify.notice_rules import Rules, wanted_of
from ..runners.notify.rule_words import chosen
from ..runners.state import RunState
from .alert_bytes import alert_bytes

EVERY_S = 1.0
MOST = 3
"""Notices that are written at once."""
TERMINAL = "/dev/tty"


class TerminalAlerts:
    """What the terminal is sent for one run."""

    def __init__(self, fresh: bool = False) -> None:
        """`fresh`: the run was just launched, and all that happens to it is news."""
        self._fresh = fresh
        self._rules: Rules | None = None
        """None before the run is live, and where its terminal is not to ring."""
        self._decided = False
        self._sequence = "auto"
        self._judged = (-1, 0.0)
        """The state's version, and when, by the monotonic clock."""

    def due(self, state: RunState, now: float) -> list[str]:
        """What is to be written now. `now`: unix time. What was so when somebody came to see it is no news."""
        if not state.live:
            return []
        if not self._decided:
            self._decided = True
            self._decide(state, now)
        at = clock.monotonic()
        if self._rules is None or (self._judged[0] == state.version and at - self._judged[1] < EVERY_S):
            return []
        self._judged = state.version, at
        host = platform.node()
        notices = self._rules.judge(state, now, at)[:MOST]
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
            if not self._fresh:
                self._rules.prime(state, now, clock.monotonic())


def ring(data: str) -> bool:
    """Write to the terminal of this process, wherever its output goes; False where it has none, or takes nothing now.

    A job in the background is not stopped by it (`stty tostop`), and a terminal that is held (^S) holds up nobody.
    """
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        terminal = os.open(TERMINAL, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.write(terminal, data.encode("utf-8", "replace")) > 0
        finally:
            os.close(terminal)
    except OSError:
        return False
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
