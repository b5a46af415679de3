"""The agent's unix socket: history, then live events, to any number of viewers; none of them can make it grow."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import msgspec

from .. import clock
from ..daemon import DaemonRun
from ..errors import RunError
from ..inrank import own_folders
from ..inrank.control import listen, same_user
from ..journal import Chronicle, RunRecord
from ..model import (
    HUB,
    PROTOCOL,
    TELEMETRY,
    Action,
    AgentHello,
    AgentStarted,
    CaughtUp,
    CommandDone,
    Hello,
    LogGrew,
    LogWindow,
    MetricsWindow,
    ReadLog,
    ReadMetrics,
    RunEnded,
    Stamped,
    Via,
    understood,
)
from ..parts import Parts
from ..wire.client import (
    MAGIC,
    MAX_LINE,
    VIA_ID,
    FrameError,
    Window,
    decode_command,
    encode,
    peer_pid,
    read_line,
    remove_stale,
)

RESTORE_S = 2.0
"""Between two looks whether the socket is still there."""
MOST_ASKED = 64
"""Requests of one viewer that are worked on at once; the next is read when one of them is answered."""
AT_ONCE = 16
"""Connections that are accepted before the next of them makes another one go."""
GATHER_S, GROWTH_S = 0.25, 0.1
"""Samples, and news of logs, wait so long for others: each write wakes the viewer up, which costs it more than what it
reads."""
BROKEN = "an internal error came in between, see agent.log"
Execute = Callable[[Action], Awaitable[CommandDone]]
PassOn = Callable[[int, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[str]]
"""Carry a viewer's bytes to another node and back until the end; a sentence where that went wrong, else ""."""
ReadWindow = Callable[..., Awaitable[Window]]
"""File, offset, limit and pattern of a requested window; `line` and `at` by name: see ReadLog."""
ReadCurves = Callable[[ReadMetrics], Awaitable[MetricsWindow]]


async def no_curves(ask: ReadMetrics) -> MetricsWindow:
    """Where no metrics are kept."""
    return MetricsWindow(ask.id, error="no metrics of this run are kept here")


def hardware(root: str = "/") -> tuple[str, tuple[str, ...]]:
    """Version of NVIDIA's driver and the models of its GPUs by the kernel's files; "" and () without any."""
    from ..doctor import node_facts  # an agent asks once, and most of what it needs is elsewhere

    driver = node_facts.driver(root) or {}
    models = (gpu["name"] for gpu in node_facts.kernel_gpus(root))
    return driver.get("version") or "", tuple(model for model in models if model)


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


async def no_way(node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Where there is no relay."""
    return f"nothing can be relayed to node {node} from here: the run has one node"


_ID = re.compile(rb'"id": ?"([A-Za-z0-9._-]{1,64})"')
"""The id of a command that cannot be read."""


async def _refuse(client: Client, line: bytes, error: FrameError) -> None:
    """Answer a command that cannot be read, before its viewer is dropped; one without an id has no answer."""
    name = _ID.search(line)
    if name is not None:
        refusal = CommandDone(name[1].decode(), False, f"{error}; nothing was done")
        client.reply(encode(Stamped(clock.now(), refusal)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await client.taken()


class Client:
    """One viewer: where it is in the journal, and the newest telemetry it has not seen."""

    def __init__(
        self, writer: asyncio.StreamWriter, chronicle: Chronicle, windows: int, ours: bool = False
    ) -> None:
        """`ours`: it is the process that started this agent, the job of a node."""
        self.writer, self.ours = writer, ours
        self._journal, self._fold = chronicle.journal, chronicle.folded
        self._next = 0
        """Index into the journal's lines."""
        self._telemetry: Newest = {}
        self._replies: list[bytes] = []
        self._wake = asyncio.Event()
        self._gathering: asyncio.TimerHandle | None = None
        """Until samples are written that nothing else takes along."""
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
        folded = self._fold(hello)
        if folded is None:
            self._next = max(self._next, self._journal.lines.after(hello.after))
        else:
            self._next = len(self._journal.lines)
            self._replies.append(encode(Stamped(clock.now(), folded, node=HUB)))
        self._wake.set()

    def offer(self, stamped: Stamped) -> None:
        """Newest wins for telemetry, which is gathered; events stand in the journal already, and go at once."""
        if not isinstance(stamped.event, TELEMETRY):
            self._wake.set()
            return
        keep_newest(self._telemetry, stamped)
        loop = asyncio.get_running_loop()
        due = loop.time() + (GROWTH_S if isinstance(stamped.event, LogGrew) else GATHER_S)
        if self._gathering is None or due < self._gathering.when():
            self._gather_anew()
            self._gathering = loop.call_at(due, self._wake.set)

    def reply(self, data: bytes) -> None:
        self._replies.append(data)
        self._read.clear()
        self._wake.set()

    async def taken(self) -> None:
        """Wait until the viewer has read every reply but what the socket itself holds."""
        await self._read.wait()

    async def write(self) -> None:
        """Write whatever is due, as fast as the viewer reads; cancel to stop."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := self._batch():
                self.writer.write(batch)
                await self.writer.drain()
            self._read.set()

    def _gather_anew(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None

    def _batch(self) -> bytes:
        parts, self._replies = self._replies, []
        if self.hello is not None:
            lines = self._journal.lines.from_(self._next)
            self._next += len(lines)
            parts += lines
            level = self._next == len(self._journal.lines)
            if self._caught_up or level:
                parts += [encode(stamped) for stamped in self._telemetry.values()]
                self._telemetry.clear()
                self._gather_anew()
            if level and not self._caught_up:
                self._caught_up = True
                parts.append(encode(Stamped(clock.now(), CaughtUp(self._journal.seq))))
        return b"".join(parts)


class AgentServer:
    """Listens on `path`; `execute` runs a command to its answer, `window` reads a piece of a log, `curves` of metrics.

    `watched` is called with True for each viewer that asks for events, and with False when the last viewer has left.
    `windows`: the number of windows that are read for one viewer at once.
    """

    def __init__(
        self,
        path: Path,
        record: RunRecord,
        chronicle: Chronicle,
        parts: Parts,
        execute: Execute,
        window: ReadWindow,
        watched: Callable[[bool], None] = lambda watched: None,
        windows: int = 1,
        curves: ReadCurves = no_curves,
        pass_on: PassOn = no_way,
    ) -> None:
        self._watched, self._windows = watched, windows
        self._path, self._record, self._chronicle, self._parts = path, record, chronicle, parts
        self._execute, self._read_window, self._version = execute, window, ""
        self._read_curves, self._pass_on = curves, pass_on
        chronicle.listeners.append(self._publish)
        self._clients: set[Client] = set()
        self._silent: dict[Client, None] = {}
        """Who has asked nothing yet, the oldest first; they have half of the files that may be open."""
        self._newest: Newest = {}
        self._server: asyncio.Server | None = None
        self._identify: Callable[[Path], None] = lambda path: None
        """Write down where viewers connect."""
        self.missed = asyncio.Event()
        """Set by who did not find the socket."""
        self.idle = asyncio.Event()
        self.idle.set()
        self._starter = os.getppid()
        self._visited = asyncio.Event()
        """Whether the run's end was heard by somebody else than the process that started this one."""

    async def announce(self, run: DaemonRun, ready: Callable[[], None], adopted: bool) -> None:
        """Bind, write agent.json, call `ready`, journal that this process serves the run. Raises RunError or OSError."""
        from importlib.metadata import version  # slow to import: the runner comes first

        release = version("distui")
        await self.start(release)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.missed.set)
        self._identify = run.identify
        self._identify(self._path)
        ready()
        run.emit(AgentStarted(os.getpid(), release, adopted, *hardware()))

    async def start(self, version: str) -> None:
        """Bind, for this user only; `version` is for the hello. Raises RunError or OSError."""
        self._version = version
        await self._bind(self._path)
        self._parts.start("socket", self._keep_bound)

    async def _bind(self, path: Path) -> None:
        remove_stale(path)
        listener = listen(str(path))
        self._server = await asyncio.start_unix_server(
            self._handle, sock=listener, limit=MAX_LINE, backlog=AT_ONCE
        )
        listener.listen(socket.SOMAXCONN)  # as many may wait

    async def _keep_bound(self) -> None:
        """Re-bind if the socket or its directory was deleted, elsewhere if that cannot be created. Connections stay."""
        problem = ""
        while True:
            await clock.wait_set(self.missed, RESTORE_S)
            self.missed.clear()
            if os.path.lexists(self._path):
                continue
            before, path = self._server, Path(own_folders.place_of(str(self._path)))
            try:
                why = own_folders.make(str(path.parent))
                if why:
                    raise RunError(f"{path.parent} {why}")
                await self._bind(path)
            except (OSError, RunError) as error:
                if str(error) != problem:
                    problem = str(error)
                    sys.stderr.write(f"distui: the socket {path} cannot be bound again: {problem}\n")
                continue
            self._path = path
            self._identify(path)
            if before is not None:
                before.close()

    async def outstay(self, seconds: float) -> None:
        """Stay for those who look, a moment for those who are about to, and `seconds` for one to hear of the end."""
        await asyncio.sleep(1.0)
        await self.idle.wait()
        await clock.wait_set(self._visited, seconds)
        await self.idle.wait()

    async def close(self) -> None:
        """Say goodbye and take the socket away."""
        await self._parts.stop("socket")
        if self._server is not None:
            self._server.close()
        for client in list(self._clients):
            client.writer.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def _publish(self, stamped: Stamped) -> None:
        if isinstance(stamped.event, TELEMETRY):
            keep_newest(self._newest, stamped)
        elif isinstance(stamped.event, RunEnded) and all(client.ours for client in self._clients):
            self._visited.clear()
        for client in self._clients:
            client.offer(stamped)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a viewer until it leaves, or the agent ends: asyncio before Python 3.13 reports a cancelled handler
        as an error."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._serve(reader, writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: socket.socket = writer.get_extra_info("socket")
        if not same_user(peer):
            writer.close()
            return
        client = Client(writer, self._chronicle, self._windows, peer_pid(peer) == self._starter)
        for stamped in self._newest.values():
            client.offer(stamped)
        self._clients.add(client)
        self._silent[client] = None
        if len(self._silent) > resource.getrlimit(resource.RLIMIT_NOFILE)[0] / 2 > 0:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.writer.transport.abort()
        self.idle.clear()
        if not client.ours:
            self._visited.set()
        client.reply(MAGIC + encode(self._hello()))
        both = [
            self._parts.once("viewer", work) for work in (self._tell(client), self._hear(client, reader))
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._parts.stop(*both, *client.windows)
            writer.close()
            self._clients.discard(client)
            self._silent.pop(client, None)
            if not self._clients:
                self.idle.set()
                self._watched(False)

    async def _tell(self, client: Client) -> None:
        with contextlib.suppress(OSError):
            await client.write()

    async def _hear(self, client: Client, reader: asyncio.StreamReader) -> None:
        try:
            await self._listen(client, reader)
        except FrameError:
            client.writer.transport.abort()  # a peer that speaks no frames is dropped
        except OSError:
            return  # the viewer is gone

    def _hello(self) -> AgentHello:
        record = self._record
        node = HUB if record.kind == "hub" else record.node
        seq = self._chronicle.journal.seq
        return AgentHello(PROTOCOL, self._version, record.run, seq, node=node, now=clock.now())

    async def _listen(self, client: Client, reader: asyncio.StreamReader) -> None:
        """Take requests until the viewer leaves. Raises FrameError and OSError."""
        fresh = True
        while line := await read_line(reader):
            try:
                command = decode_command(line)
            except FrameError as error:
                await _refuse(client, line, error)
                raise
            self._silent.pop(client, None)
            if isinstance(command, Via):
                if not fresh:
                    raise FrameError("Via is a first line, or none")
                await self._hand_over(client, command.node, reader)
                return
            if isinstance(command, Hello) and not understood(command.proto):
                raise FrameError(f"no protocol in common: {command.proto} there, {PROTOCOL} here")
            fresh = False
            await client.slots.acquire()
            self._take(client, command)

    async def _hand_over(self, client: Client, node: int, reader: asyncio.StreamReader) -> None:
        """From now on this viewer is one of another node's agent; the last line may say why not."""
        await client.taken()
        why = await self._pass_on(node, reader, client.writer)
        if why:
            client.reply(encode(Stamped(clock.now(), CommandDone(VIA_ID, False, why))))
            await client.taken()

    def _take(self, client: Client, command: Hello | ReadLog | ReadMetrics | Action) -> None:
        if isinstance(command, Hello):
            self._watched(True)
            client.begin(command)
            client.slots.release()
            return
        if isinstance(command, ReadLog):
            asked = self._show(client, command)
        elif isinstance(command, ReadMetrics):
            asked = self._plot(client, command)
        else:
            asked = self._answer(client, command)
        task = self._parts.once(f"request-{type(command).__name__}", asked)
        task.add_done_callback(partial(self._answered, client, command))
        if isinstance(command, ReadLog | ReadMetrics):  # commands go on when their viewer has left
            client.windows.add(task)
            task.add_done_callback(client.windows.discard)

    def _answered(
        self, client: Client, command: ReadLog | ReadMetrics | Action, task: asyncio.Task[None]
    ) -> None:
        """Answer a request that raised, too: its viewer waits."""
        client.slots.release()
        if task.cancelled() or task.exception() is None:
            return
        if isinstance(command, ReadLog):
            client.reply(encode(LogWindow(command.id, command.file, 0, 0, 0, 0, error=BROKEN)))
        elif isinstance(command, ReadMetrics):
            client.reply(encode(MetricsWindow(command.id, error=BROKEN)))
        else:
            text = f"not known whether that was done: {BROKEN}"
            client.reply(encode(Stamped(clock.now(), CommandDone(command.id, False, text))))

    async def _show(self, client: Client, ask: ReadLog) -> None:
        async with client.turn:
            client.reply(await self._window(ask))
            await client.taken()

    async def _plot(self, client: Client, ask: ReadMetrics) -> None:
        async with client.turn:
            client.reply(encode(await self._read_curves(ask)))
            await client.taken()

    async def _answer(self, client: Client, command: Action) -> None:
        """Commands go on when their viewer has left."""
        if client.hello is not None and client.hello.readonly and not command.reads:
            done = CommandDone(command.id, False, "this connection is read-only")
        else:
            done = await self._execute(command)
        client.reply(encode(Stamped(clock.now(), done)))

    async def _window(self, ask: ReadLog) -> bytes:
        window = await self._read_window(
            ask.file, ask.offset, ask.limit, ask.grep, line=ask.line, at=ask.at
        )
        header = LogWindow(
            ask.id,
            window.file,
            window.offset,
            window.next,
            window.size,
            len(window.data),
            window.error,
            window.times,
            window.starts,
            window.shift,
        )
        return msgspec.json.encode(header) + b"\n" + window.data
