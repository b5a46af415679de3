"""The log files of one attempt on this node, read as they grow, into one Reading."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from ..diagnosis.lines import LONGEST, decoded
from ..diagnosis.reading import Reading
from ..logs.files import LogError, LogFile, attempt_dir, opened, parse_file_id

BLOCK = 64 << 10
"""Bytes that are looked at in one go: some milliseconds."""
TURN, WHOLE = 4 << 20, 16 << 20
"""Most bytes of one file in one turn, where there are many; and of a few files together."""
BEHIND = 64 << 20
"""With more than this left to read, only the newest part is read whole."""
LAST = 16 << 20
"""The same at the end of an attempt, which nobody wants to wait for."""
NEWEST = 1 << 20
"""Bytes of that part, of each file."""
SKIPPED = 256 << 20
"""Most bytes that are skipped in one turn."""
LOUD = b" WARN "
"""What is read also where the rest is skipped."""
LOUD_LINES = 64
"""Most such lines of one block."""


class Tail:
    """One file. Bytes behind the last whole line are kept until the line is."""

    def __init__(self, run_dir: Path, file: LogFile, reading: Reading) -> None:
        self.file, self.offset, self.size = file, 0, 0
        self._run_dir, self._reading = run_dir, reading
        self._rest, self._dropping = b"", False
        self._again = False

    @property
    def left(self) -> int:
        """Bytes that were written and not read yet."""
        return max(0, self.size - self.offset)

    def saw(self, size: int) -> None:
        """It is so large now. A file that became smaller is read from its start."""
        if size < self.offset:
            self.offset, self._rest, self._dropping, self._again = 0, b"", False, True
        self.size = size

    def read(self, limit: int) -> Iterator[int]:
        """Feed what is there, at most so many bytes, block by block; yields the bytes of each."""
        end = min(self.size, self.offset + limit)
        try:
            with opened(self._run_dir, self.file.id) as descriptor:
                while self.offset < end:
                    block = os.pread(descriptor, min(BLOCK, end - self.offset), self.offset)
                    if not block:
                        break
                    self.offset += len(block)
                    self._take(block)
                    yield len(block)
        except (LogError, OSError):
            self.offset = self.size  # taken away, or made unreadable: there is nothing more to know

    def skip(self, limit: int) -> Iterator[int]:
        """Pass over all but the newest part, at most so many bytes: lines are counted, warnings are read."""
        end = min(self.size - NEWEST, self.offset + limit)
        try:
            with opened(self._run_dir, self.file.id) as descriptor:
                while self.offset < end:
                    block = os.pread(descriptor, min(16 * BLOCK, end - self.offset), self.offset)
                    cut = block.rfind(b"\n") + 1 or len(block)
                    if not block:
                        break
                    self.offset += cut
                    self._pass(self._rest + block[:cut])
                    self._rest = b""
                    yield cut
        except (LogError, OSError):
            self.offset = self.size

    def end(self) -> None:
        """Nothing more is written: what is left is a line, too."""
        if self._rest and not self._dropping:
            self._feed(self._rest)
        self._rest, self._dropping = b"", False

    def _take(self, block: bytes) -> None:
        if self._dropping:  # the rest of a line whose beginning is in `_rest`
            if (at := block.find(b"\n")) < 0:
                return
            block, self._dropping = block[at:], False
        whole, newline, tail = block.rpartition(b"\n")
        if newline:
            self._feed(self._rest + whole)
            self._rest = tail
        else:
            self._rest += tail
        if len(self._rest) > LONGEST:
            bar = self._rest.rfind(b"\r")  # a progress bar that has no end of line
            self._rest = self._rest[bar + 1 :] if bar >= 0 else self._rest
            if len(self._rest) > LONGEST:
                self._rest, self._dropping = self._rest[:LONGEST], True

    def _pass(self, data: bytes) -> None:
        """Lines that are not read, but for the loud ones."""
        self._dropping = False
        self._turn()
        done, at = 0, data.find(LOUD)
        for _ in range(LOUD_LINES):
            if at < 0:
                break
            begin = data.rfind(b"\n", 0, at) + 1
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            self._reading.skip(data.count(b"\n", done, begin))
            self._reading.feed(decoded(data[begin:end]))
            done = end + 1
            at = data.find(LOUD, end)
        self._reading.skip(data.count(b"\n", done))

    def _feed(self, data: bytes) -> None:
        self._turn()
        self._reading.feed(decoded(data))

    def _turn(self) -> None:
        if self._again:
            self._again = False
            self._reading.leave()
            self._reading.open(self.file.id, self.file.rank)
        else:
            self._reading.turn_to(self.file.id, self.file.rank)


class Tails:
    """All files of one attempt. One thread at a time may use it."""

    def __init__(self, run_dir: Path, node: int, attempt: int) -> None:
        self.attempt, self.reading = attempt, Reading()
        self.sampled = False
        """Whether parts were skipped."""
        self._run_dir, self._prefix = run_dir, attempt_dir(node, attempt)
        self._tails: dict[str, Tail] = {}
        self._hurried = threading.Event()

    @property
    def left(self) -> int:
        """Bytes that are not read yet, as far as was seen by `look`."""
        return sum(tail.left for tail in self._tails.values())

    def look(self) -> int:
        """See which files there are and how large; bytes that are left to read."""
        self._hurried.clear()
        try:
            with os.scandir(self._run_dir / self._prefix) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            return 0
        for entry in entries:
            name = f"{self._prefix}/{entry.name}"
            tail = self._tails.get(name)
            if tail is None:
                known = parse_file_id(name)
                if known is None or known.source not in ("rank", "command"):
                    continue
                tail = self._tails[name] = Tail(self._run_dir, known, self.reading)
            try:
                tail.saw(entry.stat(follow_symlinks=False).st_size)
            except OSError:
                continue
        return self.left

    def turn(self, behind: int = BEHIND) -> Iterator[int]:
        """Read what was seen, a part of each file; yields after every block. `behind`: bytes from which on to skip."""
        left = self.left
        if left > behind:
            self.sampled = True
            share = SKIPPED // len(self._tails)
            for tail in self._tails.values():
                if tail.left > 2 * NEWEST:
                    yield from tail.skip(share)
        grown = [tail for tail in self._tails.values() if tail.left]
        for tail in grown:
            yield from tail.read(max(TURN, WHOLE // len(grown)))

    def drain(self, behind: int = BEHIND) -> None:
        """A whole turn at once, for a thread; `hurry` ends it early."""
        for _ in self.turn(behind):
            if self._hurried.is_set():
                return

    def hurry(self) -> None:
        """Whoever drains is to end with the block it reads. From any thread."""
        self._hurried.set()

    def end(self) -> None:
        """Read all that is left, at most the newest part of what is too much, and last lines without an end."""
        self.look()
        while self.left:  # files do not grow here: nothing looks at them again
            self.drain(LAST)
        for tail in self._tails.values():
            tail.end()
