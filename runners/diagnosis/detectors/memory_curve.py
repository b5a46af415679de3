"""Memory over time: samples that get sparser with age, how they grow, and how they are told."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ...formatting import duration_text, size_text
from ...model import Host

FINE = 30
"""Newest points, which are kept as they come."""
SPARSE_S = 20.0
"""Seconds at least between two older points."""
MOST = FINE + 48
"""Points of a curve that are kept."""
GIB = 2**30
PARTS = 6
"""Into how many parts of equal length a curve is cut to see whether it grows in all of them."""


class Point(NamedTuple):
    """Memory at one moment."""

    at: float
    """Unix time."""
    rss: int | None = None
    """Bytes of host memory."""
    gpu: int | None = None
    """Bytes of GPU memory."""


class Curve:
    """Points of one rank or node, bounded: all of the last minute, and some of the quarter of an hour before it."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def add(self, point: Point) -> None:
        """A further sample; one that is not newer than the last is left out."""
        points = self.points
        if points and point.at <= points[-1].at:
            return
        points.append(point)
        old = len(points) - FINE - 1
        if old > 0 and points[old].at - points[old - 1].at < SPARSE_S:
            del points[old]
        elif len(points) > MOST:
            del points[0]


class Room(NamedTuple):
    """The limit of a node's memory that comes first."""

    limit: int
    """Bytes."""
    used: int
    """Bytes that count against it."""
    cgroup: bool
    """Whether it is of the cgroup; else of the machine."""


def room(host: Host | None) -> Room | None:
    """None where it is not known."""
    if host is None:
        return None
    limit, used = host.cgroup_mem_max, host.cgroup_mem_used
    if limit is not None and (host.mem_total is None or limit < host.mem_total):
        return None if used is None else Room(limit, used, True)
    if host.mem_total is None or host.mem_used is None:
        return None
    return Room(host.mem_total, host.mem_used, False)


class Growth(NamedTuple):
    """A curve that grows steadily."""

    since: float
    """Unix time of its first point."""
    a_second: float
    """Bytes."""
    now: int
    """Bytes of the newest point."""


def steady(values: Sequence[tuple[float, int]], least_s: float) -> Growth | None:
    """How a curve grows; None where it is too short, or does not grow in each of its parts at about the same pace.

    The least of each part counts, so that what comes and goes with each step is no growth.
    """
    if len(values) < 2 * PARTS or values[-1][0] - values[0][0] < least_s:
        return None
    began, ended = values[0][0], values[-1][0]
    part = (ended - began) / PARTS
    floors: list[int | None] = [None] * PARTS
    for at, size in values:
        number = min(PARTS - 1, int((at - began) / part))
        floor = floors[number]
        floors[number] = size if floor is None or size < floor else floor
    least = [floor for floor in floors if floor is not None]
    if len(least) < PARTS:
        return None
    grown = [after - before for before, after in pairwise(least)]
    usual = statistics.median(grown)
    if usual <= 0 or min(grown) < usual / 3 or max(grown) > 3 * usual:
        return None
    return Growth(began, (least[-1] - least[0]) / (part * (PARTS - 1)), values[-1][1])


def growth_text(values: Sequence[tuple[float, int]]) -> str:
    """ "1.2 → 7.9 GiB in 40 s": from the least to the newest; "" where it did not grow."""
    if len(values) < 2:
        return ""
    last_at, last = values[-1]
    first_at, first = _foot(values)
    if last - first < 0.05 * last:
        return f"{size_text(last)}, steady" if last else ""
    newest = size_text(last)
    before = size_text(first).removesuffix(newest[newest.index(" ") :])
    return f"{before} → {newest} in {duration_text(last_at - first_at)}"


def _foot(values: Sequence[tuple[float, int]]) -> tuple[float, int]:
    """Where the last rise began: the newest point from which it only went up, but for small dips."""
    at, low = values[-1]
    for time, value in reversed(values[:-1]):
        if value > low * 1.05:
            break
        if value <= low * 0.995:
            at, low = time, value
    return at, low
