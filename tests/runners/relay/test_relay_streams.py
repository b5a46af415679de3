"""The relay over a real store: streams, their windows, and their ends."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from distui.runners.agent.relay_client import WINDOW, AgentRelay, RelayError

from .relay_rig import Carriers, Pair, ProcessCarriers, echoed, ended, eventually, pair, read_exactly


async def carry(nodes: Pair) -> None:
    """What runners' parts do, however they are run."""
    stream = await nodes.relays[0].open(1)
    data = os.urandom(1_000_003)
    assert await echoed(stream, data) == data
    other = await nodes.relays[0].open(1)
    assert await echoed(other, b"two at once") == b"two at once"
    assert await echoed(stream, b"still") == b"still"
    back = await nodes.relays[1].open(0)
    assert await echoed(back, b"from node 1") == b"from node 1"
    stream.end()
    assert await echoed(other, b"the other goes on") == b"the other goes on"
    stranger = nodes.stranger()
    with nodes.held(stranger) as held:
        await other.write(b"held")
        await held.frames()
    assert await read_exactly(other, 4) == b"held"


async def test_bytes_come_back_as_they_were_sent(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        await carry(nodes)


async def test_an_answer_takes_less_than_a_tenth_of_a_second(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.opened()
        began = asyncio.get_running_loop().time()
        await echoed(stream, b"?")
        assert asyncio.get_running_loop().time() - began < 0.1


async def test_who_does_not_read_holds_a_window_and_no_more(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.relays[0].open(1)
        data = os.urandom(3 << 20)
        writing = asyncio.create_task(stream.write(data))
        await asyncio.sleep(1.0)  # nothing may happen any more: there is no event to wait for
        assert not writing.done()
        assert stream._came.qsize() <= WINDOW
        assert await read_exactly(stream, len(data)) == data
        await writing


async def test_the_end_of_either_side_is_the_end_of_both(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.relays[0].open(1)
        await echoed(stream, b"x")
        (there,) = nodes.relays[1]._streams.values()
        there.end("so it is")
        assert await ended(stream) == "so it is"
        with pytest.raises(BrokenPipeError):
            await stream.write(b"x")
        assert not nodes.relays[0]._streams
        assert not nodes.relays[1]._streams


async def test_an_agent_that_begins_anew_is_noticed(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.relays[0].open(1)
        await echoed(stream, b"x")
        nodes.relays[1] = AgentRelay(1, 2, nodes.echo)
        nodes.tasks[1].cancel()
        nodes.attach(1)
        await eventually(lambda: nodes.relays[1].up)
        await stream.write(b"is there anybody?")
        assert await ended(stream) == "the agent of node 1 was restarted"
        assert await echoed(await nodes.relays[0].open(1), b"x") == b"x"


async def test_whoever_only_reads_notices_that_the_other_agent_began_anew(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.relays[0].open(1)
        await echoed(stream, b"x")
        nodes.relays[1] = AgentRelay(1, 2, nodes.echo)
        nodes.tasks[1].cancel()
        nodes.attach(1)
        assert await ended(stream) == "the agent of node 1 was restarted"


async def test_whoever_only_reads_notices_that_the_other_node_was_cut_off(carriers: Carriers) -> None:
    """Only the other node lost the store, and has it again: here nothing was seen of that."""
    async with pair(carriers) as nodes:
        stream = await nodes.relays[0].open(1)
        await echoed(stream, b"x")
        nodes.relays[1]._store_changed({"store": "lost", "text": "cut"})
        nodes.relays[1]._store_changed({"store": "up"})
        await ended(stream)
        assert await echoed(await nodes.relays[0].open(1), b"x") == b"x"


async def test_nodes_that_are_not_are_named(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        for wrong in (0, 2, -1, 70_000):
            with pytest.raises(RelayError, match=f"no way from node 0 to node {wrong}: .* nodes 0 to 1"):
                await nodes.relays[0].open(wrong)
        with nodes.carriers[1].paused(), pytest.raises(RelayError, match="node 1 did not answer within"):
            await nodes.relays[0].open(1)


async def test_before_the_ranks_have_met_there_is_no_way(tmp_path: Path) -> None:
    relay = AgentRelay(0, 2, tmp_path / "nobody")
    with pytest.raises(RelayError, match="the ranks have not met yet"):
        await relay.open(1)


@pytest.mark.real
async def test_runners_in_processes_carry_the_same_and_survive_the_end_of_the_store(
    processes: ProcessCarriers,
) -> None:
    async with pair(processes) as nodes:
        await carry(nodes)
        stream = await nodes.relays[1].open(0)
        await asyncio.to_thread(processes.both[0].kill)
        assert "rendezvous store is gone" in await ended(stream)
        with pytest.raises(RelayError, match=r"to node 0 now: the rendezvous store is gone \("):
            await nodes.relays[1].open(0)
        assert processes.both[1].process.poll() is None
        assert "frame #" not in processes.both[1].said()

        await asyncio.to_thread(processes.replace_head)
        await eventually(lambda: all(relay.up for relay in nodes.relays))
        again = await nodes.relays[0].open(1)
        assert await echoed(again, b"a new rendezvous") == b"a new rendezvous"
        await echoed(again, b"x")
        assert await asyncio.to_thread(processes.close) == [0, 0], "they end cleanly in mid-stream"
