"""When the screen is brought up to date: soon after what matters, once a second after samples, and for clocks.

Nothing wakes up to look whether something has happened. What happens within one frame is painted together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SOON_S = 0.04
"""After an event that matters: those that come with it are painted together."""

APART_S = 0.2
"""Least time between two frames, unless a key asks."""

GATHER_S = 0.2
"""After a sample: samplers of one second do not report at one moment."""

SAMPLES_S = 0.95
"""Least time between two frames that only show samples: a little less than they are apart."""

CLOCKS_S = 1.25
"""Without any news: ages and countdowns go on. More than samples are apart, so that these set the pace."""


class Beat:
    """Calls `due` when a frame is to be made. Used in the thread of a running event loop."""

    def __init__(self, due: Callable[[], None]) -> None:
        self._due = due
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0
        self._last = float("-inf")

    def stir(self, sample: bool) -> None:
        """Something has come: a sample, or what matters more."""
        now = asyncio.get_running_loop().time()
        wait, apart = (GATHER_S, SAMPLES_S) if sample else (SOON_S, APART_S)
        self._call_at(max(now + wait, self._last + apart))

    def at_once(self) -> None:
        """As soon as the loop is free: nothing is on the screen yet."""
        self._call_at(asyncio.get_running_loop().time())

    def beaten(self) -> None:
        """A frame was made: the next one at the latest when clocks move."""
        self.stop()
        self._last = asyncio.get_running_loop().time()
        self._call_at(self._last + CLOCKS_S)

    def stop(self) -> None:
        """No more frames until something comes."""
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
