"""Screens on top of others: a question, a text, one line of input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from ..rows.cells import Row, hang
from ..widgets.rows_view import RowsView

Answer = TypeVar("Answer")


class _Box(Vertical):
    """The frame of a modal screen."""


class RowsModal(ModalScreen[Answer]):
    """A title, rows, and a line of keys, no larger than needed."""

    def __init__(self, title: str, rows: Sequence[Row], keys: Row, ascii_only: bool = False) -> None:
        super().__init__()
        self._question = title
        self._answer_rows = rows
        self.view = RowsView(id="modal-rows")
        self._key_row = RowsView(id="modal-keys")
        self._key_row.can_focus = False
        self.view.ascii_only = self._key_row.ascii_only = ascii_only
        self._key_row.set_rows([keys])

    def compose(self) -> ComposeResult:
        with _Box(id="box"):
            yield Static(self._question, id="modal-title", markup=False)
            yield self.view
            yield self._key_row

    def on_resize(self, event: Resize) -> None:
        width = min(96, event.size.width - 8)
        rows = [part for row in self._answer_rows for part in hang(row, width - 7)]
        self.view.set_rows(rows)
        self.view.styles.height = max(1, min(len(rows), event.size.height - 9))
        self.query_one("#box").styles.width = width


class ConfirmScreen(RowsModal[str]):
    """Asks before a run is changed: Enter cancels (""), "y" does it, "a" does it another way where there is one."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("y", "answer('y')", "do it", id="confirm.yes"),
        Binding("a", "answer('a')", "do it the other way", id="confirm.other"),
        Binding("enter,escape,n,q", "answer('')", "cancel", id="confirm.no"),
    ]

    def __init__(
        self, title: str, rows: Sequence[Row], verb: str, ascii_only: bool = False, other: str = ""
    ) -> None:
        self._other = other
        gap = "   " if other else "     "
        second: Row = (("a", "key"), (f" {other}{gap}", "text")) if other else ()
        keys: Row = (
            ("y", "key"),
            (f" {verb}{gap}", "text"),
            *second,
            ("Enter", "key"),
            (" cancel" if other else " cancel (default)", "text"),
        )
        super().__init__(title, rows, keys, ascii_only)

    def action_answer(self, answer: str) -> None:
        if answer != "a" or self._other:
            self.dismiss(answer)


class TypedScreen(RowsModal[str]):
    """Asks before something that cannot be undone: its name has to be typed. Returns what was typed; "" cancels."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape", "cancel", "cancel", id="typed.cancel")
    ]

    def __init__(
        self, title: str, rows: Sequence[Row], name: str, verb: str, ascii_only: bool = False
    ) -> None:
        keys: Row = (("Enter", "key"), (f" {verb}     ", "text"), ("esc", "key"), (" cancel", "text"))
        super().__init__(title, rows, keys, ascii_only)
        self._name = name

    def compose(self) -> ComposeResult:
        with _Box(id="box"):
            yield Static(self._question, id="modal-title", markup=False)
            yield self.view
            with Horizontal(id="typed"):
                yield Label(f"type {self._name}:", id="typed-label", markup=False)
                yield Input(compact=True, id="typed-input")
            yield self._key_row

    def on_mount(self) -> None:
        self.view.can_focus = False
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())

    def action_cancel(self) -> None:
        self.dismiss("")


class TextScreen(RowsModal[None]):
    """Something to read: help, or what a dump brought."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape,q,enter,question_mark", "close", "close", id="text.close")
    ]

    def __init__(self, title: str, rows: Sequence[Row], ascii_only: bool = False) -> None:
        keys: Row = (
            ("esc", "key"),
            (" close   ", "text"),
            ("j k PgUp PgDn g G", "key"),
            (" scroll", "text"),
        )
        super().__init__(title, rows, keys, ascii_only)

    def action_close(self) -> None:
        self.dismiss(None)


class PromptScreen(ModalScreen[str | None]):
    """One line of input at the bottom: `:` commands and `/` filters."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape", "cancel", "cancel", id="prompt.cancel")
    ]

    def __init__(self, sign: str, value: str = "", hint: str = "") -> None:
        super().__init__()
        self._sign, self._value, self._hint = sign, value, hint

    def compose(self) -> ComposeResult:
        with Vertical(id="prompt"):
            yield Label(self._sign, id="prompt-sign", markup=False)
            yield Input(self._value, placeholder=self._hint, compact=True, id="prompt-input")

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        self.dismiss(None)
