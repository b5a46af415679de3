"""The `:` command line: one line of input with help, completion and history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding
from textual.widgets import Input

from ..rows.command_line import RunNames, candidates, completed, help_line
from .modal import LinePrompt


class CommandPrompt(LinePrompt):
    """Returns the line, or None."""

    SIGN = ":"
    HINT = "restart env K=V · nccl INFO COLL for 30 · stop · signal USR1 · dump stacks · Tab completes"
    SELECTED = False
    BINDINGS: ClassVar[list[Binding]] = [
        Binding("tab", "complete", "complete", priority=True),
    ]

    def __init__(self, history: Sequence[str], names: RunNames, ascii_only: bool = False) -> None:
        super().__init__(history, ascii_only=ascii_only)
        self._names = names
        self._listing = False
        """Whether the change of the line that is to come lists what may follow."""

    def on_mount(self) -> None:
        self.line.focus()
        self._show("")

    def on_input_changed(self, event: Input.Changed) -> None:
        self._show(event.value, self._listing)
        self._listing = False

    def _show(self, text: str, listing: bool = False) -> None:
        """The usage of what is typed, or what it may become."""
        fitting = candidates(text, self._names) if listing else []
        if len(fitting) > 1:
            self.show_help("  ".join(fitting), "text")
        elif text.strip():
            self.show_help(help_line(text, self._names))
        else:
            self.show_help("Tab lists the commands, ↑ repeats one")

    def action_complete(self) -> None:
        """As far as it is clear; else show what there is."""
        text = self.line.value
        further = completed(text, self._names)
        if further != text:
            self._listing = not further.endswith(" ")
            self.put(further)
        else:
            self._show(text, True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)
