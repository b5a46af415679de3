"""A viewer's link to a living agent: over its unix socket, or over any pair of streams that carries the same frames."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from ..model import (
    PROTOCOL,
    AgentHello,
    CaughtUp,
    Command,
    CommandDone,
    Hello,
    LogWindow,
    ReadLog,
    RunEnded,
    Stamped,
)
from .frames import MAX_LINE, FrameError, decode_from_agent, encode, read_line, skip_to_magic
from .link import LinkError, Window


def new_id() -> str:
    """An id for a command."""
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
        self._readonly = readonly
        self._reader, self._writer, self._on_close = reader, writer, on_close
        self._answers: dict[str, asyncio.Future[CommandDone]] = {}
        self._windows: dict[str, asyncio.Future[Window]] = {}
        self._events: asyncio.Queue[Stamped | None] = asyncio.Queue()
        self._pump: asyncio.Task[None] | None = None
        self._broken = ""
        self.hello: AgentHello | None = None

    @classmethod
    async def connect(cls, path: Path, readonly: bool = False) -> SocketLink:
        """Connect to an agent's socket; `readonly`: the agent is to refuse commands. Raises LinkError."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(path), limit=MAX_LINE)
        except OSError as error:
            raise LinkError(f"no agent answers on {path} ({error.strerror})") from None
        link = cls(reader, writer, readonly=readonly)
        await link.greet()
        return link

    async def greet(self) -> None:
        """Read the agent's hello and check the protocol. Raises LinkError."""
        try:
            async with asyncio.timeout(10):
                await skip_to_magic(self._reader)
                hello = decode_from_agent(await read_line(self._reader))
        except (FrameError, TimeoutError, OSError) as error:
            raise LinkError(f"the agent does not answer as one: {error}") from None
        if not isinstance(hello, AgentHello):
            raise LinkError("the agent did not say hello")
        if hello.proto[0] > PROTOCOL[1] or hello.proto[1] < PROTOCOL[0]:
            raise LinkError(
                f"the agent (distui {hello.version}) speaks protocol {hello.proto[0]} to {hello.proto[1]}, "
                f"this viewer {PROTOCOL[0]} to {PROTOCOL[1]}: use a distui of that version"
            )
        self.hello = hello

    @property
    def readonly(self) -> bool:
        return self._readonly or (self.hello is not None and self.hello.readonly)

    async def events(
        self, after: int = 0, telemetry: bool = True, follow: bool = True
    ) -> AsyncIterator[Stamped]:
        """See Link.events. Raises LinkError when the connection breaks before the agent said goodbye."""
        await self._write(Hello(after=after, telemetry=telemetry, follow=follow, readonly=self._readonly))
        self._start()
        ended = live = False
        while not (ended and live):
            stamped = await self._events.get()
            if stamped is None:
                if ended or (live and not follow):
                    return
                raise LinkError(self._broken)
            ended = ended or isinstance(stamped.event, RunEnded)
            live = live or isinstance(stamped.event, CaughtUp)
            yield stamped

    async def send(self, command: Command) -> CommandDone:
        """See Link.send."""
        if isinstance(command, Hello | ReadLog):
            raise TypeError(f"{type(command).__name__} is not sent this way")
        if self.readonly:
            return CommandDone(command.id, False, "this connection is read-only")
        future: asyncio.Future[CommandDone] = asyncio.get_running_loop().create_future()
        self._answers[command.id] = future
        self._start()
        await self._write(command)
        return await future

    async def read_log(self, file: str, offset: int, limit: int = 65536, grep: str = "") -> Window:
        """See Link.read_log."""
        ask = ReadLog(new_id(), file, offset, limit, grep)
        future: asyncio.Future[Window] = asyncio.get_running_loop().create_future()
        self._windows[ask.id] = future
        self._start()
        await self._write(ask)
        return await future

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
            while line := await read_line(self._reader):
                frame = decode_from_agent(line)
                if isinstance(frame, LogWindow):
                    await self._take_window(frame)
                elif isinstance(frame, Stamped):
                    self._take_event(frame)
            self._fail("the agent closed the connection")
        except (FrameError, OSError, asyncio.IncompleteReadError) as error:
            self._fail(f"the link broke: {error}")

    def _take_event(self, stamped: Stamped) -> None:
        if isinstance(stamped.event, CommandDone):
            future = self._answers.pop(stamped.event.id, None)
            if future is not None and not future.done():
                future.set_result(stamped.event)
            if not stamped.seq:
                return  # the answer itself; the journal's line of it follows
        self._events.put_nowait(stamped)

    async def _take_window(self, header: LogWindow) -> None:
        data = await self._reader.readexactly(header.length)
        future = self._windows.pop(header.id, None)
        if future is not None and not future.done():
            future.set_result(
                Window(header.file, header.offset, header.next, header.size, data, header.error)
            )

    def _fail(self, text: str) -> None:
        """Wake everybody who waits."""
        self._broken = self._broken or text
        waiting: list[asyncio.Future[CommandDone] | asyncio.Future[Window]] = [
            *self._answers.values(), *self._windows.values()
        ]  # fmt: skip
        for future in waiting:
            if not future.done():
                future.set_exception(LinkError(text))
        self._answers.clear()
        self._windows.clear()
        self._events.put_nowait(None)
