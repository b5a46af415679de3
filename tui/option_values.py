"""Parsers of option values: numbers, durations, sizes (each raises ArgumentTypeError with a sentence); and paths."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from datetime import datetime
from itertools import islice

from ..runners.launch.option_values import count, real
from ..runners.run.formatting import seconds_of, time_before


def gigabytes(text: str) -> float:
    """Parse a size in GB. Raises ArgumentTypeError."""
    return real(text, lambda number: 0 < number < 1e6, "is not a number of GB: write one above 0, as in 80")


MOST_RANKS = 1024
"""Maximum number of ranks in one range."""


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
        if ends[1] < ends[0]:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a list of ranks: write them as in 0,5 or 0-7, or all"
            )
        if ends[1] - ends[0] >= MOST_RANKS:
            raise argparse.ArgumentTypeError(
                f"{part.strip()} is more than {MOST_RANKS:,} ranks: write smaller ranges, or all"
            )
        ranks += range(ends[0], ends[1] + 1)
    return tuple(ranks)


def duration(text: str) -> float:
    """Parse a time span into seconds: "30d", "12h", "45m", "90s". Raises ArgumentTypeError."""
    length = seconds_of(text)
    if length is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: write a number and d, h, m or s, as in 30d"
        )
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
            f"{text!r} is not a time: write 10m (ago), 12:40, 2026-01-31T12:40 or unix seconds"
        )
    return at


MOST_ENTRIES = 20_000
"""Maximum number of directory entries that are read."""


def paths_on(text: str) -> list[str]:
    """Return the paths that start with `text`, directories with a slash; hidden ones only if `text` names them."""
    head, last = os.path.split(text)
    try:
        with os.scandir(os.path.expanduser(head) or ".") as entries:
            return sorted(
                os.path.join(head, f"{entry.name}/" if _is_directory(entry) else entry.name)
                for entry in islice(entries, MOST_ENTRIES)
                if _continues(entry.name, last)
            )
    except OSError:
        return []


def _continues(name: str, typed: str) -> bool:
    if not name.startswith(typed) or not name.isprintable():
        return False
    return typed.startswith(".") or not name.startswith(".")


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a circle of links
        return False


def common_start(texts: Sequence[str]) -> str:
    """Return the common prefix."""
    first, last = min(texts), max(texts)
    at = 0
    while at < len(first) and first[at] == last[at : at + 1]:
        at += 1
    return first[:at]


def completed_path(text: str, ending: str) -> tuple[str, list[str]]:
    """Return the common start of all paths that begin with a text, and those paths.

    Files without `ending` count only if nothing else fits.
    """
    paths = paths_on(text)
    paths = [path for path in paths if path.endswith(("/", ending))] or paths
    return common_start(paths) if paths else text, paths
