"""What the runners of a run exchange in each round of the rendezvous: attempt numbers, and the wish to restart."""

from __future__ import annotations

import contextlib
import datetime
from typing import Any

NUMBERS_S = 10.0
"""Timeout in seconds for the numbers of the other nodes. A node without a number has left or runs no distui runner."""
BROKEN = (RuntimeError, OSError, ValueError)
"""Exceptions of a store without a connection (DistNetworkError is a RuntimeError)."""


class Round:
    """The newest round of the rendezvous on one node.

    Through the round's store the runners exchange the number of an attempt and the announcement of a restart.
    """

    def __init__(self) -> None:
        self._store: Any = None
        self._size = 1
        self._announced = False

    def begin(self, info: Any, number: int) -> int:
        """Begin a complete round: exchange the next attempt's `number` and return the highest of all nodes."""
        self._store, self._size, self._announced = info.store, info.world_size, False
        if self._size == 1:
            return number
        keys = ["distui/attempt/%d" % rank for rank in range(self._size)]
        try:
            self._store.set(keys[info.rank], str(number))
            with contextlib.suppress(*BROKEN):
                self._store.wait(keys, datetime.timedelta(seconds=NUMBERS_S))
            numbers = [int(self._store.get(key)) for key in keys if self._store.check([key])]
        except BROKEN:
            return number
        return max([number, *numbers])

    def announce_restart(self) -> None:
        """Announce that this node ends its ranks for a restart, so that other nodes do not count their failures."""
        if self._size > 1 and not self._announced:
            self._announced = True
            try:
                self._store.set("distui/restart", "1")
            except BROKEN:
                return

    def restart_announced(self) -> bool:
        """Return whether a node of this round announced a restart."""
        try:
            return self._size > 1 and bool(self._store.check(["distui/restart"]))
        except BROKEN:
            return False
