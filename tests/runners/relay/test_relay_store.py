"""What is lost or changed in the store ends a stream, and harms no other."""

from __future__ import annotations

import asyncio

from .relay_rig import Carriers, echoed, ended, pair


async def test_a_frame_that_is_missing_ends_the_stream(carriers: Carriers) -> None:
    async with pair(carriers) as nodes:
        stream = await nodes.opened()
        stranger = nodes.stranger()
        with nodes.held(stranger) as held:
            await stream.write(b"one")
            await stream.write(b"two")
            await held.frames(2)
            stranger.remove(held.first)
        assert await ended(stream) == "frames between node 0 and here are missing"
        assert await echoed(await nodes.relays[0].open(1), b"anew") == b"anew"


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
