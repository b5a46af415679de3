"""Streams between the agents of one run, which the runners carry over the rendezvous store.

Only holders of the run's key reach the store, and messages are sealed (inrank/secure_channel.py). The opener names a
stream by 16 random bytes. Frame: kind (1 byte), stream (16), number per direction (8, big-endian), payload.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..inrank.relay import CONTROL, HEAD
from ..run.parts import first_of
from ..run.wire import client

MAX_FRAME = 64 << 10
"""Bytes, equal to runners/inrank/relay.py."""
_HEAD = struct.Struct(">B16sQ")
MAX_PAYLOAD = MAX_FRAME - _HEAD.size


class FrameKind(enum.IntEnum):
    """Kind of a frame. OPEN, ACCEPT and UNKNOWN have no number."""

    OPEN = 1
    """The opener requests a stream."""
    ACCEPT = 2
    """The other side accepts it."""
    DATA = 3
    TAKEN = 4
    """Number of consumed DATA frames, 8 bytes. Makes room for more."""
    END = 5
    """The stream has ended. The payload is a sentence, or empty."""
    UNKNOWN = 6
    """There is no such stream here, or not any more."""


WINDOW = 8
"""Most unacknowledged DATA frames."""
ACK_EVERY = 4


class Stream:
    """Reads and writes like a connection. `why` is the sentence of a failure, or "" after a normal end."""

    def __init__(
        self,
        peer: int,
        name: bytes,
        send: Callable[[int, bytes], None],
        over: Callable[[Stream], None],
        opener: bool,
    ) -> None:
        self.peer, self.name, self.opener, self.why = peer, name, opener, ""
        self._send_frame, self._over = send, over
        self._numbers = [0, 0]
        """Numbers of the newest sent and received frame."""
        self._came: asyncio.Queue[bytes] = asyncio.Queue()
        self._sent = self._acknowledged = 0
        self._consumed = self._reported = 0
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False
        self.whole = True
        """True if the read bytes end with a complete line."""

    def take(self, kind: FrameKind, number: int, payload: bytes) -> None:
        """Process a frame of this stream. Raises struct.error for a TAKEN frame without its counter."""
        self._numbers[1] += 1
        if number != self._numbers[1]:
            self.end(f"frames between node {self.peer} and here are missing")
            self.why = self.why or f"frames from node {self.peer} are missing"
        elif kind is FrameKind.DATA:
            self._came.put_nowait(payload)
        elif kind is FrameKind.TAKEN:
            self._acknowledged = max(self._acknowledged, *struct.unpack(">Q", payload))
            self._room.set()
        elif kind is FrameKind.END:
            self.broken(payload.decode("utf-8", "replace"))

    def beat(self) -> None:
        """Check that the other side still knows the stream."""
        self.taken(self._consumed)

    async def read(self) -> bytes:
        """Return the next bytes, or b"" at the end."""
        data = await self._came.get()
        if not data:
            self._came.put_nowait(b"")
            return b""
        self._consumed += 1
        self.whole = data.endswith(b"\n")
        if self._consumed - self._reported >= ACK_EVERY and not self._ended:
            self.taken(self._consumed)
        return data

    def taken(self, count: int) -> None:
        """Report the number of consumed DATA frames."""
        self._reported = count
        self._send(FrameKind.TAKEN, struct.pack(">Q", count))

    def _send(self, kind: FrameKind, payload: bytes) -> None:
        self._numbers[0] += 1
        self._send_frame(self.peer, _HEAD.pack(kind, self.name, self._numbers[0]) + payload)

    async def write(self, data: bytes) -> None:
        """Send as the window permits. Raises BrokenPipeError after the end."""
        for begin in range(0, len(data), MAX_PAYLOAD):
            while not self._ended and self._sent - self._acknowledged >= WINDOW:
                self._room.clear()
                await self._room.wait()
            if self._ended:
                raise BrokenPipeError(self.why)
            self._sent += 1
            self._send(FrameKind.DATA, data[begin : begin + MAX_PAYLOAD])

    def end(self, why: str = "") -> None:
        """End the stream. The other side receives `why`."""
        if not self._ended:
            self._send(FrameKind.END, why.encode())
            self.broken("")

    def broken(self, why: str) -> None:
        """End the stream after an END of the other side, or a failure in between."""
        if self._ended:
            return
        self._ended, self.why = True, why
        self._room.set()
        self._came.put_nowait(b"")
        self._over(self)


async def splice(stream: Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy in both directions until one side ends, and end the stream."""
    try:
        await first_of(_up(reader, stream), _down(stream, writer))
    finally:
        stream.end()


async def _up(reader: asyncio.StreamReader, stream: Stream) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(MAX_PAYLOAD):
            await stream.write(data)


async def _down(stream: Stream, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await stream.read():
            writer.write(data)
            await writer.drain()


# For a viewer on one node without ssh to the others. A user of this agent's socket may open a stream to another node.
# That node's agent connects the stream to its socket, and treats the viewer like any other.


OPEN_SECONDS = 10.0
"""Seconds until another node must accept. An idle node checks once per second."""
AGAIN_SECONDS = 0.5
BEAT_SECONDS = 2.0
"""Seconds between writes of a stream's opener. A restarted agent answers that it does not know the stream."""


class RelayError(Exception):
    """The node is not reachable. The text is one sentence with the reason."""


class AgentRelay:
    """One agent's end of the relay. `run` lasts as long as the agent, `open` serves one viewer."""

    def __init__(self, node: int, nnodes: int, socket: Path) -> None:
        self._node, self._nnodes, self._socket = node, nnodes, socket
        self._writer: asyncio.StreamWriter | None = None
        self.up = False
        """True if there is a store to relay over."""
        self._why_not = "the ranks have not met yet"
        self._streams: dict[bytes, Stream] = {}
        self._accepted: dict[bytes, tuple[int, asyncio.Future[Stream]]] = {}
        """Stream that is being opened → node, and the stream after its agent has accepted."""
        self._group = asyncio.TaskGroup()

    def busy(self) -> bool:
        """Return True if a stream is open or being opened."""
        return bool(self._streams or self._accepted)

    async def run(self, runner: Callable[[], str | None]) -> None:
        """Carry frames through the runner at the socket `runner()`, and through its successors. Cancel to stop."""
        try:
            async with asyncio.TaskGroup() as self._group:
                self._group.create_task(self._beat())
                while True:
                    path = runner()
                    if path is not None:
                        with contextlib.suppress(
                            OSError, asyncio.IncompleteReadError, msgspec.MsgspecError
                        ):
                            await self._carry(path)
                        self._lost("the runner of this node has ended")
                    await asyncio.sleep(AGAIN_SECONDS)
        finally:
            self._lost("the agent that relays has ended")

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            for stream in self._streams.values():
                if stream.opener:
                    stream.beat()

    async def _carry(self, path: str) -> None:
        reader, writer = await client.connect(path)
        try:
            writer.write(b'{"op":"relay","id":0}\n')
            line = b"\n"
            while line == b"\n":
                line = await reader.readline()
            if not line or not msgspec.json.decode(line).get("ok"):
                return  # not there yet, or a runner without a relay
            self._writer = writer
            while True:
                size, peer = HEAD.unpack(await reader.readexactly(HEAD.size))
                body = await reader.readexactly(size)
                if peer == CONTROL:
                    self._store_changed(msgspec.json.decode(body))
                else:
                    self._take(peer, body)
        finally:
            self._writer = None
            writer.close()

    def _store_changed(self, message: dict[str, str]) -> None:
        if message.get("store") == "up":
            self.up = True
        else:
            self._lost(f"the rendezvous store is gone ({message.get('text', 'no reason')})")

    def _lost(self, why: str) -> None:
        self.up, self._why_not = False, why
        for stream in list(self._streams.values()):
            stream.broken(why)
        for _, future in self._accepted.values():
            if not future.done():
                future.set_exception(RelayError(why))
        self._accepted.clear()

    def send(self, peer: int, frame: bytes) -> None:
        """Send a frame. Without a connection, its stream has already ended."""
        if self._writer is not None:
            self._writer.write(HEAD.pack(len(frame), peer) + frame)

    def _name_peers(self) -> None:
        """Name the nodes that the runner must check often."""
        waited_for = {node for node, _ in self._accepted.values()}
        peers = sorted({stream.peer for stream in self._streams.values()} | waited_for)
        self.send(CONTROL, msgspec.json.encode({"peers": peers}))

    async def open(self, node: int) -> Stream:
        """Open a stream to the agent of another node. Raises RelayError."""
        if not 0 <= node < self._nnodes or node == self._node:
            raise RelayError(
                f"there is no way from node {self._node} to node {node}: the run has nodes 0 to {self._nnodes - 1}"
            )
        if not self.up:
            raise RelayError(f"nothing can be relayed to node {node} now: {self._why_not}")
        name = os.urandom(16)
        future: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
        stream: Stream | None = None
        self._accepted[name] = (node, future)
        self._name_peers()
        self.send(node, _HEAD.pack(FrameKind.OPEN, name, 0))
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                stream = await future
        except TimeoutError:
            raise RelayError(
                f"node {node} did not answer within {OPEN_SECONDS:.0f} s: its agent or runner is not there"
            ) from None
        finally:
            self._accepted.pop(name, None)
            self._name_peers()
            if stream is None and name in self._streams:  # accepted too late
                self._streams[name].end()
        return stream

    async def pass_on(self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Carry a viewer's bytes to another node and back until either side ends: see server.PassOn."""
        try:
            stream = await self.open(node)
        except RelayError as error:
            return str(error)
        await splice(stream, reader, writer)
        return f"the relay to node {node} ended: {stream.why}" if stream.why and stream.whole else ""

    def _new(self, peer: int, name: bytes, *, opener: bool) -> Stream:
        stream = self._streams[name] = Stream(peer, name, self.send, self._over, opener)
        self._name_peers()
        return stream

    def _take(self, peer: int, frame: bytes) -> None:
        """Process a frame from a node. An invalid frame is ignored, like a lost one."""
        with contextlib.suppress(struct.error, ValueError):
            kind, name, number = _HEAD.unpack_from(frame)
            self._understand(peer, FrameKind(kind), name, number, frame[_HEAD.size :])

    def _understand(self, peer: int, kind: FrameKind, name: bytes, number: int, payload: bytes) -> None:
        stream = self._streams.get(name)
        if kind is FrameKind.OPEN:
            if stream is None:
                stream = self._new(peer, name, opener=False)
                self.send(peer, _HEAD.pack(FrameKind.ACCEPT, name, 0))
                self._group.create_task(self._bridge(stream))
        elif kind is FrameKind.ACCEPT and name in self._accepted:
            _, future = self._accepted[name]
            if not future.done():
                future.set_result(self._new(peer, name, opener=True))
        elif stream is None:
            # This agent or the store was restarted, and the other side does not know it yet.
            if kind is not FrameKind.UNKNOWN:
                self.send(peer, _HEAD.pack(FrameKind.UNKNOWN, name, 0))
        elif kind is FrameKind.UNKNOWN:
            stream.broken(f"the agent of node {peer} was restarted")
        else:
            stream.take(kind, number, payload)

    async def _bridge(self, stream: Stream) -> None:
        """Connect another node's viewer to this agent's socket."""
        try:
            reader, writer = await client.connect(self._socket)
        except OSError as error:
            stream.end(f"the agent of node {self._node} does not answer: {error.strerror}")
            return
        try:
            await splice(stream, reader, writer)
        finally:
            writer.close()

    def _over(self, stream: Stream) -> None:
        """Forget a stream after its END was sent or received."""
        self._streams.pop(stream.name, None)
        self._name_peers()
