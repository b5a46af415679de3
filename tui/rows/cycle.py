"""The next of some choices, as a key switches to it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def following(choices: Sequence[T], current: object, step: int = 1) -> T:
    """Return the next (1) or previous (-1) choice, at the end the first; an unknown current one precedes the first."""
    if current not in choices:
        return choices[0 if step > 0 else -1]
    return choices[(choices.index(current) + step) % len(choices)]
