"""Mailboxes in the rendezvous store: opaque frames from node to node of one run.

Keys, each below `distui.relay/<run>/`: `<src>/<dst>/<n>` a frame, deleted once read; `<src>/<dst>/written` and
`<src>/<dst>/read` how many there were, so that either end may start anew; `bell/<dst>` counts who wants to be heard by
a node that is at rest. Nothing here waits for a key: what is not there yet is looked for again at the next round.
The store knows no authentication: whatever is read may be anybody's, and those who get the frames must check them.
"""

from __future__ import annotations

import contextlib
import datetime
import select
import socket
from collections import deque
from collections.abc import Iterable
from typing import Any

WINDOW = 8
"""Frames of one direction that may wait unread."""
MAX_FRAME = 64 << 10
"""Bytes."""
STORE_SECONDS = 5.0

STORE_ERRORS = (RuntimeError, OSError, ValueError)
"""What torch's stores raise: DistNetworkError and DistStoreError are RuntimeErrors."""


class StoreGone(Exception):
    """The store does not answer any more."""


class Line:
    """A client of our own of the job's store: a call on the launcher's would delay its keep-alive.

    The second, silent connection tells when the store's process has ended, before torch's client prints a long
    trace about it.
    """

    def __init__(self, host: str, port: int) -> None:
        """Raises the STORE_ERRORS."""
        self._canary = socket.create_connection((host, port), STORE_SECONDS)
        try:
            from torch.distributed import TCPStore

            patience = datetime.timedelta(seconds=STORE_SECONDS)
            self.store: Any = TCPStore(
                host, port, is_master=False, wait_for_workers=False, timeout=patience
            )
        except STORE_ERRORS:
            self._canary.close()
            raise

    def check(self) -> None:
        """Raises StoreGone when the other end has closed."""
        if select.select([self._canary], [], [], 0)[0]:
            raise StoreGone

    def close(self) -> None:
        """Leave; the store sees a client go."""
        self._canary.close()
        self.store = None


class Mailboxes:
    """The mailboxes of one node, out and in, on one line to the store. What they hold is known to the store alone."""

    def __init__(self, line: Line, run: str, node: int, nnodes: int) -> None:
        self._line, self._root = line, "distui.relay/%s" % run
        self._node, self._nnodes = node, nnodes
        self._bell = 0

    def rung(self) -> bool:
        """Whether somebody wants to be heard since the last time this was asked."""
        key = "%s/bell/%d" % (self._root, self._node)
        before, self._bell = self._bell, number(self._values([key])[key])
        return self._bell != before

    def ring(self, peer: int) -> None:
        """Have a node that is at rest look."""
        self._line.check()
        self._line.store.add("%s/bell/%d" % (self._root, peer), 1)

    def everybody(self) -> Iterable[int]:
        """All other nodes."""
        return [peer for peer in range(self._nnodes) if peer != self._node]

    def put(self, peer: int, waiting: deque[bytes]) -> int:
        """Write as many of the frames as the window has room for, and take them out; how many that were."""
        box = "%s/%d/%d" % (self._root, self._node, peer)
        ((written, read),) = self._counters([box])
        room = WINDOW - max(0, written - read)
        frames = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        if frames:
            keys = ["%s/%d" % (box, written + position) for position in range(len(frames))]
            self._line.check()
            self._line.store.multi_set([*keys, box + "/written"], [*frames, str(written + len(frames))])
        return len(frames)

    def take(self, peers: Iterable[int]) -> list[tuple[int, bytes]]:
        """Unread frames of these nodes, in order. One that should be there and is not is b"", as is one too large."""
        found: list[tuple[int, str]] = []
        done: dict[str, str] = {}
        boxes = {"%s/%d/%d" % (self._root, peer, self._node): peer for peer in peers}
        counters = self._counters(list(boxes))
        for at, (box, peer) in enumerate(boxes.items()):
            written, read = counters[at]
            if written != read:
                first = max(read, written - WINDOW)
                found += [(peer, "%s/%d" % (box, position)) for position in range(first, written)]
                done[box + "/read"] = str(written)
        if not done:
            return []
        frames = self._values([key for _, key in found])
        for key in frames:
            self._line.store.delete_key(key)
        self._line.store.multi_set(list(done), list(done.values()))
        return [(peer, frames[key] if len(frames[key]) <= MAX_FRAME else b"") for peer, key in found]

    def _counters(self, boxes: list[str]) -> list[tuple[int, int]]:
        """How many frames were ever written to each box, and read out of it."""
        values = self._values([box + word for box in boxes for word in ("/written", "/read")])
        return [(number(values[box + "/written"]), number(values[box + "/read"])) for box in boxes]

    def _values(self, keys: list[str]) -> dict[str, bytes]:
        """The value of each key, b"" where there is none; never waits for one."""
        self._line.check()
        store = self._line.store
        if not keys:
            return {}
        found = keys if store.check(keys) else [key for key in keys if store.check([key])]
        values = store.multi_get(found) if found else []
        return {**dict.fromkeys(keys, b""), **{key: values[at] for at, key in enumerate(found)}}


def number(value: bytes) -> int:
    """A counter as the store has it; 0 for nothing and for nonsense."""
    with contextlib.suppress(ValueError):
        return max(0, int(value[:20] or b"0"))
    return 0
