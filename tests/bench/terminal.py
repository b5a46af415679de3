"""A real terminal for a program: a pty, what it wrote, and the screen that results."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import queue
import select
import signal
import struct
import termios
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..terminals import RepeatingByteStream, RepeatingScreen  # type: ignore[import-not-found, unused-ignore]
from .place import NotReached

PIECE = 512
"""Bytes that are taken at once over a slow link."""

ASKED, CURSOR = b"\x1b[6n", b"\x1b[1;1R"
PROBE, PROBED = b"\x1b[3b" + ASKED, b"\x1b[2;5R"
"""The cockpit's question whether the terminal knows REP, and the answer of one that does."""


class Terminal:
    """A program in a pty of (rows, columns). Output is read only while something is waited for, or `rest`ed.

    With `rate` no more than that many bytes a second are taken, as over a slow link.
    """

    def __init__(
        self, argv: list[str], env: Mapping[str, str], size: tuple[int, int], rate: int | None = None
    ) -> None:
        self._rate = rate
        self._pieces: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        self._reading, self._closing = threading.Event(), threading.Event()
        self._reading.set()
        self._arrived = 0.0
        self._argv, self._env, self._size = argv, dict(env), size
        self.screen: Any = RepeatingScreen(size[1], size[0])
        self._stream: Any = RepeatingByteStream(self.screen)
        self.screen.write_process_input = self._answer
        self.received = 0
        self.ended = False

    def __enter__(self) -> Terminal:
        self.began = time.monotonic()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvpe(
                self._argv[0],
                self._argv,
                {
                    **self._env,
                    "DISTUI_ORIENTATION": "off",
                    "TERM": "xterm-256color",
                    "COLORTERM": "truecolor",
                },
            )
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", *self._size, 0, 0))
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *what: object) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGTERM)
            deadline = time.monotonic() + 5
            while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                if not self.ended:
                    self._read(0.05)
                if time.monotonic() > deadline:
                    os.kill(self.pid, signal.SIGKILL)
        self._closing.set()
        self._reading.set()
        self._thread.join()
        os.close(self._fd)

    def _answer(self, text: str) -> None:
        """What the emulator answers, but for where the cursor is: see `_take`."""
        if not text.endswith("R"):
            os.write(self._fd, text.encode())

    def _take(self) -> None:
        """Take what comes, at once or at `rate`, and note when; emulating it takes longer, and is done by who waits.

        As a real terminal does, tell where the cursor is when asked: the cockpit learns so that a frame has arrived.
        """
        free, tail, probe = 0.0, b"", b""
        while not self._closing.is_set():
            time.sleep(max(0.0, free - time.monotonic()))
            self._reading.wait()
            if not select.select([self._fd], [], [], 0.2)[0]:
                continue
            try:
                data = os.read(self._fd, PIECE if self._rate else 65536)
            except OSError:
                data = b""  # the last process that had the terminal open has closed it
            now = time.monotonic()
            self._pieces.put((now, data))
            if not data:
                return
            asked = (tail + data).count(ASKED)
            answer = PROBED if PROBE in probe + data else CURSOR
            tail, probe = data[-len(ASKED) + 1 :], data[-len(PROBE) + 1 :]
            if self._rate:
                free = max(now, free) + len(data) / self._rate
                time.sleep(max(0.0, free - now))  # the question arrives with the bytes before it
            with contextlib.suppress(OSError):
                os.write(self._fd, answer * asked)

    def _read(self, seconds: float) -> bool:
        try:
            self._arrived, data = self._pieces.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return False
        if not data:
            self.ended = True
            return False
        self.received += len(data)
        self._stream.feed(data)
        return True

    def stall(self, seconds: float) -> None:
        """Take nothing for some time."""
        self._reading.clear()
        time.sleep(seconds)
        self._reading.set()

    def text(self) -> str:
        """The screen now."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def until(self, what: str, look: Callable[[str], bool], seconds: float = 15.0) -> float:
        """Read until the screen shows it; the monotonic time at which the bytes had come."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.ended:
                raise NotReached(f"{what}: {self._argv[0]} ended with {self.text()[-300:]}")
            if not self._read(0.5):
                continue
            if look(self.text()):
                return self._arrived
        raise NotReached(f"{what}: not on the screen after {seconds:g} s")

    def is_quiet(self, seconds: float) -> bool:
        """Read for at most this long; True if nothing came."""
        return not self._read(seconds)

    def rest(self, seconds: float) -> None:
        """Let it run, and take what it writes."""
        deadline = time.monotonic() + seconds
        while not self.ended and (left := deadline - time.monotonic()) > 0:
            self._read(left)

    def press(self, keys: str) -> float:
        """Type; the monotonic time just before."""
        now = time.monotonic()
        os.write(self._fd, keys.encode())
        return now
