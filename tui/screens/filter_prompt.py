"""The `/` line: a regular expression that filters the log while it is typed, with what it finds above it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.timer import Timer
from textual.widgets import Input

from .modal import LinePrompt

WAIT_S = 0.15
"""After the last key: a pattern that is still being typed is not searched for."""
STATE_S = 0.1
"""Between two looks how far the search is."""


class FilterPrompt(LinePrompt):
    """Returns the pattern, or None."""

    SIGN = "/"
    HINT = "regular expression; empty shows all lines"

    def __init__(
        self,
        value: str,
        history: Sequence[str],
        typed: Callable[[str], str],
        state: Callable[[], str],
        ascii_only: bool = False,
    ) -> None:
        """`typed`: applies a pattern, "" or what is wrong with it; `state`: what it has found so far."""
        super().__init__(history, value, ascii_only)
        self._typed, self._state = typed, state
        self._wrong = ""
        self._timer: Timer | None = None

    def on_mount(self) -> None:
        self.line.focus()
        self._show()
        self.set_interval(STATE_S, self._show)

    def on_input_changed(self, event: Input.Changed) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(WAIT_S, self._apply)

    def _apply(self) -> None:
        self._timer = None
        self._wrong = self._typed(self.line.value)
        self._show()

    def _show(self) -> None:
        """What is wrong with the pattern, else what it finds."""
        if self._wrong:
            self.show_help(self._wrong, "bad")
        else:
            self.show_help(self._state() if self.line.value else "↑ repeats a pattern")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """A wrong pattern stays to be mended."""
        self._wrong = self._typed(event.value)
        if self._wrong:
            self._show()
        else:
            self.dismiss(event.value)
