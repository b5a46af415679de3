"""The end that somebody asks for: of a run whose nodes do not all answer, and of a run whose cluster is taken down."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from patience import HANG_S

from distui.runners.hub import launch_order
from distui.runners.hub.launch_order import LaunchProgress, SkyRequest
from distui.runners.hub.merged_run import MergedRun
from distui.runners.hub.node_answers import Answer
from distui.runners.hub.sky_cloud import SkyCloud
from distui.runners.hub.sky_process import Sky
from distui.runners.node.routes import Route
from distui.runners.run import clock
from distui.runners.run.commands import Down, Stop
from distui.runners.run.journal import Journal
from distui.runners.run.model import (
    HUB,
    Cluster,
    ClusterChanged,
    CommandReceived,
    Event,
    FindingRaised,
    LinkChanged,
    LinkState,
    Outcome,
    RankChanged,
    RankPhase,
    RunCreated,
    RunEnded,
    RunPhase,
    Stage,
    StageChanged,
    Stamped,
)
from distui.runners.run.run_record import summarise
from distui.runners.run.wire.client import new_id

from .children import Programs, copied
from .rehearsal import Rehearsed
from .scripted_sky import ScriptedSky
from .site import Site, Viewer, Whole, having, until

SOON_S = 10.0
"""The grace of two seconds, and a few more."""


def nowhere(run: Whole, *nodes: int) -> list[Route]:
    """These nodes are not where the routes lead."""
    lost = run.site.root / "s"
    return [
        Route(route.node, route.host, "unix", str(lost / f"n{route.node}.sock"))
        if route.node in nodes
        else route
        for route in run.unix()
    ]


async def reached(viewer: Viewer, *lost: int) -> None:
    """Every node that answers has a rank, and the others were tried."""
    await viewer.until(
        lambda state: (
            state.live
            and len(state.nodes) == 2
            and all(state.nodes[node].link is LinkState.LOST for node in lost)
            and all(node in lost or (node in state.ranks and state.ranks[node].pid) for node in (0, 1))
        )
    )


async def test_a_node_that_does_not_answer_is_named_soon_and_stops_when_it_does(run: Rehearsed) -> None:
    gate, ways = asyncio.Event(), nowhere(run, 1)
    await run.begin(ways)
    async with run.viewer() as viewer:
        await reached(viewer, 1)
        async with held_up(run, 1, gate, Path(ways[1].target)):  # so that it answers at once when it does
            began = clock.monotonic()
            said = await viewer.stop()
            assert clock.monotonic() - began < SOON_S
            assert said == (
                "stopped on the nodes that answer; node 1 (host1) does not answer: it is told to stop on the first "
                "answer, after 15 s the run counts as stopped without it"
            )
            assert not viewer.state.phase.ended
            gate.set()
            state = await viewer.until(lambda state: state.phase.ended)
        assert (state.phase, state.end_text) == (RunPhase.STOPPED, "stopped")
        assert {rank.phase for rank in state.ranks.values()} == {RankPhase.STOPPED}


async def test_a_stop_that_no_node_hears_is_answered_soon(run: Rehearsed) -> None:
    await run.begin(nowhere(run, 0, 1))
    async with run.viewer() as viewer:
        await reached(viewer, 0, 1)
        began = clock.monotonic()
        said = await viewer.stop()
        assert clock.monotonic() - began < SOON_S
        assert said == (
            "no node was reached; node 0 (host0), node 1 (host1) do not answer: they are told to stop on the "
            "first answer, after 10 min the run counts as stopped without them"
        )


@asynccontextmanager
async def held_up(
    run: Whole, node: int, gate: asyncio.Event, at: Path | None = None
) -> AsyncIterator[list[Route]]:
    """Routes of which one leads to its node once the gate is open, as through a relay that looks once a second.

    `at`: the socket there.
    """
    halfway = at or run.site.root / "s" / f"slow{node}.sock"

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        back, there = await asyncio.open_unix_connection(run.socket(node))
        await asyncio.gather(copied(reader, there), copied(back, writer))

    async with await asyncio.start_unix_server(lead, halfway):
        yield [
            Route(route.node, route.host, "unix", str(halfway)) if route.node == node else route
            for route in run.unix()
        ]


async def test_a_stop_is_told_to_all_nodes_at_once_also_through_a_hub_that_has_just_begun(
    run: Rehearsed,
) -> None:
    gate = asyncio.Event()
    async with held_up(run, 1, gate) as ways:
        await run.begin(ways)
        async with run.viewer() as viewer:
            stopping = asyncio.create_task(viewer.stop())
            state = await viewer.until(
                lambda state: state.phase is RunPhase.STOPPING and 0 in state.ranks and state.ranks[0].pid
            )
            assert state.ranks[0].phase is not RankPhase.STOPPED
            gate.set()
            assert await stopping == "stopped: no process of the run is left"
            told = [(one.node, one.event) for one in viewer.stamped]
    came = next(
        at for at, (node, event) in enumerate(told)
        if node == 1 and isinstance(event, LinkChanged) and event.state is LinkState.UP
    )  # fmt: skip
    ended = next(
        at for at, (_, event) in enumerate(told)
        if isinstance(event, RankChanged) and event.state is RankPhase.STOPPED
    )  # fmt: skip
    assert came < ended


async def test_a_part_that_had_ended_when_it_was_told_has_stopped(run: Rehearsed) -> None:
    """A node that connects during a stop is told at once, and perhaps a second time."""
    await run.begin()
    async with run.viewer() as viewer:
        await reached(viewer)
        assert run.hub is not None
        assert run.hub.hub is not None
        ask = run.hub.hub._commands.stopping._ask

        async def twice(command: Stop, node: int) -> Answer:
            assert (await ask(Stop(new_id()), node)).ok
            return await ask(command, node)

        run.hub.hub._commands.stopping._ask = twice
        assert await viewer.stop() == "stopped: no process of the run is left"


async def test_a_node_that_goes_away_while_it_stops_is_not_called_stopped(run: Rehearsed) -> None:
    await run.begin()
    async with run.viewer() as viewer:
        await reached(viewer)
        run.runner(1).ignoring_term.add(0)
        stopping = asyncio.create_task(viewer.stop())
        await viewer.until(lambda state: state.phase is RunPhase.STOPPING)
        await run.agents[1].killed()
        said = await asyncio.wait_for(stopping, SOON_S)
        assert said.startswith(
            "stopped on the nodes that answer; node 1 (host1) does not answer: it is told"
        )
        state = await viewer.until(lambda state: state.phase.ended)
        assert state.end_text == "stopped; node 1 (host1) did not answer: whatever runs there still does"
        assert [state.ranks[rank].phase for rank in (0, 1)] == [RankPhase.STOPPED, RankPhase.LOST]


# --- the cluster ---------------------------------------------------------------------------------------------


class Launched(Rehearsed):
    """A run that SkyPilot, here a script, has brought up."""

    def __init__(self, site: Site, sky: ScriptedSky, **answers: list[dict[str, Any]]) -> None:
        super().__init__(site)
        self.sky = sky
        launched(self, sky, **answers)


def launched(run: Whole, sky: ScriptedSky, **answers: list[dict[str, Any]]) -> None:
    """Write down that SkyPilot has launched it, and what SkyPilot answers from now on."""
    sky.answers({"cancel": [{"data": True}], "down": [{"data": True}], **answers})
    launch_order.write(run.entry.path, SkyRequest(kind="skypilot", cluster="tc"))
    launch_order.keep(run.entry.path, LaunchProgress(job=7))
    journal = Journal(run.entry.path)
    record = run.record
    told: tuple[Event, ...] = (
        RunCreated(record.run, record.name, record.host, summarise(run.plan), merged=True),
        ClusterChanged(Cluster(name="tc", infra="slurm/lab/gpu", resources="2x(H100:8)", state="UP")),
        StageChanged(Stage.START, "begun"),
        StageChanged(Stage.START, "done"),
    )
    for seq, event in enumerate(told, 1):
        journal.append(Stamped(clock.now(), event, seq, HUB))
    journal.close()


@pytest.fixture
def sky(site: Site, monkeypatch: pytest.MonkeyPatch) -> ScriptedSky:
    return ScriptedSky(site.root, monkeypatch, Programs(monkeypatch))


def stopped(run: Whole) -> MergedRun:
    """A run whose parts have been stopped, and which has not ended itself yet."""
    merged = MergedRun(run.entry, run.plan)
    merged.replay()
    merged.emit(CommandReceived("c", "stop requested", "stop"))
    for node in (0, 1):
        merged.emit(RunEnded(RunPhase.STOPPED, 143, "stopped"), node=node)
    return merged


def ends(run: Whole) -> list[str]:
    """In which order the run was told to stop, its parts and the cluster ended, and the run itself."""
    found = []
    for stamped in run.journal():
        match stamped.event:
            case CommandReceived(verb="stop") if stamped.node == HUB:
                found.append("stop")
            case RunEnded():
                found.append("run" if stamped.node == HUB else "part")
            case ClusterChanged(Cluster(down=True)):
                found.append("cluster")
    return found


@asynccontextmanager
async def trained(
    site: Site, sky: ScriptedSky, **answers: list[dict[str, Any]]
) -> AsyncIterator[tuple[Launched, Viewer]]:
    """Such a run with its ranks, and who looks at it."""
    run = Launched(site, sky, **answers)
    await run.begin()
    async with run.viewer() as viewer:
        await viewer.until(lambda state: state.live and state.phase is RunPhase.RUNNING)
        yield run, viewer
    await run.close()


async def test_ranks_end_before_their_cluster_and_the_run_says_so(site: Site, sky: ScriptedSky) -> None:
    async with trained(site, sky) as (run, viewer):
        done = await viewer.link.send(Down(new_id(), "tc"))
        assert (done.ok, done.text) == (True, "cluster tc is down; many was stopped first")
        state = await viewer.until(lambda state: state.phase.ended)
        assert (state.phase, state.end_text) == (RunPhase.STOPPED, "stopped: cluster tc was taken down")
        assert {rank.phase for rank in state.ranks.values()} == {RankPhase.STOPPED}
        assert state.attempts[-1].outcome is Outcome.STOPPED
        assert state.cluster is not None
        assert state.cluster.down
    assert ends(run) == ["stop", "part", "part", "cluster", "run"]
    assert len(sky.asked("down")) == 1


async def test_the_end_of_the_run_does_not_cut_off_the_cancel_that_skypilot_works_at(
    site: Site, sky: ScriptedSky
) -> None:
    """Else SkyPilot lists a job that the user stopped as one that failed."""
    gate = site.root / "gate"
    run = Launched(site, sky, cancel=[{"after": str(gate), "data": True}])
    merged = stopped(run)
    cloud = SkyCloud(merged, SkyRequest(kind="skypilot", cluster="tc"), Sky())
    watching = asyncio.create_task(cloud.watch())
    while not sky.asked("cancel"):
        await asyncio.sleep(0.01)
    watching.cancel()
    others = asyncio.create_task(cloud.cancel())
    assert not (await asyncio.wait({watching, others}, timeout=0.5))[0]
    gate.touch()
    assert await others == "job 7 on tc is cancelled"
    await asyncio.wait({watching})
    merged.chronicle.journal.close()
    assert [question.get("verb") for question in sky.questions()] == ["version", "cancel", "job_state"]


REFUSED = {"error": {"kind": "CommandError", "text": "the head did not answer", "tried": ""}}


@pytest.mark.parametrize(
    ("answers", "listed", "tries"),
    [
        ({"cancel": [REFUSED, {"data": True}], "job_state": [{"data": "CANCELLED"}]}, "", 2),
        ({"job_state": [{"data": "RUNNING"}, {"data": "CANCELLED"}]}, "", 2),
        ({"job_state": [{"data": "FAILED"}]}, "is listed by SkyPilot as FAILED, not as CANCELLED", 1),
        ({"cancel": [REFUSED]}, "could not be cancelled through SkyPilot (", 3),
    ],
    ids=["refused-once", "runs-on", "failed", "refused"],
)
async def test_skypilot_lists_the_job_of_a_stopped_run_as_cancelled_or_that_is_reported(
    site: Site,
    sky: ScriptedSky,
    answers: dict[str, list[dict[str, Any]]],
    listed: str,
    tries: int,
) -> None:
    run = Launched(site, sky, **answers)
    merged = stopped(run)
    await SkyCloud(merged, SkyRequest(kind="skypilot", cluster="tc"), Sky()).watch()
    merged.chronicle.journal.close()
    texts = [told.event.finding.text for told in run.journal() if isinstance(told.event, FindingRaised)]
    assert [f"job 7 on tc {listed}" in text for text in texts] == ([True] if listed else [])
    assert len(sky.asked("cancel")) == tries


async def test_another_name_stops_nothing(site: Site, sky: ScriptedSky) -> None:
    async with trained(site, sky) as (_, viewer):
        done = await viewer.link.send(Down(new_id(), "td"))
        assert (done.ok, done.text) == (
            False, "the cluster of this run is tc, not 'td': nothing was done"
        )  # fmt: skip
        assert viewer.state.phase is RunPhase.RUNNING
        assert await viewer.stop() == "stopped: no process of the run is left"


async def test_a_cluster_that_stays_is_named_and_the_run_has_stopped(site: Site, sky: ScriptedSky) -> None:
    refused = {"error": {"kind": "ClientError", "text": "An error occurred (AuthFailure)", "tried": ""}}
    async with trained(site, sky, down=[refused]) as (_, viewer):
        done = await viewer.link.send(Down(new_id(), "tc"))
        assert not done.ok
        assert done.text.startswith("cluster tc was not taken down: ")
        assert done.text.endswith("; many was stopped first")
        state = await viewer.until(lambda state: state.phase.ended)
        assert (state.phase, state.end_text) == (RunPhase.STOPPED, "stopped")
        assert state.cluster is not None
        assert not state.cluster.down


async def test_a_silent_node_does_not_keep_the_cluster_up(site: Site, sky: ScriptedSky) -> None:
    run = Launched(site, sky)
    await run.begin(nowhere(run, 1))
    async with run.viewer() as viewer:
        await reached(viewer, 1)
        done = await viewer.link.send(Down(new_id(), "tc"))
        assert done.ok, done.text
        assert "before that: stopped on the nodes that answer; node 1 (host1) does not answer" in done.text
        state = await viewer.until(lambda state: state.phase.ended)
        assert state.end_text == "stopped: cluster tc was taken down; how node 1 (host1) ended is unknown"
        assert state.ranks[0].phase is RankPhase.STOPPED
    await run.close()


@pytest.mark.real
async def test_down_says_what_is_live_before_it_asks_and_ends_ranks_before_their_cluster(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    sky = ScriptedSky(site.root, monkeypatch, None)
    run = Whole(site, site.script())
    launched(run, sky)
    run.start()
    async with run.viewer() as viewer:
        await viewer.until(lambda state: state.live and state.phase is RunPhase.RUNNING)
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("distui"), "down", "many", env=dict(os.environ),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(HANG_S):
        out, err = await process.communicate(b"tc\n")
    assert (process.returncode, out.decode()) == (0, "cluster tc is down; many was stopped first\n"), err
    asked = err.decode().splitlines()
    unsaved = asked.pop(-2)  # by how much depends on the time that the question takes
    assert unsaved.startswith("unsaved     no checkpoint seen; "), err
    assert asked == [
        "Take cluster tc down?",
        "cluster     tc  slurm/lab/gpu  2x(H100:8)  UP",
        "cost        unknown: SkyPilot names no price",
        "run         many is on it: its ranks are stopped first",
        "ranks       0, 1, on 2 nodes (host0, host1)",
        "lost        all on its disks: checkpoints, logs, data that was not copied",
        "type its name to take it down: ",
    ]
    assert ends(run) == ["stop", "part", "part", "cluster", "run"]
    assert await asyncio.to_thread(until, lambda: not having(f"XDG_STATE_HOME={site.root / 'state'}"))
    status = run.entry.state()
    assert (status.phase, status.end_text) == (RunPhase.STOPPED, "stopped: cluster tc was taken down")
