"""Via on an agent's socket, where there is no relay, and where it comes too late."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from owner import owner

from distui.runners.agent.server import AgentServer, PassOn, refuse_relay
from distui.runners.run.answers import MetricsWindow
from distui.runners.run.chronicle import Chronicle
from distui.runners.run.commands import Action, Hello, ReadLog, ReadMetrics, Via
from distui.runners.run.model import CommandDone
from distui.runners.run.run_record import RunRecord
from distui.runners.run.wire.client import LinkError, SocketLink, Window
from distui.runners.run.wire.frames import encode


async def nothing(command: Action) -> CommandDone:
    raise AssertionError(command)


async def no_window(ask: ReadLog) -> Window:
    raise AssertionError(ask.file)


async def no_curves(ask: ReadMetrics) -> MetricsWindow:
    raise AssertionError(ask)


@asynccontextmanager
async def served(pass_on: PassOn = refuse_relay) -> AsyncIterator[tuple[AgentServer, Path]]:
    """An agent's server on a socket, and its path."""
    directory = Path(tempfile.mkdtemp(prefix="dt-"))
    chronicle = Chronicle(directory)
    record = RunRecord("r.n0", "12345678n0", "r", 0.0, "here", "node", 0, 2, "r")
    server = AgentServer(
        directory / "a", record, chronicle, owner(), nothing, no_window, no_curves, pass_on=pass_on
    )
    await server.start("0")
    try:
        yield server, directory / "a"
    finally:
        await server.close()
        chronicle.journal.close()
        shutil.rmtree(directory)


async def test_where_there_is_no_relay_a_sentence_says_so() -> None:
    async with served() as (_, path):
        with pytest.raises(LinkError) as caught:
            await SocketLink.connect(path, via=1)
        assert str(caught.value) == ("nothing can be relayed to node 1 from here: the run has one node")


async def test_the_bytes_of_the_other_node_follow_the_own_hello() -> None:
    async def other(node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        there_reader, there_writer = await asyncio.open_unix_connection(str(path))
        await there_reader.readline()
        hello = (await there_reader.readline()).replace(b'"node":0', b'"node":%d' % node)
        writer.write(b"DISTUI/1\n" + hello)
        there_writer.close()
        await reader.read()
        return ""

    async with served(other) as (_, path):
        link = await SocketLink.connect(path, via=1)
        assert link.hello is not None
        assert link.hello.node == 1
        await link.close()


async def test_via_after_hello_is_shown_the_door() -> None:
    async with served() as (server, path):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(encode(Hello()) + encode(Via(1)))
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(4096):
                    continue
            await server.idle.wait()
        writer.close()
