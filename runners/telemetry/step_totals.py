"""Number of steps of a training, if the script's command line is unambiguous. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

NAMES = re.compile(
    r"--?(?:[\w-]+[./])?(?:max[-_]steps|steps|num[-_]steps|n[-_]steps|total[-_]steps|train[-_]steps|num[-_]train[-_]steps"
    r"|max[-_]train[-_]steps|train[-_]iters|max[-_]iters|num[-_]iterations|max[-_]iterations|total[-_]iterations|iters)"
)
"""Options for the total number of steps in public scripts; with an optional section, as in "--training.steps"."""
_NUMBER = re.compile(r"\d{1,12}|\d{1,3}(?:[_,]\d{3})+")


def of_command(words: Sequence[str]) -> tuple[int, str] | None:
    """Return the command's number of steps and its source: (5000, "`--steps 5000` of the command").

    Return None without an option, or with contradicting ones.
    """
    named = list(_named(words))
    if len({steps for steps, _ in named}) != 1:
        return None
    steps, text = named[0]
    return (steps, f"`{text}` of the command") if steps > 0 else None


def of_text(command: str) -> tuple[int, str] | None:
    """`of_command` for a command line in shell syntax; None also for invalid syntax."""
    try:
        return of_command(shlex.split(command))
    except ValueError:
        return None


def _named(words: Sequence[str]) -> Iterator[tuple[int, str]]:
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        option = name
        if not name.startswith("-"):
            option = f"--{name}" if equals else ""
        if NAMES.fullmatch(option):
            if not equals:
                value = words[at + 1] if at + 1 < len(words) else ""
            if _NUMBER.fullmatch(value):
                yield int(re.sub("[_,]", "", value)), f"{name}={value}" if equals else f"{name} {value}"
