"""Parse the timestamps of loggers, torch, glog and NCCL in a line, as Unix time. Pure.

Most timestamps have no time zone, and glog's have no year. So a timestamp counts only if it is close to the time when
the agent saw the line: a timestamp is never later than the write, and rarely much earlier. Any other timestamp is a date
in the message or from another clock.
"""

from __future__ import annotations

import re
import time
from calendar import timegm
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from .line_times import LineTime

LAG_S = 15.0
"""Maximum seconds between a line's timestamp and its write, because of buffers."""
LEAD_S = 1.0
"""Maximum lead in seconds of a timestamp over the file system's clock, which advances in ticks."""
ZONES_S = 1800
"""Nearly all time zones differ by a multiple of this many seconds."""
FARTHEST_S = 14 * 3600
REACH = 72
"""Number of characters at a line's beginning that are searched for its timestamp."""

_PREFIX = r"(?:\[?rank ?\d+\]?:? ?)?"
_DATE = r"\[?(?P<year>(?:19|20)\d\d)[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T ]"
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<part>\d{1,9}))?"
_ZONE = r"(?: ?(?P<zone>Z|[+-]\d\d:?\d\d)\b)?"
_ISO = re.compile(r"(?<!\d)" + _DATE + _CLOCK + _ZONE + r"(?!\d)")
_GLOG = re.compile(_PREFIX + r"\[?[IWEF](?P<month>\d\d)(?P<day>\d\d) " + _CLOCK + r"(?!\d)")
_EPOCH = re.compile(
    _PREFIX + r"\[?(?P<seconds>1\d{9})(?:\.(?P<part>\d{1,9})|(?P<milli>\d{3}))?(?=[\s\]:,|])"
)
_TIME = re.compile(_PREFIX + r"\[?" + _CLOCK + r"(?=[\s\]|,])")


class Clock(NamedTuple):
    """A timestamp as written: Unix time as if it were UTC."""

    seconds: float
    kind: str
    """"zone": with a time zone; "date": without one; "year": without a year; "time": without a date."""


def written(text: str) -> Clock | None:
    """Return the timestamp of a line of clean text; None without one."""
    head = text[:REACH]
    try:
        if (match := _ISO.search(head)) is not None:
            clock = _seconds(match, int(match["year"]))
            if match["zone"] is None:
                return Clock(clock, "date")
            return Clock(clock - _zone(match["zone"]), "zone")
        if (match := _GLOG.match(head)) is not None:
            return Clock(_seconds(match, 2000), "year")
        if (match := _EPOCH.match(head)) is not None:
            part = float(f"0.{match['part'] or match['milli'] or 0}")
            return Clock(int(match["seconds"]) + part, "zone")
        if (match := _TIME.match(head)) is not None:
            return Clock(_of_day(match), "time")
    except ValueError:  # an impossible date
        pass
    return None


def _seconds(match: re.Match[str], year: int) -> float:
    day = datetime(year, int(match["month"]), int(match["day"]), tzinfo=UTC)
    return timegm(day.timetuple()) + _of_day(match)


def _of_day(match: re.Match[str]) -> float:
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"])
    if hour > 23 or minute > 59 or second > 60:
        raise ValueError("no time of a day")
    return hour * 3600 + minute * 60 + second + float(f"0.{match['part'] or 0}")


def _zone(text: str) -> float:
    if text == "Z":
        return 0.0
    sign, digits = (-1 if text[0] == "-" else 1), text[1:].replace(":", "")
    return sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:])).total_seconds()


def own_time(text: str, moment: LineTime, now: float, shift: float = 0.0) -> float | None:
    """Return the Unix time of the line's own timestamp; None without a plausible one.

    `now`: the reader's time; lines of a log without times cannot be later. `shift`: seconds to add to the timestamp if
    the clock of its writer differs from that of `moment`.
    """
    if not any(char.isdigit() for char in text[:REACH]):
        return None
    clock = written(text)
    if clock is None:
        return None
    clock = clock._replace(seconds=clock.seconds + shift)
    if moment.by is None:
        return _until(clock, now)
    after = moment.after if moment.after is not None else float("-inf")
    earliest, latest = min(after, moment.by) - LAG_S, moment.by + LEAD_S
    for at in _readings(clock, moment.by):
        if earliest <= at <= latest:
            return min(at, moment.by)
    return None


def _until(clock: Clock, now: float) -> float | None:
    """Return the time of a complete stamp in a log without times; None for a later one."""
    if clock.kind not in ("zone", "date"):
        return None
    at = clock.seconds if clock.kind == "zone" else _local(clock.seconds)
    return at if at <= now + LEAD_S else None


def _readings(clock: Clock, by: float) -> list[float]:
    """Return the possible times of a stamp: in the reader's zone, else in a zone that puts it close to `by`."""
    seconds = clock.seconds
    if clock.kind == "zone":
        return [seconds]
    if clock.kind == "time":
        midnight = by - (by - time.timezone) % 86400
        return [_local(timegm((*time.localtime(by)[:3], 0, 0, 0))) + seconds, midnight - 86400 + seconds]
    if clock.kind == "year":
        month = time.gmtime(seconds)
        year = time.localtime(by).tm_year
        within = seconds - timegm((2000, month.tm_mon, month.tm_mday, 0, 0, 0))
        try:
            seconds = _seconds_of(year, month.tm_mon, month.tm_mday) + within
        except ValueError:  # 29 February of another year
            return []
    grid = round((seconds - by) / ZONES_S) * ZONES_S
    return [_local(seconds), *([seconds - grid] if abs(grid) <= FARTHEST_S else [])]


def _seconds_of(year: int, month: int, day: int) -> float:
    return timegm(datetime(year, month, day, tzinfo=UTC).timetuple())


def _local(seconds: float) -> float:
    """Convert a local time, given as if it were UTC, with this machine's time zone."""
    broken = time.gmtime(seconds)
    try:
        return time.mktime((*broken[:8], -1)) + seconds % 1
    except (OverflowError, ValueError):
        return seconds
