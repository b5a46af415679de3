"""Hints for unknown names: the most similar known name, or a list of all names. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, names: Iterable[str], least: float = 0.6) -> str:
    """Return the name most similar to `word`, or "" if no similarity reaches `least` (0 to 1)."""
    return next(iter(nearest_names(word, names, least, 1)), "")


def nearest_names(word: str, names: Iterable[str], least: float, most: int) -> list[str]:
    """Return up to `most` similar names, the most similar first."""
    import difflib  # needed only after a misspelling

    return difflib.get_close_matches(word, list(names), n=most, cutoff=least)


def misspells(word: str, name: str) -> bool:
    """Return True if one letter is added, missing or wrong, or two letters are swapped."""
    while word and name and word[0] == name[0]:
        word, name = word[1:], name[1:]
    while word and name and word[-1] == name[-1]:
        word, name = word[:-1], name[:-1]
    return max(len(word), len(name)) == 1 or (len(word) == 2 and word == name[::-1])


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return the question "did you mean NAME?", or "" if no name is similar."""
    near = nearest(word, names)
    return near and f"did you mean {near}?"


def nearest_or_all(word: str, names: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown `word`: the question, or a list of all names."""
    choices = list(names)
    all_of_them = f"there are {', '.join(choices)}" if len(choices) < 16 else ""
    hint = did_you_mean(word, choices) or all_of_them
    return f"; {hint}" if hint else ""
