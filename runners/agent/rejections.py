"""What the relay does not take is counted, and told without letting whoever sends it fill the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..model import Finding

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 3600.0


class Rejections:
    """Tells at once of the first, then of how many there are by now, in pauses that double."""

    def __init__(self, node: int, tell: Callable[[Finding], None]) -> None:
        self._node, self._tell = node, tell
        self._by_peer: dict[int, int] = {}
        self._why = ""
        self._told = 0
        self._pause_s = FIRST_PAUSE_S
        self._timer: asyncio.TimerHandle | None = None

    @property
    def total(self) -> int:
        return sum(self._by_peer.values())

    def count(self, peer: int, why: str) -> None:
        """A frame that claims to come from `peer` was rejected because `why`."""
        self._by_peer[peer] = self._by_peer.get(peer, 0) + 1
        self._why = why
        if self._timer is None:
            self._say()

    def close(self) -> None:
        """Tell no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _say(self) -> None:
        self._timer = None
        if self.total == self._told:
            return
        self._told = self.total
        self._tell(self._finding())
        self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._say)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _finding(self) -> Finding:
        frames = "1 frame was" if self.total == 1 else f"{self.total} frames were"
        peers = ", ".join(f"{count} as node {peer}" for peer, count in sorted(self._by_peer.items()))
        return Finding(
            "relay-rejected",
            "warn",
            f"{frames} rejected by the relay ({peers}; the last because {self._why})",
            node=self._node,
            remedy="nothing of it was taken; see who else can reach the port of the rendezvous",
        )
