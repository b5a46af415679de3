"""How often torch's c10d rendezvous looks whether the others have come.

It looks once a second, so that no store is overloaded by many nodes; of a restart on a few nodes half a second is that.
"""

from __future__ import annotations

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
        theirs._delay = paced(getattr(delay, "theirs", delay), min(1.0, nodes / LOOKS_A_SECOND))


def paced(delay: Any, pause: float) -> Any:
    """torch's `_delay`, whose wait of a second between two looks is `pause`; other waits are as they are."""

    def wait(seconds: Any) -> None:
        delay(seconds=pause if seconds == 1 else seconds)

    wait.theirs = delay  # type: ignore[attr-defined]  # of one that is set again
    return wait
