"""An HTTP server on loopback that takes requests, and answers them well, badly, late or never."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from patience import HANG_S


@dataclass
class Got:
    """One request."""

    path: str
    headers: dict[str, str]
    body: str
    raw: bytes = b""
    """The body as it came."""

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Sink:
    """What came, and how the next requests are answered."""

    port: int = 0
    answers: list[str] = field(default_factory=list)
    """For the next requests, oldest first: statuses, "redirect", "hang", "drip", "endless", "garbage", "cut", "held"
    (until `release`), or a whole answer, "HTTP/1.1 200 X\\r\\n…" in Latin-1; then "204"."""
    got: list[Got] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)
    closing: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def wait(self, count: int) -> list[Got]:
        """The requests, once there are so many."""
        with self.news:
            assert self.news.wait_for(lambda: len(self.got) >= count, HANG_S), self.got
            return list(self.got)

    def titles(self) -> list[str]:
        return [got.json()["title"] for got in self.got]

    def serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            request = self._read(connection)
            with self.news:
                kind = self.answers.pop(0) if self.answers else "204"
                self.got.append(request)
                self.news.notify_all()
            self._answer(connection, kind)

    def _read(self, connection: socket.socket) -> Got:
        data = b""
        while b"\r\n\r\n" not in data:
            part = connection.recv(65536)
            if not part:
                raise OSError("gone")
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        while len(body) < int(headers.get("content-length", "0")):
            body += connection.recv(65536)
        return Got(first.split()[1], headers, body.decode("utf-8", "replace"), body)

    def _answer(self, connection: socket.socket, kind: str) -> None:  # noqa: C901
        if kind == "held":
            self.release.wait(60)
            connection.sendall(b"HTTP/1.1 204 X\r\n\r\n")
        elif kind == "hang":
            self.closing.wait(60)
        elif kind == "drip":  # a byte now and then: no single read takes long
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not self.closing.wait(0.2):
                connection.sendall(b"x")
        elif kind == "garbage":
            connection.sendall(b"\x00\x01 nonsense\r\n\r\n")
        elif kind == "cut":
            return
        elif kind == "endless":
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for _ in range(4096):  # 256 MiB
                connection.sendall(b"x" * 65536)
        elif kind.startswith("HTTP/"):
            connection.sendall(kind.encode("latin-1"))
        elif kind == "redirect":
            where = f"http://127.0.0.1:{self.port}/elsewhere"
            connection.sendall(f"HTTP/1.1 302 R\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n".encode())
        else:
            connection.sendall(f"HTTP/1.1 {kind} X\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n".encode())


@contextlib.contextmanager
def sink(bound: socket.socket | None = None) -> Iterator[Sink]:
    """One that serves while the context lasts; `bound`: has an address on which nobody listens yet."""
    listener = bound or socket.create_server(("127.0.0.1", 0))
    listener.listen()
    served = Sink(listener.getsockname()[1])

    def accept() -> None:
        while not served.closing.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=served.serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.closing.set()
        served.release.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)
