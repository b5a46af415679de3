"""A program in a pseudo-terminal, and what its screen shows."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyte
from pyte.screens import Char

_UNKNOWN = re.compile(
    r"\x1b\[[<=>][0-9;:]*[a-zA-Z]|\x1b\[\?[0-9;]*[$u][a-z]?|\x1bP.*?\x1b\\|\x1b_.*?\x1b\\", re.S
)
"""Private sequences (keyboard protocols, queries) that pyte would print instead of passing over."""


def cut(text: str) -> tuple[str, str]:
    """What can be shown, and what is held back: a sequence may be cut between two reads."""
    at = text.rfind("\x1b")
    whole = text if at < 0 or len(text) - at > 64 else text[:at]
    return _UNKNOWN.sub("", whole), text[len(whole) :]


def new_screen(columns: int, lines: int) -> Any:
    """Return an emulated screen with every cell in it: pyte clears only those that exist to the background's colour."""
    screen: Any = pyte.Screen(columns, lines)
    for y in range(lines):
        for x in range(columns):
            screen.buffer[y][x] = screen.default_char
    return screen


class NotShown(Exception):
    """The screen never showed what was waited for; the text holds the screen."""


class Terminal:
    """`command` in a terminal of `columns` × `lines`; a context manager that ends it."""

    def __init__(
        self, command: Sequence[str], cwd: Path, env: Mapping[str, str], columns: int, lines: int
    ) -> None:
        self._screen = new_screen(columns, lines)
        # As terminals do: the cockpit asks where the cursor is, to learn that its frame has arrived.
        self._screen.write_process_input = self.press
        self._stream = pyte.Stream(self._screen)
        self._command, self._cwd, self._env = command, cwd, env
        self._size = struct.pack("HHHH", lines, columns, 0, 0)
        self._held = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __enter__(self) -> Self:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, self._size)
        self._process = subprocess.Popen(
            self._command, cwd=self._cwd, env=self._env, stdin=slave, stdout=slave, stderr=slave,
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        deadline = time.monotonic() + 10
        while self._process.poll() is None and time.monotonic() < deadline:
            self._read(0.1)  # a program that nobody reads cannot end
        self._process.kill()
        self._process.wait(10)
        os.close(self._master)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._master, keys.encode())

    @property
    def text(self) -> str:
        """The screen as lines."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def cells(self) -> list[list[Char]]:
        """The screen as rows of cells."""
        rows, columns = self._screen.lines, self._screen.columns
        return [[self._screen.buffer[y][x] for x in range(columns)] for y in range(rows)]

    def until(self, *shown: str, seconds: float = 60.0) -> Terminal:
        """Read until the screen holds all of `shown` (regular expressions) and rests. Raises NotShown."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            rests = not self._read(0.2)
            if rests and all(re.search(one, self.text) for one in shown):
                return self
        raise NotShown(f"{shown} not on this screen:\n{self.text}")

    def _read(self, seconds: float) -> bool:
        """Take what comes within `seconds`; False when nothing does."""
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # the program has ended
            return False
        self._feed(data)
        return True

    def _feed(self, data: bytes) -> None:
        """A character or a sequence may be cut between two reads: what may still grow is held back."""
        self._show(self._decoder.decode(data))

    def _show(self, text: str) -> None:
        shown, self._held = cut(self._held + text)
        self._stream.feed(shown)
        if self._held and not select.select([self._master], [], [], 0.05)[0]:
            rest, self._held = self._held, ""
            self._stream.feed(_UNKNOWN.sub("", rest))
