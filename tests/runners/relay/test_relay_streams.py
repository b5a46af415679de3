"""The relay over a real store between two processes: streams, their windows, and their ends."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from pathlib import Path

import pytest
from patience import slowness

from distui.runners.agent import relay_client as relay_module
from distui.runners.agent.relay_client import WINDOW, AgentRelay, RelayError

from .relay_rig import Carriers, echoed, eventually, pair


async def test_bytes_come_back_as_they_were_sent(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.relays[0].open(1)
        data = os.urandom(1_000_003)
        assert await echoed(stream, data) == data
        other = await nodes.relays[0].open(1)
        assert await echoed(other, b"two at once") == b"two at once"
        assert await echoed(stream, b"still") == b"still"
        stream.end()
        assert await echoed(other, b"the other goes on") == b"the other goes on"
        assert nodes.findings == []


async def test_any_node_may_open(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.relays[1].open(0)
        assert await echoed(stream, b"from node 1") == b"from node 1"


async def test_an_answer_can_take_less_than_a_tenth_of_a_second(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.relays[0].open(1)
        # A busy machine makes many slower, and a relay that asks by the clock all of them.
        fastest, until = 1.0, time.monotonic() + 120.0
        while fastest >= 0.1:
            began = time.monotonic()
            assert began < until, fastest
            await echoed(stream, b"?")
            fastest = min(fastest, time.monotonic() - began)


async def test_who_does_not_read_holds_a_window_and_no_more(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.relays[0].open(1)
        data = os.urandom(4 << 20)
        writing = asyncio.create_task(stream.write(data))
        await asyncio.sleep(1.0)  # nothing may happen any more: there is no event to wait for
        assert not writing.done()
        assert stream._came.qsize() <= WINDOW
        back = bytearray()
        async with asyncio.timeout(60 * slowness()):
            while len(back) < len(data):
                back += await stream.read()
            await writing
        assert bytes(back) == data


async def test_the_end_of_either_side_is_the_end_of_both(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.relays[0].open(1)
        await echoed(stream, b"x")
        (there,) = nodes.relays[1]._streams.values()
        there.end("so it is")
        async with asyncio.timeout(20 * slowness()):
            assert await stream.read() == b""
        assert stream.why == "so it is"
        with pytest.raises(BrokenPipeError):
            await stream.write(b"x")
        assert not nodes.relays[0]._streams
        assert not nodes.relays[1]._streams


@pytest.mark.real
async def test_the_store_dies_and_comes_back(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.relays[1].open(0)
        await asyncio.to_thread(nodes.carriers[0].kill)
        async with asyncio.timeout(20 * slowness()):
            assert await stream.read() == b""
        assert "rendezvous store is gone" in stream.why
        with pytest.raises(RelayError, match=r"to node 0 now: the rendezvous store is gone \("):
            await nodes.relays[1].open(0)
        assert nodes.carriers[1].process.poll() is None
        assert "frame #" not in nodes.carriers[1].said()

        await asyncio.to_thread(carriers.replace_head)
        await eventually(lambda: all(relay.up for relay in nodes.relays))
        again = await nodes.relays[0].open(1)
        assert await echoed(again, b"a new rendezvous") == b"a new rendezvous"
        assert nodes.findings == []


async def test_an_agent_that_begins_anew_is_noticed(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.relays[0].open(1)
        await echoed(stream, b"x")
        nodes.relays[1] = AgentRelay(nodes.keys[1], 1, 2, nodes.echo, nodes.findings.append)
        nodes.tasks[1].cancel()
        nodes.attach(1)
        await eventually(lambda: nodes.relays[1].up)
        await stream.write(b"is there anybody?")
        async with asyncio.timeout(20 * slowness()):
            assert await stream.read() == b""
        assert stream.why == "the agent of node 1 began anew"
        assert await echoed(await nodes.relays[0].open(1), b"x") == b"x"
        assert nodes.findings == []


async def test_whoever_only_reads_notices_that_the_other_agent_began_anew(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.relays[0].open(1)
        await echoed(stream, b"x")
        nodes.relays[1] = AgentRelay(nodes.keys[1], 1, 2, nodes.echo, nodes.findings.append)
        nodes.tasks[1].cancel()
        nodes.attach(1)
        async with asyncio.timeout(20 * slowness()):
            assert await stream.read() == b""
        assert stream.why == "the agent of node 1 began anew"
        assert nodes.findings == []


async def test_whoever_only_reads_notices_that_the_other_node_was_cut_off(carriers: Carriers) -> None:
    """Only the other node lost the store, and has it again: here nothing was seen of that."""
    async with pair(carriers) as nodes:
        stream = await nodes.relays[0].open(1)
        await echoed(stream, b"x")
        nodes.relays[1]._store_changed({"store": "lost", "text": "cut"})
        nodes.relays[1]._store_changed({"store": "up"})
        async with asyncio.timeout(20 * slowness()):
            assert await stream.read() == b""
        assert await echoed(await nodes.relays[0].open(1), b"x") == b"x"
        assert nodes.findings == []


async def test_nodes_that_are_not_are_named(carriers: Carriers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "OPEN_SECONDS", 0.3)
    async with pair(carriers) as nodes:
        for wrong in (0, 2, -1, 70_000):
            with pytest.raises(RelayError, match=f"no way from node 0 to node {wrong}: .* nodes 0 to 1"):
                await nodes.relays[0].open(wrong)
        with nodes.carriers[1].paused(), pytest.raises(RelayError, match="node 1 did not answer within"):
            await nodes.relays[0].open(1)


async def test_before_the_ranks_have_met_there_is_no_way(tmp_path: Path) -> None:
    relay = AgentRelay(secrets.token_bytes(32), 0, 2, tmp_path / "nobody", lambda finding: None)
    with pytest.raises(RelayError, match="the ranks have not met yet"):
        await relay.open(1)


@pytest.mark.real
async def test_the_runners_part_ends_cleanly_in_mid_stream(own_carriers: Carriers) -> None:
    async with pair(own_carriers) as nodes:
        stream = await nodes.relays[0].open(1)
        await echoed(stream, b"x")
        assert await asyncio.to_thread(own_carriers.close) == [0, 0]
