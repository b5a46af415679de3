"""Whatever connects to the agent's socket: it stays up, stays small, and goes on serving everybody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from doubles.served import Served, doubled
from patience import HANG_S

from distui.runners.run import journal
from distui.runners.run.answers import AgentHello
from distui.runners.run.commands import PROTOCOL, Restart, Signal
from distui.runners.run.model import CaughtUp, RunPhase
from distui.runners.run.wire.client import LinkError, SocketLink
from distui.runners.run.wire.frames import MAGIC, encode

from ..runs import World, rss_bytes

MORE = 24 << 20
"""Bytes that an agent may grow by while it is attacked."""


@contextlib.asynccontextmanager
async def connected(run: Served) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client of an agent in this process."""
    reader, writer = await asyncio.open_unix_connection(f"{run.agent.served.stem}.sock", limit=1 << 26)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def sent(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send as far as the other side takes it."""
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()


async def shown_the_door(reader: asyncio.StreamReader) -> bytes:
    """Read until the agent closes the connection; what came."""
    came = b""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(1 << 16):
            came += piece
    return came


async def test_garbage(capfd: pytest.CaptureFixture[str]) -> None:
    """Random bytes, endless lines, valid JSON that is no command, numbers that are too large."""
    dice = random.Random(7)
    attacks = [dice.randbytes(4096) + b"\n" for _ in range(20)]
    attacks += [
        b"x" * (10 << 20) + b"\n",
        b"[" * 200_000 + b"\n",
        b'{"type":"Hello","after":' + b"9" * 5000 + b"}\n",
        b'{"type":"Hello","after":"zero"}\n',
        b'{"type":"Nothing"}\n',
        b"null\n",
        b"[]\n",
        b'{"type":"Restart"}\n',
        b'{"type":"Signal","id":"a","signal":["KILL"]}\n',
        b"\xff\xfe\n",
        b"\0" * 1000 + b"\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
    async with doubled() as (run, _):
        await run.hooked()
        for attack in attacks:
            async with connected(run) as (reader, writer):
                await sent(writer, attack)
                await shown_the_door(reader)
        assert run.state.phase is RunPhase.RUNNING
        assert (await run.send(Signal("s", "CONT", (99,)))).id == "s", "others are served"
    assert "Traceback" not in capfd.readouterr().err


async def test_an_id_as_long_as_a_line_shuts_no_run() -> None:
    """A line that a viewer could not read again would never come out of the journal."""
    ask = {"type": "Signal", "id": "z" * ((4 << 20) - 200), "signal": "URG", "ranks": [-1]}
    async with doubled() as (run, _):
        async with connected(run) as (_, writer):
            await sent(writer, b'{"type":"Hello","after":0}\n' + json.dumps(ask).encode() + b"\n")
            await asyncio.sleep(1.0)
        link = await SocketLink.connect(Path(f"{run.agent.served.stem}.sock"))
        async for stamped in link.events():
            if isinstance(stamped.event, CaughtUp):
                break
        await link.close()


async def test_half_frames_and_hang_ups() -> None:
    """Connections that say half a line, nothing at all, or leave at once with a reset."""
    async with doubled() as (run, _):
        await run.hooked()
        open_before = len(os.listdir("/proc/self/fd"))
        async with contextlib.AsyncExitStack() as held:
            for number in range(40):
                _, writer = await held.enter_async_context(connected(run))
                if number % 3 == 0:
                    await sent(writer, b'{"type":"Hello","af')
                elif number % 3 == 1:
                    peer = writer.get_extra_info("socket")
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            assert (await run.send(Signal("s", "CONT", (99,)))).id == "s"
        await asyncio.sleep(5.0)
        # Files of /proc and of cgroups that it keeps open come with its samples.
        assert len(os.listdir("/proc/self/fd")) <= open_before + 10, "descriptors leak"
        assert run.state.phase is RunPhase.RUNNING


async def test_many_commands_at_once() -> None:
    """A client that asks for a thousand things without waiting gets its answers."""
    asked = b"".join(
        json.dumps({"type": "Signal", "id": f"s{n}", "signal": "CONT", "ranks": [99]}).encode() + b"\n"
        for n in range(1000)
    )
    async with doubled() as (run, _), connected(run) as (reader, writer):
        sending = asyncio.create_task(sent(writer, asked))
        told = b""
        while told.count(b'"CommandDone"') < 1000 and (data := await reader.read(1 << 16)):
            told += data
        await sending
        assert told.count(b'"CommandDone"') == 1000
        numbers = [stamped.seq for stamped in journal.read(run.path)]
        assert numbers == list(range(1, len(numbers) + 1))


async def test_a_reader_that_never_reads() -> None:
    """It asks for everything and reads nothing: what it is owed must not pile up in the agent."""
    file = "node-0/attempt-001/rank-5.out"
    asked = b'{"type":"Hello"}\n' + b"".join(
        b'{"type":"ReadLog","id":"%d","file":"%s","offset":%d,"limit":%d}\n'
        % (number, file.encode(), number << 10, 1 << 20)
        for number in range(3000)
    )
    async with doubled() as (run, _), contextlib.AsyncExitStack() as held:
        await run.hooked()
        with (run.path / file).open("wb") as big:
            big.truncate(64 << 20)
        before = rss_bytes(os.getpid())
        for _ in range(3):
            _, writer = await held.enter_async_context(connected(run))
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(asked)
        await asyncio.sleep(10.0)
        more = rss_bytes(os.getpid()) - before
        assert more < MORE, f"{more >> 20} MiB more"
        assert (await run.send(Signal("s", "CONT", (99,)))).id == "s", "others are served"


async def test_connections_that_say_nothing_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They get half of the files that the agent may open; the oldest goes first."""
    async with doubled() as (run, _), contextlib.AsyncExitStack() as held:
        await run.hooked()
        assert (await run.send(Signal("r", "CONT", (99,)))).id == "r", "it is not one of them"
        monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
        (first, _), *_ = [await held.enter_async_context(connected(run)) for _ in range(60)]
        assert await shown_the_door(first)
        assert (await run.send(Signal("s", "CONT", (99,)))).id == "s", "others are served"
        assert run.state.phase is RunPhase.RUNNING


def connects(path: Path) -> socket.socket | None:
    """A connection that never waits; None where too many wait already (EAGAIN)."""
    peer = socket.socket(socket.AF_UNIX)
    peer.setblocking(False)
    try:
        peer.connect(str(path))
    except BlockingIOError:
        peer.close()
        return None
    return peer


async def test_a_connection_for_which_the_queue_is_full_waits(socket_folder: Path) -> None:
    """The kernel refuses it with EAGAIN: it is tried again, for a while."""
    path = socket_folder / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        with contextlib.ExitStack() as held:
            while peer := connects(path):
                held.enter_context(peer)
            with pytest.raises(LinkError, match="too many connections wait there"):
                await SocketLink.connect(path)
            waiting = asyncio.create_task(SocketLink.connect(path))
            assert not (await asyncio.wait({waiting}, timeout=0.5))[0], waiting
        async with await asyncio.start_unix_server(greeting(PROTOCOL), sock=listener):
            await (await waiting).close()


def greeting(
    proto: tuple[int, int],
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """An agent that speaks these protocols, as far as its hello."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(MAGIC + encode(AgentHello(proto, "9.9", "r", 0)))
        await reader.read()
        writer.close()

    return greet


LARGE = "x" * (1 << 20)
RESTARTS: dict[str, tuple[bytes, str]] = {
    "1 MB": (
        json.dumps({"A": LARGE}).encode(),
        "A has 1048579 bytes, and Linux gives a program no variable of more",
    ),
    "together": (
        json.dumps({f"A{number}": LARGE[: 100 << 10] for number in range(12)}).encode(),
        "these changes together take",
    ),
    "NUL": (b'{"A":"x\\u0000y"}', "the value of A holds a NUL"),
    "equals": (b'{"A=B":"x"}', "'A=B' is not a valid name"),
    "no name": (b'{"":"x"}', "'' is not a valid name"),
    "of the launcher": (b'{"RANK":"0"}', "RANK is computed for each rank"),
    "of distui": (b'{"DISTUI_HOOK":"0"}', "DISTUI_HOOK is distui's own"),
}
"""Changes that no rank can be started with, as they are sent, and how the refusal begins."""


async def test_a_restart_that_no_rank_can_be_started_with() -> None:
    """It is refused in one sentence before the old ranks are told to go; the command line cannot send so much."""
    async with doubled() as (run, runners):
        await run.hooked()
        pids = {rank.pid for rank in run.state.ranks.values()}
        async with connected(run) as (reader, writer):
            await sent(writer, b'{"type":"Hello"}\n')
            for number, (changes, sentence) in enumerate(RESTARTS.values()):
                await sent(writer, b'{"type":"Restart","id":"r%d","env":%s}\n' % (number, changes))
                done = b""
                while b'"CommandDone","id":"r%d"' % number not in done:
                    done = await reader.readline()
                event = json.loads(done)["event"]
                assert (event["ok"], event["text"][: len(sentence)]) == (False, sentence), event["text"][
                    :500
                ]
                assert "\n" not in event["text"]
                assert len(event["text"]) < 300
            half = (
                b'{"type":"Restart","id":"s","env":{"A":"\\ud800"}}\n'  # half a character: no text at all
            )
            await sent(writer, half)
            rest = await shown_the_door(reader)
        assert b'"ok":true' not in rest
        assert (run.state.attempt, {rank.pid for rank in run.state.ranks.values()}) == (1, pids)
        assert not [one for one in runners.newest.asked if one["op"] == "restart"]
        assert (run.path / "journal.jsonl").stat().st_size < 100_000, "what was sent is not kept"
        assert (await run.send(Restart("t", {"A": "1"}))).ok, "and a restart that can be done is done"
        assert run.state.attempt == 2


@pytest.mark.real
def test_another_user(world: World) -> None:
    """Even where the socket's mode lets somebody in, the agent asks the kernel who it is."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    run = world.execute("import time\ntime.sleep(600)\n")
    assert run.wait("running") == 0
    path = next(world.sockets.glob("*.sock"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    for opened in (path, path.parent, world.root):
        opened.chmod(0o777)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(HANG_S)
                peer.connect(str(path))
                os.write(write, b"got %d bytes" % len(peer.recv(1000)))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as said:
        assert said.read() == b"got 0 bytes"
    path.parent.chmod(0o700)
    assert run.status()["state"] == "running"


async def test_a_viewer_of_another_protocol() -> None:
    """Both sides look: an agent tells nothing to who could not read it."""
    common = {(1, 1): True, (0, 1): True, (1, 9): True, (2, 9): False, (0, 0): False}
    async with doubled() as (run, _):
        for proto, understood in common.items():
            hello = {"type": "Hello", "proto": proto}
            async with connected(run) as (reader, writer):
                await sent(writer, json.dumps(hello).encode() + b"\n")
                came = reader.readuntil(b"RunCreated") if understood else shown_the_door(reader)
                assert (b"RunCreated" in await came) == understood, proto


async def test_an_agent_of_another_protocol(socket_folder: Path) -> None:
    async def connected(proto: tuple[int, int]) -> str:
        (socket_folder / "s").unlink(missing_ok=True)
        async with await asyncio.start_unix_server(greeting(proto), socket_folder / "s"):
            try:
                link = await SocketLink.connect(socket_folder / "s")
            except LinkError as error:
                return str(error)
            await link.close()
            return ""

    for proto, refused in {(1, 1): False, (0, 3): False, (2, 3): True, (0, 0): True}.items():
        assert ("use a distui of that version" in await connected(proto)) == refused, proto
