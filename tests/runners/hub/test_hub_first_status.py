"""What the first `status` of a run on several nodes says: the hub has only just begun to read the nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from distui.runners.hub import links
from distui.runners.hub.links import open_route
from distui.runners.node import routes, run_following
from distui.runners.node.routes import Route
from distui.runners.reports.status_document import status_json
from distui.runners.run import clock
from distui.runners.run.model import CaughtUp, LinkState, RankPhase, RunPhase
from distui.runners.run.state import RunState
from distui.runners.run.wire.client import Link, SocketLink, stem
from distui.runners.run.wire.ssh import Report
from distui.tui.verbs.status import headline

from .rehearsal import Rehearsed
from .site import Site


@pytest.fixture
async def trains(site: Site) -> AsyncIterator[Rehearsed]:
    """Two nodes whose ranks make steps, and no hub."""
    made = Rehearsed(site, hook=True)
    yield made
    await made.close()


async def first_status(run: Rehearsed) -> RunState:
    """By a hub that is made for it."""
    await run.begin_hub()
    return await snapshot(run)


async def snapshot(run: Rehearsed) -> RunState:
    link = await SocketLink.connect(Path(f"{stem(run.record.run8)}.sock"))
    try:
        return await run_following.snapshot(link)
    finally:
        await link.close()


async def test_the_first_status_has_all_nodes(trains: Rehearsed, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slowly(route: Route, run: str, report: Report) -> Link:
        await asyncio.sleep(3.0 * route.node)
        return await open_route(route, run, report)

    monkeypatch.setattr(links, "open_route", slowly)
    await trains.begin()
    await asyncio.sleep(30.0)
    state = await first_status(trains)
    assert (state.phase, sorted(state.ranks)) == (RunPhase.RUNNING, [0, 1])
    steps = [rank["step"] for rank in status_json(state, clock.now())["ranks"]]
    assert all(step for step in steps), steps
    assert "running" in headline(state, clock.now())
    assert "2 ranks" in headline(state, clock.now())


async def test_a_node_keeps_its_name_when_its_hub_is_replaced(trains: Rehearsed) -> None:
    await trains.begin()
    await first_status(trains)
    await trains.kill_hub()
    await trains.begin_hub()
    link = await SocketLink.connect(Path(f"{stem(trains.record.run8)}.sock"))
    state = RunState()
    async for stamped in link.events():
        state.apply(stamped)
        if isinstance(stamped.event, CaughtUp):
            break
    await link.close()
    await asyncio.sleep(5.0)
    assert [node.host for node in state.nodes.values()] == ["host0", "host1"]


async def test_a_run_that_trains_runs_also_where_a_node_is_not_reached(trains: Rehearsed) -> None:
    await trains.begin()
    await asyncio.sleep(30.0)
    trains.runner(0).hooks[0].make({"strategies": ["ddp"]})
    await asyncio.sleep(1.0)
    here, _ = trains.unix()
    routes.write(trains.entry.path, [here, Route(1, "host1", "unix", str(trains.site.root / "s/gone"))])
    state = await first_status(trains)
    assert (state.phase, state.nodes[1].link) == (RunPhase.RUNNING, LinkState.LOST)
    assert [rank.phase for rank in state.ranks.values()] == [RankPhase.RUNNING]
    assert "1 of 2 ranks" in headline(state, clock.now())
