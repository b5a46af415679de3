"""The launch form as rows: headings, fields, help, and the keys of its screen. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from ...presets.model import help_of
from .form_fields import Field, Typed
from .glyphs import Cell, Cells, Row, fit, kept

LABEL = 27
"""Columns before the values: mark, label and gap; of a checkbox also the box."""
_MARK, _BOX, _GAP = 2, 4, 1
_AFTER_CARET = 6
"""Columns of a long text that stay free for the caret and the text after it."""

CARET = "▏"

CHANGED = "◆"
"""Mark in front of a row that differs from the preset."""

_HEADINGS = {
    "run": "what runs",
    "where": "on which machines",
    "memory": "for the memory estimate",
    "further": "any other field of a preset",
    "options": "as on the command line",
    "hook": "distui in the ranks",
    "NCCL settings by name": "space chooses",
}


@dataclass(frozen=True, slots=True)
class FormRows:
    """The rows of the form, and where its fields are."""

    rows: list[Row]
    at: list[int]
    """Index of a field → index of its row."""
    end: int
    """The last row of the selected field."""


def form_rows(
    given: Sequence[Field], typed: Typed, current: int, caret: int, width: int, focus: bool
) -> FormRows:
    """Return all rows in `width` columns. `caret` is the insertion point in the current field's text."""
    rows: list[Row] = []
    at: list[int] = []
    end, table = 0, ""
    for index, field in enumerate(given):
        if field.table != table:
            if rows:
                rows.append(())
            table = field.table
            rows.append(heading(table, width))
        here = focus and index == current
        at.append(len(rows))
        rows.append(_field(field, typed.get(field.name, ""), here, caret, width))
        if here:
            rows += help_rows(field, width)
        if index == current:
            end = len(rows) - 1
    return FormRows(rows, at, end)


def heading(table: str, width: int) -> Row:
    """Return the name of a table and its subject."""
    text = _HEADINGS.get(table) or help_of(table).rstrip(".")
    return ((f"{table}  ", "head"), (fit(text, max(0, width - cell_len(table) - 2)).rstrip(), "dim"))


def help_rows(field: Field, width: int) -> list[Row]:
    """Return the help of a field, shown below it."""
    lines = textwrap.wrap(field.help, max(20, width - 4), break_on_hyphens=False) if field.help else []
    return [((f"    {line}", "dim"),) for line in lines]


def _field(field: Field, text: str, here: bool, caret: int, width: int) -> Row:
    mark: Cell = (f"{CHANGED} " if text else "  ", "accent")
    style = "head" if here else "text"
    if field.check:
        label = fit(field.label, LABEL - _MARK - _BOX - _GAP)
        box = f"[{'x' if text else ' '}] {label} "
        value = fit(field.value, width - LABEL).rstrip()
        return (mark, (box, "head" if text else style), (value, "dim"))
    label = fit(field.label, LABEL - _MARK - _GAP)
    if field.locked:
        value = fit(field.value, width - LABEL - 1).rstrip()
        return (mark, (f"{label} ", style), (value, "text"))
    return (mark, (f"{label} ", style), *_value(field, text, here, caret, max(4, width - LABEL - 1)))


def _value(field: Field, text: str, here: bool, caret: int, width: int) -> Row:
    style = "head" if text else "dim"
    if field.choices:
        now = text or field.value
        if not here:
            return ((fit(now, width).rstrip(), style),)
        position = ""
        if now in field.choices:
            position = f"  {field.choices.index(now) + 1} of {len(field.choices)}"
        chosen = f"< {now} >"
        if cell_len(chosen + position) > width:
            return ((fit(chosen, width).rstrip(), "head"),)
        return ((chosen, "head"), (position, "dim"))
    if not here:
        return ((fit(text or field.value, width).rstrip(), style),)
    if not text:
        return ((CARET, "accent"), (fit(field.value, width - 1).rstrip(), "dim"))
    return _edited(text, caret, width)


def _edited(text: str, caret: int, width: int) -> Row:
    """Return the text with the caret in it; of a long text the part around the caret."""
    before, after = text[:caret], text[caret:]
    if cell_len(before) > max(1, width - _AFTER_CARET):
        before = f"…{_tail(before, width - _AFTER_CARET - 1)}"
    room = max(0, width - cell_len(before) - 1)
    after = after if cell_len(after) <= room else fit(after, room)
    return ((before, "head"), (CARET, "accent"), (after, "head"))


def _tail(text: str, width: int) -> str:
    """Return the longest end of the text in at most `width` columns."""
    for index in reversed(range(len(text))):
        width -= cell_len(text[index])
        if width < 0:
            return text[index + 1 :]
    return text


FULL_KEYS_WIDTH = 132
"""Minimum columns for all keys with their full descriptions."""
_KEYS = (
    (0, "Enter", "review and start", "review"),
    (2, "tab ↑↓", "complete, next field", "field"),
    (4, "/", "search", "search"),
    (5, "^r", "recent", "recent"),
    (7, "^g", "guide", "guide"),
    (6, "^s", "save", "save"),
    (3, "F2-F5", "plan … memory", "panes"),
    (1, "esc", "back", "back"),
)
"""Priority, key, description, and the short description for narrow terminals."""


def keys_row(width: int, typing: bool = False) -> Row:
    """Return the keys of the launch screen. `typing` in a field omits the slash, which is part of a path."""
    cells: Cells = [
        (order, ((key, "key"), (f" {long if width >= FULL_KEYS_WIDTH else short}", "text")), "   ")
        for order, key, long, short in _KEYS
        if not (typing and key == "/")
    ]
    return ((" ", "text"), *kept(cells, width - 2))
