"""The keys of a line editor, as in a shell. Pure."""

from __future__ import annotations

from collections.abc import Callable

Edit = Callable[[str, int], tuple[str, int]]
"""Takes a text and the position of the caret; returns both after a key."""


def _without_word(text: str, at: int) -> tuple[str, int]:
    before, blank, _ = text[:at].rstrip().rpartition(" ")
    kept = before + blank
    return kept + text[at:], len(kept)


def _without_letter(text: str, at: int) -> tuple[str, int]:
    return text[:at] + text[at + 1 :], at


def _home(text: str, at: int) -> tuple[str, int]:
    return text, 0


def _end(text: str, at: int) -> tuple[str, int]:
    return text, len(text)


EDITS: dict[str, Edit] = {
    "left": lambda text, at: (text, max(0, at - 1)),
    "right": lambda text, at: (text, min(len(text), at + 1)),
    "home": _home,
    "ctrl+a": _home,
    "end": _end,
    "ctrl+e": _end,
    "backspace": lambda text, at: (text[: max(0, at - 1)] + text[at:], max(0, at - 1)),
    "delete": _without_letter,
    "ctrl+d": _without_letter,
    "ctrl+u": lambda text, at: (text[at:], 0),
    "ctrl+k": lambda text, at: (text[:at], at),
    "ctrl+w": _without_word,
}
