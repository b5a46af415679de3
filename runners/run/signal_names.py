"""Signals by the names that users type. Pure."""

from __future__ import annotations

from signal import Signals

HARMLESS = frozenset({"CHLD", "CLD", "CONT", "URG", "WINCH", "STOP", "TSTP", "TTIN", "TTOU"})
"""Signals that end no process, with or without a handler."""
NAMES = tuple(each.name.removeprefix("SIG") for each in Signals)


def signal_name(text: str) -> str:
    """Return a signal's name without SIG: "USR1"."""
    return text.strip().upper().removeprefix("SIG")


def number_of(text: str) -> Signals | None:
    """Return the signal of a name, with or without SIG, or of a number; None if there is none."""
    word = signal_name(text)
    try:
        number = int(word) if word.isascii() and word.isdecimal() and len(word) < 4 else None
        return Signals(number) if number is not None else Signals[f"SIG{word}"]
    except (KeyError, ValueError):
        return None
