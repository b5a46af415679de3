"""The user's choice of columns: its changes in the dialog, and the dialog's rows. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from .columns import TABLES, by_id
from .glyphs import Row, fit

ALWAYS = {"ranks": "rank", "gpus": "gpu"}
"""The column that identifies a row and cannot be hidden."""


class ColumnChoice(Struct, frozen=True):
    """The current state of the dialog that chooses columns."""

    table: str
    order: tuple[str, ...]
    """Ids of every column of the table, from left to right."""
    shown: frozenset[str]
    sort: str = ""
    reverse: bool = False
    own: bool = False
    """Whether the user chose columns; otherwise the table shows those that fit."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The chosen ids in the form of `ViewOptions.columns`."""
        return tuple(id for id in self.order if id in self.shown) if self.own else ()


def begin_choice(
    table: str, columns: Sequence[str], on_screen: Collection[str], sort: str, reverse: bool
) -> ColumnChoice:
    """Start with the user's columns, or with those that are `on_screen` if there are none."""
    every = [column.id for column in TABLES[table]]
    order = [*columns, *(id for id in every if id not in columns)]
    shown = frozenset(columns or on_screen) | {ALWAYS[table]}
    return ColumnChoice(table, tuple(order), shown, sort, reverse, bool(columns))


def toggled(choice: ColumnChoice, at: int) -> ColumnChoice:
    """Show or hide that column; the first column of a table cannot be hidden."""
    id = choice.order[at]
    if id == ALWAYS[choice.table]:
        return choice
    return replace(choice, shown=choice.shown ^ {id}, own=True)


def moved(choice: ColumnChoice, at: int, by: int) -> ColumnChoice:
    """Move that column by `by` places."""
    to = at + by
    if not 0 <= to < len(choice.order):
        return choice
    order = list(choice.order)
    order[at], order[to] = order[to], order[at]
    return replace(choice, order=tuple(order), own=True)


def resorted(choice: ColumnChoice, at: int) -> ColumnChoice:
    """Sort by that column; the next calls reverse the order, then remove it."""
    id = choice.order[at]
    column = by_id(choice.table, id)
    if column is None or column.key is None:
        return choice
    if choice.sort != id:
        return replace(choice, sort=id, reverse=False)
    return replace(choice, reverse=True) if not choice.reverse else replace(choice, sort="", reverse=False)


def default_ids(table: str) -> tuple[str, ...]:
    """Return the ids that distui shows by default on a wide terminal."""
    return tuple(column.id for column in TABLES[table] if not column.optional)


def default_choice(choice: ColumnChoice, fitting: Collection[str]) -> ColumnChoice:
    """Return the default: the columns that are `fitting`, in the order of the table."""
    every = tuple(column.id for column in TABLES[choice.table])
    return ColumnChoice(choice.table, every, frozenset(fitting) | {ALWAYS[choice.table]})


def choice_rows(choice: ColumnChoice, width: int, absent: Collection[str] = ()) -> list[Row]:
    """Return one row per column: whether it is shown, title, sort mark, description.

    `absent` columns do not apply to this run, so the table leaves them out: [-] marks chosen ones.
    """
    arrow = "▾" if choice.reverse else "▴"
    rows: list[Row] = []
    for id in choice.order:
        column = by_id(choice.table, id)
        assert column is not None
        is_chosen = id in choice.shown
        on = is_chosen and id not in absent
        box = "[x] " if on else "[ ] "
        if is_chosen and not on:
            box = "[-] "
        mark = arrow if choice.sort == id else " "
        about = column.about + (" (not in this run)" if id in absent else "")
        rows.append(
            (
                (box, "accent" if on else "dim"),
                (fit(column.title, 9), "head" if on else "dim"),
                (f"{mark} ", "accent"),
                (fit(about, max(8, width - 16)), "text" if on else "dim"),
            )
        )
    return rows
