"""The columns of a table that fit next to each other, their widths, and the order of the rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from .columns import Column, GpuRow, RankRow
from .glyphs import fit

_TableRow = TypeVar("_TableRow", RankRow, GpuRow)
GAP = 1

WIDEST_SHARE = 3
"""Maximum blanks that are added to each column if a table is narrower than its pane."""


def least(column: Column, sorted_by: str = "") -> int:
    """Return the minimum width of a column: that of its values, and of its title with the sort mark."""
    return max(column.width, len(column.title) + (column.id == sorted_by))


def fitting(
    columns: Sequence[Column],
    width: int,
    keep: frozenset[str] = frozenset(),
    sorted_by: str = "",
    own: bool = False,
) -> list[Column]:
    """Return the columns that fit next to each other, in order; columns in `keep` are dropped last.

    Among the user's `own` columns the last ones are dropped first, among the default columns those of lowest priority.
    """
    chosen = list(columns)
    while sum(least(column, sorted_by) + GAP for column in chosen) + 1 > width and len(chosen) > 2:
        spare = [column for column in chosen if column.id not in keep] or chosen
        chosen.remove(spare[-1] if own else max(spare, key=lambda column: column.priority))
    return chosen


def filled_up(
    columns: Sequence[Column], chosen: Sequence[Column], width: int, sorted_by: str = ""
) -> list[Column]:
    """Return the chosen columns, and the most important others that fit next to them, in order."""
    room = width - 1 - sum(least(column, sorted_by) + GAP for column in chosen)
    ids = {column.id for column in chosen}
    for column in sorted(columns, key=lambda column: column.priority):
        takes = least(column, sorted_by) + GAP
        if column.id not in ids and takes <= room:
            ids.add(column.id)
            room -= takes
    return [column for column in columns if column.id in ids]


def widths(columns: Sequence[Column], width: int, sorted_by: str = "") -> list[int]:
    """Return the width of each column.

    Words get spare columns up to their maximum; all columns share the rest.
    """
    out = [least(column, sorted_by) for column in columns]
    spare = width - 1 - sum(out) - GAP * len(out)
    for at, column in enumerate(columns):
        more = min(max(0, column.max_width - out[at]), max(0, spare))
        out[at] += more
        spare -= more
    share = min(WIDEST_SHARE, max(0, spare) // max(1, len(out)))
    return [width + share for width in out]


def sorted_rows(rows: Sequence[_TableRow], column: Column, reverse: bool) -> list[_TableRow]:
    """Sort rows by a column. Unknown values come last; equal values keep their order."""
    if column.key is None:
        return list(rows)
    keyed = [(column.key(row), row) for row in rows]
    with_value = [(value, row) for value, row in keyed if value is not None]
    with_value.sort(key=lambda item: (isinstance(item[0], str), item[0]), reverse=reverse)
    return [row for _, row in with_value] + [row for value, row in keyed if value is None]


def tight(text: str, width: int) -> str:
    """Return a number in `width` columns: without its limit or unit if needed, never with digits cut off."""
    if len(text) <= width:
        return text
    first, slash, _ = text.partition("/")
    short = first + text[-1] if slash else text.partition(" ")[0]
    return short if len(short) <= width else "…"[:width]


def in_column(column: Column, text: str, width: int) -> str:
    """Return a value in its column: numbers tight and right-aligned, words cut to the width."""
    return fit(tight(text, width) if column.right else text, width, right=column.right)
