"""What runners tell each other through the rendezvous: the number of an attempt, and that a restart was asked for.

Each round of torch's c10d rendezvous comes with a store of its own (a PrefixStore). Only `check` and the reading of
keys that are there: a blocking read would hold up the launcher's own keep-alive on the same connection.
"""

from __future__ import annotations

import time
from typing import Any

PATIENCE_S = 10.0
"""How long the others may take to say their number; who does not is no runner of ours, or is gone again."""
LOOK_S = 0.01
BROKEN = (RuntimeError, OSError, ValueError)
"""What a store raises whose other end has gone (DistNetworkError is a RuntimeError)."""


class Round:
    """The newest round of the rendezvous, as one of its nodes sees it."""

    def __init__(self) -> None:
        self._store: Any = None
        self._size = 1
        self._told = False

    def begin(self, info: Any, number: int) -> int:
        """A round was agreed on, in which this node would count `number`; what all of them count: the greatest."""
        self._store, self._size, self._told = info.store, info.world_size, False
        if self._size == 1:
            return number
        keys = ["distui/attempt/%d" % rank for rank in range(self._size)]
        try:
            self._store.set(keys[info.rank], str(number))
            self._await(keys)
            said = [int(self._store.get(key)) for key in keys if self._store.check([key])]
        except BROKEN:
            return number
        return max([number, *said])

    def _await(self, keys: list[str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self._store.check(keys) and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    def tell_restart(self) -> None:
        """Before this node ends its ranks for a restart: the others will see theirs fail of it."""
        if self._size > 1 and not self._told:
            self._told = True
            try:
                self._store.set("distui/restart", "1")
            except BROKEN:
                return

    def was_told(self) -> bool:
        """Whether a node of this round ended its ranks because it was asked to."""
        try:
            return self._size > 1 and bool(self._store.check(["distui/restart"]))
        except BROKEN:
            return False
