"""A real pseudo-terminal with a program in it, read back through a terminal emulator (pyte)."""

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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte
from patience import HANG_S

ASKS_FOR_FRAMES, HAS_FRAMES = b"\x1b[?2026$p", b"\x1b[?2026;2$y"
"""Whether the terminal draws frames whole (synchronized output), and that it does."""
FRAME_BEGINS, FRAME_ENDS = b"\x1b[?2026h", b"\x1b[?2026l"
KEYS = {"enter": "\r", "escape": "\x1b", "tab": "\t", "down": "\x1b[B", "up": "\x1b[A", "ctrl+n": "\x0e"}


class Screen:
    """A child that owns a terminal of `width` × `height` cells."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, width: int = 120, height: int = 40
    ) -> None:
        self._screen = pyte.Screen(width, height)
        self._screen.write_process_input = self._answer
        self._stream = pyte.ByteStream(self._screen)
        self.written = bytearray()
        """All that the child has written, as it was."""
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
            kept = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
            os.execvpe(
                argv[0],
                list(argv),
                {"DISTUI_ORIENTATION": "off", **kept, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
            )

    @property
    def lines(self) -> list[str]:
        """What stands on the screen, a text a row."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def read(self, seconds: float) -> bool:
        """Take what the child writes; False once it has hung up."""
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.written += data
        if ASKS_FOR_FRAMES in self.written[1 - len(data) - len(ASKS_FOR_FRAMES) :]:
            self._answer(HAS_FRAMES.decode())
        # pyte takes a private CSI with "<", ">" or "=" for text; nothing of it is shown by a terminal.
        self._stream.feed(data)
        return bool(data)

    @property
    def whole(self) -> bool:
        """Whether no frame is half drawn: what a terminal shows then is what the program meant to show."""
        return self.written.rfind(FRAME_BEGINS) <= self.written.rfind(FRAME_ENDS)

    def until(self, wanted: str | Callable[[str], object]) -> str:
        """Read until the screen shows `wanted` (a text, or what a function says); the screen then."""
        began = time.monotonic()
        found = (lambda text: wanted in text) if isinstance(wanted, str) else wanted
        while not (self.whole and found(self.text)):
            alive = self.read(0.1)
            if self.whole and found(self.text):
                break
            assert alive, f"hung up before {wanted!r}:\n{self.text}"
            assert time.monotonic() - began < HANG_S, f"no {wanted!r}:\n{self.text}"
        return self.text

    def _answer(self, data: str) -> None:
        """What a terminal says when it is asked where its cursor is: who asks waits for it."""
        with contextlib.suppress(OSError):  # the child has hung up
            os.write(self._master, data.encode())

    def press(self, *keys: str) -> None:
        """Type keys, each by its name or as it is."""
        for key in keys:
            os.write(self._master, KEYS.get(key, key).encode())

    def ended(self) -> int:
        """Wait for the child's end, reading on; its exit status."""
        began = time.monotonic()
        while time.monotonic() - began < HANG_S:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                while self.read(0.05) and select.select([self._master], [], [], 0)[0]:
                    continue
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"still there:\n{self.text}")

    def hang_up(self) -> None:
        """Close the terminal, as when a window is closed or a session drops: the child gets SIGHUP."""
        os.close(self._master)
        self._master = -1

    def close(self) -> None:
        if self._master >= 0:
            self.hang_up()
        if self.pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
