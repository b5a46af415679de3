"""Read the logs of an attempt as they grow: whole, or the newest parts and warnings if they grow too fast.

A *turn* reads a part of every file that has grown. A *hole* is a part of a file without blocks on disk. The *gap* is
the hole that the log cap punched: `FILE.gap` has the number of removed lines, so that later lines keep their numbers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from ..diagnosis.file_names import Whose
from ..diagnosis.log_text import LONGEST, decoded
from ..diagnosis.reading import Reading
from ..logs import gaps
from ..run.log_files import LogFile, attempt_dir, parse_file_id
from ..run.opened_logs import LogError, opened

RECENT = 64 << 10
"""Bytes at the end of a file to keep for readers of training signals."""
BLOCK = 64 << 10
"""Bytes per block, which take a few milliseconds."""
TURN_BYTES = 16 << 20
"""Bytes to read per turn, in equal shares of the files that have grown."""
LEAST_SHARE = 4 << 20
"""Minimum share of a file. With more than four files, a turn reads more than TURN_BYTES."""
BEHIND = 64 << 20
"""Unread bytes above which only the newest part is read completely."""
BEHIND_AT_END = 16 << 20
"""Such a limit at the end of an attempt, where users wait for the rest to be read."""
NEWEST = 1 << 20
"""Bytes of the newest part, per file."""
SKIPPED_BYTES = 256 << 20
"""Bytes to skip per turn at most, in equal shares of all files."""
WARNING_MARK = b" WARN "
"""Text of lines that are read even in skipped parts."""
MOST_WARNINGS = 64
"""Maximum number of such lines per block."""
EMPTY_LINES = 1 << 20
"""Empty lines to feed at once in place of a gap."""


class Tail:
    """One file. Bytes after the last complete line are kept until the line is complete."""

    def __init__(self, run_dir: Path, file: LogFile, reading: Reading) -> None:
        self.file = file
        self.offset = 0
        """Position of the next byte to read."""
        self.size = 0
        """Size of the file, as of the last `saw`."""
        self._run_dir = run_dir
        self._reading = reading
        self._on_disk = 0
        """Bytes of the file's blocks on disk, which a sparse file has fewer of than its size."""
        self._rest = b""
        """The bytes after the last complete line."""
        self._dropping = False
        """True if `_rest` is the beginning of a line that is too long, whose other bytes are dropped."""
        self._restarted = False
        """True if the file shrank, so that its next lines count from 1 again."""
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
            self.offset = 0
            self._rest = b""
            self._dropping = False
            self._restarted = True
        self.size, self._on_disk = size, on_disk

    def read(self, limit: int) -> Iterator[int]:
        """Read and feed at most `limit` bytes, block by block. Yields the bytes of each block."""
        try:
            with opened(self._run_dir, self.file.id) as descriptor:
                while limit > 0 and self.offset < self.size:
                    block = self._block(descriptor, min(BLOCK, limit, self.left), self._feed_complete_lines)
                    if not block:
                        break
                    self.offset += len(block)
                    limit -= len(block)
                    self._feed_complete_lines(block)
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
                    block = self._block(descriptor, min(16 * BLOCK, limit, room), self._scan_warnings)
                    cut = block.rfind(b"\n") + 1 or len(block)
                    if not block:
                        break
                    self.offset += cut
                    limit -= cut
                    self._scan_warnings(self._rest + block[:cut])
                    self._rest = b""
                    yield cut
        except (LogError, OSError):
            self.offset = self.size

    def _block(self, descriptor: int, size: int, feed: Callable[[bytes], None]) -> bytes:
        """Return at most `size` bytes from the offset on, or from the end of the hole there.

        If that hole is the gap, pass as many empty lines to `feed` as the log cap removed.
        """
        gap = gaps.read(self._run_dir / self.file.id)
        begin, end = next(gaps.stretches(descriptor, self.offset, gap), (self.size, self.size))
        if gap is not None and self.offset < gap.end <= begin:
            left = gap.lines
            while left > 0:
                feed(b"\n" * min(left, EMPTY_LINES))
                left -= EMPTY_LINES
        self.offset = begin
        return os.pread(descriptor, min(size, end - begin), begin)

    def end(self) -> None:
        """Feed the last line without a line end, after the last write."""
        if self._rest and not self._dropping:
            self._feed(self._rest)
        self._rest, self._dropping = b"", False

    def _feed_complete_lines(self, block: bytes) -> None:
        """Feed the lines that the block completes, and keep the bytes after them."""
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

    def _scan_warnings(self, data: bytes) -> None:
        """Count all lines, and feed only those with a WARNING_MARK."""
        self._dropping = False
        self._select_file()
        done, at = 0, data.find(WARNING_MARK)
        for _ in range(MOST_WARNINGS):
            if at < 0:
                break
            begin = data.rfind(b"\n", 0, at) + 1
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            self._reading.skip(data.count(b"\n", done, begin))
            self._reading.feed(decoded(data[begin:end]))
            done = end + 1
            at = data.find(WARNING_MARK, end)
        self._reading.skip(data.count(b"\n", done))

    def _feed(self, data: bytes) -> None:
        """Feed complete lines, whose end also becomes part of `recent`."""
        if self.file.stream != "nccl":
            self._newest = (self._newest + data[-RECENT:] + b"\n")[-RECENT:]
        self._select_file()
        self._reading.feed(decoded(data))

    def _select_file(self) -> None:
        """Make the reading continue this file, or start it again."""
        if self._restarted:
            self._restarted = False
            self._reading.leave()
            self._reading.open(self.file.id, Whose(self.file.rank))
        else:
            self._reading.switch_to(self.file.id, self.file.rank)


class Tails:
    """All files of one attempt. Only one thread at a time may use it."""

    def __init__(self, run_dir: Path, node: int, attempt: int) -> None:
        self.attempt = attempt
        self.reading = Reading()
        """Receives the lines of all files."""
        self.sampled = False
        """True if parts were skipped."""
        self._run_dir = run_dir
        self._prefix = attempt_dir(node, attempt)
        """The directory of the attempt, relative to the run directory."""
        self._tails: dict[str, Tail] = {}
        """Files by their id."""
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
        """Read a part of each file. Yields the bytes of each block.

        `behind`: unread bytes above which only the newest part of large files is read completely.
        """
        left = self.left
        if left > behind:
            self.sampled = True
            share = SKIPPED_BYTES // len(self._tails)
            for tail in self._tails.values():
                if tail.left > 2 * NEWEST:
                    yield from tail.skip(share)
        grown = [tail for tail in self._tails.values() if tail.left]
        for tail in grown:
            yield from tail.read(max(LEAST_SHARE, TURN_BYTES // len(grown)))

    def drain(self, behind: int = BEHIND) -> None:
        """Do a turn in a thread. `hurry` ends it early."""
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
            self.drain(BEHIND_AT_END)
        for tail in self._tails.values():
            tail.end()
