"""The agent's unix socket: history, then live events, to any number of viewers; none of them can make it grow."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from ..journal import Journal
from ..model import (
    HUB,
    PROTOCOL,
    TELEMETRY,
    Action,
    AgentHello,
    CaughtUp,
    CommandDone,
    Hello,
    LogGrew,
    LogWindow,
    ReadLog,
    Stamped,
    Via,
)
from ..registry import RunRecord
from ..wire.frames import MAGIC, MAX_LINE, VIA_ID, FrameError, decode_command, encode, read_line
from ..wire.link import Window
from ..wire.sockets import peer_uid, remove_stale

CAPS = ("restart", "stop", "nccl", "signal", "dump", "log")
MOST_ASKED = 64
"""Requests of one viewer that are worked on at once; the next is read when one of them is answered."""
Execute = Callable[[Action], Awaitable[CommandDone]]
PassOn = Callable[[int, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[str]]
"""Carry a viewer's bytes to another node and back until the end; a sentence where that went wrong, else ""."""
ReadWindow = Callable[[str, int, int, str], Awaitable[Window]]
"""File, offset, limit and pattern of a window that is asked for."""


Newest = dict[tuple[type, int], Stamped]
"""Telemetry by kind and node."""


def keep_newest(newest: Newest, stamped: Stamped) -> None:
    """The newest sample wins; of log sizes, which tell only what changed, every file's newest is kept."""
    key = (type(stamped.event), stamped.node)
    held = newest.get(key)
    if held is not None and isinstance(held.event, LogGrew) and isinstance(stamped.event, LogGrew):
        sizes = LogGrew(held.event.sizes | stamped.event.sizes)
        stamped = Stamped(stamped.time, sizes, node=stamped.node)
    newest[key] = stamped


async def _no_way(node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Where there is no relay."""
    return f"nothing can be relayed to node {node} from here: the run has one node, or it was given no relay key"


class Client:
    """One viewer: where it is in the journal, and the newest telemetry it has not seen."""

    def __init__(self, writer: asyncio.StreamWriter, journal: Journal, windows: int) -> None:
        self.writer = writer
        self._journal = journal
        self._next = 0
        """Index into the journal's lines."""
        self._telemetry: Newest = {}
        self._replies: list[bytes] = []
        self._wake = asyncio.Event()
        self._read = asyncio.Event()
        """Set while the viewer has taken every reply."""
        self.slots = asyncio.Semaphore(MOST_ASKED)
        self.turn = asyncio.Semaphore(windows)
        """Windows are read by turns: no more than these are held for a viewer that does not read."""
        self.windows: set[asyncio.Task[None]] = set()
        self.hello: Hello | None = None
        self._caught_up = False

    def begin(self, hello: Hello) -> None:
        self.hello = hello
        lines = self._journal.lines
        while self._next < len(lines) and lines[self._next][0] <= hello.after:
            self._next += 1
        self._wake.set()

    def offer(self, stamped: Stamped) -> None:
        """Newest wins for telemetry; events stand in the journal already."""
        if isinstance(stamped.event, TELEMETRY):
            keep_newest(self._telemetry, stamped)
        self._wake.set()

    def reply(self, data: bytes) -> None:
        self._replies.append(data)
        self._read.clear()
        self._wake.set()

    async def taken(self) -> None:
        """Wait until the viewer has read every reply but what the socket itself holds."""
        await self._read.wait()

    async def write(self) -> None:
        """Write whatever is due, as fast as the viewer reads; ends when history was all it wanted."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := self._batch():
                self.writer.write(batch)
                await self.writer.drain()
            self._read.set()
            if self._caught_up and self.hello is not None and not self.hello.follow:
                self.writer.close()
                return

    def _batch(self) -> bytes:
        parts, self._replies = self._replies, []
        if self.hello is not None:
            lines = self._journal.lines[self._next : self._next + 512]
            self._next += len(lines)
            parts += [line for _, line in lines]
            level = self._next == len(self._journal.lines)
            if (self._caught_up or level) and self.hello.telemetry:
                parts += [encode(stamped) for stamped in self._telemetry.values()]
                self._telemetry.clear()
            if level and not self._caught_up:
                self._caught_up = True
                parts.append(encode(Stamped(time.time(), CaughtUp(self._journal.seq))))
        return b"".join(parts)


class Server:
    """Listens on `path`; `execute` runs a command to its answer, `window` reads a piece of a log.

    `joined` hears of each viewer that comes; `windows`: how many one viewer gets read at once.
    """

    def __init__(
        self,
        path: Path,
        record: RunRecord,
        journal: Journal,
        execute: Execute,
        window: ReadWindow,
        joined: Callable[[], None] = lambda: None,
        windows: int = 1,
    ) -> None:
        self._joined, self._windows = joined, windows
        self._path, self._record, self._journal = path, record, journal
        self._execute, self._read_window, self._version = execute, window, ""
        self._clients: set[Client] = set()
        self._newest: Newest = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.pass_on: PassOn = _no_way
        self.idle = asyncio.Event()
        self.idle.set()

    async def start(self, version: str) -> None:
        """Bind, for this user only; viewers are told `version`. Raises RunError or OSError."""
        self._version = version
        remove_stale(self._path)
        old = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, str(self._path), limit=MAX_LINE)
        finally:
            os.umask(old)

    async def close(self) -> None:
        """Say goodbye and take the socket away."""
        if self._server is not None:
            self._server.close()
        for client in list(self._clients):
            client.writer.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def publish(self, stamped: Stamped) -> None:
        """An event that is in the journal, or telemetry."""
        if isinstance(stamped.event, TELEMETRY):
            keep_newest(self._newest, stamped)
        for client in self._clients:
            client.offer(stamped)

    @property
    def viewers(self) -> int:
        return len(self._clients)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: socket.socket = writer.get_extra_info("socket")
        if peer_uid(peer) not in (os.getuid(), 0):
            writer.close()
            return
        client = Client(writer, self._journal, self._windows)
        for stamped in self._newest.values():
            client.offer(stamped)
        self._clients.add(client)
        self.idle.clear()
        self._joined()
        client.reply(MAGIC + encode(self._hello()))
        both = {asyncio.create_task(client.write()), asyncio.create_task(self._listen(client, reader))}
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if any(isinstance(task.exception(), FrameError) for task in done):
                writer.transport.abort()  # whoever speaks no frames is shown the door
        finally:
            for task in both | client.windows:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            writer.close()
            self._clients.discard(client)
            if not self._clients:
                self.idle.set()

    def _hello(self) -> AgentHello:
        record = self._record
        node = HUB if record.kind == "hub" else record.node
        seq = self._journal.seq
        return AgentHello(PROTOCOL, self._version, record.run, seq, CAPS, node=node, now=time.time())

    async def _listen(self, client: Client, reader: asyncio.StreamReader) -> None:
        """Take requests until the viewer leaves. Raises FrameError and OSError."""
        fresh = True
        while line := await read_line(reader):
            command = decode_command(line)
            if isinstance(command, Via):
                if not fresh:
                    raise FrameError("Via is a first line, or none")
                await self._hand_over(client, command.node, reader)
                return
            fresh = False
            await client.slots.acquire()
            self._take(client, command)

    async def _hand_over(self, client: Client, node: int, reader: asyncio.StreamReader) -> None:
        """From now on this viewer is one of another node's agent; the last line may say why not."""
        await client.taken()
        why = await self.pass_on(node, reader, client.writer)
        if why:
            client.reply(encode(Stamped(time.time(), CommandDone(VIA_ID, False, why))))
            await client.taken()

    def _take(self, client: Client, command: Hello | ReadLog | Action) -> None:
        if isinstance(command, Hello):
            client.begin(command)
            client.slots.release()
            return
        asked = (
            self._show(client, command) if isinstance(command, ReadLog) else self._answer(client, command)
        )
        tasks = client.windows if isinstance(command, ReadLog) else self._tasks
        task = asyncio.create_task(asked)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(lambda _: client.slots.release())

    async def _show(self, client: Client, ask: ReadLog) -> None:
        async with client.turn:
            client.reply(await self._window(ask))
            await client.taken()

    async def _answer(self, client: Client, command: Action) -> None:
        """Commands go on when their viewer has left."""
        if client.hello is not None and client.hello.readonly:
            done = CommandDone(command.id, False, "this connection is read-only")
        else:
            done = await self._execute(command)
        client.reply(encode(Stamped(time.time(), done)))

    async def _window(self, ask: ReadLog) -> bytes:
        window = await self._read_window(ask.file, ask.offset, ask.limit, ask.grep)
        header = LogWindow(
            ask.id, window.file, window.offset, window.next, window.size, len(window.data), window.error
        )
        return msgspec.json.encode(header) + b"\n" + window.data
