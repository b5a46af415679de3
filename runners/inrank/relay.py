"""The runner's part of the relay: a thread transfers opaque frames between the agent and other nodes' mailboxes.

The mailboxes are keys in the rendezvous store below `distui.relay/<run>/`. `<src>/<dst>/<n>` is a frame, deleted after
the read. `<src>/<dst>/written` and `<src>/<dst>/read` count frames, so that either end may restart. `bell/<dst>` counts
requests to an idle node to read its mailboxes. The thread never waits for a key: it polls. Every runner of the run can
write to this store, so the receiving agents verify the sender of a frame.

The agent sends op "relay" to the runner's socket and gets one JSON line. Then both sides send packets: length of body
(4 bytes), node (2 bytes), body. To and from another node the body is a frame, which only agents understand. With node
CONTROL the body is a JSON object: {"peers": [...]} names the nodes with open streams, which are polled often, and
{"store": "up"|"lost", "text": ...} reports the state of the store to the agent.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, BinaryIO

from .control import Control
from .rendezvous import CoordinatorAddress
from .secure_channel import Channel, dial

WINDOW = 8
"""Most unread frames per direction."""
MAX_FRAME = 64 << 10
"""Largest frame in bytes."""
BATCH = 64
"""Most frames in one request, so that they fit into one message."""
STORE_SECONDS = 5.0


class StoreGone(OSError):
    """The coordinator has closed the connection."""


class Mailboxes:
    """The outgoing and incoming mailboxes of one node. Only the store holds their content.

    They use a separate connection to the store, because a request on the launcher's connection may block.
    """

    def __init__(self, line: Channel, run: str, node: int, nnodes: int) -> None:
        self._line, self._root = line, "distui.relay/%s" % run
        self._node, self._nnodes = node, nnodes
        self._bell = 0

    def rung(self) -> bool:
        """Return whether the bell of this node was rung since the last call."""
        key = "%s/bell/%d" % (self._root, self._node)
        before, self._bell = self._bell, number(self._values([key])[key])
        return self._bell != before

    def ring(self, peer: int) -> None:
        """Request an idle node to read its mailboxes."""
        self._ask(b"add", b"%s/bell/%d" % (self._root.encode(), peer), b"1")

    def everybody(self) -> Iterable[int]:
        """Return all other nodes."""
        return [peer for peer in range(self._nnodes) if peer != self._node]

    def put(self, peer: int, waiting: deque[bytes]) -> int:
        """Write and remove as many waiting frames as the window has room for, and return their number."""
        box = "%s/%d/%d" % (self._root, self._node, peer)
        ((written, read),) = self._counters([box])
        room = WINDOW - max(0, written - read)
        frames = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        if frames:
            stems = [b"%s/%d" % (box.encode(), written + position) for position in range(len(frames))]
            pairs = [*zip(stems, frames), (box.encode() + b"/written", b"%d" % (written + len(frames)))]
            self._ask(b"set", *(part for pair in pairs for part in pair))
        return len(frames)

    def take(self, peers: Iterable[int]) -> list[tuple[int, bytes]]:
        """Read the unread frames of these nodes in order. A missing or too large frame is b""."""
        unread: list[tuple[int, str]] = []
        done: list[bytes] = []
        boxes = {"%s/%d/%d" % (self._root, peer, self._node): peer for peer in peers}
        for (box, peer), (written, read) in zip(boxes.items(), self._counters(list(boxes))):
            if written != read:
                first = max(read, written - WINDOW)
                unread += [(peer, "%s/%d" % (box, position)) for position in range(first, written)]
                done += [box.encode() + b"/read", b"%d" % written]
        if not done:
            return []
        frames = self._values([key for _, key in unread])
        self._ask(b"delete", *map(str.encode, frames))
        self._ask(b"set", *done)
        return [(peer, _valid(frames[key])) for peer, key in unread]

    def _counters(self, boxes: list[str]) -> list[tuple[int, int]]:
        """Return the numbers of frames that were ever written to and read from each box."""
        values = self._values([box + word for box in boxes for word in ("/written", "/read")])
        return [(number(values[box + "/written"]), number(values[box + "/read"])) for box in boxes]

    def _values(self, keys: list[str]) -> dict[str, bytes]:
        """Return the value of each key without waiting, or b"" for a key without a value."""
        values: dict[str, bytes] = {}
        for first in range(0, len(keys), BATCH):
            some = keys[first : first + BATCH]
            for key, value in zip(some, self._ask(b"peek", *(key.encode() for key in some))):
                values[key] = value[1:]
        return values

    def _ask(self, *parts: bytes) -> list[bytes]:
        """Send a request and return the answer after the "ok". Raises OSError."""
        if not self._line.idle():
            raise StoreGone
        return self._line.ask(parts, STORE_SECONDS)[1:]


def _valid(frame: bytes) -> bytes:
    return frame if len(frame) <= MAX_FRAME else b""


def number(value: bytes) -> int:
    """Parse a counter of the store; 0 for an empty or invalid value."""
    with contextlib.suppress(ValueError):
        return max(0, int(value[:20] or b"0"))
    return 0


CONTROL = 0xFFFF
HEAD = struct.Struct(">IH")
MOST_WAITING = 256
"""Most frames per node that wait for room in its mailbox; agents send fewer because of their streams' windows."""
IDLE_S = 1.0
"""Seconds between two rounds without an open stream."""
QUIET_S = 0.05
"""Least seconds between two rounds with an open stream."""
QUIET_PER_NODE_S = 0.002
"""Seconds between two rounds with an open stream, per node, to limit the load of many nodes."""
HOT_S = 0.01
"""Least seconds between two rounds while more frames are likely soon."""
HOT_FOR_S = 0.3
"""After a frame that is an answer, or will get one, more frames are likely for this many seconds."""
ASKS = 80
"""Longest acknowledgement in bytes; longer frames are requests or answers."""
BULK = 8 << 10
FEW = 8
"""Above this many nodes with open streams, frames with samples (below BULK bytes) do not cause faster rounds."""
AGAIN_S = 1.0
"""Seconds before the next connection to a lost store."""
LINGER_SECONDS = 8.0
SEND_SECONDS = 5
"""Timeout of a send to the agent in seconds; then the relay closes the connection."""


class Relay:
    """The relay's thread. `serve` takes over an agent's connection; a newer connection replaces it."""

    def __init__(self, host: str, port: int, key: bytes, run: str, node: int, nnodes: int) -> None:
        self._place, self._about = (host, port, key), (run, node, nnodes)
        self._quiet_s = max(QUIET_S, QUIET_PER_NODE_S * nnodes)
        self._hot_s = max(HOT_S, self._quiet_s / 5)
        self._agent: socket.socket | None = None
        self._announced: socket.socket | None = None
        """The agent that was sent "up" for the current connection to the store."""
        self._peers: set[int] = set()
        self._rung: set[int] = set()
        """Nodes whose bell was rung since their stream was opened."""
        self._heard_of: set[int] = set()
        """Nodes that ever wrote to this node, and may write again."""
        self._out: dict[int, deque[bytes]] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._line: Channel | None = None
        self._boxes: Mailboxes | None = None
        self._heard = 0.0
        self._checked_at: float | None = None
        """Monotonic time of the last read of the bell; None: not yet for this agent."""
        self._thread = threading.Thread(target=self._run, name="distui-relay", daemon=True)
        self._thread.start()

    # --- the agent's side, in the thread of its connection ---------------------------------------------------

    def serve(self, peer: socket.socket, lines: BinaryIO) -> None:
        """Take frames from an agent until its connection ends."""
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        peer.sendall(json.dumps({"id": 0, "ok": True, "node": self._about[1]}).encode() + b"\n")
        with self._lock:
            before, self._agent = self._agent, peer
            self._peers, self._out, self._rung, self._checked_at = set(), {}, set(), None
        if before is not None:
            with contextlib.suppress(OSError):
                before.shutdown(socket.SHUT_RDWR)
        self._wake.set()
        try:
            while len(head := lines.read(HEAD.size)) == HEAD.size:
                size, node = HEAD.unpack(head)
                if size > MAX_FRAME:
                    return
                self._heed(node, lines.read(size))
        finally:
            with self._lock:
                if self._agent is peer:
                    self._agent, self._peers, self._out = None, set(), {}

    def _heed(self, node: int, body: bytes) -> None:
        with self._lock:
            if node == CONTROL:
                self._peers = set(json.loads(body).get("peers", ()))
                self._rung &= self._peers
            else:
                waiting = self._out.setdefault(node, deque())
                if len(waiting) < MOST_WAITING:
                    waiting.append(body)
        self._wake.set()

    def close(self) -> None:
        """Stop the thread."""
        self._closed = True
        self._wake.set()
        self._thread.join(2 * AGAIN_S)

    def leave(self) -> None:
        """Close after the end of the run, once the agent has informed remote viewers and closed its streams."""
        deadline = time.monotonic() + LINGER_SECONDS
        while self._peers and self._boxes is not None and time.monotonic() < deadline:
            time.sleep(0.05)
        self.close()

    # --- the store's side, in the thread ---------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            pause = IDLE_S
            if self._agent is not None:
                try:
                    pause = self._round()
                except StoreGone:
                    pause = self._lost("the node that holds the rendezvous has ended it")
                except (OSError, ValueError) as error:
                    first = (str(error).splitlines() or [""])[0]
                    pause = self._lost("%s: %s" % (type(error).__name__, first[:200]))
            self._wake.wait(pause)
            self._wake.clear()
        self._hang_up()

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line = self._boxes = None

    def _lost(self, text: str) -> float:
        had, self._announced = self._boxes is not None, None
        self._hang_up()
        with self._lock:
            self._out.clear()
            self._rung.clear()
        if had:
            self._forward(CONTROL, json.dumps({"store": "lost", "text": text}).encode())
        return AGAIN_S

    def _round(self) -> float:
        """Write waiting frames, read new ones, and return the seconds until the next round."""
        if self._boxes is None:
            self._line = dial(*self._place)
            self._boxes = Mailboxes(self._line, *self._about)
        if self._announced is not self._agent:
            self._announced = self._agent
            self._forward(CONTROL, b'{"store": "up"}')
        wrote = self._write(self._boxes)
        read = self._read(self._boxes)
        now = time.monotonic()
        if self._hot(wrote, read):
            self._heard = now
        if not self._peers:
            return IDLE_S
        return self._hot_s if now - self._heard < HOT_FOR_S else self._quiet_s

    def _hot(self, wrote: int, read: int) -> bool:
        """Return whether more frames are likely soon. `wrote` and `read`: bytes of the largest frame."""
        if len(self._peers) > FEW:
            return wrote > ASKS or read >= BULK
        return read > ASKS or (wrote > ASKS and self._about[1] == 0)

    def _write(self, boxes: Mailboxes) -> int:
        """Write waiting frames and return the size of the largest one in bytes."""
        with self._lock:
            waiting = [(peer, frames) for peer, frames in self._out.items() if frames]
        wrote = 0
        for peer, frames in waiting:
            largest = max(map(len, list(frames)))
            put = boxes.put(peer, frames)
            wrote = max(wrote, largest if put else 0)
            if put and peer not in self._rung:
                boxes.ring(peer)
                self._rung.add(peer)
        return wrote

    def _read(self, boxes: Mailboxes) -> int:
        """Read new frames, forward them, and return the size of the largest one in bytes."""
        now = time.monotonic()
        peers = set(self._peers)
        if self._checked_at is None or now - self._checked_at >= IDLE_S:
            rung = boxes.rung() or self._checked_at is None
            peers |= set(boxes.everybody()) if rung else self._heard_of
            self._checked_at = now
        frames = boxes.take(sorted(peers)) if peers else []
        for peer, frame in frames:
            self._heard_of.add(peer)
            self._forward(peer, frame)
        return max((len(frame) for _, frame in frames), default=0)

    def _forward(self, node: int, body: bytes) -> None:
        agent = self._agent
        if agent is None:
            return
        try:
            agent.sendall(HEAD.pack(len(body), node) + body)
        except OSError:
            with contextlib.suppress(OSError):
                agent.shutdown(socket.SHUT_RDWR)


def start(place: CoordinatorAddress, plan: dict[str, Any], control: Control) -> Relay | None:
    """Start the relay of a runner; None if the run has only one node."""
    nnodes = int(plan.get("nnodes") or 1)
    if nnodes < 2:
        return None
    relay = Relay(place.host, place.port, place.key, place.run_id, int(plan.get("node") or 0), nnodes)
    control.takers["relay"] = relay.serve
    atexit.register(relay.leave)
    return relay
