"""Remove the middle of a log that has grown beyond its cap, and return its blocks to the file system.

The rank keeps writing to its open file, and offsets do not change: fallocate(2) punches a hole. `FILE.gap` next to the
log has the position of the hole and its number of lines, so that readers report the hole and count the lines after it
correctly. A line in the file reports it to other programs, which show NULs after that line.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from ..run import file_io
from ..run.formatting import size_text

ENDING = ".gap"
HEAD_SHARE, MOST_HEAD = 4, 16 << 20
"""A quarter of the cap is kept of the beginning, but at most MOST_HEAD bytes."""
TAIL_SHARE = 2
"""Half of the cap is kept of the end."""
LEAST_GAP = 1 << 20
"""Minimum size of a hole in bytes."""
_REACH = 1 << 20
"""Maximum bytes of the search for a line start."""
_CHUNK = 4 << 20
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


class Gap(Struct, frozen=True):
    """Bytes `begin` to `end`, both at line starts unless a line is longer than 1 MiB."""

    begin: int
    end: int
    lines: int
    """Number of removed lines."""

    @property
    def text(self) -> str:
        """The text that readers show for the gap."""
        return f"… {size_text(self.end - self.begin)} left out by the cap of logs, {self.lines:,} lines …"

    def holds(self, offset: int) -> bool:
        """Whether that byte was removed."""
        return self.begin <= offset < self.end


def read(path: str | Path, size: int | None = None) -> Gap | None:
    """Return the gap of a log; None for a complete log. `size`: of the log; a gap beyond it is ignored."""
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
    """Yield begin and end of each readable piece of a log from an offset on.

    Between them are holes that were never written, and the gap.
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
    """Count the line ends in a part of a file."""
    count = 0
    for at, stop in stretches(descriptor, begin):
        while at < min(stop, end) and (data := os.pread(descriptor, min(_CHUNK, stop - at, end - at), at)):
            count += data.count(b"\n")
            at += len(data)
        if stop >= end:
            break
    return count


def _line_start(descriptor: int, offset: int) -> int:
    """Return the first line start from an offset on; the offset if none is near."""
    at = os.pread(descriptor, _REACH, offset).find(b"\n")
    return offset + at + 1 if at >= 0 else offset


def punches(folder: Path) -> bool:
    """Whether the folder's file system supports punching holes. Raises OSError if the folder is not writable."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x" * 65536)
        file.flush()
        try:
            _punch(file.fileno(), 4096, 32768)
        except OSError:
            return False
        return True


def _punch(descriptor: int, begin: int, end: int) -> None:
    """Deallocate the bytes. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    if libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, begin, end - begin):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def cap_log(path: Path, cap: int) -> Gap | None:
    """Remove the middle of a log that takes more than `cap` bytes on disk. Return the gap if it grew. Raises OSError."""
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
        )  # write this first, so that no reader finds an unexplained hole
        mark = f"{gap.text}\n".encode()
        os.pwrite(descriptor, mark, begin)
        _punch(descriptor, begin + len(mark), end - 1)
        os.pwrite(descriptor, b"\n", end - 1)
        # Restore the modification time, which shows how long the rank has been silent.
        os.utime(descriptor, ns=(about.st_atime_ns, about.st_mtime_ns))
        return gap
    finally:
        os.close(descriptor)
