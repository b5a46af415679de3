"""Which tasks an idle event loop has: a real loop in a thread."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

import patience
import pytest

from distui.runners.inrank.asyncio_tasks import waiting_tasks


async def flush(gate: asyncio.Event) -> None:
    await gate.wait()


async def save(gate: asyncio.Event) -> None:
    await asyncio.create_task(flush(gate), name="flush")


@pytest.mark.real
def test_the_tasks_of_an_idle_loop_are_told_with_their_lines() -> None:
    gates: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        gate = asyncio.Event()
        gates.append((asyncio.get_running_loop(), gate))
        await save(gate)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    end, found = time.monotonic() + patience.HANG_S, list[list[Any]]()
    while len(found) < 2 and time.monotonic() < end:
        time.sleep(0.05)
        found = waiting_tasks(sys._current_frames().get(thread.ident or 0))
    loop, gate = gates[0]
    loop.call_soon_threadsafe(gate.set)
    thread.join()
    stacks = {name: [frame[2] for frame in frames] for name, frames, *_ in found}
    assert stacks["task flush"][-1] == "flush"
    (main_task,) = stacks.keys() - {"task flush"}
    assert stacks[main_task][-2:] == ["save", "main"]
    assert waiting_tasks(sys._getframe()) == []
