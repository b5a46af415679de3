"""A viewer that asked to look only cannot change the run, whatever it sends: the agent is the lock."""

from __future__ import annotations

import asyncio
from pathlib import Path

from doubles.served import doubled

from distui.runners.run.commands import Hello, Stop
from distui.runners.run.model import CommandReceived
from distui.runners.run.wire.client import SocketLink
from distui.runners.run.wire.frames import encode


async def test_readonly_is_a_lock_in_the_agent_too() -> None:
    async with doubled() as (run, _):
        await run.hooked()
        path = Path(f"{run.agent.served.stem}.sock")
        link = await SocketLink.connect(path, readonly=True)
        assert await anext(link.events())
        await link.close()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(encode(Hello(readonly=True)) + encode(Stop("s1")))
        while b"read-only" not in (line := await reader.readline()):
            assert line, "the agent hung up"
        writer.close()
        assert str(run.state.phase) == "running"
        assert not run.all_of(CommandReceived)
