"""One relayed stream: bytes in order, with a window, so that a viewer that does not read holds nothing but that."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable

from .sealing import MAX_PAYLOAD, Cut, Kind, Rejected, Seal

WINDOW = 8
"""DATA frames that may be under way unread."""
ACK_EVERY = 4


class Stream:
    """Reads and writes like a connection. `why` is the sentence it broke with, "" after an ordinary end."""

    def __init__(
        self,
        peer: int,
        name: bytes,
        ours: Seal,
        theirs: Seal,
        send: Callable[[int, bytes], None],
        over: Callable[[Stream], None],
    ) -> None:
        self.peer, self.name, self.why = peer, name, ""
        self._ours, self._theirs, self._send, self._over = ours, theirs, send, over
        self._came: asyncio.Queue[bytes] = asyncio.Queue()
        self._sent = self._acknowledged = 0
        self._consumed = self._told = 0
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False
        self.whole = True
        """Whether what was read ends with a line."""

    # --- what comes ------------------------------------------------------------------------------------------

    def take(self, frame: bytes) -> None:
        """A frame for this stream. Raises Rejected."""
        try:
            kind, payload = self._theirs.open(frame)
        except Cut:
            self.end(f"frames between node {self.peer} and here are missing")
            self.why = self.why or f"frames from node {self.peer} are missing"
            raise
        if kind is Kind.DATA:
            self._came.put_nowait(payload)
        elif kind is Kind.TAKEN:
            self._acknowledged = max(self._acknowledged, _number(payload))
            self._room.set()
        elif kind is Kind.END:
            self.broken(payload.decode("utf-8", "replace"))

    async def read(self) -> bytes:
        """The next bytes; b"" at the end."""
        data = await self._came.get()
        if not data:
            self._came.put_nowait(b"")
            return b""
        self._consumed += 1
        self.whole = data.endswith(b"\n")
        if self._consumed - self._told >= ACK_EVERY and not self._ended:
            self.taken(self._consumed)
        return data

    # --- what goes -------------------------------------------------------------------------------------------

    def taken(self, count: int) -> None:
        """Tell how many DATA frames were consumed."""
        self._told = count
        self._send(self.peer, self._ours.seal(Kind.TAKEN, struct.pack(">Q", count)))

    async def write(self, data: bytes) -> None:
        """Send, as the window has room. Raises BrokenPipeError after the end."""
        for begin in range(0, len(data), MAX_PAYLOAD):
            while not self._ended and self._sent - self._acknowledged >= WINDOW:
                self._room.clear()
                await self._room.wait()
            if self._ended:
                raise BrokenPipeError(self.why)
            self._sent += 1
            self._send(self.peer, self._ours.seal(Kind.DATA, data[begin : begin + MAX_PAYLOAD]))

    def end(self, why: str = "") -> None:
        """No more from here; the other side is told `why`, if there is something to tell."""
        if not self._ended:
            self._send(self.peer, self._ours.seal(Kind.END, why.encode()))
            self.broken("")

    def broken(self, why: str) -> None:
        """Ended by the other side, or by what lies between."""
        if self._ended:
            return
        self._ended, self.why = True, why
        self._room.set()
        self._came.put_nowait(b"")
        self._over(self)


async def splice(stream: Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy both ways until either side ends; the stream is ended then."""
    up = asyncio.create_task(_up(reader, stream))
    down = asyncio.create_task(_down(stream, writer))
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stream.end()
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)


async def _up(reader: asyncio.StreamReader, stream: Stream) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(MAX_PAYLOAD):
            await stream.write(data)


async def _down(stream: Stream, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await stream.read():
            writer.write(data)
            await writer.drain()


def _number(payload: bytes) -> int:
    try:
        return int(struct.unpack(">Q", payload)[0])
    except struct.error:
        raise Rejected("it is no frame") from None
