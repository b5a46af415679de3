"""Texts for lists of ranks, sizes, durations and times.

`…_text` is for sentences and tables, `…_short` for narrow columns. `presets/plurals.py` has counts with a noun.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence, Sized

from ...presets.plurals import plural

NA = "n/a"
"""Text of an unknown value; never 0."""


# --- lists ---

MOST_SPANS = 8
"""Maximum parts of a list of ranks in a sentence."""


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """[0, 1, 2, 5] → [(0, 2), (5, 5)]: first and last number of each run, in order."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return [(low, high) for low, high in ranges]


def spans(numbers: Iterable[int], most: int | None = None) -> str:
    """[0, 1, 3] → "0, 1, 3"; [0, 1, 2, 5] → "0-2, 5". More than `most` parts are cut with "…"."""
    shown = [_span(low, high) for low, high in runs(numbers)]
    return ", ".join(shown[:most]) + (" …" if most is not None and len(shown) > most else "")


def _span(low: int, high: int) -> str:
    if low == high:
        return str(low)
    return f"{low}, {high}" if low + 1 == high else f"{low}-{high}"


def spans_short(numbers: Iterable[int], comma: str = ",") -> str:
    """[0, 1, 3] → "0-1,3": for narrow columns, and in the kernel's notation of CPU lists."""
    return comma.join(str(low) if low == high else f"{low}-{high}" for low, high in runs(numbers))


def spans_text(noun: str, numbers: Iterable[int]) -> str:
    """Ranks in a sentence: "rank 2", "ranks 0-2, 5"; more than MOST_SPANS parts: "128 ranks (0, 8, …)"."""
    ordered = sorted(numbers)
    parts = spans(ordered).split(", ")
    if len(parts) > MOST_SPANS:
        return f"{plural(len(ordered), noun)} ({', '.join(parts[:2])}, …)"
    return f"{agreeing(ordered, noun, noun + 's')} {', '.join(parts)}"


def listed(texts: Sequence[str], most: int = 4) -> str:
    """Join texts: "a, b, c"; more than `most`: "a, b, c, d and 12 more"."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def agreeing(subjects: Sized, singular: str, several: str) -> str:
    """Form of a verb or a pronoun that agrees with the number of its subjects."""
    return singular if len(subjects) == 1 else several


# --- sizes in binary units ---


MOST_SIZE = 2.0**70
"""Largest plausible size in bytes: a larger number in a file or from a script is not a size."""


def size_text(size: float | None) -> str:
    """Bytes: "512 B", "310.0 MiB", "63.1 GiB"."""
    if size is None or not abs(size) < MOST_SIZE:
        return NA
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def size_short(size: float | None) -> str:
    """Bytes in four to six columns: "9K", "512M", "71.2G"."""
    if size is None or not abs(size) < MOST_SIZE:
        return NA
    for unit in ("B", "K", "M", "G"):
        if size < 1000:
            return f"{size:.0f}{unit}" if unit in "BK" or size >= 100 else f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.1f}T"


def usage_short(used: float | None, total: float | None) -> str:
    """Return used and total bytes: "63.1/80G", in MiB below 1 GiB, in TiB from 1 TiB on."""
    if used is None or total is None or not max(used, total) < MOST_SIZE:
        return NA
    if total < 2**30:
        return f"{used / 2**20:.0f}/{total / 2**20:.0f}M"
    if total >= 2**40:
        return f"{used / 2**40:.1f}/{total / 2**40:.1f}T"
    digits = 1 if used < 100 * 2**30 else 0
    return f"{used / 2**30:.{digits}f}/{total / 2**30:.0f}G"


# --- durations ---

LONGEST_S = 1e11
"""Longest plausible duration in seconds: a larger difference means that one of the times is wrong."""


def duration_text(seconds: float | None) -> str:
    """Return a duration in one unit: "12 s", "3 min", "2.5 h", "4 d"."""
    if seconds is None or not 0 <= seconds < LONGEST_S:
        return NA
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.0f} d"


def duration_exact(seconds: float | None) -> str:
    """Return a running duration in two units: "41 s", "12 min 3 s", "3 h 20 min"."""
    if seconds is None or not seconds < LONGEST_S:
        return NA
    whole = round(max(seconds, 0))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def duration_short(seconds: float | None) -> str:
    """Return a duration in two to four columns: "4s", "12m", "3h", "2d"."""
    if seconds is None or not seconds < LONGEST_S:
        return NA
    for limit, length, unit in ((100, 1, "s"), (6000, 60, "m"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{max(seconds, 0) / length:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def step_text(seconds: float) -> str:
    """Return the time of a step: "41 ms", "1.2 s"."""
    if not seconds < LONGEST_S:
        return NA
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def step_short(seconds: float | None) -> str:
    """Return the time of a step in four to five columns: "41ms", "1.24s", "12.4s", "240s"."""
    if seconds is None or not seconds < LONGEST_S:
        return NA
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 10:
        return f"{seconds:.2f}s"
    return f"{seconds:.1f}s" if seconds < 100 else f"{seconds:.0f}s"


# --- readings of wall clocks, which people and NTP set ---

DISAGREE_S = 2.0
"""Tolerance in seconds for readings out of order: clocks of two hosts, or of two files, differ as much."""


def elapsed(began: float | None, until: float | None) -> float | None:
    """Seconds from `began` to `until`; None if one is unknown or implausible, or the clock was set back between them."""
    if not began or until is None:
        return None
    seconds = until - began
    return max(0.0, seconds) if -DISAGREE_S <= seconds < LONGEST_S else None


def time_of_day(at: float, *, utc: bool = False, date: bool = False) -> str:
    """Format a unix time in this machine's time zone, "20:41:07", or "20:41:07 UTC"; n/a if out of range.

    `date`: with the day, "2026-01-31 20:41:07".
    """
    shape = "%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S"
    try:
        if utc:
            return time.strftime(f"{shape} UTC", time.gmtime(at))
        return time.strftime(shape, time.localtime(at))
    except (OverflowError, OSError, ValueError):  # a damaged journal may have any number
        return NA


# --- parsing of the user's texts ---

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_POWERS = "KMGT"


def seconds_of(text: str) -> float | None:
    """Parse "2d", "90 s", "1.5h" into seconds; None if not a duration of at most some thousand years."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s?([smhdw])", text.strip().lower())
    return float(match[1]) * _UNITS[match[2]] if match else None


def time_before(text: str, end: float) -> float | None:
    """Return the newest unix time until `end` when clocks showed "14:32" or "14:32:07"; None for other texts."""
    match = re.fullmatch(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?", text)
    hour, minute, second = (int(part or 0) for part in match.groups()) if match else (24, 0, 0)
    if hour > 23 or minute > 59 or second > 59:
        return None
    day = time.localtime(end)
    at = [time.mktime((*day[:2], day.tm_mday - back, hour, minute, second, 0, 0, -1)) for back in (0, 1)]
    return at[0] if at[0] <= end else at[1]


def bytes_of(text: str) -> int | None:
    """Parse "200MB" (10⁶), "1.5 GiB" (2³⁰), "10M" (2²⁰, as in du), "4096" into bytes; None if not a size."""
    match = re.fullmatch(
        r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s?(?:([KMGT])(i?B)?|B)?", text.strip(), re.IGNORECASE
    )
    if not match:
        return None
    base = 1000 if (match[3] or "").lower() == "b" else 1024
    return int(float(match[1]) * base ** (_POWERS.index(match[2].upper()) + 1 if match[2] else 0))


LEAST_CAP = 16 << 20
"""Minimum bytes of a log's cap: the ranges that `export` and the screen read at both ends stay complete."""


def bytes_of_cap(text: str) -> int | None:
    """Parse a cap of logs into bytes, 0 for "off"; None if invalid."""
    if text == "off":
        return 0
    size = bytes_of(text)
    return size if size is not None and LEAST_CAP <= size < 1 << 50 else None
