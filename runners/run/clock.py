"""The clock of code on an event loop is the loop's clock.

`asyncio.sleep`, `call_later` and `asyncio.timeout` use the time of the running loop, and so do these functions. A loop
with virtual time therefore shifts all waits, ages and limits together. Without a loop they use the system's clocks.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any


def monotonic() -> float:
    """Monotonic seconds: the loop's time if one runs in this thread."""
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
    """Wait until an event is set; return False after `seconds`.

    Unlike `asyncio.wait_for` of Python 3.11 it never swallows a simultaneous cancellation.
    """
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
