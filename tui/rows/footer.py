"""The footer: keys with their words in one row. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from .tabs import ClickableRow

LAST = "command"
"""Id of the key that is always visible, at the end."""

GAP = "  "
"""After each key."""

CUT = f"…{GAP}"
"""Shown in place of the keys that do not fit."""

FooterKey = tuple[str, str, str]
"""Id of the action, key and word."""


def footer_row(keys: Sequence[FooterKey], width: int) -> ClickableRow:
    """Return the keys that fit in `width` columns, in their order, and the key of the command line at the end."""
    last = [key for key in keys if key[0] == LAST]
    others = [key for key in keys if key[0] != LAST]
    room = width - sum(_width(key) - len(GAP) for key in last)
    if 1 + sum(map(_width, others)) > room:
        room -= len(CUT)
    row = ClickableRow()
    row.add((" ", "text"))
    for key in others:
        if row.width + _width(key) > room:
            row.add((CUT, "dim"))
            break
        _add(row, key)
    for key in last:
        if row.width + _width(key) - len(GAP) <= width:
            _add(row, key)
    return row


def _width(key: FooterKey) -> int:
    return len(key[1]) + 1 + len(key[2]) + len(GAP)


def _add(row: ClickableRow, key: FooterKey) -> None:
    id, sign, word = key
    row.add((sign, "key"), (f" {word}", "text"), action=id)
    row.add((GAP, "text"))
