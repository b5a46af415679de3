"""When a frame is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SOON_S = 0.04
"""Seconds from an important event to its frame, so that simultaneous events share one frame."""

APART_S = 0.2
"""Minimum seconds between two frames, unless a key requests one."""

GATHER_S = 0.2
"""Seconds from a sample to its frame: samplers of one second do not report simultaneously."""

SAMPLES_S = 0.95
"""Minimum seconds between two frames that only show samples: a little less than the sampling interval."""

CLOCKS_S = 1.25
"""Seconds until a frame without news, for ages and countdowns.

Longer than the sampling interval, so that samples set the pace.
"""


class Beat:
    """Calls `due` if a frame is due: soon after important events, once per second after samples, and for clocks.

    Nothing polls; everything within one frame is painted together. Must be used in the thread of a running event loop.
    """

    def __init__(self, due: Callable[[], None]) -> None:
        self._due = due
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0
        self._last = float("-inf")

    def stir(self, sample: bool) -> None:
        """Schedule a frame for a sample, or for an important event."""
        now = asyncio.get_running_loop().time()
        wait, apart = (GATHER_S, SAMPLES_S) if sample else (SOON_S, APART_S)
        self._call_at(max(now + wait, self._last + apart))

    def at_once(self) -> None:
        """Schedule a frame as soon as the loop is free, since the screen is still empty."""
        self._call_at(asyncio.get_running_loop().time())

    def beaten(self) -> None:
        """Record a frame, and schedule the next one for clocks."""
        self.stop()
        self._last = asyncio.get_running_loop().time()
        self._call_at(self._last + CLOCKS_S)

    def stop(self) -> None:
        """Schedule no more frames until the next event."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _call_at(self, at: float) -> None:
        if self._timer is not None:
            if self._at <= at:
                return
            self._timer.cancel()
        self._at = at
        self._timer = asyncio.get_running_loop().call_at(at, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._due()
