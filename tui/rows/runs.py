"""The run list, and what stands there before the first run."""

from __future__ import annotations

from ..follow import RunEntry
from . import glyphs
from .cells import Row, age, fit

EMPTY: tuple[Row, ...] = (
    (("No run yet.", "head"),),
    ((f"  {fit('^n', 32)}", "accent"), ("pick a preset and start one", "text")),
    ((f"  {fit('distui launch PRESET -- SCRIPT', 32)}", "accent"), ("the same from the shell", "text")),
    ((f"  {fit('distui watch', 32)}", "accent"), ("jobs that distui did not start", "text")),
)
"""What to do when there is nothing to show."""


def head_row() -> Row:
    """The names of the columns."""
    return (
        (
            f" {fit('run', 20)} {fit('state', 12)} {fit('age', 5, right=True)}  {fit('id', 24)}  preset",
            "dim",
        ),
    )


def run_row(entry: RunEntry) -> Row:
    """One run."""
    glyph, style = glyphs.run_phase(entry.phase)
    note = "  (read-only)" if entry.readonly and entry.live else ""
    return (
        (f" {fit(entry.name or entry.id, 20)} ", "head" if entry.live else "text"),
        (fit(f"{glyph} {entry.phase}", 12), style),
        (f" {fit(age(entry.age_s), 5, right=True)}  {fit(entry.id, 24)}", "dim"),
        (f"  {entry.preset or '-'}{note}", "text"),
    )
