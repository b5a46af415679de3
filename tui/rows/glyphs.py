"""States and values as glyphs, so that no information depends only on colour; rows of styled text, and plain text.

A row is a tuple, so that it can be compared with the last painted one. A style is a name that tui/paint.py maps to
colours.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from rich.cells import cell_len, chop_cells, set_cell_size

from ...presets.finding import SEVERITIES, Finding
from ...presets.plurals import plural
from ...presets.sanitize import clean_text
from ...runners.run.formatting import NA, duration_text, elapsed
from ...runners.run.model import RankPhase, RunPhase

T = TypeVar("T")

OK, WARN, BAD, STALE = "●", "▲", "✖", "◌"

UNHEARD = "?"
"""Something that does not answer, or has not answered for some seconds."""

MISSING = "·"
"""A value that is missing, or too old."""

CURSOR, MARK = "›", "◆"

BUCKETS = 9
"""Steps of the heat ramp."""

_RAMP = "▁▁▂▃▄▅▆▇█"

_ASCII = str.maketrans(
    {
        OK: "*",
        WARN: "!",
        BAD: "x",
        STALE: "o",
        MISSING: ".",
        CURSOR: ">",
        MARK: "+",
        "…": "~",
        "│": "|",
        "─": "-",
        "→": ">",
        "×": "x",
        "–": "-",
        "█": "#",
        "░": "-",
        "▏": "|",
        "≈": "~",
        "▸": ">",
        "▴": "^",
        "▾": "v",
        "°": "C",
        "»": ">",
        "▶": ">",
        "‖": "=",
        "↻": "@",
    }
)

RANK: dict[RankPhase, tuple[str, str]] = {
    RankPhase.STARTING: (STALE, "warn"),
    RankPhase.RUNNING: (OK, "ok"),
    RankPhase.SUCCEEDED: (OK, "ok"),
    RankPhase.FAILED: (BAD, "bad"),
    RankPhase.KILLED: (BAD, "bad"),
    RankPhase.STOPPED: (STALE, "stale"),
    RankPhase.LOST: (BAD, "bad"),
    RankPhase.ENDED: (STALE, "stale"),
}
"""Glyph and style of the state of a rank's process."""

RUN: dict[RunPhase, tuple[str, str]] = {
    RunPhase.STARTING: (STALE, "warn"),
    RunPhase.RUNNING: (OK, "ok"),
    RunPhase.RESTARTING: (WARN, "warn"),
    RunPhase.STOPPING: (WARN, "warn"),
    RunPhase.SUCCEEDED: (OK, "ok"),
    RunPhase.FAILED: (BAD, "bad"),
    RunPhase.STOPPED: (STALE, "stale"),
    RunPhase.LOST: (BAD, "bad"),
    RunPhase.ENDED: (STALE, "stale"),
    RunPhase.EXPORTED: (STALE, "stale"),
}
"""Glyph and style of a run's state."""

_SEVERITY = {"note": (STALE, "stale"), "warning": (WARN, "warn"), "error": (BAD, "bad")}


def severity(finding: Finding) -> tuple[str, str]:
    """Return glyph and style of a finding."""
    return _SEVERITY.get(finding.severity, (WARN, "warn"))


def run_phase(phase: str) -> tuple[str, str]:
    """Return glyph and style of a run's state by its word; an unknown word counts as alive."""
    return RUN[RunPhase(phase)] if phase in {str(member) for member in RunPhase} else (OK, "ok")


def bucket(share: float) -> int:
    """Return the step of the heat ramp for 0 to 100; values outside are clamped."""
    step = int(share * BUCKETS / 100)
    return min(max(0, step), BUCKETS - 1)


def height(share: float, ascii_only: bool = False) -> str:
    """Return a glyph whose height shows 0 to 100: a block, or a digit in ASCII."""
    if ascii_only:
        return str(max(0, min(9, int(share / 10))))
    return _RAMP[bucket(share)]


def to_ascii(text: str) -> str:
    """Return the text with this module's glyphs replaced by ASCII ones."""
    return text if text.isascii() else text.translate(_ASCII)


Cell = tuple[str, str]
"""Text and the name of its style."""

Row = tuple[Cell, ...]


def row_width(row: Row) -> int:
    """Return the columns of a row on the screen."""
    return sum(len(text) if text.isascii() else cell_len(text) for text, _ in row)


Cells = list[tuple[int, Row, str]]
"""(priority, cell, gap before it); the highest number is dropped first."""


def kept(cells: Cells, width: int) -> Row:
    """Return the cells that fit, in their order on the screen, chosen by priority."""
    chosen: set[int] = set()
    for at in sorted(range(len(cells)), key=lambda at: cells[at][0]):
        tried = [cells[each] for each in sorted(chosen | {at})]
        if cells[at][1] and (not chosen or row_width(_joined(tried)) <= width):
            chosen.add(at)
    return _joined([cells[at] for at in sorted(chosen)])


def _joined(cells: Cells) -> Row:
    row: list[tuple[str, str]] = []
    for _, cell, gap in cells:
        if row:
            row.append((gap, "dim"))
        row += cell
    return tuple(row)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Return `text` in exactly `width` columns: cut with an ellipsis, or padded with blanks."""
    size = len(text) if text.isascii() else cell_len(text)
    if size == width:
        return text
    if size > width:
        return set_cell_size(text, width - 1) + "…" if width > 0 else ""
    return " " * (width - size) + text if right else text + " " * (width - size)


def clip(row: Row, width: int) -> Row:
    """Return the row cut to `width` columns, with an ellipsis if text is lost."""
    if row_width(row) <= width:
        return row
    kept: list[Cell] = []
    for text, style in row:
        size = cell_len(text)
        if size > width:
            kept.append((fit(text, width), style))
            return tuple(kept)
        width -= size
        kept.append((text, style))
        if width == 0:
            last, last_style = kept[-1]
            kept[-1] = (fit(last + " ", cell_len(last)), last_style)
            break
    return tuple(kept)


def joined(cells: Iterable[Cell]) -> Row:
    """Join neighbours of one style into one cell."""
    return tuple(
        ("".join([text for text, _ in group]), style) for style, group in groupby(cells, itemgetter(1))
    )


def key_row(*keys: tuple[str, str]) -> Row:
    """Return keys with their descriptions; blanks between them are part of the texts."""
    return tuple(cell for key, text in keys for cell in ((key, "key"), (text, "text")))


def wrap(text: str, width: int, style: str = "text", *, first: str = "", then: str = "") -> list[Row]:
    """Wrap a sentence to as many rows as it needs."""
    width, then = max(width, 10), then or " " * len(first)
    if cell_len(text) > len(text):
        lines = wrap_wide(text, width, first, then)
    else:
        lines = textwrap.wrap(
            text, width, initial_indent=first, subsequent_indent=then, break_on_hyphens=False
        )
    return [((line, style),) for line in lines or [first]]


def wrap_wide(text: str, width: int, first: str, then: str) -> list[str]:
    """Wrap a text with characters of two columns, which textwrap counts as one. Long words are cut."""
    lines, begun = [first], False
    longest = max(2, width - max(cell_len(first), cell_len(then)))
    pieces = [piece for word in text.split() for piece in chop_cells(word, longest)]
    for piece in pieces:
        if begun and cell_len(lines[-1]) + 1 + cell_len(piece) > width:
            lines.append(then)
            begun = False
        lines[-1] += f" {piece}" if begun else piece
        begun = True
    return lines


def text_row(text: str) -> Row:
    """Return a line of foreign text, sanitized."""
    return ((clean_text(text), "text"),)


def or_na(value: T | None, text: Callable[[T], str] = str) -> str:
    """Return the text of a value, or n/a if it is unknown."""
    return NA if value is None else text(value)


def percent(value: float | None) -> str:
    """Return a utilisation or share, 0 to 100, as `97%`."""
    return or_na(value, "{:.0f}%".format)


def hang(row: Row, width: int) -> list[Row]:
    """Wrap a row of a label and a text, with the text aligned below itself."""
    if len(row) != 2 or row_width(row) <= width:
        return [clip(row, width)]
    label, (text, style) = row
    return labelled(label, text, width, style)


def label_row(label: str, width: int, text: str, style: str = "text") -> Row:
    """Return a label in `width` columns, and a text."""
    return ((fit(label, width), "dim"), (text, style))


def labelled(label: Cell, text: str, width: int, style: str = "text") -> list[Row]:
    """Wrap a sentence next to a label, aligned below itself."""
    head, ink = label
    edge = cell_len(head)
    lines = wrap(text, width - edge, style)
    return [((head if not at else " " * edge, ink), *line) for at, line in enumerate(lines)]


def plain(rows: Iterable[Sequence[tuple[str, str]]]) -> list[str]:
    """Return the texts of rows, without their styles."""
    return [clean_text("".join(text for text, _ in row)).rstrip() for row in rows]


def table(rows: Sequence[tuple[str, ...]], right: frozenset[int] = frozenset()) -> list[str]:
    """Return a table with columns as wide as needed; those in `right` are right-aligned."""
    rows = [tuple(clean_text(cell) for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def ago(began: float | None, now: float) -> str:
    """Return "3 min ago"; "n/a" if a clock was set back since."""
    return or_na(elapsed(began, now), lambda seconds: f"{duration_text(seconds)} ago")


def counted(findings: Iterable[Finding]) -> str:
    """Return "1 error, 2 warnings"; "" for none."""
    severities = [finding.severity for finding in findings]
    return ", ".join(plural(severities.count(kind), kind) for kind in SEVERITIES if kind in severities)
