"""Alerts for a terminal, by the notification rules for a run's state; also for a terminal without a cockpit."""

from __future__ import annotations

import os
import platform
import signal

from ..runners.notify import channels
from ..runners.notify.messages import text_of
from ..runners.notify.notice_rules import Rules, wanted_of
from ..runners.notify.rule_words import chosen
from ..runners.run import clock
from ..runners.run.errors import RunError
from ..runners.run.state import RunState
from .alert_bytes import alert_bytes

EVERY_S = 1.0
MOST = 3
"""Maximum notifications per poll."""
TERMINAL = "/dev/tty"


class TerminalAlerts:
    """The terminal alerts of one run."""

    def __init__(self, fresh: bool = False) -> None:
        """Create the alerts; `fresh` means that the run was just launched, so that its present findings also alert."""
        self._fresh = fresh
        self._rules: Rules | None = None
        """None before the run is live, or if its terminal must not ring."""
        self._decided = False
        self._sequence = "auto"
        self._judged = (-1, 0.0)
        """Version of the last judged state, and the monotonic time of the judgement."""

    def due(self, state: RunState, now: float) -> list[str]:
        """Return the alerts to write now; `now` is unix time.

        Conditions that held when the user attached do not alert.
        """
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
        """Choose the rules: from the run's plan, or from the settings if it names no channel."""
        configured = channels.load()
        words = state.plan.notify if state.plan is not None else ()
        try:
            words = words or channels.resolved((), configured)
        except RunError:  # every launch reports this error
            return
        rules = next((each.rules for each in chosen(words) if each.channel == "terminal"), None)
        if rules is not None:
            self._sequence = configured.channels["terminal"].sequence
            self._rules = Rules(wanted_of([rules]))
            if not self._fresh:
                self._rules.prime(state, now, clock.monotonic())


def ring(data: str) -> bool:
    """Write to the controlling terminal, even if output is redirected; False if there is none, or its buffer is full.

    The write neither stops a background job (`stty tostop`) nor blocks on a terminal that is paused with ^S.
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
