"""Errors that network interfaces and InfiniBand ports count, drops left out: those are part of a healthy life."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

LOOK_S = 5.0
"""Seconds between two looks."""
KEPT_S = 60.0
PORT_ERRORS = (
    "symbol_error",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_rcv_errors",
)
"""Counters of an InfiniBand port (kernel ABI, sysfs-class-infiniband)."""


class NicErrors:
    """How many errors came in the last minute, from a counter that only grows."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def due(self, now: float) -> bool:
        """Whether it is time for another look; `now` in monotonic seconds."""
        return not self._seen or now - self._seen[-1][0] >= LOOK_S

    def add(self, now: float, total: int) -> None:
        """What all counters together say now."""
        if self._seen and total < self._seen[-1][1]:  # a port or an interface has gone
            self._seen.clear()
        self._seen.append((now, total))
        while len(self._seen) > 2 and now - self._seen[1][0] >= KEPT_S:
            self._seen.popleft()

    @property
    def lately(self) -> int | None:
        """Errors within the last minute; None before two looks."""
        return self._seen[-1][1] - self._seen[0][1] if len(self._seen) > 1 else None


def of_interfaces(data: bytes, names: Iterable[bytes]) -> int:
    """Errors received and sent that /proc/net/dev counts for these interfaces."""
    wanted = frozenset(names)
    total = 0
    for line in data.splitlines()[2:]:
        name, _, rest = line.partition(b":")
        fields = rest.split()
        if name.strip() in wanted and len(fields) >= 16:
            total += int(fields[2]) + int(fields[10])
    return total
