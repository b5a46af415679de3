"""Whoever reaches the store's port can write there: nothing of it is taken, and it shows."""

from __future__ import annotations

import asyncio
import math
import os
import secrets

import pytest

from distui.runners.agent import relay_client
from distui.runners.agent.relay_client import FrameKind, FrameSeal, Greeting, RelayError

from .relay_rig import Carriers, echoed, ended, eventually, pair, read_exactly


async def test_forged_frames_are_rejected_and_counted(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.opened()
        wrong = secrets.token_bytes(32)
        own = FrameSeal(wrong, stream.name, secrets.token_bytes(16), (0, 1), True)
        forged = [
            own.seal(FrameKind.DATA, b"rm -rf /"),
            own.seal(FrameKind.END),
            Greeting(wrong).seal(FrameKind.OPEN, secrets.token_bytes(16), (0, 1)),
            Greeting(wrong).seal(FrameKind.UNKNOWN, stream.name, (0, 1)),
            os.urandom(500),
            b"",
        ]
        with nodes.stranger().put(*forged):
            await eventually(lambda: nodes.rejected() == len(forged))
        await eventually(lambda: nodes.findings[-1].text.startswith("6 frames were rejected"))
        finding = nodes.findings[-1]
        assert (finding.id, finding.severity, finding.node) == ("relay-rejected", "warning", 1)
        assert "6 as node 0" in finding.text


async def test_a_replayed_frame_is_rejected_and_the_stream_goes_on(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.opened()
        stranger = nodes.stranger()
        with nodes.held(stranger) as held:
            await stream.write(b"restart")
            (recorded,) = await held.frames()
        assert await read_exactly(stream, 7) == b"restart"
        with stranger.put(recorded):
            await eventually(lambda: nodes.rejected() == 1)
        await eventually(lambda: "it was here before" in nodes.findings[-1].text)
        assert len(nodes.relays[1]._streams) == 1


async def test_the_frames_of_an_old_stream_open_nothing(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stranger = nodes.stranger()
        with nodes.held(stranger) as held:
            opening = asyncio.create_task(nodes.relays[0].open(1))
            (hello,) = await held.frames()
        stream = await opening
        await echoed(stream, b"x")
        with nodes.held(stranger) as held:
            await stream.write(b"stop")
            (command,) = await held.frames()
        assert await read_exactly(stream, 4) == b"stop"
        stream.end()
        await eventually(lambda: not nodes.relays[1]._streams)
        await asyncio.sleep(relay_client.GRACE_SECONDS)
        with stranger.put(hello, command):
            await eventually(lambda: nodes.rejected() == 2)
        assert not nodes.relays[1]._streams


async def test_a_cut_frame_ends_the_stream_and_is_counted(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.opened()
        stranger = nodes.stranger()
        with nodes.held(stranger) as held:
            await stream.write(b"one")
            await stream.write(b"two")
            await held.frames(2)
            stranger.remove(held.first)
        assert await ended(stream) == "frames between node 0 and here are missing"
        await eventually(lambda: nodes.rejected() == 2)
        assert await echoed(await nodes.relays[0].open(1), b"anew") == b"anew"


async def test_half_a_frame_is_as_none(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.opened()
        stranger = nodes.stranger()
        with nodes.held(stranger) as held:
            await stream.write(b"a word of some length")
            (frame,) = await held.frames()
            stranger.replace(held.first, frame[:-7])
        await eventually(lambda: nodes.rejected() == 1)
        await eventually(lambda: "its MAC is wrong" in nodes.findings[-1].text)


async def test_a_wrong_key_opens_nothing(carriers: Carriers) -> None:
    keys = (secrets.token_bytes(32), secrets.token_bytes(32))
    async with pair(carriers, keys=keys) as nodes:
        with pytest.raises(RelayError, match="node 1 did not answer"):
            await nodes.relays[0].open(1)
        await eventually(lambda: nodes.rejected() == 1)
        assert not nodes.relays[1]._streams


async def test_what_a_stream_carries_cannot_be_read_in_the_store(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.opened()
        stranger = nodes.stranger()
        with nodes.held(stranger) as held:
            await stream.write(b"HF_TOKEN=hunter2 " * 3)
            await stream.write(b"HF_TOKEN=hunter2 " * 3)
            one, two = await held.frames(2)
        assert b"TOKEN" not in one
        assert one[57:] != two[57:]


async def test_counters_that_somebody_meddled_with_harm_nobody(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        await echoed(await nodes.relays[0].open(1), b"x")
        stranger = nodes.stranger()
        for nonsense in (b"\xff\xfe", b"-5", b"9" * 40, b""):
            stranger.replace("written", nonsense)
            await asyncio.sleep(3.0)  # a few rounds
        for word in ("written", "read"):
            stranger.replace(word, b"0")
        assert await echoed(await nodes.relays[0].open(1), b"anew") == b"anew"


async def test_a_flood_is_told_of_in_growing_pauses() -> None:
    told: list[str] = []
    loop = asyncio.get_running_loop()
    began = loop.time()
    counted = relay_client.Rejections(3, lambda finding: told.append(finding.text))
    for _ in range(100):
        for _ in range(100):
            counted.count(1, "its MAC is wrong")
        await asyncio.sleep(0.01)
    await eventually(lambda: "10000 frames" in told[-1])
    assert told[0].startswith("1 frame was rejected")
    assert len(told) < 9 + math.log2(max(1.0, loop.time() - began))
    counted.close()
