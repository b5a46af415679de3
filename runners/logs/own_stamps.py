"""The time that a line itself has: of loggers, of torch and glog, of NCCL, as seconds since 1970. Pure.

Most of them name no time zone, and glog no year. So a stamp counts only near the time at which the line was written
as the agent saw it: a line is never stamped after it was written, and rarely long before. What is neither is a date
that the line speaks of, or the clock of somebody else.
"""

from __future__ import annotations

import re
import time
from calendar import timegm
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from .line_times import LineTime

LAG_S = 15.0
"""A line may wait so long in a buffer between its stamp and the file."""
LEAD_S = 1.0
"""A stamp may be so much later than the file system's clock, which moves in ticks."""
ZONES_S = 1800
"""Time zones are a multiple of this apart, nearly all."""
FARTHEST_S = 14 * 3600
REACH = 72
"""Characters of a line in which its stamp begins."""

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
    """A stamp as it is written: seconds since 1970 as if it were UTC."""

    seconds: float
    kind: str
    """"zone": it names its zone; "date"; "year": it names no year; "time": it names no date."""


def written(text: str) -> Clock | None:
    """The stamp of a line of clean text; None where it has none."""
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
    except ValueError:  # no date of any calendar
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
    """Unix time of the line's own stamp; None where it has none, or none that can be of this line.

    `now`: of the reader; no line of a log without times is of the future. `shift`: seconds to add to the stamp, where
    the clock of its writer differs from that of `moment`.
    """
    if not any(char.isdigit() for char in text[:REACH]):
        return None
    clock = written(text)
    if clock is None:
        return None
    clock = clock._replace(seconds=clock.seconds + shift)
    if moment.by is None:
        local = clock.seconds if clock.kind == "zone" else _local(clock.seconds)
        return local if clock.kind in ("zone", "date") and local <= now + LEAD_S else None
    after = moment.after if moment.after is not None else float("-inf")
    earliest, latest = min(after, moment.by) - LAG_S, moment.by + LEAD_S
    for at in _readings(clock, moment.by):
        if earliest <= at <= latest:
            return min(at, moment.by)
    return None


def _readings(clock: Clock, by: float) -> list[float]:
    """What the stamp may mean, near `by`: in the reader's zone, else in one in which it is just before."""
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
    """A time of day in this machine's zone, given as if it were UTC."""
    broken = time.gmtime(seconds)
    try:
        return time.mktime((*broken[:8], -1)) + seconds % 1
    except (OverflowError, ValueError):
        return seconds
