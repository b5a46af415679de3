"""A real terminal for a program: a pty, what it wrote, and the screen that results."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping
from typing import Any

import pyte

from .place import NotReached

PIECE = 512
"""Bytes that are taken at once over a slow link."""


class Terminal:
    """A program in a pty of (rows, columns). Output is read only while something is waited for, or `rest`ed.

    With `rate` no more than that many bytes a second are taken, as over a slow link.
    """

    def __init__(
        self, argv: list[str], env: Mapping[str, str], size: tuple[int, int], rate: int | None = None
    ) -> None:
        self._rate, self._free = rate, 0.0
        self._argv, self._env, self._size = argv, dict(env), size
        self.screen: Any = pyte.Screen(size[1], size[0])
        self._stream: Any = pyte.ByteStream(self.screen)
        # As a real terminal does: the cockpit asks where the cursor is, to learn that a frame has arrived.
        self.screen.write_process_input = lambda text: os.write(self._fd, text.encode())
        self.received = 0
        self.ended = False

    def __enter__(self) -> Terminal:
        self.began = time.monotonic()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvpe(
                self._argv[0], self._argv, {**self._env, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
            )
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", *self._size, 0, 0))
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
        os.close(self._fd)

    def _read(self, seconds: float) -> bool:
        if (wait := self._free - time.monotonic()) > 0:
            time.sleep(min(wait, seconds))
            if wait >= seconds:
                return False
        ready, _, _ = select.select([self._fd], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self._fd, PIECE if self._rate else 65536)
        except OSError:
            self.ended = True  # the last process that had the terminal open has closed it
            return False
        if self._rate:
            self._free = max(time.monotonic(), self._free) + len(data) / self._rate
        self.received += len(data)
        self._stream.feed(data)
        return True

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
            arrived = time.monotonic()
            if look(self.text()):
                return arrived
        raise NotReached(f"{what}: not on the screen after {seconds:g} s")

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
