"""Link of a viewer to one node of a run; to an agent by its unix socket, with frames of one JSON object per line."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import glob
import os
import socket
import stat
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from ...inrank import own_folders
from ...inrank.control import same_user
from .. import clock, rpc, shared_sockets
from ..answers import AgentHello, LogWindow, MetricsWindow
from ..commands import PROTOCOL, Command, Hello, ReadLog, ReadMetrics, Via, understood
from ..errors import RunError
from ..model import HUB, CaughtUp, CommandDone, Folded, RunCreated, RunEnded, Stamped
from .frames import (
    MAX_LINE,
    VIA_ID,
    FrameError,
    LineBuffer,
    NotRelayed,
    decode_from_agent,
    encode,
    read_line,
    skip_to_magic,
)

BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before each new try to reach an agent; the last one repeats."""
YIELD_EVERY = 256
"""Events before other tasks get a turn: a long history must not block keys, nor the links to other nodes."""


class Window(Struct, frozen=True):
    """A piece of a log file. Offsets and sizes in bytes; `times`, `starts` and `shift` as in LogWindow."""

    file: str
    offset: int
    next: int
    size: int
    data: bytes
    error: str = ""
    times: tuple[tuple[int, float], ...] = ()
    starts: tuple[int, ...] = ()
    shift: float = 0.0


class LinkError(Exception):
    """The node cannot be reached; the text is one sentence with the reason and a remedy."""


class NoListenerError(LinkError):
    """No process listens on the socket."""


class SilentError(LinkError):
    """The listener does not answer: no greeting in time, or its process is stopped."""


class UnansweredError(LinkError):
    """A command was sent, but the link broke before its answer."""


class Link(Protocol):
    """One node of a run, on any host."""

    @property
    def readonly(self) -> bool:
        """True if commands are refused (a finished run, `--readonly`, a job distui did not start)."""
        ...

    def events(self, after: int = 0) -> AsyncIterator[Stamped]:
        """Yield the history after journal seq `after`, then `CaughtUp`, then live events, until the run has ended.

        Raises LinkError if the connection breaks.
        """
        ...

    async def send(self, command: Command) -> CommandDone:
        """Send a command and wait for its answer. Raises LinkError."""
        ...

    async def read_log(self, ask: ReadLog) -> Window:
        """Return one window of a log. Raises LinkError."""
        ...

    async def read_metrics(self, ask: ReadMetrics) -> MetricsWindow:
        """Return curves from the metrics on disk, or the reason in `error`. Raises LinkError."""
        ...

    async def close(self) -> None: ...


async def paced(events: AsyncIterator[Stamped]) -> AsyncGenerator[Stamped]:
    """Yield the events, with turns for other tasks between them."""
    count = 0
    async for stamped in events:
        yield stamped
        count += 1
        if count % YIELD_EVERY == 0:
            await asyncio.sleep(0)


class LinkFollower(ABC):
    """Follows one agent: opens a new link after a pause if the old one breaks."""

    def __init__(self, backoff: tuple[float, ...] = BACKOFF_S) -> None:
        self.link: Link | None = None
        self._backoff = backoff
        self._tries = 0
        """Number of consecutive failed tries."""
        self._hurry = asyncio.Event()

    async def run(self) -> None:
        """Follow until everything was read; cancel to stop earlier."""
        self._tries = 0
        while True:
            await self.drop()
            problem = ""
            try:
                await self._follow()
            except (LinkError, RunError, OSError) as error:
                problem = str(error) or type(error).__name__
            self._hurry.clear()
            delay = await self._settle(problem)
            if delay is None:
                return
            await clock.wait_set(self._hurry, delay)

    def hurry(self) -> None:
        """Retry without waiting for the back-off."""
        self._hurry.set()

    async def drop(self) -> None:
        """Close the link; the run continues."""
        link, self.link = self.link, None
        if link is not None:
            with suppress(LinkError, OSError):
                await link.close()

    @abstractmethod
    async def _follow(self) -> None:
        """Open `link` and read its events to the end. Raises LinkError, RunError, OSError."""

    @abstractmethod
    async def _settle(self, problem: str) -> float | None:
        """Seconds until the next try, None if everything was read. `problem` broke the link; "": it ended normally."""

    def _count(self, steady: bool) -> float:
        """Count one more try and return its back-off in seconds; a steady link resets it."""
        self._tries = 1 if steady else self._tries + 1
        return self._backoff[min(self._tries, len(self._backoff)) - 1]


LIMIT = 1 << 16
"""Default limit of a line, in bytes."""
FULL_S = 10.0
"""Maximum seconds of retries while the socket's accept queue is full."""


def ensure_socket_dir() -> None:
    """Create the folder for the sockets of new runs. Raises RunError."""
    if own_folders.make(own_folders.find("")):
        folders = own_folders.candidates()
        reasons = [f"{folder} {why}" for folder in folders if (why := own_folders.make(folder))]
        raise RunError(f"{'; '.join(reasons)}: set DISTUI_SOCKET_DIR to a short path that you own")


def stem(run8: str) -> str:
    """Path prefix of all sockets of one run: `.sock` agent, `.run` runner, `.r<n>` hook of local rank n."""
    return f"{own_folders.find(run8)}/{run8}"


async def connect(
    path: str | Path, limit: int = LIMIT, is_trusted: Callable[[socket.socket], bool] = same_user
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a socket of this user's own processes, even if it was bound again elsewhere.

    `limit`: bytes of a line. Raises OSError. `is_trusted` checks the peer, because a user who may rename the sockets'
    folder could listen there.
    """
    place = own_folders.place_of(str(path))
    reader, writer = await asyncio.open_unix_connection(sock=await _queued(place), limit=limit)
    if not is_trusted(writer.get_extra_info("socket")):
        writer.transport.abort()
        raise PermissionError(errno.EACCES, "another user listens there")
    return reader, writer


async def _queued(path: str) -> socket.socket:
    """Return a socket that is connected, or in the accept queue. Raises OSError.

    A full queue is retried; asyncio's own connect would mistake such a socket for a connected one.
    """
    deadline = clock.monotonic() + FULL_S
    with contextlib.ExitStack() as undo:
        peer = undo.enter_context(socket.socket(socket.AF_UNIX))
        peer.setblocking(False)
        while True:
            with contextlib.suppress(BlockingIOError):
                peer.connect(path)
                undo.pop_all()
                return peer
            if clock.monotonic() > deadline:
                raise BlockingIOError(errno.EAGAIN, "too many connections wait there")
            await asyncio.sleep(0.05)


def remove_stale(path: Path) -> None:
    """Unlink this user's socket without a listener. Raises RunError for anything else at the path."""
    try:
        info = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(info.st_mode) or info.st_uid != os.getuid():
        raise RunError(f"{path} exists and is not your socket; remove it")
    path.unlink()


def sweep_sockets(run8: str) -> None:
    """Remove the sockets of an ended run: killed agents, launchers and ranks leave theirs."""
    shared_sockets.sweep(run8)
    for path in Path(own_folders.find(run8)).glob(f"{glob.escape(run8)}.*"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()


T = TypeVar("T")
CHECK_S = 0.25
"""Seconds between two calls of `silent`."""
RELAY_SECONDS = 20.0
"""Maximum seconds for the answer of another node's agent through a relay."""


def new_id() -> str:
    """Create an id for a command."""
    return uuid.uuid4().hex[:12]


class SocketLink:
    """One connection; `events` may be consumed once."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_close: Callable[[], None] | None = None,
        readonly: bool = False,
    ) -> None:
        self.readonly = readonly
        self._reader, self._writer, self._on_close = reader, writer, on_close
        self._answers, self._windows = rpc.OpenRequests[CommandDone](), rpc.OpenRequests[Window]()
        self._curves = rpc.OpenRequests[MetricsWindow]()
        self._lines = LineBuffer(reader)
        self._came: list[Stamped] = []
        """Events that were read but are in no batch yet."""
        self._batches: asyncio.Queue[list[Stamped] | None] = asyncio.Queue()
        self._pump: asyncio.Task[None] | None = None
        self._broken = ""
        self.hello: AgentHello | None = None
        self.silent: Callable[[], str] | None = None
        """Called while an answer is awaited: returns why none will come, or ""."""

    @classmethod
    async def connect(
        cls,
        path: Path,
        readonly: bool = False,
        via: int | None = None,
        is_trusted: Callable[[socket.socket], bool] = same_user,
    ) -> SocketLink:
        """Connect to an agent's socket. Raises LinkError.

        `readonly`: the agent must refuse commands. `via`: number of a node that the agent must relay to. `is_trusted`:
        see `connect` above.
        """
        try:
            reader, writer = await connect(path, MAX_LINE, is_trusted)
        except BlockingIOError as error:
            raise SilentError(f"no agent answers on {path} ({error.strerror})") from None
        except OSError as error:
            raise NoListenerError(f"no agent answers on {path} ({error.strerror})") from None
        link = cls(reader, writer, readonly=readonly)
        try:
            await link.greet()
            if via is not None:
                await link._relay(via)
        except (LinkError, asyncio.CancelledError):
            await link.close()
            raise
        return link

    async def _relay(self, node: int) -> None:
        """Ask the greeted agent to relay to another one, and greet that."""
        await self._write(Via(node))
        while self.hello is None or self.hello.node != node:
            await self.greet(RELAY_SECONDS)

    async def greet(self, seconds: float = 10.0) -> None:
        """Read the agent's hello and check the protocol. Raises LinkError."""
        try:
            async with asyncio.timeout(seconds):
                await skip_to_magic(self._reader)
                hello = decode_from_agent(await read_line(self._reader))
        except NotRelayed as error:
            raise LinkError(str(error)) from None
        except (FrameError, TimeoutError, OSError) as error:
            kind = LinkError if str(error) else SilentError
            raise kind(f"no valid reply from the agent: {str(error) or 'timed out'}") from None
        if not isinstance(hello, AgentHello):
            raise LinkError("the agent sent no greeting")
        if not understood(hello.proto):
            raise LinkError(
                f"the agent (distui {hello.version}) speaks protocol {hello.proto[0]} to {hello.proto[1]}, "
                f"this viewer {PROTOCOL[0]} to {PROTOCOL[1]}: use a distui of that version"
            )
        self.hello = hello

    async def events(self, after: int = 0) -> AsyncIterator[Stamped]:
        """See Link.events. Raises LinkError if the connection breaks before the agent closes it."""
        async for batch in self.batches(after):
            for stamped in batch:
                yield stamped

    async def batches(self, after: int = 0, fold: str = "") -> AsyncIterator[list[Stamped]]:
        """Yield events in batches as they arrive, at most YIELD_EVERY each. `fold`: see Hello."""
        await self._write(Hello(after=after, readonly=self.readonly, fold=fold))
        self._start()
        ended = live = False
        while not (ended and live):
            batch = await self._batches.get()
            if batch is None:
                if ended:
                    return
                raise LinkError(self._broken)
            for stamped in batch:
                event = stamped.event
                live = live or isinstance(event, CaughtUp)
                if isinstance(event, Folded):
                    ended = event.ended
                elif isinstance(event, RunCreated | RunEnded) and self._of_the_run(stamped):
                    ended = isinstance(event, RunEnded)
            yield batch

    def _of_the_run(self, stamped: Stamped) -> bool:
        """Whether an event concerns the run of this link; a hub forwards each node's events about its part."""
        return self.hello is None or self.hello.node != HUB or stamped.node == HUB

    async def send(self, command: Command) -> CommandDone:
        """See Link.send."""
        if isinstance(command, Hello | Via | ReadLog | ReadMetrics):
            raise TypeError(f"{type(command).__name__} is not sent this way")
        if self.readonly:
            return CommandDone(command.id, False, "this connection is read-only")
        try:
            return await self._answer(command, self._answers.open(command.id))
        except LinkError as error:
            why = f"{error} before it had answered"
            raise UnansweredError(
                f"it is unknown if that was done: {why}; `distui status` shows the result"
            ) from None

    async def read_log(self, ask: ReadLog) -> Window:
        """See Link.read_log."""
        ask = replace(ask, id=new_id())
        return await self._answer(ask, self._windows.open(ask.id))

    async def read_metrics(self, ask: ReadMetrics) -> MetricsWindow:
        """See Link.read_metrics."""
        return await self._answer(ask, self._curves.open(ask.id))

    async def _answer(self, command: Command, request: rpc.OpenRequest[T]) -> T:
        """Send a command, and wait for the answer. Raises LinkError once `silent` returns a reason."""
        with request:
            self._start()
            await self._write(command)
            while self.silent is not None:
                with contextlib.suppress(TimeoutError):
                    return await request.next(CHECK_S)
                if why := self.silent():
                    raise SilentError(why)
            return await request.next()

    async def close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
        self._writer.close()
        self._fail("the link was closed")
        if self._on_close is not None:
            self._on_close()

    async def _write(self, command: Command) -> None:
        if self._broken:
            raise LinkError(self._broken)
        try:
            self._writer.write(encode(command))
            await self._writer.drain()
        except OSError as error:
            raise LinkError(f"the agent is gone ({error.strerror})") from None

    def _start(self) -> None:
        if self._pump is None:
            self._pump = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while await self._lines.more():
                while line := self._lines.next():
                    frame = decode_from_agent(line)
                    if isinstance(frame, Stamped):
                        self._take_event(frame)
                    elif isinstance(frame, LogWindow):
                        await self._take_window(frame)
                    elif isinstance(frame, MetricsWindow):
                        self._curves.answer(frame.id, frame)
                self._hand_on()
            self._fail("the agent closed the connection")
        except (FrameError, OSError, asyncio.IncompleteReadError) as error:
            self._fail(f"the link broke: {error}")
        finally:
            if not self._broken:
                self._fail("the link broke: an internal error in this process")

    def _take_event(self, stamped: Stamped) -> None:
        if isinstance(stamped.event, CommandDone):
            if stamped.event.id == VIA_ID:
                self._fail(stamped.event.text)
            self._answers.answer(stamped.event.id, stamped.event)
            if not stamped.seq:
                return  # the answer itself; its journaled event follows
        self._came.append(stamped)
        if len(self._came) == YIELD_EVERY:
            self._hand_on()

    def _hand_on(self) -> None:
        """Queue the events that were read as a batch."""
        if self._came:
            self._batches.put_nowait(self._came)
            self._came = []

    async def _take_window(self, header: LogWindow) -> None:
        data = await self._lines.exactly(header.length)
        fields = asdict(header)
        del fields["id"], fields["length"]
        self._windows.answer(header.id, Window(data=data, **fields))

    def _fail(self, text: str) -> None:
        """Wake all waiting callers with an error."""
        self._broken = self._broken or text
        self._answers.fail(LinkError(text))
        self._windows.fail(LinkError(text))
        self._curves.fail(LinkError(text))
        self._hand_on()
        self._batches.put_nowait(None)
