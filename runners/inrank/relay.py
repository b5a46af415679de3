"""The runner's part in the relay: a thread carries opaque frames between the agent and other nodes' mailboxes.

The agent asks with op "relay" on the runner's socket and is answered with one JSON line; from then on both sides send
packets: length of the body (4 bytes), node (2 bytes), body. To and from another node the body is a frame, which only
agents understand; with node CONTROL it is a JSON object: {"peers": [...]} names the nodes with open streams, which are
looked at often; {"store": "up"|"lost", "text": ...} tells the agent how the store is.
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
from typing import Any, BinaryIO

from .control import Control
from .mailbox import MAX_FRAME, STORE_ERRORS, Line, Mailboxes, StoreGone

CONTROL = 0xFFFF
HEAD = struct.Struct(">IH")
MOST_WAITING = 256
"""Frames for one node that wait for room in its mailbox; an agent that heeds its streams' windows sends fewer."""
IDLE_S = 1.0
QUIET_S = 0.05
"""Between two looks while a stream is open; with many nodes a little more, so that their looks together stay cheap."""
QUIET_PER_NODE_S = 0.002
HOT_S = 0.01
HOT_FOR_S = 0.3
"""After something that has, or is, an answer."""
ASKS = 80
"""Bytes; a shorter frame only acknowledges."""
BULK = 8 << 10
FEW = 8
"""Nodes; whoever looks at more has samples coming all the time, which are no reason to look more often."""
AGAIN_S = 1.0
"""Before the store is tried again."""
LINGER_SECONDS = 8.0
SEND_SECONDS = 5
"""An agent that does not read for so long has lost its connection."""


class Relay:
    """Starts a thread; `serve` takes an agent's connection, the newest wins."""

    def __init__(self, host: str, port: int, run: str, node: int, nnodes: int) -> None:
        self._place, self._about = (host, port), (run, node, nnodes)
        self._quiet_s = max(QUIET_S, QUIET_PER_NODE_S * nnodes)
        self._hot_s = max(HOT_S, self._quiet_s / 5)
        self._agent: socket.socket | None = None
        self._announced: socket.socket | None = None
        """Which agent was told that the store is up."""
        self._peers: set[int] = set()
        self._rung: set[int] = set()
        """Nodes whose bell was rung since a stream to them is open."""
        self._heard_of: set[int] = set()
        """Nodes that ever wrote to this one: they may do so again at any time."""
        self._out: dict[int, deque[bytes]] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._line: Line | None = None
        self._boxes: Mailboxes | None = None
        self._heard = 0.0
        self._looked: float | None = None
        """When the bell was looked at; None: never for this agent."""
        self._thread = threading.Thread(target=self._run, name="distui-relay", daemon=True)
        self._thread.start()

    # --- the agent's side, in the thread of its connection ---------------------------------------------------

    def serve(self, peer: socket.socket, lines: BinaryIO) -> None:
        """Take frames from an agent until it leaves."""
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        peer.sendall(json.dumps({"id": 0, "ok": True, "node": self._about[1]}).encode() + b"\n")
        with self._lock:
            before, self._agent = self._agent, peer
            self._peers, self._out, self._rung, self._looked = set(), {}, set(), None
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
        """End the thread: it must not be inside torch when the interpreter ends."""
        self._closed = True
        self._wake.set()
        self._thread.join(2 * AGAIN_S)

    def leave(self, _store: object) -> None:
        """The run has ended here: wait until the agent has told those who look through the relay, and hung up."""
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
                except STORE_ERRORS as error:
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
            self._tell(CONTROL, json.dumps({"store": "lost", "text": text}).encode())
        return AGAIN_S

    def _round(self) -> float:
        """Write what waits, read what came; seconds until the next round."""
        if self._boxes is None:
            self._line = Line(*self._place)
            self._boxes = Mailboxes(self._line, *self._about)
        if self._announced is not self._agent:
            self._announced = self._agent
            self._tell(CONTROL, b'{"store": "up"}')
        wrote = self._write(self._boxes)
        read = self._read(self._boxes)
        now = time.monotonic()
        if self._hot(wrote, read):
            self._heard = now
        if not self._peers:
            return IDLE_S
        return self._hot_s if now - self._heard < HOT_FOR_S else self._quiet_s

    def _hot(self, wrote: int, read: int) -> bool:
        """Whether more is to be expected soon. `wrote` and `read`: bytes of the largest frame."""
        if len(self._peers) > FEW:
            return wrote > ASKS or read >= BULK
        return read > ASKS or (wrote > ASKS and self._about[1] == 0)

    def _write(self, boxes: Mailboxes) -> int:
        """The largest frame that was written, in bytes."""
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
        """The largest frame that came, in bytes."""
        now = time.monotonic()
        peers = set(self._peers)
        if self._looked is None or now - self._looked >= IDLE_S:
            rung = boxes.rung() or self._looked is None
            peers |= set(boxes.everybody()) if rung else self._heard_of
            self._looked = now
        found = boxes.take(sorted(peers)) if peers else []
        for peer, frame in found:
            self._heard_of.add(peer)
            self._tell(peer, frame)
        return max((len(frame) for _, frame in found), default=0)

    def _tell(self, node: int, body: bytes) -> None:
        agent = self._agent
        if agent is None:
            return
        try:
            agent.sendall(HEAD.pack(len(body), node) + body)
        except OSError:
            with contextlib.suppress(OSError):
                agent.shutdown(socket.SHUT_RDWR)


def start(params: Any, plan: dict[str, Any], control: Control, store: Any) -> Relay | None:
    """The relay of a runner whose rendezvous has its store; None where there is only this node.

    `store` is whatever must not be collected for the store to live.
    """
    nnodes = int(plan.get("nnodes") or 1)
    if nnodes < 2 or params.backend == "static":
        return None
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    host, port = parse_rendezvous_endpoint(params.endpoint, default_port=29400)
    relay = Relay(host, port, str(params.run_id), int(plan.get("node") or 0), nnodes)
    control.takers["relay"] = relay.serve
    atexit.register(relay.leave, store)
    return relay
