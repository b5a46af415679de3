"""What is left out of a log that has grown beyond its cap: its middle, whose blocks go back to the file system.

The rank goes on writing to the file that it has open, and no offset changes: fallocate(2) punches a hole. `FILE.gap`
beside the log says where the hole is and how many lines were in it, so that readers name what is left out and count the
lines behind it as before. A line in the file itself says it to other programs, which show NULs behind it.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from .. import file_io
from ..formatting import size_text

ENDING = ".gap"
HEAD_SHARE, MOST_HEAD = 4, 16 << 20
"""A quarter of the cap is kept of the beginning, no more than so many bytes."""
TAIL_SHARE = 2
"""Half of it is kept of the end."""
LEAST_GAP = 1 << 20
"""Bytes that are worth a punch."""
_REACH = 1 << 20
"""How far a line start is looked for."""
_CHUNK = 4 << 20
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


class Gap(Struct, frozen=True):
    """Bytes `begin` to `end`, both at line starts where lines are no longer than 1 MiB."""

    begin: int
    end: int
    lines: int
    """That were in it."""

    @property
    def text(self) -> str:
        """What a reader is told."""
        return f"… {size_text(self.end - self.begin)} left out by the cap of logs, {self.lines:,} lines …"

    def holds(self, offset: int) -> bool:
        """Whether that byte is left out."""
        return self.begin <= offset < self.end


def read(path: str | Path, size: int | None = None) -> Gap | None:
    """That of a log; None for one that is whole. `size`: of the log, which a gap beyond its end is none of."""
    gap = file_io.document_or_none(Path(f"{path}{ENDING}"), Gap)
    if (
        gap is None
        or not 0 <= gap.begin < gap.end
        or gap.lines < 0
        or (size is not None and gap.end > size)
    ):
        return None
    return gap


def stretches(descriptor: int, offset: int, gap: Gap | None = None) -> Iterator[tuple[int, int]]:
    """Begin and end of each piece of a log that there is to read from an offset on.

    Between them are holes, where nothing was ever written, and what its cap left out.
    """
    while True:
        begin, end = file_io.written(descriptor, offset)
        if begin >= end:
            return
        if gap is not None and gap.holds(begin):
            offset = gap.end
            continue
        if gap is not None and begin < gap.begin:
            end = min(end, gap.begin)
        yield begin, end
        offset = end


def newlines(descriptor: int, begin: int, end: int) -> int:
    """Line ends in a part of a file."""
    count = 0
    for at, stop in stretches(descriptor, begin):
        while at < min(stop, end) and (data := os.pread(descriptor, min(_CHUNK, stop - at, end - at), at)):
            count += data.count(b"\n")
            at += len(data)
        if stop >= end:
            break
    return count


def _line_start(descriptor: int, offset: int) -> int:
    """The first line start from an offset on; the offset itself where none is near."""
    at = os.pread(descriptor, _REACH, offset).find(b"\n")
    return offset + at + 1 if at >= 0 else offset


def punches(folder: Path) -> bool:
    """Whether the file system of a folder takes blocks back. Raises OSError where nothing can be written there."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x" * 65536)
        file.flush()
        try:
            _punch(file.fileno(), 4096, 32768)
        except OSError:
            return False
        return True


def _punch(descriptor: int, begin: int, end: int) -> None:
    """Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    if libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, begin, end - begin):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def cap_log(path: Path, cap: int) -> Gap | None:
    """Leave out the middle of a log that takes more than `cap` bytes on disk; the gap where it grew. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        about = os.fstat(descriptor)
        if about.st_blocks * 512 <= cap:
            return None
        before = read(path, about.st_size)
        begin = (
            _line_start(descriptor, min(cap // HEAD_SHARE, MOST_HEAD)) if before is None else before.begin
        )
        done, lines = (begin, 0) if before is None else (before.end, before.lines)
        end = _line_start(descriptor, about.st_size - cap // TAIL_SHARE)
        if end - done < LEAST_GAP:
            return None
        gap = Gap(begin, end, lines + newlines(descriptor, done, end))
        file_io.write_atomically(
            Path(f"{path}{ENDING}"), msgspec.json.encode(gap)
        )  # first: no reader meets a hole
        mark = f"{gap.text}\n".encode()
        os.pwrite(descriptor, mark, begin)
        _punch(descriptor, begin + len(mark), end - 1)
        os.pwrite(descriptor, b"\n", end - 1)
        # Nobody but the rank has written: how long it has been silent is read from this time.
        os.utime(descriptor, ns=(about.st_atime_ns, about.st_mtime_ns))
        return gap
    finally:
        os.close(descriptor)
