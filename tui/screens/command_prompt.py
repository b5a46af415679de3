"""The `:` command line: one line of input with help, completion and history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from ..rows.command_line import RunNames, candidates, completed, help_line
from .rows_view import RowsView

HINT = "restart env K=V · nccl INFO COLL for 30 · stop · signal USR1 · dump stacks · Tab completes"


class CommandPrompt(ModalScreen[str | None]):
    """Returns the line, or None."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape", "dismiss", "cancel", id="prompt.cancel"),
        Binding("tab", "complete", "complete", priority=True),
        Binding("up", "recall(-1)", "the line before", priority=True),
        Binding("down", "recall(1)", "the next line", priority=True),
    ]

    def __init__(self, history: Sequence[str], names: RunNames, ascii_only: bool = False) -> None:
        super().__init__()
        self._lines = [*history, ""]
        """The last one is what is being typed."""
        self._at = len(history)
        self._names = names
        self._listing = False
        """Whether the change of the line that is to come lists what may follow."""
        self.help_row = RowsView(id="command-help")
        self.help_row.can_focus = False
        self.help_row.ascii_only = ascii_only

    def compose(self) -> ComposeResult:
        with Vertical(id="command"):
            yield self.help_row
            with Horizontal(id="command-line"):
                yield Label(":", id="prompt-sign", markup=False)
                yield Input(placeholder=HINT, compact=True, id="prompt-input", select_on_focus=False)

    def on_mount(self) -> None:
        self._input.focus()
        self._show("")

    @property
    def _input(self) -> Input:
        return self.query_one(Input)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._show(event.value, self._listing)
        self._listing = False

    def _show(self, text: str, listing: bool = False) -> None:
        """The usage of what is typed, or what it may become."""
        fitting = candidates(text, self._names) if listing else []
        if len(fitting) > 1:
            self.help_row.set_rows([((f" {'  '.join(fitting)}", "text"),)])
            return
        line = help_line(text, self._names) if text.strip() else "Tab lists the commands, ↑ repeats one"
        self.help_row.set_rows([((f" {line}", "dim"),)])

    def _put(self, text: str) -> None:
        self._input.value = text
        self._input.cursor_position = len(text)

    def action_complete(self) -> None:
        """As far as it is clear; else show what there is."""
        text = self._input.value
        further = completed(text, self._names)
        if further != text:
            self._listing = not further.endswith(" ")
            self._put(further)
        else:
            self._show(text, True)

    def action_recall(self, by: int) -> None:
        """A line of before, or what was being typed."""
        if self._at == len(self._lines) - 1:
            self._lines[-1] = self._input.value
        self._at = max(0, min(self._at + by, len(self._lines) - 1))
        self._put(self._lines[self._at])

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)
