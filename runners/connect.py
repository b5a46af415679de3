"""How a run is reached by its name: resolve it, open its link, fold what comes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from . import run_directories
from .errors import UnknownOutcomeError, UnreachableError
from .local_agent import open_link
from .logs.follow import Merge
from .model import HUB, HostTick, LinkState, RankTick, RunPhase, Stage
from .state import RunState
from .wire.link import Link, LinkError, UnansweredError

T = TypeVar("T")
TELEMETRY_SECONDS = 0.5
WINDOW = 1 << 20
"""Bytes of a log that are asked for at a time."""
LINKS_SECONDS = 10.0
"""How long a hub that was just started may take to reach its nodes; what they say is the state now."""


async def with_link(name: str | None, use: Callable[[run_directories.Entry, Link], Awaitable[T]]) -> T:
    """Open a link to the run that `name` means, use it, close it. Raises RunError."""
    entry = run_directories.resolve(name)
    try:
        link = await open_link(entry)
        try:
            return await use(entry, link)
        finally:
            await link.close()
    except UnansweredError as error:
        raise UnknownOutcomeError(f"{entry.record.name}: {error}") from None
    except LinkError as error:
        raise UnreachableError(f"{entry.record.name}: {error}") from None


async def history(link: Link) -> RunState:
    """Everything that has happened so far, without a sample."""
    state = RunState()
    async for stamped in link.events():
        state.apply(stamped)
        if state.live:
            break
    return state


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


def reached(state: RunState, until: str) -> bool:
    """running: every rank has a process. healthy: every rank with a hook made a step, the others run."""
    if state.phase is not RunPhase.RUNNING or until == "running":
        return state.phase is RunPhase.RUNNING
    hooked = [rank for rank in state.ranks.values() if rank.hook is not None]
    wanted = state.plan is not None and state.plan.launcher == "torchrun"
    if wanted and len(hooked) < len(state.ranks):
        return False
    return all(rank.sample is not None and (rank.sample.step or 0) > 0 for rank in hooked)


async def follow_until(link: Link, until: str) -> RunState:
    """The state once it is `reached`, or the run has ended."""
    state = RunState()
    async for stamped in link.events():
        state.apply(stamped)
        if state.live and until != "done" and reached(state, until):
            break
    return state


async def read_on(link: Link, merge: Merge, file: str, size: int) -> AsyncIterator[tuple[list[str], str]]:
    """What a log has beyond what was merged, window by window: lines, and why one could not be read."""
    while (at := merge.wants(file)) < size:
        window = await link.read_log(file, at, WINDOW)
        yield merge.feed(window), window.error
        if merge.wants(file) <= at:
            return
