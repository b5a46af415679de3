"""Rows and tables as plain text, for verbs that print what the cockpit shows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...presets.finding import SEVERITIES, Finding
from ...presets.sanitize import clean_text
from ...runners.formatting import NA, duration_text, elapsed, plural


def plain(rows: Iterable[Sequence[tuple[str, str]]]) -> list[str]:
    """The texts of rows, without their styles."""
    return [clean_text("".join(text for text, _ in row)).rstrip() for row in rows]


def table(rows: Sequence[tuple[str, ...]], right: frozenset[int] = frozenset()) -> list[str]:
    """Columns as wide as they need; those in `right` flush right."""
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
    """ "3 min ago"; "n/a" where a clock was set back since."""
    seconds = elapsed(began, now)
    return NA if seconds is None else f"{duration_text(seconds)} ago"


def counted(findings: Iterable[Finding]) -> str:
    """ "1 error, 2 warnings"; "" for none."""
    severities = [finding.severity for finding in findings]
    return ", ".join(plural(severities.count(kind), kind) for kind in SEVERITIES if kind in severities)
