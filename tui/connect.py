"""How verbs reach a run: resolve its name, open its link, fold what comes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..runners import registry
from ..runners.errors import UnreachableError
from ..runners.local import open_link
from ..runners.model import HUB, HostTick, LinkState, RankTick, Stage
from ..runners.state import RunState
from ..runners.wire.link import Link, LinkError

T = TypeVar("T")
TELEMETRY_SECONDS = 0.5
LINKS_SECONDS = 10.0
"""How long a hub that was just started may take to reach its nodes; what they say is the state now."""


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
    settled = asyncio.Event()

    async def read() -> None:
        async for stamped in link.events():
            state.apply(stamped)
            wanted.discard(type(stamped.event))
            if state.live and not _reaching(state):
                settled.set()
                if not wanted or state.phase.ended:
                    return

    reading = asyncio.create_task(read())
    waiting = asyncio.create_task(_patience(state, settled))
    await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if reading.done():
        reading.result()
    reading.cancel()
    return state


async def _patience(state: RunState, settled: asyncio.Event) -> None:
    """Until what has come is good enough."""
    while not state.live:
        await asyncio.sleep(0.05)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(settled.wait(), LINKS_SECONDS)
    await asyncio.sleep(TELEMETRY_SECONDS)


def _reaching(state: RunState) -> bool:
    """Whether a hub reaches for nodes that it was told of by their attempts, which a launch is not."""
    started = state.stages.get((Stage.START, HUB))
    launching = bool(state.stages) and (started is None or started.ended is None)
    connecting = any(node.link is LinkState.CONNECTING for node in state.nodes.values())
    return state.merged and not launching and not state.phase.ended and connecting
