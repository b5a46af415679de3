"""journal.jsonl: every event of a run, one JSON object a line, in the order the agent saw them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from .model import Stamped

NAME = "journal.jsonl"
_decoder = msgspec.json.Decoder(Stamped)


def decode(line: bytes) -> Stamped | None:
    """One event; None for a torn line or a kind that this version does not know."""
    try:
        return _decoder.decode(line)
    except msgspec.MsgspecError:
        return None


def read(run_dir: Path, after: int = 0) -> Iterator[Stamped]:
    """Events with seq greater than `after`. A journal that is not there yet has none."""
    try:
        with (run_dir / NAME).open("rb") as file:
            for line in file:
                stamped = decode(line) if line.endswith(b"\n") else None
                if stamped is not None and stamped.seq > after:
                    yield stamped
    except FileNotFoundError:
        return


class Journal:
    """The agent's writing end. What a full disk refuses waits in memory, in order, until there is room."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / NAME
        self._mend_torn_end()
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._waiting = b""
        self.lines: list[tuple[int, bytes]] = []
        """(seq, line) of everything written by this process or read at its start."""

    def _mend_torn_end(self) -> None:
        """A line cut off by a crash or a full disk would swallow the next one."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        if data and not data.endswith(b"\n"):
            with self._path.open("r+b") as file:
                file.truncate(data.rfind(b"\n") + 1)

    def replay(self) -> Iterator[Stamped]:
        """What an earlier agent wrote."""
        for stamped in read(self._path.parent):
            self.lines.append((stamped.seq, msgspec.json.encode(stamped) + b"\n"))
            yield stamped

    @property
    def seq(self) -> int:
        return self.lines[-1][0] if self.lines else 0

    @property
    def blocked(self) -> bool:
        """True while lines wait for room on the disk."""
        return bool(self._waiting)

    def append(self, stamped: Stamped) -> None:
        """Keep one event whose seq is already set."""
        line = msgspec.json.encode(stamped) + b"\n"
        self.lines.append((stamped.seq, line))
        self._waiting += line
        self.flush()

    def flush(self) -> None:
        """Write what waits; OSError (no room) leaves it waiting."""
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._fd, self._waiting) :]
        except OSError:
            return

    def close(self) -> None:
        self.flush()
        os.close(self._fd)
