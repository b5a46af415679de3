"""The agent's unix socket: it sends history and live events to any number of viewers, in bounded memory."""

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

from msgspec import structs

from ... import __version__
from ..inrank import own_folders
from ..inrank.control import listen, same_user
from ..run import clock
from ..run.answers import AgentHello, LogWindow, MetricsWindow
from ..run.chronicle import Chronicle
from ..run.commands import PROTOCOL, Action, Command, Hello, ReadLog, ReadMetrics, Via, understood
from ..run.daemon_run import DaemonRun
from ..run.errors import RunError
from ..run.log_files import parse_file_id
from ..run.model import HUB, TELEMETRY, AgentStarted, CaughtUp, CommandDone, LogGrew, RunEnded, Stamped
from ..run.parts import Parts
from ..run.run_record import RunRecord
from ..run.shared_sockets import peer_of
from ..run.wire.client import Window, remove_stale
from ..run.wire.frames import MAGIC, MAX_LINE, VIA_ID, FrameError, decode_command, encode, read_line

RESTORE_S = 2.0
"""Seconds between two checks that the socket still exists."""
MOST_ASKED = 64
"""Most concurrent requests of one viewer. The next request is read after one of them is answered."""
GUEST_READS = 2
"""Most concurrent reads of all guests together."""
AT_ONCE = 16
"""Backlog of connections that are accepted at a time."""
GATHER_S, GROWTH_S = 0.25, 0.1
"""Seconds to gather samples, and growth of logs. Each write wakes the viewer, which costs it more than the data."""
BROKEN = "an internal error came in between, see agent.log"
Execute = Callable[[Action], Awaitable[CommandDone]]
PassOn = Callable[[int, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[str]]
"""Carries a viewer's bytes to another node and back until the end. Returns a sentence after a failure, else ""."""
ReadWindow = Callable[[ReadLog], Awaitable[Window]]
ReadCurves = Callable[[ReadMetrics], Awaitable[MetricsWindow]]
READS = (Hello, ReadLog, ReadMetrics)
"""All requests that a read-only connection may send."""


def read_only_refusal(command: Command) -> str:
    """Return why a read-only connection may not send a request; "" if it may."""
    if not isinstance(command, READS):
        return "this connection is read-only"
    if isinstance(command, ReadLog) and parse_file_id(command.file) is None:
        return f"this connection is read-only, and {command.file!r} is not a log of the run"
    return ""


def refused(command: Command, why: str) -> bytes:
    """Encode the answer to a request that is refused or has failed."""
    if isinstance(command, ReadLog):
        return encode(LogWindow(command.id, command.file, 0, 0, 0, 0, error=why))
    if isinstance(command, ReadMetrics):
        return encode(MetricsWindow(command.id, error=why))
    return encode(Stamped(clock.now(), CommandDone(getattr(command, "id", VIA_ID), False, why)))


def hardware(root: str = "/") -> tuple[str, tuple[str, ...]]:
    """Return the NVIDIA driver's version and the GPU models from the kernel's files, or "" and ()."""
    from ..doctor import node_facts  # an agent needs it once, and the module is large

    driver = node_facts.driver(root) or {}
    models = (gpu["name"] for gpu in node_facts.kernel_gpus(root))
    return driver.get("version") or "", tuple(model for model in models if model)


Newest = dict[tuple[type, int], Stamped]
"""Telemetry by kind and node."""


def keep_newest(newest: Newest, stamped: Stamped) -> None:
    """Keep only the newest sample per kind and node. Log sizes are merged, because an event lists only changed files."""
    key = (type(stamped.event), stamped.node)
    held = newest.get(key)
    if held is not None and isinstance(held.event, LogGrew) and isinstance(stamped.event, LogGrew):
        sizes = LogGrew(held.event.sizes | stamped.event.sizes)
        stamped = Stamped(stamped.time, sizes, node=stamped.node)
    newest[key] = stamped


async def refuse_relay(node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Return the refusal of a stream to another node, for a run without a relay."""
    return f"nothing can be relayed to node {node} from here: the run has one node"


_ID = re.compile(rb'"id": ?"([A-Za-z0-9._-]{1,64})"')
"""Finds the ID of an invalid command."""


async def _refuse(client: Client, line: bytes, error: FrameError) -> None:
    """Answer an invalid command before its viewer is disconnected. A command without an ID gets no answer."""
    name = _ID.search(line)
    if name is not None:
        refusal = CommandDone(name[1].decode(), False, f"{error}; nothing was done")
        client.reply(encode(Stamped(clock.now(), refusal)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await client.taken()


class Client:
    """One viewer: its position in the journal, and the newest telemetry for it."""

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        chronicle: Chronicle,
        windows: int,
        *,
        is_starter: bool = False,
        is_guest: bool = False,
    ) -> None:
        """`is_starter`: the viewer is the process that started this agent, the job of a node.

        `is_guest`: it came by the socket of a share.
        """
        self.writer, self.is_guest = writer, is_guest
        self.counts = not is_starter and not is_guest
        """Whether it counts as a viewer of the run's end."""
        self._journal, self._fold = chronicle.journal, chronicle.folded
        self._next = 0
        """Index of the next journal line."""
        self._telemetry: Newest = {}
        self._replies: list[bytes] = []
        self._wake = asyncio.Event()
        self._gathering: asyncio.TimerHandle | None = None
        """Timer for gathered samples that no other write carries."""
        self._read = asyncio.Event()
        """Set while the viewer has read every reply."""
        self.slots = asyncio.Semaphore(MOST_ASKED)
        self.turn = asyncio.Semaphore(windows)
        """Limits the windows in memory for a viewer that does not read."""
        self.windows: set[asyncio.Task[None]] = set()
        self.hello: Hello | None = None
        self._caught_up = False

    @property
    def readonly(self) -> bool:
        """Whether only reads are answered."""
        return self.is_guest or (self.hello is not None and self.hello.readonly)

    def begin(self, hello: Hello) -> None:
        self.hello = hello
        folded = self._fold(hello)
        if folded is None:
            self._next = max(self._next, self._journal.lines.after(hello.after))
        else:
            self._next = len(self._journal.lines)
            self.reply(encode(Stamped(clock.now(), folded, node=HUB)))
        self._wake.set()

    def offer(self, stamped: Stamped) -> None:
        """Queue the newest telemetry, or wake the writer at once for an event, which is already in the journal."""
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
        """Wait until the viewer has read every reply, except the bytes in the socket."""
        await self._read.wait()

    async def write(self) -> None:
        """Write pending data as fast as the viewer reads. Cancel to stop."""
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
    """Listens on `path`. `execute` runs a command, `window` reads a part of a log, `curves` reads metrics.

    `watched` is called with True for each viewer that requests events, and with False after the last viewer has left.
    `windows`: most windows in memory per viewer.
    """

    def __init__(
        self,
        path: Path,
        record: RunRecord,
        chronicle: Chronicle,
        parts: Parts,
        execute: Execute,
        window: ReadWindow,
        curves: ReadCurves,
        watched: Callable[[bool], None] = lambda watched: None,
        windows: int = 1,
        pass_on: PassOn = refuse_relay,
    ) -> None:
        self._path, self._record, self._chronicle, self._parts = path, record, chronicle, parts
        self._execute, self._pass_on = execute, pass_on
        self._read_window, self._read_curves = window, curves
        self._watched, self._windows = watched, windows
        self._version = ""
        """The release of distui, for the hello."""
        chronicle.listeners.append(self._publish)
        self._clients: set[Client] = set()
        self._guest_reads = asyncio.Semaphore(GUEST_READS)
        self._silent: dict[Client, None] = {}
        """Connections without a request, the oldest first. They may use half of the open files."""
        self._newest: Newest = {}
        """The newest sample of each kind and node, for a viewer that connects."""
        self._server: asyncio.Server | None = None
        self._identify: Callable[[Path], None] = lambda path: None
        """Writes the socket's path for viewers."""
        self.missed = asyncio.Event()
        """Set by a process that did not find the socket."""
        self.idle = asyncio.Event()
        """Set while no viewer is connected, except guests, who do not keep the agent of an ended run."""
        self.idle.set()
        self._starter = os.getppid()
        """The launching process, which does not count as a viewer of the end."""
        self._visited = asyncio.Event()
        """Set when a viewer other than the launching process has received RunEnded."""

    async def announce(self, run: DaemonRun, ready: Callable[[], None], adopted: bool) -> None:
        """Bind, write agent.json, call `ready`, and journal AgentStarted. Raises RunError or OSError."""
        await self.start(__version__)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.missed.set)
        self._identify = run.identify
        self._identify(self._path)
        ready()
        run.emit(AgentStarted(os.getpid(), __version__, adopted, *hardware()))

    async def start(self, version: str) -> None:
        """Bind for this user only. `version` is for the hello. Raises RunError or OSError."""
        self._version = version
        await self._bind(self._path)
        self._parts.start("socket", self._keep_bound)

    async def _bind(self, path: Path) -> None:
        remove_stale(path)
        listener = listen(str(path))
        self._server = await asyncio.start_unix_server(
            self._handle, sock=listener, limit=MAX_LINE, backlog=AT_ONCE
        )
        listener.listen(socket.SOMAXCONN)  # as many connections may wait

    async def _keep_bound(self) -> None:
        """Re-bind if the socket or its directory was deleted, at another place if necessary. Connections stay open."""
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

    async def wait_for_viewers(self, seconds: float) -> None:
        """Return when no viewer is connected, after at least one second in which new ones may come.

        Wait up to `seconds` for a first viewer to receive the end of the run.
        """
        await asyncio.sleep(1.0)
        await self.idle.wait()
        await clock.wait_set(self._visited, seconds)
        await self.idle.wait()

    async def close(self) -> None:
        """Close all connections and remove the socket."""
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
        elif isinstance(stamped.event, RunEnded) and not any(client.counts for client in self._clients):
            self._visited.clear()
        for client in self._clients:
            client.offer(stamped)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: socket.socket = writer.get_extra_info("socket")
        if not same_user(peer):
            writer.close()
            return
        is_starter = peer_of(peer).pid == self._starter
        await self._serve(Client(writer, self._chronicle, self._windows, is_starter=is_starter), reader)

    async def serve_guest(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection that the socket of a share has admitted, read-only, until it ends."""
        await self._serve(Client(writer, self._chronicle, self._windows, is_guest=True), reader)

    async def _serve(self, client: Client, reader: asyncio.StreamReader) -> None:
        """Serve a viewer until it or the agent ends.

        Cancellation is suppressed, because asyncio before Python 3.13 reports a cancelled handler as an error.
        """
        with contextlib.suppress(asyncio.CancelledError):
            await self._attend(client, reader)

    async def _attend(self, client: Client, reader: asyncio.StreamReader) -> None:
        for stamped in self._newest.values():
            client.offer(stamped)
        self._clients.add(client)
        self._silent[client] = None
        if len(self._silent) > resource.getrlimit(resource.RLIMIT_NOFILE)[0] / 2 > 0:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.writer.transport.abort()
        if not client.is_guest:
            self.idle.clear()
        if client.counts:
            self._visited.set()
        client.reply(MAGIC + encode(self._hello()))
        both = [
            self._parts.once("viewer", work) for work in (self._tell(client), self._hear(client, reader))
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._parts.stop(*both, *client.windows)
            client.writer.close()
            self._clients.discard(client)
            self._silent.pop(client, None)
            if all(other.is_guest for other in self._clients):
                self.idle.set()
            if not self._clients:
                self._watched(False)

    async def _tell(self, client: Client) -> None:
        with contextlib.suppress(OSError):
            await client.write()

    async def _hear(self, client: Client, reader: asyncio.StreamReader) -> None:
        try:
            await self._listen(client, reader)
        except FrameError:
            client.writer.transport.abort()  # a peer without our protocol is disconnected
        except OSError:
            return  # the viewer has left

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
            if client.readonly and (why := read_only_refusal(command)):
                client.reply(refused(command, why))
                await client.taken()
                continue
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
            if isinstance(command, Hello):
                await (
                    client.taken()
                )  # a history of megabytes is queued once, for a viewer that does not read

    async def _hand_over(self, client: Client, node: int, reader: asyncio.StreamReader) -> None:
        """Connect this viewer to another node's agent. The last line may be the reason for a failure."""
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
        if isinstance(command, ReadLog | ReadMetrics):  # commands continue after their viewer has left
            client.windows.add(task)
            task.add_done_callback(client.windows.discard)

    def _answered(
        self, client: Client, command: ReadLog | ReadMetrics | Action, task: asyncio.Task[None]
    ) -> None:
        """Answer a request that raised an exception, because its viewer waits."""
        client.slots.release()
        if task.cancelled() or task.exception() is None:
            return
        is_read = isinstance(command, ReadLog | ReadMetrics)
        client.reply(refused(command, BROKEN if is_read else f"it is unknown if that was done: {BROKEN}"))

    async def _show(self, client: Client, ask: ReadLog) -> None:
        async with client.turn:
            async with self._reading(client):
                window = await self._window(ask)
            client.reply(window)
            await client.taken()

    async def _plot(self, client: Client, ask: ReadMetrics) -> None:
        async with client.turn:
            async with self._reading(client):
                curves = await self._read_curves(ask)
            client.reply(encode(curves))
            await client.taken()

    def _reading(self, client: Client) -> contextlib.AbstractAsyncContextManager[None]:
        """Limit the concurrent reads of all guests together, so that they delay the owner's little."""
        return self._guest_reads if client.is_guest else contextlib.nullcontext()

    async def _answer(self, client: Client, command: Action) -> None:
        """Execute a command and answer it. Commands continue after their viewer has left."""
        client.reply(encode(Stamped(clock.now(), await self._execute(command))))

    async def _window(self, ask: ReadLog) -> bytes:
        window = await self._read_window(ask)
        fields = structs.asdict(window)
        data: bytes = fields.pop("data")
        return encode(LogWindow(id=ask.id, length=len(data), **fields)) + data
