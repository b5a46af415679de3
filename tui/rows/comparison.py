"""Two runs side by side as rows: their differences. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from msgspec import structs

from ...presets.plurals import plural
from ...presets.sanitize import clean_text
from ...runners.comparison.differences import (
    DIFFERS,
    ONLY_A,
    ONLY_B,
    SAME,
    UNKNOWN,
    VALUE,
    Comparison,
    Difference,
    Section,
    ratio_text,
)
from ...runners.run.formatting import NA
from .glyphs import Row, clip, fit, labelled, or_na, row_width, wrap

MARKS = {
    SAME: (" ", "text"),
    DIFFERS: ("*", "warn"),
    ONLY_A: ("-", "warn"),
    ONLY_B: ("+", "warn"),
    UNKNOWN: ("?", "stale"),
    VALUE: (" ", "text"),
}
"""Mark in front of a row, readable without colours."""
LEGEND = "* differs  - only A  + only B  ? not recorded on one side, or too little to tell"
NAME = 30
"""Maximum columns of names."""
SIDES = ("A", "B")
INKS = ("accent", "warn")
"""Styles of the two curves."""


def comparison_rows(compared: Comparison, width: int, everything: bool = False) -> list[Row]:
    """Return head, sections with rows, equal sections, and notes. `everything`: equal numbers have rows, too."""
    rows = head_rows(compared, width)
    equal: list[str] = []
    for each in compared.sections:
        section = each if everything or each.name != "numbers" else _without_equal_numbers(each)
        if section.rows or section.hidden or (section.note and section.name in ("numbers", "transports")):
            rows += [(), *section_rows(section, width)]
        elif section.name != "numbers":
            equal.append(section.title)
    label = "the same, or recorded on neither side: "
    return [
        *rows,
        *_below([labelled((label, "dim"), ", ".join(equal), width, "dim")] if equal else []),
        *_below([wrap(note, width, "dim") for note in compared.notes]),
        *_below([wrap(LEGEND, width, "dim")]),
    ]


def _without_equal_numbers(section: Section) -> Section:
    """Name the equal numbers below the others."""
    differ = tuple(row for row in section.rows if row.kind != SAME)
    equal = ", ".join(row.name for row in section.rows if row.kind == SAME)
    note = f"the same within 2 % or their spread: {equal}" if equal else section.note
    return structs.replace(section, rows=differ, note=note)


def _below(parts: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the rows of all parts after a blank row; [] without parts."""
    return [(), *chain.from_iterable(parts)] if parts else []


def single_rows(compared: Comparison, width: int) -> list[Row]:
    """Return the record of one run."""
    account = compared.a
    rows: list[Row] = [((clean_text(account.title), "head"), (f"  {account.run}", "dim"))]
    for section in compared.sections:
        if section.rows:
            rows += [(), ((section.title, "head"),)]
        edge = min(2 * NAME, max((len(row.name) for row in section.rows), default=0))
        for row in section.rows:
            rows += labelled((fit(f"  {row.name}", edge + 2) + "  ", "dim"), row.a or NA, width)
    return [*rows, *_below([[((note, "dim"),)] for note in compared.notes])]


def head_rows(compared: Comparison, width: int) -> list[Row]:
    """Return the title, state and id of both runs."""
    sides = (compared.a, compared.b)
    edge = max(len(clean_text(side.title)) for side in sides)
    return [
        clip(
            (
                (f"{letter}  ", ink),
                (f"{clean_text(side.title):<{edge}}  ", "head"),
                (side.state, "text"),
                (f"  {clean_text(side.run)}", "dim"),
            ),
            width,
        )
        for letter, ink, side in zip(SIDES, INKS, sides, strict=True)
    ]


def section_rows(section: Section, width: int) -> list[Row]:
    """Return a heading, then one line per row; sides that do not fit on one line go below each other."""
    rows: list[Row] = [((section.title, "head"),)]
    edge = _edge(section.rows)
    most = max(12, (width - edge - 24) // 2)
    left = min(most, max((len(row.a or NA) for row in section.rows), default=0))
    right = min(most, max((len(row.b or NA) for row in section.rows), default=0))
    for row in section.rows:
        rows += _difference(row, (edge, left, right), width)
    if section.hidden:
        verb = "differs" if section.hidden == 1 else "differ"
        text = f"{plural(section.hidden, 'variable')} of the terminal {verb}, too: --all lists all"
        rows.append(((f"  {text}", "dim"),))
    if section.note:
        rows += labelled(("  ", "dim"), section.note, width, "dim")
    return rows


def _edge(rows: Sequence[Difference]) -> int:
    return min(NAME, max((len(row.name) for row in rows), default=0))


def _difference(row: Difference, sizes: tuple[int, int, int], width: int) -> list[Row]:
    """Return the lines of one row; `sizes` are the columns of the name and of both sides."""
    tail = "  ".join(filter(None, (ratio_text(row.ratio), row.note)))
    return _side_by_side(row, tail, sizes, width) or _below_each_other(row, tail, width)


def _side_by_side(row: Difference, tail: str, sizes: tuple[int, int, int], width: int) -> list[Row]:
    """Return a row with both sides in their columns; [] if a text is longer."""
    mark, ink = MARKS[row.kind]
    a, b = or_na(row.a), or_na(row.b)
    name, left, right = sizes
    line: Row = (
        (f"{mark} ", ink),
        (f"{row.name:<{name}}  ", "text"),
        (f"{a:<{left}}  ", _ink(row.a)),
        (f"{b:<{right}}", _ink(row.b)),
    )
    if len(row.name) > name or len(a) > left or len(b) > right or row_width(line) > width:
        return []
    whole: Row = (*line, (f"  {tail}" if tail else "", "dim"))
    if row_width(whole) <= width:
        return [whole]
    return [line, *labelled(("      ", "dim"), tail, width, "dim")]


def _below_each_other(row: Difference, tail: str, width: int) -> list[Row]:
    mark, ink = MARKS[row.kind]
    a, b = or_na(row.a), or_na(row.b)
    head: Row = ((f"{mark} ", ink), (row.name, "text"), (f"  {tail}" if tail else "", "dim"))
    if a == b and row.kind in (SAME, UNKNOWN):
        return [head, *labelled(("    A B  ", "dim"), a, width)]
    rows = [head]
    for letter, style, text in zip(SIDES, INKS, (a, b), strict=True):
        rows += labelled((f"    {letter}  ", style), text, width)
    return rows


def _ink(text: str | None) -> str:
    return "stale" if text is None else "text"
