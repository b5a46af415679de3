"""A dialog with a search line above a list: typing filters, arrows move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from ..rows.glyphs import Row
from .rows_view import StillRows

Answer = TypeVar("Answer")

MARGIN = 11
"""Rows of the screen around the list."""


class SearchDialog(ModalScreen[Answer]):
    """Base of such dialogs. Subclasses build the rows of the results."""

    HINT: ClassVar[str] = "type to search"
    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape", "close", "close", id="search.close"),
        Binding("up", "move(-1)", "up", id="search.up", priority=True),
        Binding("down", "move(1)", "down", id="search.down", priority=True),
        Binding("pageup", "page(-1)", "a page up", id="search.page_up", priority=True),
        Binding("pagedown", "page(1)", "a page down", id="search.page_down", priority=True),
    ]

    def __init__(self, title: str, keys: Row, *, cursor: bool = True, typed: str = "") -> None:
        super().__init__()
        self._title = title
        self.typed = typed
        self.list = StillRows(id="modal-rows", cursor=cursor)
        self.foot = StillRows(id="modal-keys")
        self.foot.set_rows([keys])

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static(self._title, id="modal-title", markup=False)
            yield Input(self.typed, placeholder=self.HINT, compact=True, id="picker-input")
            yield self.list
            yield self.foot

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self.show_found()

    def on_resize(self, event: Resize) -> None:
        self.list.styles.height = max(3, min(self.most_rows(), event.size.height - MARGIN))
        self.call_after_refresh(self.show_found)  # after the list's width is known

    def on_input_changed(self, event: Input.Changed) -> None:
        self.typed = event.value
        self.list.move_to(0)
        self.show_found()

    def action_move(self, by: int) -> None:
        self.list.action_cursor(by)
        self.show_found()

    def action_page(self, by: int) -> None:
        self.list.action_page(by)
        self.show_found()

    def action_close(self) -> None:
        self.dismiss()

    def show_found(self) -> None:
        self.list.set_rows(self.found_rows(max(40, self.list.size.width - 2)))

    def most_rows(self) -> int:
        """Return the rows of the list without a search."""
        raise NotImplementedError

    def found_rows(self, width: int) -> Sequence[Row]:
        """Return the rows that the typed text leaves."""
        raise NotImplementedError


def pointer(here: bool) -> Row:
    """Return the mark before the row of the cursor; the search line has the focus."""
    return (("› " if here else "  ", "key"),)
