"""How verbs reach a run: resolve its name, open its link, fold what comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..runners import registry
from ..runners.errors import UnreachableError
from ..runners.local import open_link
from ..runners.model import Command, CommandDone, HostTick, RankTick
from ..runners.state import RunState
from ..runners.wire.link import Link, LinkError

T = TypeVar("T")
TELEMETRY_SECONDS = 0.5


async def with_link(name: str | None, use: Callable[[registry.Entry, Link], Awaitable[T]]) -> T:
    """Open a link to the run that `name` means, use it, close it. Raises RunError."""
    entry = registry.resolve(name)
    try:
        link = await open_link(entry)
        try:
            return await use(entry, link)
        finally:
            await link.close()
    except LinkError as error:
        raise UnreachableError(f"{entry.record.name}: {error}") from None


async def snapshot(link: Link) -> RunState:
    """The state now: the whole history, and one sample of telemetry where one comes soon."""
    state = RunState()
    wanted: set[type] = {HostTick, RankTick}

    async def read() -> None:
        async for stamped in link.events():
            state.apply(stamped)
            wanted.discard(type(stamped.event))
            if state.live and (not wanted or state.phase.ended):
                return

    reading = asyncio.create_task(read())
    while not reading.done():
        timeout = TELEMETRY_SECONDS if state.live else None
        done, _ = await asyncio.wait({reading}, timeout=timeout or 0.05)
        if not done and timeout:
            reading.cancel()
            break
    if reading.done() and not reading.cancelled():
        reading.result()
    return state


async def tell(link: Link, command: Command) -> CommandDone:
    """Send a command while the events keep flowing, so that its answer is heard."""

    async def drain() -> None:
        async for _ in link.events():
            continue

    draining = asyncio.create_task(drain())
    try:
        return await link.send(command)
    finally:
        draining.cancel()
