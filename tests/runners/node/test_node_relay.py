"""Two nodes of a real torchrun: a restart of both, and a session on the head with the agent of the other node."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from doubles.test_contract import check_a_membership, reports
from nodes_rig import Cluster, ledger, until
from patience import HANG_S

from distui.runners.run.commands import Dump, ReadLog, Signal, Stop
from distui.runners.run.model import CaughtUp, LogGrew, RankTick, RunCreated, RunEnded, Stamped
from distui.runners.run.wire.client import LinkError, SocketLink

pytestmark = pytest.mark.torch


@contextmanager
def keyed() -> Iterator[Cluster]:
    """Two nodes whose agents have a relay's key; both ranks train."""
    made = Cluster()
    try:
        for node in (0, 1):
            made.job(node)
        made.steps(1)
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with keyed() as made:
        yield made


@asynccontextmanager
async def across(cluster: Cluster, readonly: bool = False) -> AsyncIterator[SocketLink]:
    """A link to node 1 through node 0's agent, tried until the ranks have met."""
    link = None
    async with asyncio.timeout(HANG_S):
        while link is None:
            try:
                link = await SocketLink.connect(cluster.socket(0), readonly, via=1)
            except LinkError:
                await asyncio.sleep(0.2)
    try:
        yield link
    finally:
        await link.close()


async def told(link: SocketLink, *kinds: type) -> list[Stamped]:
    """What is told until there was one of each kind."""
    found: list[Stamped] = []
    missing = set(kinds)
    async with asyncio.timeout(HANG_S):
        async for stamped in link.events():
            found.append(stamped)
            missing.discard(type(stamped.event))
            if not missing:
                break
    return found


@pytest.mark.real
async def test_a_session_through_the_head(cluster: Cluster) -> None:
    async with across(cluster) as link:
        await history(link)
        await read_a_log(cluster, link)
        done = await link.send(Dump("d", "stacks"))
        assert done.ok, done.text
        assert set(done.data) == {"1"}
    async with across(cluster, readonly=True) as link:
        await told(link, CaughtUp)
        link.readonly = False  # so that it is the agent that refuses
        done = await link.send(Signal("s", "SIGKILL"))
        assert (done.ok, done.text) == (False, "this connection is read-only")
    with pytest.raises(LinkError, match="there is no way from node 0 to node 7: the run has nodes 0 to 1"):
        await SocketLink.connect(cluster.socket(0), via=7)


@pytest.mark.real
async def test_two_nodes_step_and_restart_as_one(cluster: Cluster) -> None:
    before = cluster.now(0).attempt
    for node in (0, 1):
        state = cluster.now(node)
        assert {place.node for attempt in state.attempts for place in attempt.ranks} == {node}
        assert set(state.nodes) == {node}
        said = f"[rank {next(iter(state.ranks))}] rank "
        until(lambda node=node, said=said: said in cluster.said(node), HANG_S, cluster.describe)  # type: ignore[misc]
    answers = await cluster.restart(0, 1)
    assert [answer.ok for answer in answers] == [True, True], answers
    cluster.steps(before + 1)
    for node in (0, 1):
        assert ledger(cluster, node)[-1] == (before + 1, "restart", 2)
    (answer,) = await cluster.restart(1)
    assert answer.ok, answer
    cluster.steps(before + 2)
    assert ledger(cluster, 1)[-1] == (before + 2, "restart", 2)
    check_a_membership(reports(cluster.path(0)), cluster.now(0), before + 1)


async def history(link: SocketLink) -> None:
    """History and telemetry of the other node."""
    assert link.hello is not None
    assert link.hello.node == 1
    found = await told(link, RunCreated, CaughtUp, RankTick, LogGrew)
    assert [stamped.seq for stamped in found if stamped.seq] == list(
        range(1, 1 + sum(stamped.seq > 0 for stamped in found))
    )
    (tick,) = [stamped.event for stamped in found if isinstance(stamped.event, RankTick)][-1:]
    assert [sample.rank for sample in tick.ranks] == [1]


async def read_a_log(cluster: Cluster, link: SocketLink) -> None:
    """Byte for byte."""
    data = os.urandom(1 << 20)
    file = "node-1/attempt-001/rank-1.nccl"
    (cluster.path(1) / file).write_bytes(data)
    got = b""
    while len(got) < len(data):
        window = await link.read_log(ReadLog(file, len(got)))
        got += window.data
    assert got == data


@pytest.mark.long
async def test_the_heads_runner_is_killed_and_the_end_is_heard_through_the_next_one() -> None:
    """It takes the store along. Links end with a sentence; both nodes meet at the runner that follows.

    The runner carries the relay, so it goes after the end was heard; nobody waits for the other.
    """
    with keyed() as made:
        async with across(made) as link:
            watching = asyncio.create_task(told(link, Exception))
            await asyncio.sleep(0.5)
            os.kill(made.pid(0, "runner"), signal.SIGKILL)
            with pytest.raises(
                LinkError, match=r"the relay to node 1 ended: .* store is gone|the runner of this node"
            ):
                await watching
        made.steps(2)
        assert not made.now(1).phase.ended
        log = (made.path(1) / "runner.log").read_text(errors="replace")
        assert "distui_inrank.relay" not in log, log[-3000:]
        assert "distui-relay" not in log, log[-3000:]
        async with across(made) as link:
            ending = asyncio.create_task(told(link, RunEnded))
            here = await SocketLink.connect(made.socket(0))
            try:
                heard = asyncio.create_task(told(here, RunEnded))
                await asyncio.gather(here.send(Stop("a")), link.send(Stop("b")))
                assert isinstance((await heard)[-1].event, RunEnded)
            finally:
                await here.close()
            assert isinstance((await ending)[-1].event, RunEnded)
        await asyncio.to_thread(until, lambda: not made.processes(), HANG_S, made.describe)
