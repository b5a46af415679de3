"""How often torch's c10d rendezvous looks whether the others have come.

It looks once a second, and what it saw holds for a second, so that no store is overloaded by many nodes; of a restart on
a few nodes a second is that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

LOOKS_A_SECOND = 40
"""Of all nodes together; none looks less often than torch has it."""


def look_often(nodes: int) -> None:
    """Set this process's pace for so many nodes.

    `_delay` is a private name of torch (2.7 to 2.15): where it is gone, torch's own pace stays.
    """
    try:
        from torch.distributed.elastic.rendezvous import dynamic_rendezvous as theirs
    except ImportError:
        return
    delay = getattr(theirs, "_delay", None)
    if delay is not None:
        theirs._delay = paced(getattr(delay, "theirs", delay), pause_s(nodes))


def pause_s(nodes: int) -> float:
    """Seconds between two looks of each node."""
    return min(1.0, nodes / LOOKS_A_SECOND)


@contextlib.contextmanager
def fresh(handler: Any, nodes: int) -> Iterator[None]:
    """While the nodes meet, what was seen holds no longer than their pause; else as long as torch has it.

    `_state_holder` and its `_cache_duration` are private names of torch's DynamicRendezvousHandler, as `_delay` is.
    """
    holder: Any = getattr(handler, "_state_holder", None)
    before = getattr(holder, "_cache_duration", None)
    if before is None:
        yield
        return
    holder._cache_duration = min(before, pause_s(nodes))
    try:
        yield
    finally:
        holder._cache_duration = before


def paced(delay: Any, pause: float) -> Any:
    """torch's `_delay`, whose wait of a second between two looks is `pause`; other waits are as they are."""

    def wait(seconds: Any) -> None:
        delay(seconds=pause if seconds == 1 else seconds)

    wait.theirs = delay  # type: ignore[attr-defined]  # of one that is set again
    return wait
