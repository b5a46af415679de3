"""The `/` line: a regular expression that filters the log while it is typed, with what it finds above it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Input, Label

from .rows_view import RowsView

WAIT_S = 0.15
"""After the last key: a pattern that is still being typed is not searched for."""
STATE_S = 0.1
"""Between two looks how far the search is."""
HINT = "regular expression; empty shows all lines"


class FilterPrompt(ModalScreen[str | None]):
    """Returns the pattern, or None."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape", "dismiss", "cancel", id="filter.cancel"),
        Binding("up", "recall(-1)", "the pattern before", priority=True),
        Binding("down", "recall(1)", "the next pattern", priority=True),
    ]

    def __init__(
        self,
        value: str,
        history: Sequence[str],
        typed: Callable[[str], str],
        state: Callable[[], str],
        ascii_only: bool = False,
    ) -> None:
        """`typed`: applies a pattern, "" or what is wrong with it; `state`: what it has found so far."""
        super().__init__()
        self._lines = [*history, value]
        """The last one is what is being typed."""
        self._at = len(history)
        self._typed, self._state = typed, state
        self._wrong = ""
        self._timer: Timer | None = None
        self.help_row = RowsView(id="command-help")
        self.help_row.can_focus = False
        self.help_row.ascii_only = ascii_only

    def compose(self) -> ComposeResult:
        with Vertical(id="command"):
            yield self.help_row
            with Horizontal(id="command-line"):
                yield Label("/", id="prompt-sign", markup=False)
                yield Input(self._lines[-1], placeholder=HINT, compact=True, id="prompt-input")

    def on_mount(self) -> None:
        self._input.focus()
        self._show()
        self.set_interval(STATE_S, self._show)

    @property
    def _input(self) -> Input:
        return self.query_one(Input)

    def on_input_changed(self, event: Input.Changed) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(WAIT_S, self._apply)

    def _apply(self) -> None:
        self._timer = None
        self._wrong = self._typed(self._input.value)
        self._show()

    def _show(self) -> None:
        """What is wrong with the pattern, else what it finds."""
        if self._wrong:
            self.help_row.set_rows([((f" {self._wrong}", "bad"),)])
        else:
            text = self._state() if self._input.value else "↑ repeats a pattern"
            self.help_row.set_rows([((f" {text}", "dim"),)])

    def action_recall(self, by: int) -> None:
        """A pattern of before, or what was being typed."""
        if self._at == len(self._lines) - 1:
            self._lines[-1] = self._input.value
        self._at = max(0, min(self._at + by, len(self._lines) - 1))
        self._input.value = self._lines[self._at]
        self._input.cursor_position = len(self._input.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """A wrong pattern stays to be mended."""
        self._wrong = self._typed(event.value)
        if self._wrong:
            self._show()
        else:
            self.dismiss(event.value)
