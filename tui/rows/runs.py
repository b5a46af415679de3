"""The runs list as rows. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...runners.formatting import duration_short
from . import glyphs
from .glyphs import Row, fit


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """One line of the run list."""

    id: str
    name: str
    phase: str
    """A RunPhase value, or a word of the source's own ("watched")."""
    age_s: float | None
    """Seconds since the run began; None when unknown."""
    live: bool
    readonly: bool
    preset: str
    problem: str = ""
    """What is damaged of it, and names the file."""


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
        (f" {fit(duration_short(entry.age_s), 5, right=True)}  {fit(entry.id, 24)}", "dim"),
        (f"  {glyphs.WARN} {entry.problem}" if entry.problem else "", "warn"),
        (f"  {entry.preset or '-'}{note}", "text"),
    )
