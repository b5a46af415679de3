"""Rows of the NCCL screen that know the log line they are read from. Pure."""

from __future__ import annotations

from typing import NamedTuple

from ...runners.diagnosis.nccl_facts import FactLine
from . import glyphs
from .glyphs import Row, clip, fit, labelled, row_width

_LABEL = 14


class StatementRow(NamedTuple):
    """A row, and the log line that is its source."""

    row: Row
    line: FactLine | None = None


def heading(text: str, hint: str = "") -> StatementRow:
    """Return the heading of a part of the screen."""
    return StatementRow(((text, "accent"), (f"   {hint}" if hint else "", "dim")))


def headed(head: Row, label: str, text: str, width: int, line: FactLine | None) -> list[StatementRow]:
    """Return the first row of a card with one more field, which gets a separate row if it does not fit."""
    named = f"{label} {text}" if label.startswith("rank") else text
    whole: Row = (*head, (f"  {named}" if text else "", "dim"))
    if row_width(whole) <= width or not text:
        return [StatementRow(clip(whole, width), line)]
    return [StatementRow(clip(head, width), line), *field(label, text, "", False, width, line)]


def field(
    label: str, value: str, others: str, differs: bool, width: int, line: FactLine | None
) -> list[StatementRow]:
    """Return a label and its value; one that differs is marked, with the value of the `others`."""
    mark, ink, style = (glyphs.WARN, "warn", "warn") if differs else (" ", "dim", "text")
    head = (fit(f"{mark} {label}", _LABEL), ink)
    return [StatementRow(row, line) for row in labelled(head, value + others, width, style)]
