"""Lines by number in files too large to read: how many newlines each 64 KiB block holds, and nothing else.

Ten million lines cost about 100 kB and a quarter of a second once. Blocks are read with pread: pages of a
mapped file would count as memory of this process.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from .files import opened

BLOCK = 65536
"""Bytes between two entries of the index."""
READ = 16 * BLOCK
"""Bytes read at a time while the index is built."""
BUDGET = 64 << 20
"""Most bytes that one update takes in: about 20 ms."""
LINE_BYTES = 8192
"""Most bytes of one line that are read for display."""
_FINGERPRINT = 64


class Line(NamedTuple):
    """One line of a file: number from 0, offset, true length in bytes with its newline, its first bytes."""

    number: int
    offset: int
    length: int
    data: bytes


class SparseIndex:
    """Newlines up to the end of each block, of bytes taken in from the start of a file in order."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes taken in so far."""
        self.newlines = 0
        self._until = array("Q")

    def extend(self, data: bytes) -> None:
        """Take in the bytes that follow the ones before."""
        view = memoryview(data)
        while view:
            room = BLOCK - self.size % BLOCK
            piece = view[:room]
            if room == BLOCK:
                self._until.append(self.newlines)
            self.newlines += bytes(piece).count(b"\n")
            self._until[-1] = self.newlines
            self.size += len(piece)
            view = view[room:]

    def block_of_line(self, line: int) -> tuple[int, int]:
        """Offset of the block with the newline before `line` (from 1), and the newlines before it."""
        block = bisect_left(self._until, line)
        return block * BLOCK, self._until[block - 1] if block else 0

    def block_of_offset(self, offset: int) -> tuple[int, int]:
        """Offset of the block that holds byte `offset`, and how many newlines precede that block."""
        block = min(offset // BLOCK, len(self._until))
        return block * BLOCK, self._until[block - 1] if block else 0

    @property
    def nbytes(self) -> int:
        """Memory that the index takes, in bytes."""
        return self._until.itemsize * len(self._until)


class IndexedFile:
    """A log file of a run, by line number. Every method raises LogError where the file cannot be opened."""

    def __init__(self, run_dir: str | Path, file: str) -> None:
        self.run_dir = run_dir
        self.file = file
        self.size = 0
        """Bytes of the file at the last update; `index.size` says how many of them are known by line."""
        self.index = SparseIndex()
        self._identity = (0, 0)
        self._tail = b""

    @property
    def lines(self) -> int:
        """Lines known so far; one without its newline at the end counts."""
        return self.index.newlines + bool(self._tail and not self._tail.endswith(b"\n"))

    def update(self, budget: int = BUDGET) -> bool:
        """Take in at most `budget` new bytes. True when the file was begun anew, and so the index too.

        That is: it is another file now, it is shorter than what was read, or what was read last has
        changed.
        """
        with opened(self.run_dir, self.file) as descriptor:
            status = os.fstat(descriptor)
            anew = self._begun_anew(descriptor, status)
            if anew:
                self.index, self._tail = SparseIndex(), b""
            self._identity, self.size = (status.st_dev, status.st_ino), status.st_size
            stop = min(self.size, self.index.size + budget)
            while self.index.size < stop:
                data = os.pread(descriptor, min(READ, stop - self.index.size), self.index.size)
                if not data:
                    break
                self.index.extend(data)
                self._tail = (self._tail + data)[-_FINGERPRINT:]
        return anew

    def _begun_anew(self, descriptor: int, status: os.stat_result) -> bool:
        known = self.index.size
        if not known:
            return False
        if (status.st_dev, status.st_ino) != self._identity or status.st_size < known:
            return True
        return os.pread(descriptor, len(self._tail), known - len(self._tail)) != self._tail

    def offset_of(self, line: int) -> int:
        """Where line `line` (from 0) begins; the end of what is known for a line after the last."""
        with opened(self.run_dir, self.file) as descriptor:
            return self._offset(descriptor, line)

    def line_at(self, offset: int) -> int:
        """Number, from 0, of the line that holds byte `offset`."""
        offset = min(max(offset, 0), self.index.size)
        block, before = self.index.block_of_offset(offset)
        with opened(self.run_dir, self.file) as descriptor:
            return before + os.pread(descriptor, offset - block, block).count(b"\n")

    def read(self, first: int, count: int) -> list[Line]:
        """Lines `first` to `first + count`, fewer at the end, each with at most 8 KiB of its bytes."""
        first = max(first, 0)
        last = min(first + count, self.lines)
        if first >= last:
            return []
        with opened(self.run_dir, self.file) as descriptor:
            starts = self._starts(descriptor, first, last)
            return [
                Line(
                    first + i, begin, end - begin, os.pread(descriptor, min(end - begin, LINE_BYTES), begin)
                )
                for i, (begin, end) in enumerate(pairwise(starts))
            ]

    def _starts(self, descriptor: int, first: int, last: int) -> list[int]:
        """Where lines `first` to `last` begin and the last of them ends."""
        starts = [self._offset(descriptor, first)]
        end = self._offset(descriptor, last)
        if end - starts[0] > READ:  # lines so long that the index finds them faster than reading would
            return starts + [self._offset(descriptor, line) for line in range(first + 1, last)] + [end]
        data = os.pread(descriptor, end - starts[0], starts[0])
        for _ in range(first + 1, last):
            starts.append(starts[0] + data.index(b"\n", starts[-1] - starts[0]) + 1)
        return [*starts, end]

    def _offset(self, descriptor: int, line: int) -> int:
        if line <= 0:
            return 0
        if line > self.index.newlines:
            return self.index.size
        block, before = self.index.block_of_line(line)
        data, at = os.pread(descriptor, BLOCK, block), -1
        for _ in range(line - before):
            at = data.find(b"\n", at + 1)
        return block + at + 1
