"""Nodes whose links are up and whose agent or runner does not answer: named soon, and nothing is half done."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from patience import HANG_S

from distui.presets.model import RestartPolicy
from distui.presets.plan import Place, Plan
from distui.runners.agent import commands
from distui.runners.agent.rank_environments import Environment
from distui.runners.agent.runner_process import Runner, ServedRun
from distui.runners.run import file_io, run_directories
from distui.runners.run.chronicle import Chronicle
from distui.runners.run.command_executor import CommandRefused
from distui.runners.run.commands import Restart, Signal, Stop
from distui.runners.run.model import AttemptStarted, RunnerLost, RunPhase
from distui.runners.run.processes import state_of
from distui.runners.run.state import RunState
from distui.runners.run.wire.client import new_id

from .rehearsal import Rehearsed
from .site import Site, Whole, having


def running(state: RunState) -> bool:
    return state.live and state.phase is RunPhase.RUNNING


def runner_pid(run: Whole, node: int) -> int:
    who = file_io.read(run.parts[node].path / run_directories.RUNNER_FILE)
    assert who is not None
    return who.pid


async def hold(pid: int) -> None:
    """SIGSTOP, and wait until it has stopped: until then its other threads still answer."""
    os.kill(pid, signal.SIGSTOP)
    while state_of(pid) != "T":
        await asyncio.sleep(0.01)


async def test_a_silent_runner_keeps_every_node_from_restarting(run: Rehearsed) -> None:
    await run.begin()
    async with run.viewer() as viewer:
        await viewer.until(running)
        run.runner(1).is_silent = True
        done = await viewer.link.send(Restart(new_id()))
        assert not done.ok
        assert done.text.startswith(
            "a restart needs every node, and nothing was restarted: node 1 (host1): the runner (pid"
        )
        assert "did not answer" in done.text
        run.runner(1).is_silent = False
        assert (viewer.state.attempt, viewer.state.phase) == (1, RunPhase.RUNNING)
        done = await viewer.link.send(Restart(new_id()))
        assert done.ok, done.text
        await viewer.until(lambda state: state.attempt == 2)


class Patient(Rehearsed):
    """A run whose nodes wait before they start a runner in place of a dead one."""

    def planned(self, command: tuple[str, ...], name: str, place: Place, nodes: int) -> Plan:
        policy = RestartPolicy(limit=3, backoff_s=4.0)
        return replace(super().planned(command, name, place, nodes), restart=policy)


async def test_a_restart_waits_for_a_runner_that_is_being_started_anew(site: Site) -> None:
    run = Patient(site)
    await run.begin()
    async with run.viewer() as viewer:
        await viewer.until(running)
        run.runner(1).dies()
        await viewer.until(lambda _: any(isinstance(one.event, RunnerLost) for one in viewer.stamped))
        asking = asyncio.create_task(viewer.link.send(Restart(new_id())))

        def restarted(_: RunState) -> bool:
            events = [(one.node, one.event) for one in viewer.stamped]
            begun = {
                node
                for node, event in events
                if isinstance(event, AttemptStarted) and event.cause == "restart"
            }
            return begun == {0, 1}

        await viewer.until(lambda state: restarted(state) or asking.done())
        assert restarted(viewer.state), asking.result().text
        asking.cancel()
    await run.close()


async def test_a_connection_that_a_runner_ends_is_closed_here(socket_folder: Path) -> None:
    closed, socket = asyncio.Event(), socket_folder / "r.run"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write_eof()
        await reader.read()
        closed.set()
        writer.close()

    async with await asyncio.start_unix_server(serve, socket):
        listening = asyncio.create_task(
            Runner(socket_folder, file_io.identify(socket=str(socket)), None).listen()
        )
        await asyncio.wait_for(closed.wait(), HANG_S)
        listening.cancel()


async def test_a_runner_that_never_comes_is_refused(tmp_path: Path) -> None:
    chronicle = Chronicle(tmp_path)
    run = SimpleNamespace(until=chronicle.until, state=chronicle.state, runner=None)
    restarts = commands.Restarts(cast(ServedRun, run), cast(Environment, None))
    with pytest.raises(CommandRefused, match="the runner is being restarted: try again in a few seconds"):
        await restarts.check_runner()


@pytest.mark.long
async def test_a_stopped_agent_is_named_and_asked_nothing(site: Site) -> None:
    run = Whole(site, site.script())
    run.start()
    async with run.viewer() as viewer:
        await viewer.until(running)
        await hold(run.agent_pid(1))
        restart, urged = await asyncio.gather(
            viewer.link.send(Restart(new_id())), viewer.link.send(Signal(new_id(), "URG", (1,)))
        )
        assert "nothing was restarted: node 1 (host1): the agent (pid" in restart.text
        assert "does not answer: stopped (state T)" in urged.text
        os.kill(run.agent_pid(1), signal.SIGCONT)
        await asyncio.sleep(1.0)
        assert viewer.state.attempt == 1, "what was refused is not done later"


@pytest.mark.real
async def test_stop_ends_a_node_whose_agent_and_runner_are_stopped(site: Site) -> None:
    run = Whole(site, site.script())
    run.start()
    async with run.viewer() as viewer:
        await viewer.until(running)
        for pid in (run.agent_pid(1), runner_pid(run, 1), runner_pid(run, 0)):
            await hold(pid)
        done = await viewer.link.send(Stop(new_id(), 2.0))
        assert done.ok, done.text
    assert not having(f"DISTUI_RUN_ID={run.parts[0].record.run}")
    assert not having(f"DISTUI_RUN_ID={run.parts[1].record.run}")
