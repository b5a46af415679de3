"""Keep the memory of a rank or node over time: all newest points, and sparse older ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

FINE = 30
"""Number of newest points that are never thinned out."""
SPARSE_S = 20.0
"""Minimum seconds between two older points."""
POINTS_KEPT = FINE + 48
"""Maximum number of points per curve."""


class MemoryPoint(NamedTuple):
    at: float
    """Unix time."""
    rss: int | None = None
    """Bytes of host memory."""
    gpu: int | None = None
    """Bytes of GPU memory."""


def sizes(points: Iterable[MemoryPoint], *, gpu: bool) -> list[tuple[float, int]]:
    """Return the times and the known sizes of host memory, or of GPU memory."""
    known = []
    for point in points:
        size = point.gpu if gpu else point.rss
        if size is not None:
            known.append((point.at, size))
    return known


class MemoryCurve:
    """The memory curve of one rank or node, of at most POINTS_KEPT points."""

    def __init__(self) -> None:
        self.points: list[MemoryPoint] = []

    def add(self, point: MemoryPoint) -> None:
        """Add a sample, unless it is not newer than the last."""
        points = self.points
        if points and point.at <= points[-1].at:
            return
        points.append(point)
        old = len(points) - FINE - 1
        if old > 0 and points[old].at - points[old - 1].at < SPARSE_S:
            del points[old]
        elif len(points) > POINTS_KEPT:
            del points[0]
