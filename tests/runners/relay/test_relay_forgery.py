"""Whoever reaches the store's port can write there: nothing of it is taken, and it shows."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import time

import pytest
from patience import slowness

from distui.runners.agent import relay_client
from distui.runners.agent import relay_client as relay_module
from distui.runners.agent.relay_client import FrameKind, FrameSeal, Greeting, RelayError

from .relay_rig import Carriers, echoed, eventually, pair


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a rejection that is not the first, because an earlier test's streams end here, is reported soon."""
    monkeypatch.setattr(relay_module, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(relay_module, "FIRST_PAUSE_S", 0.05)


@pytest.mark.real
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
        with (await asyncio.to_thread(nodes.stranger)).put(*forged):
            await eventually(lambda: nodes.rejected() == len(forged))
        await eventually(
            lambda: nodes.findings[-1].text.startswith(f"{nodes.before + 6} frames were rejected")
        )
        finding = nodes.findings[-1]
        assert (finding.id, finding.severity, finding.node) == ("relay-rejected", "warning", 1)
        assert f"{nodes.before + 6} as node 0" in finding.text


async def test_a_replayed_frame_is_rejected_and_the_stream_goes_on(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.opened()
        stranger = await asyncio.to_thread(nodes.stranger)
        with nodes.held(stranger) as held:
            await stream.write(b"restart")
            (recorded,) = await held.frames()
        async with asyncio.timeout(20 * slowness()):
            assert await stream.read() == b"restart"
        with stranger.put(recorded):
            await eventually(lambda: nodes.rejected() == 1)
        await eventually(lambda: "it was here before" in nodes.findings[-1].text)
        assert len(nodes.relays[1]._streams) == 1


async def test_the_frames_of_an_old_stream_open_nothing(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stranger = await asyncio.to_thread(nodes.stranger)
        with nodes.held(stranger) as held:
            opening = asyncio.create_task(nodes.relays[0].open(1))
            (hello,) = await held.frames()
        stream = await nodes.opened(await opening)
        with nodes.held(stranger) as held:
            await stream.write(b"stop")
            (command,) = await held.frames()
        async with asyncio.timeout(20 * slowness()):
            assert await stream.read() == b"stop"
        stream.end()
        await eventually(lambda: not nodes.relays[1]._streams)
        with stranger.put(hello, command):
            await eventually(lambda: nodes.rejected() == 2)
        assert not nodes.relays[1]._streams


async def test_a_cut_frame_ends_the_stream_and_is_counted(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.opened()
        stranger = await asyncio.to_thread(nodes.stranger)
        with nodes.held(stranger) as held:
            await stream.write(b"one")
            await stream.write(b"two")
            await held.frames(2)
            stranger.remove(held.first)
        async with asyncio.timeout(20 * slowness()):
            assert await stream.read() == b""
        assert stream.why == "frames between node 0 and here are missing"
        await eventually(lambda: nodes.rejected() == 2)
        assert await echoed(await nodes.relays[0].open(1), b"anew") == b"anew"


async def test_half_a_frame_is_as_none(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.opened()
        stranger = await asyncio.to_thread(nodes.stranger)
        with nodes.held(stranger) as held:
            await stream.write(b"a word of some length")
            (frame,) = await held.frames()
            stranger.replace(held.first, frame[:-7])
        await eventually(lambda: nodes.rejected() == 1)
        await eventually(lambda: "its MAC is wrong" in nodes.findings[-1].text)


async def test_a_wrong_key_opens_nothing(carriers: Carriers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "OPEN_SECONDS", 2.5 * slowness())
    keys = (secrets.token_bytes(32), secrets.token_bytes(32))
    async with pair(carriers, keys=keys) as nodes:
        with pytest.raises(RelayError, match="node 1 did not answer"):
            await nodes.relays[0].open(1)
        await eventually(lambda: nodes.rejected() >= 1)  # more, where an earlier test's streams end here
        assert not nodes.relays[1]._streams


async def test_what_a_stream_carries_cannot_be_read_in_the_store(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.opened()
        stranger = await asyncio.to_thread(nodes.stranger)
        with nodes.held(stranger) as held:
            await stream.write(b"HF_TOKEN=hunter2 " * 3)
            await stream.write(b"HF_TOKEN=hunter2 " * 3)
            one, two = await held.frames(2)
        assert b"TOKEN" not in one
        assert one[57:] != two[57:]


async def test_counters_that_somebody_meddled_with_harm_nobody(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        await echoed(await nodes.relays[0].open(1), b"x")
        stranger = await asyncio.to_thread(nodes.stranger)
        for nonsense in (b"\xff\xfe", b"-5", b"9" * 40, b""):
            stranger.replace("written", nonsense)
            await asyncio.sleep(0.2)  # a few looks
        for word in ("written", "read"):
            stranger.replace(word, b"0")
        assert [carrier.process.poll() for carrier in nodes.carriers] == [None, None]
        assert await echoed(await nodes.relays[0].open(1), b"anew") == b"anew"


async def test_a_flood_is_told_of_in_growing_pauses() -> None:
    told: list[str] = []
    began = time.monotonic()
    counted = relay_client.Rejections(3, lambda finding: told.append(finding.text))
    for _ in range(100):
        for _ in range(100):
            counted.count(1, "its MAC is wrong")
        await asyncio.sleep(0.01)
    await eventually(lambda: "10000 frames" in told[-1])
    assert told[0].startswith("1 frame was rejected")
    assert len(told) < 9 + math.log2(max(1.0, time.monotonic() - began))
    counted.close()
