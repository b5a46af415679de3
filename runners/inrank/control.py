"""The runner's unix socket: commands in (one JSON object a line), pokes out.

A thread accepts and only sets state; the launcher's own loop acts.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

Answer = Callable[[dict[str, Any], socket.socket], "dict[str, Any] | None"]
Taker = Callable[[socket.socket, BinaryIO], None]
"""Has a connection to itself from the request on that named it, until it returns."""


def same_user(connection: socket.socket) -> bool:
    """Whether the peer of a unix socket runs under our uid, or is root (SO_PEERCRED)."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", raw)[1] in (os.geteuid(), 0)


def listen(path: str) -> socket.socket:
    """Bind a unix socket that only this user may use, replacing a stale one. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)
    try:
        server.bind(path)
    finally:
        os.umask(old)
    server.listen(8)
    return server


def accept_forever(server: socket.socket, serve: Callable[[socket.socket], None], name: str) -> None:
    """Give each connection of this user a thread of its own, until the server is closed."""
    while server.fileno() >= 0:
        try:
            peer, _ = server.accept()
        except OSError:
            time.sleep(0.5)  # closed, or no descriptor is free at the moment
            continue
        if same_user(peer):
            threading.Thread(target=serve, args=(peer,), name=name, daemon=True).start()
        else:
            peer.close()


def request_in(line: bytes) -> dict[str, Any]:
    """The request of one line. Raises ValueError."""
    try:
        request = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(request, dict):
        raise ValueError("not an object")
    return request


class Control:
    """Serves `answer(request, peer)` and says when a peer has left."""

    def __init__(self, path: str, answer: Answer, left: Callable[[socket.socket], None]) -> None:
        self._answer = answer
        self._left = left
        self._peers: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._server = listen(path)
        self.takers: dict[str, Taker] = {}
        """By op."""

    def start(self) -> None:
        """Accept from now on; connections that came earlier have waited."""
        threading.Thread(
            target=accept_forever,
            args=(self._server, self._serve, "distui-peer"),
            name="distui-control",
            daemon=True,
        ).start()

    def poke(self) -> None:
        """Send an empty line to every connection; one that does not read misses it."""
        with self._lock:
            for peer in self._peers:
                with contextlib.suppress(OSError):
                    peer.send(b"\n", socket.MSG_DONTWAIT)

    def _serve(self, peer: socket.socket) -> None:
        with self._lock:
            self._peers.add(peer)
        try:
            with peer, peer.makefile("rb") as lines:
                for line in lines:
                    request = request_in(line)
                    if request.get("op") in self.takers:
                        return self._hand_over(request["op"], peer, lines)
                    reply = self._answer(request, peer)
                    if reply is not None:
                        peer.sendall(json.dumps(dict(reply, id=request.get("id"))).encode() + b"\n")
        except (OSError, ValueError):
            pass  # gone, or no agent
        finally:
            with self._lock:
                self._peers.discard(peer)
            self._left(peer)

    def _hand_over(self, op: str, peer: socket.socket, lines: BinaryIO) -> None:
        with self._lock:
            self._peers.discard(peer)
        self.takers[op](peer, lines)
