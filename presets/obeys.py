"""Whether a script obeys a preset's strategy: a look at its syntax tree. Nothing is executed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Obeys:
    """What the look found."""

    how: str | None
    """How the script obeys the preset's strategy; None when it does not."""
    why: str
    """One sentence with the reason."""


def look(script: str | None, source: str | bytes | None) -> Obeys:
    """Look at the text `source` of `script`."""
    return Obeys(None, "obeys nothing: the preset sets only flags and environment.")
