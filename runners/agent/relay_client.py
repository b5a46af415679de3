"""Streams between the agents of one run over the rendezvous store, sealed with the run's relay key."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import hashlib
import hmac
import os
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec

from ...presets.finding import Finding
from .. import clock, file_io
from ..inrank.relay import CONTROL, HEAD
from ..inrank.secure_channel import KEY_FILE, hide
from ..parts import first_of
from ..wire import client

# Frames that may lie where anybody writes: sealed with the run's relay key, so that only its agents can make them.
# A stream begins with two nonces, one of each side, and its keys come from the relay key and both: what was recorded
# of another stream fails. Each frame carries its number in its direction, inside the HMAC-SHA256.
# What a stream carries is also hidden (XOR with SHAKE-256 of key, direction and number, no pair of which occurs
# twice): a command to restart may hold a token, and the store is open to the cluster's network.
# Frame: kind (1 byte), stream (16: the opener's nonce), number (8, big-endian), MAC (32), payload.


MAX_FRAME = 64 << 10
"""Bytes, as runners/inrank/relay.py has it."""
_HEAD = struct.Struct(">B16sQ")
_MAC = 32
MAX_PAYLOAD = MAX_FRAME - _HEAD.size - _MAC
NONCE = 16


class FrameKind(enum.IntEnum):
    """What a frame is."""

    OPEN = 1
    """By the opener: there is to be a stream."""
    ACCEPT = 2
    """By the other side; its nonce is the payload."""
    DATA = 3
    TAKEN = 4
    """How many DATA frames were consumed, 8 bytes: room for more."""
    END = 5
    """The stream is over; the payload is a sentence, or empty."""
    UNKNOWN = 6
    """There is no such stream here (any more)."""


class Rejected(Exception):
    """A frame that this run's agents did not make for this place, or not for this time."""


class Cut(Rejected):
    """A genuine frame with others missing before it: the stream cannot go on."""


def read_key(run_dir: Path) -> bytes | None:
    """The relay key of a run's part; None when it has none."""
    try:
        key = bytes.fromhex(file_io.content(run_dir / KEY_FILE).decode().strip())
    except (file_io.FileError, ValueError):
        return None
    return key if len(key) >= 16 else None


def new_nonce() -> bytes:
    return os.urandom(NONCE)


def header(frame: bytes) -> tuple[FrameKind, bytes]:
    """Kind and stream, as the frame claims them. Raises Rejected."""
    try:
        kind, stream, _ = _HEAD.unpack_from(frame)
        return FrameKind(kind), stream
    except (struct.error, ValueError):
        raise Rejected("it is no frame") from None


def _derived(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"\0".join(parts), hashlib.sha256)


def _mac(key: bytes, ends: tuple[int, int], head: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, struct.pack(">HH", *ends) + head + payload, hashlib.sha256)


def _split(frame: bytes) -> tuple[bytes, bytes, bytes]:
    return frame[: _HEAD.size], frame[_HEAD.size : _HEAD.size + _MAC], frame[_HEAD.size + _MAC :]


class Greeting:
    """The frames outside a stream's own keys: OPEN, ACCEPT, UNKNOWN. Made and checked with the relay key."""

    def __init__(self, key: bytes) -> None:
        self._key = _derived(key, b"greeting")

    def seal(self, kind: FrameKind, stream: bytes, ends: tuple[int, int], payload: bytes = b"") -> bytes:
        """`ends`: from which node to which."""
        head = _HEAD.pack(kind, stream, 0)
        return head + _mac(self._key, ends, head, payload) + payload

    def open(self, frame: bytes, ends: tuple[int, int]) -> bytes:
        """The payload. Raises Rejected."""
        head, mac, payload = _split(frame)
        if not hmac.compare_digest(mac, _mac(self._key, ends, head, payload)):
            raise Rejected("its MAC is wrong")
        return payload


class FrameSeal:
    """One direction of one stream: makes its frames, or checks them."""

    def __init__(
        self, key: bytes, stream: bytes, nonce: bytes, ends: tuple[int, int], by_opener: bool
    ) -> None:
        way = b"from the opener" if by_opener else b"to the opener"
        self._mac_key = _derived(key, b"mac", way, stream, nonce)
        self._hide_key = _derived(key, b"hide", way, stream, nonce)
        self._stream, self._ends = stream, ends
        self._number = 0

    def seal(self, kind: FrameKind, payload: bytes = b"") -> bytes:
        """The next frame."""
        self._number += 1
        head = _HEAD.pack(kind, self._stream, self._number)
        hidden = hide(payload, self._hide_key, self._number)
        return head + _mac(self._mac_key, self._ends, head, hidden) + hidden

    def open(self, frame: bytes) -> tuple[FrameKind, bytes]:
        """Kind and payload of the next frame. Raises Rejected, and Cut where one before it is missing."""
        head, mac, hidden = _split(frame)
        if not hmac.compare_digest(mac, _mac(self._mac_key, self._ends, head, hidden)):
            raise Rejected("its MAC is wrong")
        kind, _, number = _HEAD.unpack(head)
        if number <= self._number:
            raise Rejected("it was here before")
        if number != self._number + 1:
            raise Cut("frames before it are missing")
        self._number = number
        return FrameKind(kind), hide(hidden, self._hide_key, number)


WINDOW = 8
"""DATA frames that may be under way unread."""
ACK_EVERY = 4


class Stream:
    """Reads and writes like a connection. `why` is the sentence it broke with, "" after an ordinary end."""

    def __init__(
        self,
        peer: int,
        name: bytes,
        ours: FrameSeal,
        theirs: FrameSeal,
        send: Callable[[int, bytes], None],
        over: Callable[[Stream], None],
        opener: bool,
    ) -> None:
        self.peer, self.name, self.opener, self.why = peer, name, opener, ""
        self._ours, self._theirs, self._send, self._over = ours, theirs, send, over
        self._came: asyncio.Queue[bytes] = asyncio.Queue()
        self._sent = self._acknowledged = 0
        self._consumed = self._reported = 0
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
        if kind is FrameKind.DATA:
            self._came.put_nowait(payload)
        elif kind is FrameKind.TAKEN:
            self._acknowledged = max(self._acknowledged, _number(payload))
            self._room.set()
        elif kind is FrameKind.END:
            self.broken(payload.decode("utf-8", "replace"))

    def beat(self) -> None:
        """Ask whether the other side still has it."""
        self.taken(self._consumed)

    async def read(self) -> bytes:
        """The next bytes; b"" at the end."""
        data = await self._came.get()
        if not data:
            self._came.put_nowait(b"")
            return b""
        self._consumed += 1
        self.whole = data.endswith(b"\n")
        if self._consumed - self._reported >= ACK_EVERY and not self._ended:
            self.taken(self._consumed)
        return data

    # --- what goes -------------------------------------------------------------------------------------------

    def taken(self, count: int) -> None:
        """Tell how many DATA frames were consumed."""
        self._reported = count
        self._send(self.peer, self._ours.seal(FrameKind.TAKEN, struct.pack(">Q", count)))

    async def write(self, data: bytes) -> None:
        """Send, as the window has room. Raises BrokenPipeError after the end."""
        for begin in range(0, len(data), MAX_PAYLOAD):
            while not self._ended and self._sent - self._acknowledged >= WINDOW:
                self._room.clear()
                await self._room.wait()
            if self._ended:
                raise BrokenPipeError(self.why)
            self._sent += 1
            self._send(self.peer, self._ours.seal(FrameKind.DATA, data[begin : begin + MAX_PAYLOAD]))

    def end(self, why: str = "") -> None:
        """No more from here; the other side gets `why`, unless that is empty."""
        if not self._ended:
            self._send(self.peer, self._ours.seal(FrameKind.END, why.encode()))
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


def _number(payload: bytes) -> int:
    try:
        return int(struct.unpack(">Q", payload)[0])
    except struct.error:
        raise Rejected("it is no frame") from None


FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 3600.0


class Rejections:
    """Tells at once of the first, then of how many there are by now, in pauses that double."""

    def __init__(self, node: int, report: Callable[[Finding], None]) -> None:
        self._node, self._report = node, report
        self._by_peer: dict[int, int] = {}
        self._why = ""
        self._reported = 0
        self._pause_s = FIRST_PAUSE_S
        self._timer: asyncio.TimerHandle | None = None

    @property
    def total(self) -> int:
        return sum(self._by_peer.values())

    def count(self, peer: int, why: str) -> None:
        """A frame that claims to come from `peer` was rejected because `why`."""
        self._by_peer[peer] = self._by_peer.get(peer, 0) + 1
        self._why = why
        if self._timer is None:
            self._say()

    def close(self) -> None:
        """Report no more until the next frame is rejected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _say(self) -> None:
        self._timer = None
        if self.total == self._reported:
            return
        self._reported = self.total
        self._report(self._finding())
        self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._say)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _finding(self) -> Finding:
        frames = "1 frame was" if self.total == 1 else f"{self.total} frames were"
        peers = ", ".join(f"{count} as node {peer}" for peer, count in sorted(self._by_peer.items()))
        return Finding(
            "relay-rejected",
            "warning",
            f"{frames} rejected by the relay ({peers}; the last because {self._why})",
            node=self._node,
            remedy="nothing of it was taken; see who else can reach the port of the rendezvous",
        )


# Streams of bytes between the agents of one run, over the rendezvous store, carried there by the runners.
# For a viewer that sits on one node and cannot ssh to the others. Whoever may use this agent's socket may open a
# stream to another node; that node's agent connects it to its own socket, where the viewer is a viewer like any
# other.


OPEN_SECONDS = 10.0
"""How long another node may take to accept; a node at rest looks once a second."""
GRACE_SECONDS = 5.0
"""What was under way when a stream ended is no forgery."""
AGAIN_SECONDS = 0.5
BEAT_SECONDS = 2.0
"""The opener of a stream writes so often, within the grace of an agent that began anew: else it would wait for ever."""
MOST_UNCONFIRMED = 16
MOST_REMEMBERED = 4096


class RelayError(Exception):
    """There is no way to that node; the text is one sentence that says why."""


class AgentRelay:
    """One agent's end of it: `run` for as long as the agent lives, `open` for each viewer that wants through."""

    def __init__(
        self, key: bytes, node: int, nnodes: int, socket: Path, report: Callable[[Finding], None]
    ) -> None:
        self._key, self._node, self._nnodes, self._socket = key, node, nnodes, socket
        self._greeting = Greeting(key)
        self._writer: asyncio.StreamWriter | None = None
        self._up = False
        self._why_not = "the ranks have not met yet"
        self._since = 0.0
        self._streams: dict[bytes, Stream] = {}
        self._accepted: dict[bytes, tuple[int, asyncio.Future[bytes]]] = {}
        """By stream: the node, and the nonce of its agent once that comes."""
        self._unconfirmed: dict[bytes, float] = {}
        """Streams that others opened, and nothing sealed was heard on yet: monotonic time."""
        self._cut: dict[bytes, int] = {}
        """Streams that ended because the store was gone, and the node at their other side, which does not know."""
        self._ended: dict[bytes, float] = {}
        self._group = asyncio.TaskGroup()
        self.rejections = Rejections(node, report)

    @property
    def up(self) -> bool:
        """Whether there is a store to relay over."""
        return self._up

    def busy(self) -> bool:
        """Whether a stream is open, or being opened."""
        return bool(self._streams or self._accepted)

    # --- the connection to the runner ------------------------------------------------------------------------

    async def run(self, runner: Callable[[], str | None]) -> None:
        """Carry frames through the runner whose socket `runner()` names, and the next one; cancel to stop."""
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
            self.rejections.close()

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
                return  # not there yet, or a runner without one
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
            self._up, self._since = True, clock.monotonic()
            for name, peer in self._cut.items():
                self.send(peer, self._greeting.seal(FrameKind.UNKNOWN, name, (self._node, peer)))
            self._cut.clear()
        else:
            self._lost(f"the rendezvous store is gone ({message.get('text', 'no reason')})")

    def _lost(self, why: str) -> None:
        self._up, self._why_not = False, why
        for stream in list(self._streams.values()):
            if len(self._cut) < MOST_REMEMBERED:
                self._cut[stream.name] = stream.peer
            stream.broken(why)
        for _, future in self._accepted.values():
            if not future.done():
                future.set_exception(RelayError(why))
        self._accepted.clear()

    def send(self, peer: int, frame: bytes) -> None:
        """A frame on its way; where there is no way, its stream has ended."""
        if self._writer is not None:
            self._writer.write(HEAD.pack(len(frame), peer) + frame)

    def _name_peers(self) -> None:
        """Which nodes the runner has to look at often."""
        waited_for = {node for node, _ in self._accepted.values()}
        peers = sorted({stream.peer for stream in self._streams.values()} | waited_for)
        self.send(CONTROL, msgspec.json.encode({"peers": peers}))

    # --- opening ---------------------------------------------------------------------------------------------

    async def open(self, node: int) -> Stream:
        """A stream to the agent of another node. Raises RelayError."""
        if not 0 <= node < self._nnodes or node == self._node:
            raise RelayError(
                f"there is no way from node {self._node} to node {node}: the run has nodes 0 to {self._nnodes - 1}"
            )
        if not self._up:
            raise RelayError(f"nothing can be relayed to node {node} now: {self._why_not}")
        name = new_nonce()
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._accepted[name] = (node, future)
        self._name_peers()
        self.send(node, self._greeting.seal(FrameKind.OPEN, name, (self._node, node)))
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                nonce = await future
        except TimeoutError:
            self._ended[name] = clock.monotonic()
            raise RelayError(
                f"node {node} did not answer within {OPEN_SECONDS:.0f} s: its agent or runner is not there"
            ) from None
        finally:
            self._accepted.pop(name, None)
            self._name_peers()
        stream = self._new(node, name, nonce, opener=True)
        stream.taken(0)  # tells the other side that we know the key
        return stream

    async def pass_on(self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Carry a viewer's bytes to another node and back until either ends; see server.PassOn."""
        try:
            stream = await self.open(node)
        except RelayError as error:
            return str(error)
        await splice(stream, reader, writer)
        return f"the relay to node {node} ended: {stream.why}" if stream.why and stream.whole else ""

    def _new(self, peer: int, name: bytes, nonce: bytes, *, opener: bool) -> Stream:
        ours = FrameSeal(self._key, name, nonce, (self._node, peer), opener)
        theirs = FrameSeal(self._key, name, nonce, (peer, self._node), not opener)
        stream = Stream(peer, name, ours, theirs, self.send, self._over, opener)
        self._streams[name] = stream
        self._name_peers()
        return stream

    # --- hearing ---------------------------------------------------------------------------------------------

    def _take(self, peer: int, frame: bytes) -> None:
        try:
            self._understand(peer, frame)
        except Rejected as error:
            self.rejections.count(peer, str(error))

    def _understand(self, peer: int, frame: bytes) -> None:
        kind, name = header(frame)
        if kind in (FrameKind.OPEN, FrameKind.ACCEPT, FrameKind.UNKNOWN):
            self._greeted(peer, kind, name, self._greeting.open(frame, (peer, self._node)))
            return
        stream = self._streams.get(name)
        if stream is None or stream.peer != peer:
            self._stray(peer, name)
            return
        stream.take(frame)
        if self._unconfirmed.pop(name, None) is not None and name in self._streams:
            self._group.create_task(self._bridge(stream))

    def _greeted(self, peer: int, kind: FrameKind, name: bytes, payload: bytes) -> None:
        if kind is FrameKind.OPEN:
            self._accept(peer, name)
        elif kind is FrameKind.ACCEPT:
            node, future = self._accepted.get(name, (None, None))
            if future is None or future.done() or node != peer or len(payload) != NONCE:
                self._stray(peer, name, answer=False)
            else:
                future.set_result(payload)
        elif (stream := self._streams.get(name)) is not None and stream.peer == peer:
            stream.broken(f"the agent of node {peer} began anew")

    def _accept(self, peer: int, name: bytes) -> None:
        if name in self._streams or name in self._ended:
            raise Rejected("it was here before")
        now = clock.monotonic()
        for late in [stream for stream, since in self._unconfirmed.items() if now - since > OPEN_SECONDS]:
            self._streams[late].broken("")
        if len(self._unconfirmed) >= MOST_UNCONFIRMED:
            return
        nonce = new_nonce()
        self._unconfirmed[name] = now
        self._new(peer, name, nonce, opener=False)
        self.send(peer, self._greeting.seal(FrameKind.ACCEPT, name, (self._node, peer), nonce))

    def _stray(self, peer: int, name: bytes, answer: bool = True) -> None:
        """A frame of a stream that is not: late, or forged. Raises Rejected."""
        now = clock.monotonic()
        if now - self._ended.get(name, -GRACE_SECONDS) < GRACE_SECONDS:
            return
        if now - self._since > GRACE_SECONDS:
            raise Rejected("there is no such stream")
        if answer:  # this agent or the store began anew: the other side does not know yet
            self.send(peer, self._greeting.seal(FrameKind.UNKNOWN, name, (self._node, peer)))

    async def _bridge(self, stream: Stream) -> None:
        """Another node's viewer, connected to our own socket."""
        try:
            reader, writer = await client.connect(self._socket)
        except OSError as error:
            stream.end(f"the agent of node {self._node} does not answer: {error.strerror}")
            return
        try:
            await splice(stream, reader, writer)
        finally:
            writer.close()

    # --- ending ----------------------------------------------------------------------------------------------

    def _over(self, stream: Stream) -> None:
        """A stream has ended, and its END is sent or was heard."""
        self._streams.pop(stream.name, None)
        self._unconfirmed.pop(stream.name, None)
        self._ended[stream.name] = clock.monotonic()
        while len(self._ended) > MOST_REMEMBERED:
            del self._ended[next(iter(self._ended))]
        self._name_peers()
