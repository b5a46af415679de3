"""A viewer's link to a living agent: over its unix socket, or over any pair of streams that carries the same frames."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from ..model import (
    HUB,
    PROTOCOL,
    AgentHello,
    CaughtUp,
    Command,
    CommandDone,
    Hello,
    LogWindow,
    ReadLog,
    RunCreated,
    RunEnded,
    Stamped,
    Via,
)
from .frames import (
    MAX_LINE,
    VIA_ID,
    FrameError,
    NotRelayed,
    decode_from_agent,
    encode,
    read_line,
    skip_to_magic,
)
from .link import LinkError, Window

RELAY_SECONDS = 20.0
"""How long another node's agent may take to answer through a relay."""


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
    async def connect(cls, path: Path, readonly: bool = False, via: int | None = None) -> SocketLink:
        """Connect to an agent's socket. Raises LinkError.

        `readonly`: the agent is to refuse commands. `via`: number of a node that the agent is to relay to.
        """
        try:
            reader, writer = await asyncio.open_unix_connection(str(path), limit=MAX_LINE)
        except OSError as error:
            raise LinkError(f"no agent answers on {path} ({error.strerror})") from None
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
        """Have the agent that was greeted pass everything on to another one, and greet that."""
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
            raise LinkError(
                f"the agent does not answer as one: {str(error) or 'it says nothing'}"
            ) from None
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
            if self._of_the_run(stamped):
                ended = not isinstance(stamped.event, RunCreated) and (
                    ended or isinstance(stamped.event, RunEnded)
                )
            live = live or isinstance(stamped.event, CaughtUp)
            yield stamped

    def _of_the_run(self, stamped: Stamped) -> bool:
        """Whether an event says it of all that this link is to; a hub passes on what each node says of its part."""
        return self.hello is None or self.hello.node != HUB or stamped.node == HUB

    async def send(self, command: Command) -> CommandDone:
        """See Link.send."""
        if isinstance(command, Hello | Via | ReadLog):
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
            if stamped.event.id == VIA_ID:
                self._fail(stamped.event.text)
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
