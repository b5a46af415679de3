"""What a viewer sees of a run on several nodes, and what survives what; rehearsed, and once with processes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from distui.runners.node import local_agent, routes
from distui.runners.node.agentless import DiskLink
from distui.runners.node.routes import Route
from distui.runners.run import clock, run_directories
from distui.runners.run.commands import Down, ReadLog, Restart, SetNccl, Share, Signal
from distui.runners.run.model import (
    HUB,
    CommandDone,
    CommandReceived,
    LinkChanged,
    LinkState,
    LogGrew,
    RunPhase,
    Stamped,
)
from distui.runners.run.state import RunState
from distui.runners.run.wire import shared_link
from distui.runners.run.wire.client import new_id
from distui.runners.telemetry.progress import progress

from .rehearsal import Rehearsed
from .site import Site, Viewer, Whole, having, until

OUT = "node-{0}/attempt-{1:03d}/rank-{0}.out"


def running(state: RunState) -> bool:
    return state.live and state.phase is RunPhase.RUNNING


def told_twice_or_not_at_all(run: Whole, node: int) -> str:
    """What the hub's journal has of a node that the node's has not, or has more than once; "" for neither."""
    mine = [stamped.source for stamped in run.journal() if stamped.node == node and stamped.source]
    if mine != sorted(set(mine)):
        return f"out of order or twice: {mine}"
    theirs = [stamped.seq for stamped in run.part_journal(node) if not of_hub(stamped, node)]
    return "" if mine == theirs else f"{sorted(set(theirs) ^ set(mine))} of node {node}"


def of_hub(stamped: Stamped, node: int) -> bool:
    event = stamped.event
    return isinstance(event, CommandReceived | CommandDone) and event.id.endswith(f".{node}")


async def stopped(viewer: Viewer, site: Site) -> None:
    """Stop the run, and see that nothing of it is left."""
    assert await viewer.stop() == "stopped: no process of the run is left"
    await viewer.until(lambda state: state.phase is RunPhase.STOPPED)
    await viewer.close()
    assert await asyncio.to_thread(until, lambda: not having(f"XDG_STATE_HOME={site.root / 'state'}"))


async def test_two_nodes_are_one_run_rehearsed(run: Rehearsed, site: Site) -> None:
    await are_one_run(run, site)


@pytest.mark.real
async def test_two_nodes_are_one_run(site: Site) -> None:
    await are_one_run(Whole(site, site.script()), site)


async def are_one_run(run: Whole, site: Site) -> None:
    await run.begin()
    async with run.viewer() as viewer:
        state = await viewer.until(running)
        assert sorted(state.ranks) == [0, 1]
        assert {node.host for node in state.nodes.values()} == {"host0", "host1"}
        assert {node.link for node in state.nodes.values()} == {LinkState.UP}
        assert (state.merged, state.run, len(state.attempts)) == (True, run.record.run, 1)
        await viewer.until(lambda state: all(node.metrics for node in state.nodes.values()))
        await viewer.until(lambda state: state.log_sizes.get(OUT.format(1, 1), 0) > 20)
        window = await viewer.link.read_log(ReadLog(OUT.format(1, 1), 0))
        assert window.data.startswith(b"node 1 begins\ntick ")
        assert (await viewer.link.read_log(ReadLog("node-1/agent.log", 0))).error == ""
        assert (
            "does not exist"
            in (await viewer.link.read_log(ReadLog("node-1/attempt-009/rank-1.out", 0))).error
        )
        done = await viewer.link.send(Down("d", "c"))
        assert (done.ok, "no cluster" in done.text) == (False, True)
        await stopped(viewer, site)
    state = run.entry.state()
    assert (state.phase, state.end_text) == (RunPhase.STOPPED, "stopped")
    assert {node.link for node in state.nodes.values()} == {LinkState.ENDED}
    assert [told_twice_or_not_at_all(run, node) for node in (0, 1)] == ["", ""]


async def test_training_signals_of_every_node(run: Rehearsed, site: Site) -> None:
    await run.begin()
    async with run.viewer() as viewer:
        await viewer.until(running)
        for node in (0, 1):
            run.runner(node).writes(0, f"step 7 loss {2 + node}.5 lr 0.1\n")
        state = await viewer.until(lambda state: sorted(state.training) == [0, 1])
        assert [state.training[rank].loss for rank in (0, 1)] == [2.5, 3.5]
        line = progress(state, clock.now())
        assert (line.sources["loss"], line.lr) == ("output: key value", 0.1)
        await stopped(viewer, site)
    ended = run.entry.state()
    assert sorted(ended.training) == [0, 1]
    assert progress(ended, clock.now()).step is not None


async def test_a_restart_is_of_all_nodes_rehearsed(run: Rehearsed, site: Site) -> None:
    await restart(run, site)


@pytest.mark.real
async def test_a_restart_is_of_all_nodes(site: Site) -> None:
    await restart(Whole(site, site.script()), site)


async def restart(run: Whole, site: Site) -> None:
    await run.begin()
    async with run.viewer() as viewer:
        before = {number: rank.pid for number, rank in (await viewer.until(running)).ranks.items()}
        done = await viewer.link.send(Restart(new_id(), {"COLOUR": "green"}))
        assert done.ok, done.text
        assert done.text.startswith("restarted: attempt 2, 2 ranks on 2 nodes running after ")
        state = await viewer.until(lambda state: running(state) and state.attempt == 2)
        assert not {rank.pid for rank in state.ranks.values()} & set(before.values())
        assert state.attempts[-1].env_diff == {"COLOUR": "green"}
        asked = [one for one in run.journal() if isinstance(one.event, CommandReceived | CommandDone)]
        assert [one.node for one in asked] == [HUB, HUB]
        # Before it has written it does not ignore the signal yet.
        await viewer.until(lambda state: state.log_sizes.get(OUT.format(1, 2), 0) > 0)
        sent = await viewer.link.send(Signal(new_id(), "USR1", (1,)))
        assert (sent.ok, sent.text) == (True, "SIGUSR1 sent to rank 1")
        nobody = await viewer.link.send(Signal(new_id(), "USR1", (5,)))
        assert (nobody.ok, nobody.text) == (False, "there is no running rank 5")
        await stopped(viewer, site)


async def test_a_node_agent_that_is_killed_is_back(run: Rehearsed, site: Site) -> None:
    await run.begin()
    async with run.viewer() as viewer:
        pids = {number: rank.pid for number, rank in (await viewer.until(running)).ranks.items()}
        await run.agents[1].killed()
        await viewer.until(lambda state: state.nodes[1].link is LinkState.LOST)
        await run.begin_agent(1)
        state = await viewer.until(lambda state: state.nodes[1].link is LinkState.UP)
        assert {number: rank.pid for number, rank in state.ranks.items()} == pids
        assert "host1: the link is back" in [text for _, text in state.notices]
        await stopped(viewer, site)
    assert [told_twice_or_not_at_all(run, node) for node in (0, 1)] == ["", ""]


async def test_a_killed_hub_is_started_anew_rehearsed(run: Rehearsed, site: Site) -> None:
    await kill_hubs(run, site)


@pytest.mark.real
async def test_a_hub_that_is_killed_is_started_anew_and_loses_nothing(site: Site) -> None:
    await kill_hubs(Whole(site, site.script()), site)


async def kill_hubs(run: Whole, site: Site) -> None:
    """Once at rest, and once in a restart that both nodes have heard of: it was sent to them in one breath."""
    await run.begin()
    async with run.viewer() as viewer:
        pids = {number: rank.pid for number, rank in (await viewer.until(running)).ranks.items()}
        await run.kill_hub()
    async with run.viewer() as viewer:
        state = await viewer.until(running)
        assert {number: rank.pid for number, rank in state.ranks.items()} == pids
        asked = asyncio.create_task(viewer.link.send(Restart(new_id())))
        await viewer.until(lambda state: state.attempt == 2)
        await run.kill_hub()
        await asyncio.wait({asked})
    async with run.viewer() as viewer:
        await viewer.until(lambda state: running(state) and state.attempt == 2)
        await stopped(viewer, site)
    assert [told_twice_or_not_at_all(run, node) for node in (0, 1)] == ["", ""]
    seqs = [stamped.seq for stamped in run.journal()]
    assert seqs == list(range(1, len(seqs) + 1))


async def test_a_command_that_ends_well_on_all_nodes_is_a_success(run: Rehearsed) -> None:
    await run.begin()
    async with run.viewer() as viewer:
        await viewer.until(running)
        for node in (0, 1):
            run.runner(node).exits(0)
        state = await viewer.until(lambda state: state.phase.ended)
        assert (state.phase, state.exit_code) == (RunPhase.SUCCEEDED, 0)
    link = await ended_link(run)
    written = b"node 1 begins\ntick 1\n"
    assert (await link.read_log(ReadLog(OUT.format(1, 1), 0))).data == written
    sizes = [stamped.event.sizes async for stamped in link.events() if isinstance(stamped.event, LogGrew)]
    assert sizes[-1][OUT.format(1, 1)] == len(written)


async def test_a_share_shows_all_nodes_and_reaches_none(run: Rehearsed) -> None:
    """The hub keeps it; a guest's commands and streams go to no node."""
    await run.begin()
    async with run.viewer() as viewer:
        await viewer.until(running)
        shared = await viewer.link.send(Share("s", "user bob", user=51001))
        assert shared.ok, shared.text
        guest = await shared_link.connect(Path(shared.data["socket"]))
        state = RunState()
        async for stamped in guest.events():
            state.apply(stamped)
            if running(state):
                break
        assert {rank.place.node for rank in state.ranks.values()} == {0, 1}
        assert not (await guest.read_log(ReadLog(OUT.format(1, 1), 0))).error
        assert "is not a log of the run" in (await guest.read_log(ReadLog("node-1/environ", 0))).error
        guest.readonly = False  # so that it sends what the hub has to refuse
        assert (await guest.send(Restart(new_id()))).text == "this connection is read-only"
        await guest.close()
        assert viewer.state.attempt == 1
        for node in (0, 1):
            run.runner(node).exits(0)
        await viewer.until(lambda state: state.phase.ended)
    assert run.hub is not None
    await run.hub.task
    assert not Path(shared.data["socket"]).parent.exists()


async def test_a_part_that_ends_while_its_link_is_down_is_heard_when_the_link_is_back(
    run: Rehearsed, site: Site
) -> None:
    away = site.root / "s" / "away.sock"
    here, there = run.unix()
    await run.begin([here, Route(there.node, there.host, "unix", str(away))])
    async with run.viewer() as viewer:
        await viewer.until(lambda state: 1 in state.nodes and state.nodes[1].link is LinkState.LOST)
        await viewer.until(lambda state: 0 in state.ranks and state.ranks[0].pid)
        for node in (0, 1):
            run.runner(node).exits(0)
        await run.runner(1).over.wait()
        seen = len(viewer.stamped)
        await viewer.until(lambda _: lost(viewer.stamped[seen:]) == 2)
        away.symlink_to(there.target)
        state = await viewer.until(lambda state: state.phase.ended)
    assert (state.phase, state.exit_code) == (RunPhase.SUCCEEDED, 0)


def lost(told: list[Stamped]) -> int:
    """How often a link could not be opened."""
    return sum(isinstance(one.event, LinkChanged) and one.event.state is LinkState.LOST for one in told)


async def ended_link(run: Rehearsed) -> DiskLink:
    """A link to the run when its hub has left."""
    assert run.hub is not None
    await run.hub.task
    return DiskLink(run.entry)


async def test_logs_of_nodes_that_are_gone_are_kept(run: Rehearsed) -> None:
    await run.begin()
    numbers = "".join(f"{number}\n" for number in range(1, 100001))
    async with run.viewer() as viewer:
        await viewer.until(running)
        for node in (0, 1):
            run.runner(node).writes(0, numbers)
            run.runner(node).writes(0, f"end on {node}\n", "err")
            run.runner(node).exits(0)
        await viewer.until(lambda state: state.phase.ended)
    link = await ended_link(run)
    for part in run.parts:
        part.path.rename(part.path.with_name(f"gone-{part.record.node}"))
    size = len(numbers) + len("node 1 begins\ntick 1\n")
    window = await link.read_log(ReadLog(OUT.format(1, 1), -65536))
    assert (window.next, window.size) == (size, size)
    assert window.data.endswith(b"99999\n100000\n")
    assert window.offset == size - len(window.data) > 400000
    assert (await link.read_log(ReadLog("node-1/attempt-001/rank-1.err", 0))).data == b"end on 1\n"


async def test_one_failed_node_fails_the_run(run: Rehearsed) -> None:
    await run.begin()
    async with run.viewer() as viewer:
        await viewer.until(running)
        run.runner(1).writes(0, "broken\n", "err")
        run.runner(1).exits(0, 7)
        run.runner(0).exits(0)
        state = await viewer.until(lambda state: state.phase.ended)
    assert (state.phase, state.exit_code) == (RunPhase.FAILED, 7)
    assert "host1" in state.end_text
    cause = state.attempts[-1].first_cause
    assert cause is not None
    assert (cause.node, cause.exit_code, cause.last_lines[0]) == (1, 7, "broken")


def halves(run: Whole) -> Sequence[Route]:
    """The second node is nowhere."""
    return [run.unix()[0], Route(1, "host1", "unix", str(run.site.root / "s" / "nowhere.sock"))]


async def test_without_a_node_nothing_is_restarted_unless_asked(run: Rehearsed, site: Site) -> None:
    await run.begin(halves(run))
    async with run.viewer() as viewer:
        await viewer.until(lambda state: state.live and 1 in state.nodes and state.nodes[1].link_text)
        state = await viewer.until(lambda state: 0 in state.ranks and state.ranks[0].pid)
        assert state.phase is RunPhase.STARTING
        assert state.nodes[1].link is LinkState.LOST
        for command in (Restart(new_id()), SetNccl(new_id(), "INFO", restart=True)):
            refused = await viewer.link.send(command)
            assert not refused.ok
            assert "node 1 (host1) does not answer" in refused.text
            assert "--reachable" in refused.text
        assert viewer.state.attempt == 1
        gone = await viewer.link.read_log(ReadLog(OUT.format(1, 1), 0))
        assert gone.data.startswith(b"node 1 begins"), "its files are on this machine"
        routes.write(run.entry.path, run.unix())
        await run.kill_hub()
    async with run.viewer() as viewer:
        await viewer.until(running)
        await stopped(viewer, site)


async def test_a_stop_names_a_node_that_it_does_not_reach(run: Rehearsed) -> None:
    await run.begin(halves(run))
    async with run.viewer() as viewer:
        await viewer.until(lambda state: state.live and 1 in state.nodes and state.nodes[1].link_text)
        await viewer.until(lambda state: 0 in state.ranks and state.ranks[0].pid)
        said = await viewer.stop()
        assert said.startswith("stopped on the nodes that answer; node 1 (host1) does not answer")
        state = await viewer.until(lambda state: state.phase.ended)
        assert state.phase is RunPhase.STOPPED
        assert "node 1 (host1) did not answer" in state.end_text
    assert not run.runner(1).over.is_set()


@pytest.mark.long
async def test_parts_without_a_hub_are_one_run_and_get_one(site: Site) -> None:
    run = Whole(site, site.script())
    run.start()
    (run.entry.path / run_directories.RUN_FILE).unlink()
    for path in run.entry.path.iterdir():
        path.unlink()
    run.entry.path.rmdir()
    known = run_directories.entries()
    assert [entry.record.run for entry in known] == [f"{run.record.run}.n0"]
    for name in ("many", run.record.run, run.record.run[:12]):
        assert run_directories.resolve(name).path == run.parts[0].path
    viewer = Viewer(await local_agent.open_link(run_directories.resolve("many")))
    state = await viewer.until(running)
    assert (state.run, sorted(state.ranks)) == (run.record.run, [0, 1])
    assert [entry.record.kind for entry in run_directories.entries()] == ["hub"]
    assert run_directories.resolve("many").record.run8 == run.record.run8
    assert not run_directories.ended(run_directories.resolve("many"))
    await stopped(viewer, site)
    assert run_directories.ended(run_directories.resolve("many"))
