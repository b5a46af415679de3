"""The runner's unix socket for commands, and the helpers for sockets that hooks use, too.

A connection carries commands in (one JSON object per line) and pokes out. The connection threads only set state; the
launcher's loop acts.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from . import own_folders

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors for no room: on the file system, in the quota, or under the file size limit."""


def private(path: str, flags: int) -> int:
    """Open a file; if it is new, with mode 0600. For `open(..., opener=private)`."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


MOST_LINE = 1 << 20
"""Longest request line in bytes; agents send shorter ones."""
MOST_PEERS = 32
"""Connections at a time: an agent's long-lived one, its short ones, a relay's."""

Answer = Callable[[dict[str, Any], socket.socket], "dict[str, Any] | None"]
Taker = Callable[[socket.socket, BinaryIO], None]
"""Takes over the connection of a request and returns when it is done with it."""

RESTORE_S = 3.0
"""Check whether the socket's path still exists after this many seconds without a connection."""


def is_loopback(address: object) -> bool:
    """Return whether this is a numeric loopback address."""
    return isinstance(address, str) and (address == "::1" or address.startswith("127."))


def same_user(connection: socket.socket) -> bool:
    """Return whether the peer of a unix socket has this process's effective uid or is root (SO_PEERCRED)."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", raw)[1] in (os.geteuid(), 0)


def listen(path: str) -> socket.socket:
    """Bind a unix socket with mode 0600 and replace a stale one. Raises OSError.

    If its folder cannot be used, the socket is in another folder: see own_folders.place_of.
    """
    path = own_folders.place_of(path)
    if not os.path.isdir(os.path.dirname(path)):
        own_folders.make(os.path.dirname(path))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.fchmod(server.fileno(), 0o600)  # bind copies this mode; the umask would change for every thread
    try:
        server.bind(path)
        server.listen(socket.SOMAXCONN)
    except OSError:
        server.close()
        raise
    return server


def listen_again(path: str) -> socket.socket | None:
    """Bind a deleted socket again and make its folder; None if the path exists or the bind fails.

    A folder that another user may have created is not used.
    """
    if os.path.lexists(path):
        return None
    try:
        if own_folders.make(os.path.dirname(own_folders.place_of(path))):
            return None
        return listen(path)
    except OSError:
        return None


def dial(path: str, seconds: float) -> socket.socket:
    """Connect to a socket of this run, also if it was bound again in another folder. Raises OSError."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(seconds)
    try:
        peer.connect(own_folders.place_of(path))
    except OSError:
        peer.close()
        raise
    return peer


def exchange(runner: socket.socket, lines: BinaryIO, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to a runner and return its answer. Skips empty lines (pokes). Raises OSError, ValueError."""
    runner.sendall(json.dumps(request).encode() + b"\n")
    answer = json.loads(next((line for line in lines if line.strip()), b"{}"))
    return answer if isinstance(answer, dict) else {}


def ask(path: str, request: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Send a request to the runner at this socket over a new connection. Raises OSError, ValueError."""
    with dial(path, seconds) as runner, runner.makefile("rb") as lines:
        return exchange(runner, lines, request)


def line_of(message: dict[str, Any]) -> bytes:
    """Return a message as one line."""
    return json.dumps(message).encode() + b"\n"


class Connections:
    """The connections of one socket, bounded so that clients cannot fill the process with threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._asked: dict[socket.socket, float] = {}
        """Connection → monotonic time of its newest request; 0.0 before the first."""
        self.sending: dict[socket.socket, threading.Lock] = {}
        """Open connection → lock of a thread that sends a line."""

    def join(self, peer: socket.socket) -> None:
        """Add a connection. If there are too many, close the one with the oldest request; one without any goes first."""
        with self._lock:
            if len(self._asked) >= self._most:
                oldest = min(self._asked, key=lambda held: self._asked[held])  # the first among equals
                del self._asked[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its own thread closes it
            self._asked[peer] = 0.0

    def open(self, peer: socket.socket, greeting: dict[str, Any] | None) -> None:
        """Send the greeting, before all other messages to this connection."""
        sending = threading.Lock()
        with sending:
            self.sending[peer] = sending
            if greeting is not None:
                peer.sendall(line_of(greeting))

    def asked(self, peer: socket.socket) -> None:
        """Record the time of a request from this connection."""
        with self._lock:
            if peer in self._asked:
                self._asked[peer] = time.monotonic()

    def send(self, peer: socket.socket, message: dict[str, Any]) -> None:
        """Send a message to an open connection. Raises OSError."""
        with self.sending[peer]:
            peer.sendall(line_of(message))

    def leave(self, peer: socket.socket) -> None:
        with self._lock:
            self._asked.pop(peer, None)
            self.sending.pop(peer, None)


def requests(lines: BinaryIO, most: int) -> Iterator[dict[str, Any]]:
    """Yield the requests of a connection, one per line. Raises ValueError for any other line and beyond `most` bytes."""
    while line := lines.readline(most + 1):
        if len(line) > most:
            raise ValueError("a line of more than %d bytes" % most)
        try:
            request = json.loads(line)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(request, dict):
            raise ValueError("not an object")
        yield request


def accept_forever(
    server: socket.socket, serve: Callable[[socket.socket], None], name: str, peers: Connections
) -> None:
    """Start a thread per connection of this user until the server is closed.

    If the socket's path was deleted, bind it again and replace the descriptor of `server` in place.
    """
    waiting = select.poll()
    waiting.register(server, select.POLLIN)
    while server.fileno() >= 0:
        try:
            if not waiting.poll(RESTORE_S * 1000):
                fresh = listen_again(server.getsockname())
                if fresh is not None:
                    os.dup2(fresh.fileno(), server.fileno(), inheritable=False)
                    fresh.close()
                continue
            peer, _ = server.accept()
        except OSError:
            time.sleep(0.5)  # closed, or no descriptor is free at the moment
            continue
        if not same_user(peer):
            peer.close()
            continue
        peers.join(peer)
        try:
            threading.Thread(target=serve, args=(peer,), name=name, daemon=True).start()
        except RuntimeError:  # thread limit
            peers.leave(peer)
            peer.close()


class NotReady(RuntimeError):
    """The requested data is not available now. The text is a sentence for the user."""


class Control:
    """A socket for commands: one thread per connection calls `answer(request, peer)`, and `left(peer)` at its end."""

    def __init__(
        self,
        path: str,
        answer: Answer,
        left: Callable[[socket.socket], None],
        *,
        greeting: Callable[[], "dict[str, Any] | None"] = lambda: None,
        most_line: int = MOST_LINE,
        most_peers: int = MOST_PEERS,
    ) -> None:
        """`greeting`: makes the first line to each connection."""
        self._answer, self._left, self._greeting = answer, left, greeting
        self._most_line = most_line
        self._peers = Connections(most_peers)
        self._server = listen(path)
        self.takers: dict[str, Taker] = {}
        """Op → taker."""

    def start(self, name: str = "distui-control") -> threading.Thread:
        """Start to accept connections, including those that the kernel queued since the bind. Return the thread."""
        arguments = (self._server, self._serve, "distui-peer", self._peers)
        thread = threading.Thread(target=accept_forever, args=arguments, name=name, daemon=True)
        thread.start()
        return thread

    def poke(self) -> None:
        """Send an empty line to every connection without blocking; a full one misses it."""
        for peer in list(self._peers.sending):
            with contextlib.suppress(OSError):
                peer.send(b"\n", socket.MSG_DONTWAIT)

    def push(self, message: dict[str, Any]) -> None:
        """Send a message to every connection."""
        for peer, sending in list(self._peers.sending.items()):
            with sending, contextlib.suppress(OSError):
                peer.sendall(line_of(message))

    def close_in_fork(self) -> None:
        """Close the sockets in a fork of this process, which has no thread that answers."""
        for sock in (self._server, *self._peers.sending):
            with contextlib.suppress(OSError):
                os.close(sock.detach())

    def _serve(self, peer: socket.socket) -> None:
        try:
            with peer, peer.makefile("rb") as lines:
                self._peers.open(peer, self._greeting())
                for request in requests(lines, self._most_line):
                    self._peers.asked(peer)
                    op = request.get("op")
                    if isinstance(op, str) and op in self.takers:
                        self._peers.leave(peer)
                        return self.takers[op](peer, lines)
                    reply = self._answer(request, peer)
                    if reply is not None:
                        self._peers.send(peer, dict(reply, id=request.get("id")))
        except (OSError, ValueError):
            pass  # the peer closed the connection, or is no agent
        finally:
            self._peers.leave(peer)
            self._left(peer)
