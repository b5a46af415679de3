"""The launch form as rows: a heading for each table, a row for each field, help under the one at hand. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from ...presets.describe import help_of
from .cells import Cell, Row, fit
from .fields import Field, Typed

LABEL = 25
"""Columns of the labels."""
CARET = "▏"
CHANGED = "◆"
"""Before a row that is not as the preset says."""

_HEADINGS = {
    "run": "what runs",
    "where": "on which machines",
    "memory": "for the memory estimate",
    "further": "anything else that a preset can say",
    "hook": "distui in the ranks",
    "NCCL settings by name": "space chooses",
}


@dataclass(frozen=True, slots=True)
class Look:
    """The rows, and where each field stands in them."""

    rows: list[Row]
    at: list[int]
    """Index of a field → index of its row."""
    end: int
    """The last row that belongs to the field at hand."""


def form_rows(
    known: Sequence[Field], typed: Typed, current: int, caret: int, width: int, focus: bool
) -> Look:
    """Everything, in `width` columns. `caret`: where in the current field's text the next letter goes."""
    rows: list[Row] = []
    at: list[int] = []
    end, table = 0, ""
    for index, one in enumerate(known):
        if one.table != table:
            rows += [()] * bool(rows)
            table = one.table
            rows.append(heading(table, width))
        here = focus and index == current
        at.append(len(rows))
        rows.append(_field(one, typed.get(one.name, ""), here, caret, width))
        if here:
            rows += help_rows(one, width)
        if index == current:
            end = len(rows) - 1
    return Look(rows, at, end)


def heading(table: str, width: int) -> Row:
    """Name of a table and what it is about."""
    text = _HEADINGS.get(table) or help_of(table).rstrip(".")
    return ((f"{table}  ", "head"), (fit(text, max(0, width - cell_len(table) - 2)).rstrip(), "dim"))


def help_rows(one: Field, width: int) -> list[Row]:
    """What a field is for, below it."""
    lines = textwrap.wrap(one.help, max(20, width - 4)) if one.help else []
    return [((f"    {line}", "dim"),) for line in lines]


def _field(one: Field, text: str, here: bool, caret: int, width: int) -> Row:
    mark: Cell = (f"{CHANGED} " if text else "  ", "accent")
    if one.check:
        box = f"[{'x' if text else ' '}] {fit(one.label, LABEL - 8)} "
        return (
            mark,
            (box, "head" if text or here else "text"),
            (fit(one.value, width - LABEL + 1).rstrip(), "dim"),
        )
    label: Cell = (fit(one.label, LABEL - 2), "head" if here else "text")
    return (mark, label, *_value(one, text, here, caret, max(4, width - LABEL - 1)))


def _value(one: Field, text: str, here: bool, caret: int, width: int) -> Row:
    style = "head" if text else "dim"
    if one.choices:
        now = text or one.value
        if not here:
            return ((fit(now, width).rstrip(), style),)
        at = f"{one.choices.index(now) + 1} of {len(one.choices)}" if now in one.choices else ""
        chosen = f"< {now} >"
        return ((chosen, "head"), (f"  {at}" if len(chosen) + len(at) + 2 <= width else "", "dim"))
    if not here:
        return ((fit(text or one.value, width).rstrip(), style),)
    if not text:
        return ((CARET, "accent"), (fit(one.value, width - 1).rstrip(), "dim"))
    return _edited(text, caret, width)


def _edited(text: str, caret: int, width: int) -> Row:
    """The text with the caret in it; of a long one the part around the caret."""
    first = max(0, caret - width + 6)
    before, after = text[first:caret], text[caret:]
    if first:
        before = "…" + before[1:]
    room = max(0, width - cell_len(before) - 1)
    after = after if cell_len(after) <= room else fit(after, room)
    return ((before, "head"), (CARET, "accent"), (after, "head"))
