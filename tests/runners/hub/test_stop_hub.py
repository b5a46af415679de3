"""Stop of a run on several nodes whose hub does not answer: another hub takes its place and ends the nodes."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from distui.runners.node import local_agent
from distui.runners.node.agentless import stop_run
from distui.runners.run import run_directories
from distui.runners.run.commands import Stop
from distui.runners.run.model import RunPhase
from distui.runners.run.state import RunState
from distui.runners.run.wire.client import Link, new_id

from .site import Site, Whole, having, until


def running(state: RunState) -> bool:
    return state.live and state.phase is RunPhase.RUNNING


@pytest.mark.real
async def test_a_hub_that_does_not_answer_is_replaced(site: Site) -> None:
    await replace(site, signal.SIGSTOP, "before")


@pytest.mark.long
async def test_a_hub_that_is_killed_while_it_is_asked_is_replaced(site: Site) -> None:
    await replace(site, signal.SIGKILL, "after")


async def replace(site: Site, number: signal.Signals, when: str) -> None:
    """`when`: it is stopped before, or after, who stops the run has connected to it."""
    said: list[str] = []
    run, opened = Whole(site, site.script()), 0
    run.start()
    async with run.viewer() as viewer:
        await viewer.until(running)
    hub = run.hub_pid()
    if when == "before":
        os.kill(hub, number)

    async def open_link(entry: run_directories.Entry) -> Link:
        nonlocal opened
        opened += 1
        link = await local_agent.open_link(entry)
        if when == "after" and opened == 1:
            os.kill(hub, number)
        return link

    done = await stop_run(run.entry, Stop(new_id()), said.append, open_link)
    assert (done.ok, done.text) == (True, "stopped: no process of the run is left")
    if number == signal.SIGSTOP:
        assert f"pid {hub}" in said[0]
        assert "another hub stops the nodes" in said[0]
    assert run.entry.state().phase is RunPhase.STOPPED
    assert await asyncio.to_thread(until, lambda: not having(f"XDG_STATE_HOME={site.root / 'state'}"))


@pytest.mark.long
async def test_a_hub_that_cannot_start_ends_nothing_in_its_name(site: Site) -> None:
    """Its nodes train on elsewhere: the run is not written down as stopped."""
    run = Whole(site, site.script())
    (run.entry.path / run_directories.PLAN_FILE).write_text("{")
    link = await local_agent.open_link(run.entry)
    done = await link.send(Stop(new_id()))
    assert not done.ok
    assert f"distui stop {run.record.run}" in done.text
    assert run.entry.state().phase is not RunPhase.STOPPED
