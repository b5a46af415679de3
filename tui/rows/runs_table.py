"""The output of `ls`: a table of the chosen columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...presets.sanitize import quoted
from ...presets.spelling import did_you_mean
from .glyphs import fit, table
from .runs import COLUMNS, RunEntry

USUAL = ("name", "state", "preset", "attempt", "ranks", "began", "id")
"""Columns without `--columns`; queries of hosts add `host` in front, tags and notes are added before the id."""
NOTE_WIDTH = 40
"""Maximum characters of a note if the user did not choose the column."""


def unknown_column(names: Sequence[str], option: str) -> str:
    """Return the error in column names as a sentence; "" if each exists and appears once."""
    for name in names:
        if name not in COLUMNS:
            hint = did_you_mean(name, COLUMNS) or f"there are {', '.join(COLUMNS)}"
            return f"{option}: no column is called {quoted(name)}; {hint}"
    twice = next((name for at, name in enumerate(names) if name in names[:at]), "")
    return f"{option}: column {twice} is named twice: leave out one" if twice else ""


def usual(runs: Sequence[RunEntry], hosts: bool) -> tuple[str, ...]:
    """Return the columns that are printed by default."""
    more = [name for name in ("tags", "note") if any(COLUMNS[name].text(run) for run in runs)]
    return (*(["host"] if hosts else []), *USUAL[:-1], *more, USUAL[-1])


def printed(runs: Sequence[RunEntry], names: Sequence[str], width: int | None, chosen: bool) -> list[str]:
    """Return the table with its head.

    `width` is that of a terminal, and shortens ids. `chosen` means that the user named the columns.
    """
    rows = [tuple(names), *(tuple(COLUMNS[name].text(run) for name in names) for run in runs)]
    if not chosen and "note" in names:
        at = names.index("note")
        rows = [(*row[:at], fit(row[at], NOTE_WIDTH).rstrip(), *row[at + 1 :]) for row in rows]
    if width is not None and "id" in names:
        rows = narrowed(rows, width, names.index("id"))
    right = frozenset(at for at, name in enumerate(names) if COLUMNS[name].right)
    return table(rows, right)


def narrowed(rows: list[tuple[str, ...]], width: int, at: int = -1) -> list[tuple[str, ...]]:
    """Return the rows for a terminal; if they are too wide, ids are shortened to their ends, which verbs accept."""
    if max(map(len, table(rows))) <= width:
        return rows
    at %= len(rows[0])
    return [(*row[:at], row[at].rpartition("-")[2], *row[at + 1 :]) for row in rows]
