"""Streams of bytes between the agents of one run, over the rendezvous store, carried there by the runners.

For a viewer that sits on one node and cannot ssh to the others. Whoever may use this agent's socket may open a stream
to another node; that node's agent connects it to its own socket, where the viewer is a viewer like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..inrank.relay import CONTROL, HEAD
from ..model import Finding
from .rejections import Rejections
from .sealing import NONCE, Greeting, Kind, Rejected, Seal, header, new_nonce
from .streams import Stream, splice

OPEN_SECONDS = 10.0
"""How long another node may take to accept; a node at rest looks once a second."""
GRACE_SECONDS = 5.0
"""What was under way when a stream ended is no forgery."""
AGAIN_SECONDS = 0.5
MOST_UNCONFIRMED = 16
MOST_REMEMBERED = 4096


class RelayError(Exception):
    """There is no way to that node; the text is one sentence that says why."""


class Relay:
    """One agent's end of it: `run` for as long as the agent lives, `open` for each viewer that wants through."""

    def __init__(
        self, key: bytes, node: int, nnodes: int, socket: Path, tell: Callable[[Finding], None]
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
        self._ended: dict[bytes, float] = {}
        self._bridges: set[asyncio.Task[None]] = set()
        self.rejections = Rejections(node, tell)

    @property
    def up(self) -> bool:
        """Whether there is a store to relay over."""
        return self._up

    @property
    def busy(self) -> bool:
        """Whether a stream is open."""
        return bool(self._streams)

    # --- the connection to the runner ------------------------------------------------------------------------

    async def run(self, runner: Callable[[], str | None]) -> None:
        """Carry frames through the runner whose socket `runner()` names, and the next one; cancel to stop."""
        try:
            while True:
                path = runner()
                if path is not None:
                    with contextlib.suppress(OSError, asyncio.IncompleteReadError, msgspec.MsgspecError):
                        await self._carry(path)
                    self._lost("the runner of this node has ended")
                await asyncio.sleep(AGAIN_SECONDS)
        finally:
            self._lost("the agent that relays has ended")
            self.rejections.close()

    async def _carry(self, path: str) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
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

    def _store_changed(self, said: dict[str, str]) -> None:
        if said.get("store") == "up":
            self._up, self._since = True, time.monotonic()
        else:
            self._lost(f"the rendezvous store is gone ({said.get('text', 'no reason')})")

    def _lost(self, why: str) -> None:
        self._up, self._why_not = False, why
        for stream in list(self._streams.values()):
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
        self.send(node, self._greeting.seal(Kind.OPEN, name, (self._node, node)))
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                nonce = await future
        except TimeoutError:
            self._ended[name] = time.monotonic()
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
        ours = Seal(self._key, name, nonce, (self._node, peer), opener)
        theirs = Seal(self._key, name, nonce, (peer, self._node), not opener)
        stream = Stream(peer, name, ours, theirs, self.send, self._over)
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
        if kind in (Kind.OPEN, Kind.ACCEPT, Kind.UNKNOWN):
            self._greeted(peer, kind, name, self._greeting.open(frame, (peer, self._node)))
            return
        stream = self._streams.get(name)
        if stream is None or stream.peer != peer:
            self._stray(peer, name)
            return
        stream.take(frame)
        if self._unconfirmed.pop(name, None) is not None and name in self._streams:
            bridge = asyncio.create_task(self._bridge(stream))
            self._bridges.add(bridge)
            bridge.add_done_callback(self._bridges.discard)

    def _greeted(self, peer: int, kind: Kind, name: bytes, payload: bytes) -> None:
        if kind is Kind.OPEN:
            self._accept(peer, name)
        elif kind is Kind.ACCEPT:
            node, future = self._accepted.get(name, (None, None))
            if future is None or future.done() or node != peer or len(payload) != NONCE:
                self._stray(peer, name, answer=False)
            else:
                future.set_result(payload)
        elif name in self._streams:
            self._streams[name].broken(f"the agent of node {peer} began anew")

    def _accept(self, peer: int, name: bytes) -> None:
        if name in self._streams or name in self._ended:
            raise Rejected("it was here before")
        now = time.monotonic()
        for late in [one for one, since in self._unconfirmed.items() if now - since > OPEN_SECONDS]:
            self._streams[late].broken("")
        if len(self._unconfirmed) >= MOST_UNCONFIRMED:
            return
        nonce = new_nonce()
        self._unconfirmed[name] = now
        self._new(peer, name, nonce, opener=False)
        self.send(peer, self._greeting.seal(Kind.ACCEPT, name, (self._node, peer), nonce))

    def _stray(self, peer: int, name: bytes, answer: bool = True) -> None:
        """A frame of a stream that is not: late, or forged. Raises Rejected."""
        now = time.monotonic()
        if now - self._ended.get(name, -GRACE_SECONDS) < GRACE_SECONDS:
            return
        if now - self._since > GRACE_SECONDS:
            raise Rejected("there is no such stream")
        if answer:  # this agent or the store began anew: the other side does not know yet
            self.send(peer, self._greeting.seal(Kind.UNKNOWN, name, (self._node, peer)))

    async def _bridge(self, stream: Stream) -> None:
        """Another node's viewer, connected to our own socket."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
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
        self._ended[stream.name] = time.monotonic()
        while len(self._ended) > MOST_REMEMBERED:
            del self._ended[next(iter(self._ended))]
        self._name_peers()
