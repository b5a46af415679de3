"""The clock of the parts that run on an event loop: the loop is the clock.

`asyncio.sleep`, `call_later` and `asyncio.timeout` follow the time of the running loop. So do these two functions:
a loop with a clock of its own moves all waits, ages and limits at once. Without a loop they are the system's clocks.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any


def monotonic() -> float:
    """Seconds on a clock that never goes back: the loop's time if one runs in this thread."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


def now() -> float:
    """Unix seconds: the loop's `wall_time()` if it has one, as loops with virtual time do."""
    try:
        loop: Any = asyncio.get_running_loop()
    except RuntimeError:
        return time.time()
    wall_time = getattr(loop, "wall_time", time.time)
    return float(wall_time())


async def wait_set(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until an event is set; False after `seconds`.

    Unlike `asyncio.wait_for` of Python 3.11 it never swallows a cancellation that comes at the same moment.
    """
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
