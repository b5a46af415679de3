"""Follow a run by its link: its state now, and as events come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

from ..run import clock
from ..run import snapshot as folds
from ..run.model import HUB, HostTick, LinkState, RankTick, RunPhase, Stage, Stamped
from ..run.state import RunState
from ..run.wire.client import YIELD_EVERY, Link, LinkError, SocketLink, paced

TELEMETRY_SECONDS = 0.5
LINKS_SECONDS = 10.0
"""Seconds for a new hub to connect to its nodes before the state is taken as it is."""


async def folded_batches(link: Link, state: RunState) -> AsyncIterator[list[Stamped]]:
    """Fold a link's events after `state.seq` into `state`, and yield them in batches; a long history comes folded.

    Raises LinkError.
    """
    async for batch in _batches(link, state.seq):
        for stamped in batch:
            _fold(state, stamped)
        yield batch
        if len(batch) == YIELD_EVERY:
            await asyncio.sleep(0)


async def folded_events(link: Link, state: RunState) -> AsyncIterator[Stamped]:
    """Fold and yield a link's events one by one: `state` includes each, and no later one. Raises LinkError."""
    async for batch in _batches(link, state.seq):
        for stamped in batch:
            _fold(state, stamped)
            yield stamped


def _batches(link: Link, after: int) -> AsyncIterator[list[Stamped]]:
    if isinstance(link, SocketLink):
        return link.batches(after, fold=folds.fold_id())
    return ([stamped] async for stamped in paced(link.events(after)))


def _fold(state: RunState, stamped: Stamped) -> None:
    try:
        folds.take(state, stamped)
    except ValueError as error:
        raise LinkError(f"the state that the agent sent cannot be read: {error}") from None


async def history(link: Link) -> RunState:
    """Fold the whole history, without samples."""
    state = RunState()
    async for _ in folded_events(link, state):
        if state.live:
            break
    return state


async def snapshot(link: Link) -> RunState:
    """Fold the whole history, and one sample of every node if one comes soon."""
    state = RunState()
    wanted: set[type] = {HostTick, RankTick}
    sampled = set[int]()
    settled = asyncio.Event()

    async def read() -> None:
        async for stamped in folded_events(link, state):
            wanted.discard(type(stamped.event))
            if isinstance(stamped.event, HostTick):
                sampled.add(stamped.node)
            if state.live and not _reaching(state, sampled):
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
    """Wait until the events so far are sufficient."""
    while not state.live:
        await asyncio.sleep(0.05)
    await clock.wait_set(settled, LINKS_SECONDS)
    await asyncio.sleep(TELEMETRY_SECONDS)


def _reaching(state: RunState, sampled: Collection[int]) -> bool:
    """Whether a hub reconnects to nodes after their launch, or has not read one of them yet."""
    started = state.stages.get((Stage.START, HUB))
    launching = bool(state.stages) and (started is None or started.ended is None)
    if launching or not state.merged or state.phase.ended:
        return False
    for number, node in state.nodes.items():
        unread = node.link is LinkState.UP and node.phase is None and number not in sampled
        if unread or node.link is LinkState.CONNECTING:
            return True
    return False


def reached(state: RunState, until: str) -> bool:
    """Whether a run is "running" (every rank has a process) or "healthy" (and every rank with a hook made a step)."""
    if state.phase is not RunPhase.RUNNING or until == "running":
        return state.phase is RunPhase.RUNNING
    hooked = [rank for rank in state.ranks.values() if rank.hook is not None]
    wanted = state.plan is not None and state.plan.launcher == "torchrun"
    if wanted and len(hooked) < len(state.ranks):
        return False
    return all(rank.sample is not None and (rank.sample.step or 0) > 0 for rank in hooked)


async def follow_until(link: Link, until: str, state: RunState | None = None) -> RunState:
    """Fold events until `reached` or the end; pass `state` to have it after a cancellation."""
    state = RunState() if state is None else state
    async for _ in folded_events(link, state):
        if state.live and until != "done" and reached(state, until):
            break
    return state
