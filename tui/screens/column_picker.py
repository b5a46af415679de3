"""The dialog that chooses the columns of a table, their order and the sort column."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from textual.binding import Binding
from textual.geometry import Size

from ..rows.column_choice import ColumnChoice, choice_rows, default_choice, moved, resorted, toggled
from ..rows.glyphs import key_row
from .modal import ChoiceRows, RowsModal


class _ColumnRows(ChoiceRows):
    """The columns."""

    def action_zoom(self) -> None:
        """Show or hide the column on a double click."""
        if isinstance(self.screen, ColumnPicker):
            self.screen.action_show_column()


class ColumnPicker(RowsModal[ColumnChoice | None]):
    """Asks for columns, their order and the sort column; returns the choice, or None if nothing was changed."""

    WIDEST: ClassVar[int] = 100
    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("space", "show_column", "show or hide"),
        Binding("J", "change(1)", "move down"),
        Binding("K", "change(-1)", "move up"),
        Binding("s", "sort", "sort by it"),
        Binding("u", "undo", "as distui chooses"),
        Binding("enter,escape,q", "keep", "keep", id="columns.keep"),
    ]

    def __init__(self, choice: ColumnChoice, absent: Collection[str], fitting: Collection[str]) -> None:
        """Create the dialog. `absent` columns do not apply to this run; `fitting` ones are distui's choice."""
        self.choice = self._first = choice
        self._absent, self._fitting = absent, fitting
        keys = key_row(
            ("space", " show or hide   "),
            ("← →", " order   "),
            ("s", " sort   "),
            ("u", " as distui chooses   "),
            ("Enter, esc", " keep"),
        )
        noun = "GPU" if choice.table == "gpus" else "rank"
        view = _ColumnRows(id="modal-rows", cursor=True)
        super().__init__(f"Columns of the {noun} table", (), keys, view=view)

    def fit_into(self, size: Size) -> None:
        self._width, height = self.room(size)
        self.view.styles.height = max(3, min(len(self.choice.order), height))
        self._draw()

    def _draw(self) -> None:
        self.view.set_rows(choice_rows(self.choice, self._width, self._absent))

    def _show(self, choice: ColumnChoice) -> None:
        self.choice = choice
        self._draw()

    def action_show_column(self) -> None:
        choice = toggled(self.choice, self.view.cursor)
        if choice is self.choice:
            self.app.notify("this column names the row, it stays", timeout=3)
        self._show(choice)

    def action_change(self, by: int) -> None:
        """Move the column by one place."""
        self._show(moved(self.choice, self.view.cursor, by))
        self.view.move_to(self.view.cursor + by)

    def action_sort(self) -> None:
        self._show(resorted(self.choice, self.view.cursor))

    def action_undo(self) -> None:
        """Reset to all columns that fit, in distui's order."""
        self._show(default_choice(self.choice, self._fitting))

    def action_keep(self) -> None:
        """Keep the changes, also on Esc: each of them can be seen in the dialog, and `u` takes all back."""
        self.dismiss(None if self.choice == self._first else self.choice)
