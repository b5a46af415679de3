"""Input lines in the footer's row: `:` for commands, `/` for the log filter, each with help and a history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from ...runners.run.errors import RunError
from ..background import after, background, keep_running
from ..rows.command_line import RunNames, candidates, completed, help_line
from ..rows.glyphs import Row, wrap
from .rows_view import StillRows

BESIDE = 6
"""Columns of the sign, the cursor and the space between a line and its help."""
MOST_HELP = 4
"""Maximum rows of help above a line."""
WAIT_S = 0.15
"""Seconds after the last key before the pattern is searched for."""
STATE_S = 0.1
"""Seconds between two updates of the search's progress."""


class LinePrompt(ModalScreen[str | None]):
    """One line of input with help next to it, or above if there is no room, and a history on Up and Down.

    Returns the line, or None. A subclass handles changes of the line and provides the help.
    """

    SIGN: ClassVar[str]
    """Prefix of the line."""
    HINT: ClassVar[str]
    """Placeholder of the empty line."""
    SELECTED: ClassVar[bool] = True
    """Whether the first key replaces the initial text."""
    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape", "dismiss", "cancel", id="prompt.cancel"),
        Binding("up", "recall(-1)", "the line before", priority=True),
        Binding("down", "recall(1)", "the next line", priority=True),
    ]

    def __init__(self, history: Sequence[str], value: str = "") -> None:
        super().__init__()
        self._lines = [*history, value]
        """The last one is the current input."""
        self._at = len(history)
        self.box = Vertical(id="command")
        self.help_row = StillRows(id="command-help")

    def compose(self) -> ComposeResult:
        with self.box:
            yield self.help_row
            with Horizontal(id="command-line"):
                yield Label(self.SIGN, id="prompt-sign", markup=False)
                yield Input(
                    self._lines[-1],
                    placeholder=self.HINT,
                    compact=True,
                    id="prompt-input",
                    select_on_focus=self.SELECTED,
                )

    @property
    def line(self) -> Input:
        return self.query_one(Input)

    def show_help(self, text: str, style: str = "dim") -> None:
        """Show help next to the line, covering only the footer; above the line if both do not fit."""
        width = self.app.size.width
        room = width - cell_len(text) - BESIDE
        self.line.placeholder = _beginning(self.HINT, room)
        above = cell_len(self.line.value) > room
        self.box.set_class(above, "-tall")
        rows: list[Row] = [((f" {text}", style),)]
        if above:
            rows = wrap(text, width - 1, style, first=" ")[:MOST_HELP]
        self.help_row.styles.width = "100%" if above else cell_len(text) + 2
        self.help_row.styles.height = len(rows)
        self.box.styles.height = len(rows) + above
        self.help_row.set_rows(rows)

    def put(self, text: str) -> None:
        self.line.value = text
        self.line.cursor_position = len(text)

    def action_recall(self, by: int) -> None:
        """Recall an earlier line, or the current input."""
        if self._at == len(self._lines) - 1:
            self._lines[-1] = self.line.value
        self._at = max(0, min(self._at + by, len(self._lines) - 1))
        self.put(self._lines[self._at])


def _beginning(hint: str, room: int) -> str:
    """Return as many of the examples of a hint as fit."""
    examples = hint.split(" · ")
    while examples and cell_len(" · ".join(examples)) > room:
        examples.pop()
    return " · ".join(examples)


class FilterPrompt(LinePrompt):
    """Asks for a pattern; returns it, or None."""

    SIGN = "/"

    def __init__(
        self,
        value: str,
        history: Sequence[str],
        typed: Callable[[str], str],
        state: Callable[[], str],
        hint: str,
    ) -> None:
        """Create the prompt.

        `typed` applies a pattern and returns "" or its error; `state` returns the number of hits so far. `hint` is the
        placeholder.
        """
        self.HINT = hint  # type: ignore[misc]
        super().__init__(history, value)
        self._typed, self._state = typed, state
        self._wrong = ""

    def on_mount(self) -> None:
        self.line.focus()
        keep_running(self, "filter-state", self._keep_showing)

    async def _keep_showing(self) -> None:
        while True:
            self._show()
            await asyncio.sleep(STATE_S)

    def on_input_changed(self, event: Input.Changed) -> None:
        background(self, "filter", after(WAIT_S, self._apply), exclusive=True)

    def _apply(self) -> None:
        self._wrong = self._typed(self.line.value)
        self._show()

    def _show(self) -> None:
        """Show the error in the pattern, else its hits."""
        if self._wrong:
            self.show_help(self._wrong, "bad")
        else:
            self.show_help(self._state() if self.line.value else "↑ repeats a pattern")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close the prompt, unless the pattern has an error."""
        self._wrong = self._typed(event.value)
        if self._wrong:
            self._show()
        else:
            self.dismiss(event.value)


class WordsPrompt(LinePrompt):
    """Asks for a note, tags, or a name. Returns the line, or None."""

    SELECTED = False

    def __init__(
        self,
        sign: str,
        hint: str,
        about: str,
        value: str = "",
        check: Callable[[str], object] = str,
    ) -> None:
        """Create the prompt with the help text `about`.

        `check` raises RunError for a line that is not acceptable; the prompt then stays open.
        """
        self.SIGN, self.HINT = f" {sign}: ", hint  # type: ignore[misc]
        super().__init__((), value)
        self._about, self._check = about, check

    def on_mount(self) -> None:
        self.line.focus()
        self.show_help(self._about)

    def on_input_changed(self, event: Input.Changed) -> None:
        self.show_help(self._about)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            self._check(event.value)
            self.dismiss(event.value)
        except RunError as error:
            self.show_help(str(error), "bad")


class CommandPrompt(LinePrompt):
    """Asks for a command; returns the line, or None."""

    SIGN = ":"
    HINT = "restart env K=V · nccl INFO COLL for 30 · stop · signal USR1 · dump stacks · Tab completes"
    SELECTED = False
    BINDINGS: ClassVar[list[Binding]] = [Binding("tab", "complete", "complete", priority=True)]

    def __init__(self, history: Sequence[str], names: RunNames) -> None:
        super().__init__(history)
        self._names = names
        self._listing = False
        """Whether the next change of the line lists the candidates."""

    def on_mount(self) -> None:
        self.line.focus()
        self._show("")

    def on_input_changed(self, event: Input.Changed) -> None:
        self._show(event.value, self._listing)
        self._listing = False

    def _show(self, text: str, listing: bool = False) -> None:
        """Show the usage of the typed command, or its candidates."""
        fitting = candidates(text, self._names) if listing else []
        if len(fitting) > 1:
            self.show_help("  ".join(fitting), "text")
        elif text.strip():
            self.show_help(help_line(text, self._names))
        else:
            self.show_help("Tab lists the commands, ↑ repeats one")

    def action_complete(self) -> None:
        """Complete as far as the text is unambiguous; else list the candidates."""
        text = self.line.value
        further = completed(text, self._names)
        if further != text:
            self._listing = not further.endswith(" ")
            self.put(further)
        else:
            self._show(text, True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)
