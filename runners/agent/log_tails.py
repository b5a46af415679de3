"""Read the logs of an attempt as they grow: whole, or the newest parts and warnings if they grow too fast."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from ..diagnosis.file_names import Whose
from ..diagnosis.log_text import LONGEST, decoded
from ..diagnosis.reading import Reading
from ..logs import gaps
from ..run.log_files import LogError, LogFile, attempt_dir, opened, parse_file_id

RECENT = 64 << 10
"""Bytes at the end of a file to keep for readers of training signals."""
BLOCK = 64 << 10
"""Bytes per block, which take a few milliseconds."""
TURN, WHOLE = 4 << 20, 16 << 20
"""Most bytes per turn: of one file among many, and of a few files together."""
BEHIND = 64 << 20
"""Unread bytes above which only the newest part is read completely."""
LAST = 16 << 20
"""Limit at the end of an attempt, which users wait for."""
NEWEST = 1 << 20
"""Bytes of the newest part, per file."""
SKIPPED = 256 << 20
"""Most bytes to skip per turn."""
LOUD = b" WARN "
"""Text of lines that are read even in skipped parts."""
LOUD_LINES = 64
"""Most such lines per block."""


class Tail:
    """One file. Bytes after the last complete line are kept until the line is complete."""

    def __init__(self, run_dir: Path, file: LogFile, reading: Reading) -> None:
        self.file, self.offset, self.size = file, 0, 0
        self._run_dir, self._reading, self._on_disk = run_dir, reading, 0
        self._rest, self._dropping = b"", False
        self._again = False
        self._newest = b""
        """The end of the complete lines since the last call of `recent`."""

    def recent(self) -> bytes:
        """Return the end of the bytes read since the last call, with an unfinished progress bar, or b""."""
        newest, self._newest = self._newest, b""
        bar = b"" if self._dropping or b"\r" not in self._rest else self._rest[-RECENT:]
        return newest + bar

    @property
    def left(self) -> int:
        """Return the unread bytes. A sparse file counts at most its bytes on disk."""
        return max(0, min(self.size - self.offset, self._on_disk + NEWEST))

    def saw(self, size: int, on_disk: int) -> None:
        """Record the current size. A file that shrank is read from its start."""
        if size < self.offset:
            self.offset, self._rest, self._dropping, self._again = 0, b"", False, True
        self.size, self._on_disk = size, on_disk

    def read(self, limit: int) -> Iterator[int]:
        """Read and feed at most `limit` bytes, block by block. Yields the bytes of each block."""
        try:
            with opened(self._run_dir, self.file.id) as descriptor:
                while limit > 0 and self.offset < self.size:
                    block = self._block(descriptor, min(BLOCK, limit, self.left), self._take)
                    if not block:
                        break
                    self.offset += len(block)
                    limit -= len(block)
                    self._take(block)
                    yield len(block)
        except (LogError, OSError):
            self.offset = self.size  # deleted or unreadable: no more to read

    def skip(self, limit: int) -> Iterator[int]:
        """Skip at most `limit` bytes before the newest part.

        Lines are counted, and warnings are read. Yields bytes per block.
        """
        try:
            with opened(self._run_dir, self.file.id) as descriptor:
                while limit > 0 and self.offset < self.size - NEWEST:
                    room = self.size - NEWEST - self.offset
                    block = self._block(descriptor, min(16 * BLOCK, limit, room), self._pass)
                    cut = block.rfind(b"\n") + 1 or len(block)
                    if not block:
                        break
                    self.offset += cut
                    limit -= cut
                    self._pass(self._rest + block[:cut])
                    self._rest = b""
                    yield cut
        except (LogError, OSError):
            self.offset = self.size

    def _block(self, descriptor: int, size: int, feed: Callable[[bytes], None]) -> bytes:
        """Return at most `size` bytes, after any holes. If the log cap removed lines here, feed as many empty lines."""
        gap = gaps.read(self._run_dir / self.file.id)
        begin, end = next(gaps.stretches(descriptor, self.offset, gap), (self.size, self.size))
        if gap is not None and self.offset < gap.end <= begin:
            left = gap.lines
            while left > 0:
                feed(b"\n" * min(left, 1 << 20))
                left -= 1 << 20
        self.offset = begin
        return os.pread(descriptor, min(size, end - begin), begin)

    def end(self) -> None:
        """Feed the last line without a line end, after the last write."""
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
            bar = self._rest.rfind(b"\r")  # an unfinished progress bar
            self._rest = self._rest[bar + 1 :] if bar >= 0 else self._rest
            if len(self._rest) > LONGEST:
                self._rest, self._dropping = self._rest[:LONGEST], True

    def _pass(self, data: bytes) -> None:
        """Count lines, and read only the loud ones."""
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
        if self.file.stream != "nccl":
            self._newest = (self._newest + data[-RECENT:] + b"\n")[-RECENT:]
        self._turn()
        self._reading.feed(decoded(data))

    def _turn(self) -> None:
        if self._again:
            self._again = False
            self._reading.leave()
            self._reading.open(self.file.id, Whose(self.file.rank))
        else:
            self._reading.turn_to(self.file.id, self.file.rank)


class Tails:
    """All files of one attempt. Only one thread at a time may use it."""

    def __init__(self, run_dir: Path, node: int, attempt: int) -> None:
        self.attempt, self.reading = attempt, Reading()
        self.sampled = False
        """True if parts were skipped."""
        self._run_dir, self._prefix = run_dir, attempt_dir(node, attempt)
        self._tails: dict[str, Tail] = {}
        self._hurried = threading.Event()

    @property
    def left(self) -> int:
        """Return the unread bytes, as of the last `scan`."""
        return sum(tail.left for tail in self._tails.values())

    def scan(self) -> int:
        """Find the files and their sizes. Return the unread bytes."""
        self._hurried.clear()
        try:
            with os.scandir(self._run_dir / self._prefix) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except OSError:
            return 0
        for entry in entries:
            name = f"{self._prefix}/{entry.name}"
            tail = self._tails.get(name)
            if tail is None:
                file = parse_file_id(name)
                if file is None or file.source not in ("rank", "command"):
                    continue
                tail = self._tails[name] = Tail(self._run_dir, file, self.reading)
            try:
                about = entry.stat(follow_symlinks=False)
                tail.saw(about.st_size, about.st_blocks * 512)
            except OSError:
                continue
        return self.left

    def turn(self, behind: int = BEHIND) -> Iterator[int]:
        """Read a part of each file. Yields after every block. `behind`: unread bytes above which parts are skipped."""
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
        """Read a whole turn in a thread. `hurry` ends it early."""
        for _ in self.turn(behind):
            if self._hurried.is_set():
                return

    def recent(self) -> Iterator[tuple[LogFile, bytes]]:
        """Yield the ends of the files of ranks, or of a command, with new bytes since the last call."""
        for tail in self._tails.values():
            if tail.file.stream != "nccl" and (newest := tail.recent()):
                yield tail.file, newest

    def hurry(self) -> None:
        """End a `drain` after its current block. Thread-safe."""
        self._hurried.set()

    def end(self) -> None:
        """Read all remaining bytes, or only the newest part of large files, and last lines without a line end."""
        self.scan()
        while self.left:  # files do not grow here, because `scan` is not called
            self.drain(LAST)
        for tail in self._tails.values():
            tail.end()
