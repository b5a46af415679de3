"""The runner's unix socket for commands, and its report file; with the sockets and files that hooks share with it.

Commands come in (one JSON object a line), pokes go out. Threads only set state; the launcher's own loop acts. Reports
are one JSON line an event, appended to runner.jsonl: the file, not a connection, is the truth, so that an agent that
was away misses nothing.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import select
import socket
import struct
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from . import own_folders

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No room on the file system, in the quota, or under the limit of a file's size."""


def private(path: str, flags: int) -> int:
    """For `open(..., opener=private)`: what it creates is this user's alone, whatever the umask."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


MOST_LINE = 1 << 20
"""Bytes of one request to a runner; no agent sends a longer line."""
MOST_PEERS = 32
"""Connections at a time: an agent's long one, its short ones, a relay's."""

Answer = Callable[[dict[str, Any], socket.socket], "dict[str, Any] | None"]
Taker = Callable[[socket.socket, BinaryIO], None]
"""Has a connection to itself, from the request with its op until it returns."""

RESTORE_S = 3.0
"""Between two checks whether a socket is still where it was bound."""


def is_loopback(address: object) -> bool:
    """Whether this is the loopback, written as a number."""
    return isinstance(address, str) and (address == "::1" or address.startswith("127."))


def same_user(connection: socket.socket) -> bool:
    """Whether the peer of a unix socket runs under our uid, or is root (SO_PEERCRED)."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", raw)[1] in (os.geteuid(), 0)


def listen(path: str) -> socket.socket:
    """Bind a unix socket that only this user may use, replacing a stale one; elsewhere if its folder cannot be had.

    Raises OSError.
    """
    path = own_folders.place_of(path)
    if not os.path.isdir(os.path.dirname(path)):
        own_folders.make(os.path.dirname(path))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.fchmod(server.fileno(), 0o600)  # what bind creates has this mode: umask is the whole process's
    try:
        server.bind(path)
        server.listen(socket.SOMAXCONN)
    except OSError:
        server.close()
        raise
    return server


def listen_again(path: str) -> socket.socket | None:
    """Bind a removed socket again, with its folder if need be; None where it is there, or cannot be.

    A folder that another user could have planted is left alone.
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
    """A connection to a socket of this run, wherever it is bound by now. Raises OSError."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(seconds)
    try:
        peer.connect(own_folders.place_of(path))
    except OSError:
        peer.close()
        raise
    return peer


def exchange(runner: socket.socket, lines: BinaryIO, request: dict[str, Any]) -> dict[str, Any]:
    """A runner's answer; between its lines may be empty ones, which are pokes. Raises OSError, ValueError."""
    runner.sendall(json.dumps(request).encode() + b"\n")
    answer = json.loads(next((line for line in lines if line.strip()), b"{}"))
    return answer if isinstance(answer, dict) else {}


def ask(path: str, request: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The answer of the runner at this socket, on a connection of its own. Raises OSError, ValueError."""
    with dial(path, seconds) as runner, runner.makefile("rb") as lines:
        return exchange(runner, lines, request)


class Peers:
    """The connections of one socket: at most so many that no client can fill a process with threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._asked: dict[socket.socket, float] = {}
        """Connection → monotonic time of its newest request; 0.0 before the first."""

    def join(self, peer: socket.socket) -> None:
        """One more: of too many, the longest silent one is closed, before all others one without a request."""
        with self._lock:
            if len(self._asked) >= self._most:
                oldest = min(self._asked, key=lambda held: self._asked[held])  # of equals the first
                del self._asked[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its own thread closes it
            self._asked[peer] = 0.0

    def asked(self, peer: socket.socket) -> None:
        """A request came from it."""
        with self._lock:
            if peer in self._asked:
                self._asked[peer] = time.monotonic()

    def leave(self, peer: socket.socket) -> None:
        with self._lock:
            self._asked.pop(peer, None)


def requests(lines: BinaryIO, most: int) -> Iterator[dict[str, Any]]:
    """The requests of a connection, one a line. Raises ValueError for any other line, and beyond `most` bytes."""
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
    server: socket.socket, serve: Callable[[socket.socket], None], name: str, peers: Peers
) -> None:
    """Give each connection of this user a thread of its own, until the server is closed.

    A socket whose path was removed is bound again: what `server` stands for is replaced in place.
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
        except RuntimeError:  # no more threads are allowed here
            peers.leave(peer)
            peer.close()


class Control:
    """The runner's socket: a thread a connection calls `answer(request, peer)`, and `left(peer)` at its end."""

    def __init__(self, path: str, answer: Answer, left: Callable[[socket.socket], None]) -> None:
        self._answer = answer
        self._left = left
        self._peers: set[socket.socket] = set()
        self._bounded = Peers(MOST_PEERS)
        self._lock = threading.Lock()
        self._server = listen(path)
        self.takers: dict[str, Taker] = {}
        """By op."""

    def start(self) -> None:
        """Accept from now on; connections that came earlier have waited."""
        threading.Thread(
            target=accept_forever,
            args=(self._server, self._serve, "distui-peer", self._bounded),
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
                for request in requests(lines, MOST_LINE):
                    self._bounded.asked(peer)
                    op = request.get("op")
                    if isinstance(op, str) and op in self.takers:
                        return self._hand_over(op, peer, lines)
                    reply = self._answer(request, peer)
                    if reply is not None:
                        peer.sendall(json.dumps(dict(reply, id=request.get("id"))).encode() + b"\n")
        except (OSError, ValueError):
            pass  # gone, or no agent
        finally:
            with self._lock:
                self._peers.discard(peer)
            self._bounded.leave(peer)
            self._left(peer)

    def _hand_over(self, op: str, peer: socket.socket, lines: BinaryIO) -> None:
        with self._lock:
            self._peers.discard(peer)
        self.takers[op](peer, lines)


RESERVE_BYTES = 1 << 16
"""Given back to a full file system, so that it has room for the report of the run's end."""


def masked(text: str) -> str:
    """A text without secrets: what torchrun refuses quotes arguments. By distui's own rules, loaded by their folder."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    package = types.ModuleType("distui_presets")
    package.__path__ = [os.path.join(root, "presets")]
    sys.modules.setdefault(package.__name__, package)
    return str(importlib.import_module("distui_presets.secrets").mask_text(text))


class Reporter:
    """Appends events (see runners/model.py, type Stamped), and calls `poke` after each.

    `name` distinguishes reporters that write to one file at the same time.
    """

    def __init__(self, path: str, poke: Callable[[], None], name: str = "") -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._late: list[bytes] = []
        self._poke = poke
        self._reserve = path + ".reserve" + name
        with contextlib.suppress(OSError), open(self._reserve, "wb", opener=private) as file:
            file.write(bytes(RESERVE_BYTES))

    def __call__(self, event_type: str, /, **fields: Any) -> None:
        """Write one event; never fails, never waits."""
        if fields.get("text"):
            fields["text"] = masked(str(fields["text"]))
        event = dict(fields, type=event_type)
        line = json.dumps({"time": time.time(), "event": event}).encode() + b"\n"
        with self._lock:
            self._late.append(line)
            self._write()
        self._poke()

    def close(self, seconds: float = 5.0) -> bool:
        """Wait for room for what could not be written yet; whether all of it is."""
        deadline = time.monotonic() + seconds
        while True:
            with self._lock:
                self._write()
                if not self._late or time.monotonic() > deadline:
                    break
            time.sleep(0.1)
        with contextlib.suppress(OSError):
            os.unlink(self._reserve)
        self._poke()
        return not self._late

    def _write(self) -> None:
        """A full disk keeps lines in memory until there is room; order is kept."""
        while self._late:
            try:
                done = os.write(self._fd, self._late[0])
            except OSError as error:
                if error.errno in FULL and self._make_room():
                    continue
                return
            if done < len(self._late[0]):
                self._late[0] = self._late[0][done:]
                continue
            self._late.pop(0)

    def _make_room(self) -> bool:
        """Give the reserve back; False when it is gone already."""
        try:
            os.unlink(self._reserve)
        except OSError:
            return False
        return True


OWN_THREADS = "distui-"
"""How the names of the runner's own threads begin."""


def report_faults(report: Reporter, node: int) -> None:
    """Have a finding about each thread of the runner's own that raises; its traceback is printed as before."""
    chained = threading.excepthook

    def raised(ended: threading.ExceptHookArgs) -> None:
        chained(ended)
        name = "" if ended.thread is None else ended.thread.name
        if not name.startswith(OWN_THREADS):
            return
        part = "runner-" + name[len(OWN_THREADS) :].rstrip("-0123456789")
        error = "%s: %s" % (ended.exc_type.__name__, ended.exc_value)
        finding = {
            "id": "part-failed:" + part,
            "severity": "warning",
            "text": masked("internal error in %s (it is not tried again): %s" % (part, error)),
            "node": node,
            "remedy": "the traceback is in runner.log; please report it",
        }
        report("FindingRaised", finding=finding)

    threading.excepthook = raised
