"""Numbers of ranks as runs, so that a thousand of them fit a line."""

from __future__ import annotations

from collections.abc import Iterable


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """[0, 1, 2, 5] → [(0, 2), (5, 5)]: first and last of each run, in order."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [(low, high) for low, high in found]


def spans(numbers: Iterable[int], most: int | None = None) -> str:
    """[0, 1, 3] → "0, 1, 3"; [0, 1, 2, 5] → "0-2, 5". Of more than `most` parts the first, and "…"."""
    shown = [
        str(low) if low == high else f"{low}, {high}" if low + 1 == high else f"{low}-{high}"
        for low, high in runs(numbers)
    ]
    return ", ".join(shown[:most]) + (" …" if most is not None and len(shown) > most else "")
