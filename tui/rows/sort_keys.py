"""A letter per column, with which a table is sorted by it. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from string import ascii_letters

from msgspec import Struct

from .glyphs import Cell, Row

OWN_ORDER = "0"
"""Key of the table's own order."""


class SortKey(Struct, frozen=True):
    letter: str
    id: str
    """Id of the column; "" is the table's own order."""
    title: str


def sort_keys(columns: Iterable[tuple[str, str]], own_order: str) -> list[SortKey]:
    """Return a key for each column, given as id and title, the most important first.

    A column gets the first letter of its title that is still free. The letters depend on nothing else, so that they
    stay the same while columns come and go. `own_order` describes the order without a column.
    """
    free = list(ascii_letters)
    keys = [SortKey(OWN_ORDER, "", own_order)]
    for id, title in columns:
        wanted = [*title.lower(), *title.upper(), *free]
        letter = next(each for each in wanted if each in free)
        free.remove(letter)
        keys.append(SortKey(letter, id, title))
    return keys


def offered(keys: Sequence[SortKey], shown: Container[str]) -> list[SortKey]:
    """Return the keys of the table's columns, and of its default order."""
    return [key for key in keys if not key.id or key.id in shown]


def sort_row(keys: Sequence[SortKey], current: str, cursor: int) -> Row:
    """Return the keys with the titles of their columns: the present order is bold, `›` is at the cursor."""
    cells: list[Cell] = []
    for at, key in enumerate(keys):
        pointer = "›" if at == cursor else " "
        cells += (
            (pointer + key.letter, "key"),
            (f" {key.title}  ", "head" if key.id == current else "text"),
        )
    return tuple(cells)
