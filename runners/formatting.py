"""Text helpers: lists of ranks, plurals, durations."""

from __future__ import annotations

import time
from collections.abc import Iterable

# -----------------------------------------------------------------------------------------------------------
# Numbers in words: lists of ranks short enough for a line, and nouns that fit their number.


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """[0, 1, 2, 5] → [(0, 2), (5, 5)]: first and last of each run, in order."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [(low, high) for low, high in ranges]


def spans(numbers: Iterable[int], most: int | None = None) -> str:
    """[0, 1, 3] → "0, 1, 3"; [0, 1, 2, 5] → "0-2, 5". Of more than `most` parts the first, and "…"."""
    shown = [
        str(low) if low == high else f"{low}, {high}" if low + 1 == high else f"{low}-{high}"
        for low, high in runs(numbers)
    ]
    return ", ".join(shown[:most]) + (" …" if most is not None and len(shown) > most else "")


def plural(count: int, noun: str) -> str:
    """ "1 rank", "8 ranks"."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def name_ranks(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 0, 2", "ranks 0 to 7"."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"ranks {ordered[0]} to {ordered[-1]}"
    return "ranks " + ", ".join(map(str, ordered))


# -----------------------------------------------------------------------------------------------------------
# Durations from the readings of wall clocks, which people and NTP set.


DISAGREE_S = 2.0
"""How far two readings may be in the wrong order: clocks of two hosts, or of two files, agree no better."""


def elapsed(began: float | None, until: float | None) -> float | None:
    """Seconds from `began` to `until`; None where one of them is unknown, or a clock was set back between them."""
    if not began or until is None:
        return None
    seconds = until - began
    return max(0.0, seconds) if seconds >= -DISAGREE_S else None


def time_of_day(at: float, *, utc: bool = False) -> str:
    """`20:41:07` of a unix time, in this machine's time zone or in UTC; n/a for what no clock can show."""
    try:
        return time.strftime("%H:%M:%S", time.gmtime(at) if utc else time.localtime(at))
    except (OverflowError, OSError, ValueError):  # a damaged journal: any number may stand there
        return "n/a"
