"""Parsers of option values: numbers, durations, sizes (each raises ArgumentTypeError with a sentence); and paths."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import islice

from ..runners.formatting import bytes_of_cap, seconds_of, time_before


def seconds(text: str) -> float:
    """Parse a duration in seconds. Raises ArgumentTypeError."""
    refusal = "is no number of seconds: write 0 or more, as in 30 or 2.5"
    return _real(text, lambda number: 0 <= number < 1e9, refusal)


def gigabytes(text: str) -> float:
    """Parse a size in GB. Raises ArgumentTypeError."""
    return _real(text, lambda number: 0 < number < 1e6, "is no number of GB: write one above 0, as in 80")


def cap(text: str) -> int:
    """Parse a size in bytes, of 16 MiB or more; 0 for "off". Raises ArgumentTypeError."""
    size = bytes_of_cap(text)
    if size is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size of a log: write 16MiB or more, as in 200MB, or off"
        )
    return size


def _real(text: str, fits: Callable[[float], bool], refusal: str) -> float:
    """Parse a number that fits; other text becomes nan, which never fits. Raises ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not fits(number):
        raise argparse.ArgumentTypeError(f"{text!r} {refusal}")
    return number


def count(text: str) -> int:
    """Parse a non-negative whole number. Raises ArgumentTypeError."""
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number: write 0 or more, as in 3")
    return int(text)


def rank_list(text: str) -> tuple[int, ...]:
    """Parse ranks: "0,5", "0-7", "0,4-6"; () for "all". Raises ArgumentTypeError."""
    if text.strip() == "all":
        return ()
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            ends = count(first), count(last if dash else first)
        except argparse.ArgumentTypeError:
            ends = 1, 0
        if not 0 <= ends[1] - ends[0] < 1024:
            raise argparse.ArgumentTypeError(
                f"{text!r} is no list of ranks: write them as in 0,5 or 0-7, or all"
            )
        ranks += range(ends[0], ends[1] + 1)
    return tuple(ranks)


def duration(text: str) -> float:
    """Parse a time span into seconds: "30d", "12h", "45m", "90s". Raises ArgumentTypeError."""
    length = seconds_of(text)
    if length is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write a number and d, h, m or s, as in 30d")
    return length


DISTANT = 1e12
"""A unix time after all others."""


def moment(text: str) -> float:
    """Parse a time into unix seconds. Raises ArgumentTypeError.

    Accepts "10m" (ago), "12:40" (its last occurrence), an ISO date or unix seconds.
    """
    now, ago = time.time(), seconds_of(text)
    try:
        at = time_before(text, now) if ago is None else now - ago
        if at is None and text.replace(".", "", 1).isdigit():
            at = float(text)
        elif at is None:
            at = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        at = -1.0
    if not 0 < at < DISTANT:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: write 10m (ago), 12:40, 2026-01-31T12:40 or unix seconds"
        )
    return at


def minutes(text: str) -> int | None:
    """Parse minutes; None for "off". Raises ArgumentTypeError."""
    if text == "off":
        return None
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) < 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes: write 1 or more, or off")
    return int(text)


MOST_ENTRIES = 20_000
"""Maximum number of directory entries that are read."""


def paths_on(text: str) -> list[str]:
    """Return the paths that start with `text`, directories with a slash; hidden ones only if `text` names them."""
    head, last = os.path.split(text)
    try:
        with os.scandir(os.path.expanduser(head) or ".") as entries:
            return sorted(
                os.path.join(head, f"{entry.name}/" if entry.is_dir() else entry.name)
                for entry in islice(entries, MOST_ENTRIES)
                if entry.name.startswith(last or entry.name)
                and (last.startswith(".") or not entry.name.startswith("."))
                and entry.name.isprintable()
            )
    except OSError:
        return []


def common_start(texts: Sequence[str]) -> str:
    """Return the common prefix."""
    first, last = min(texts), max(texts)
    return first[
        : next(
            (at for at, pair in enumerate(zip(first, last, strict=False)) if len({*pair}) > 1), len(first)
        )
    ]
