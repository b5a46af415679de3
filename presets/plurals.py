"""Counts with the singular or plural of their noun: "1 rank", "8 ranks"."""

from __future__ import annotations

GROUPED_FROM = 10_000
"""Smallest count with thousands separators."""


def plural(count: int, noun: str) -> str:
    """Return "1 rank", "8 ranks", "2 processes", "16,384 ranks"."""
    digits = f"{count:,}" if count >= GROUPED_FROM else str(count)
    return f"{digits} {noun_form(count, noun)}"


def noun_form(count: int, noun: str) -> str:
    """Return the noun without the count: "rank" for 1, "ranks" for any other count."""
    if count == 1:
        return noun
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"
