"""Read a window of a log file: a part of it from a line start, never longer than the requested size.

Some bytes of a log cannot be read. The *gap* is what the *cap*, the maximum size of a log on disk, has removed from the
middle (gaps.py). *Holes* were never written: the file is sparse there. A *stretch* is a readable range between them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from ..run.commands import ReadLog
from ..run.opened_logs import LogError, opened
from ..run.wire.client import Window
from . import gaps, line_times, search

MAX_LIMIT = 1 << 20
"""Maximum bytes per window."""
REACH = 65536
"""Maximum distance in bytes of a window's search for a line start."""

Read = Callable[[str | Path, ReadLog], Window]
"""Reads a window from a run directory. Raises LogError."""


def read_window(run_dir: str | Path, ask: ReadLog) -> Window:
    """Return at most `limit` bytes (and at most 1 MiB) of a file from the line that contains byte `offset`.

    A negative `offset` counts from the end, and then the window begins at the first line start after it.
    A window that does not reach the end of the file ends with a complete line. If no line start is within
    64 KiB, the window begins exactly at the offset. `next` is always greater than `offset` while the file has
    more. A window whose `offset` is smaller than the requested one repeats the beginning of a line. If `size`
    is also smaller than the requested offset, the file was truncated.

    `at` names the start by time: see ReadLog. `times` is the part of the log's index of line times (line_times.py) that
    covers the window.

    `grep` is a Python regular expression: `data` then has only matching lines. After 0.1 s of CPU time a search returns
    the matches so far, after 0.3 s also none (search.py); the next search continues at `next`. With `limit=1`, `next` is
    the end of the first match. A pattern that backtracks for more than 3 s raises LogError. This call blocks for that
    time, so an event loop uses `ask_window`.

    Raises LogError.
    """
    while True:  # retry if the cap has removed data since the read
        window, gap = _read_with_gap(run_dir, ask)
        if gaps.read(f"{run_dir}/{ask.file}", window.size) == gap:
            return window


async def ask_window(run_dir: str | Path, ask: ReadLog, read: Read = read_window) -> Window:
    """Call `read` off the event loop and return a LogError in `Window.error`. For agents and viewers."""

    def answer() -> Window:
        try:
            return read(run_dir, ask)
        except LogError as error:
            start = max(ask.offset, 0)
            return Window(ask.file, start, start, 0, b"", str(error))

    executor = search.SEARCHES if ask.grep else None
    return await asyncio.get_running_loop().run_in_executor(executor, answer)


def _read_with_gap(run_dir: str | Path, ask: ReadLog) -> tuple[Window, gaps.Gap | None]:
    """Return a window, and the gap that the file had before the read."""
    with opened(run_dir, ask.file) as descriptor:
        size = os.fstat(descriptor).st_size
        gap = gaps.read(f"{run_dir}/{ask.file}", size)
        if ask.at > 0 and size:
            ask = replace(ask, offset=offset_at_time(line_times.kept(run_dir, ask.file), ask))
        window = window_of(descriptor, ask, gap)
    return replace(window, times=line_times.of_lines(run_dir, ask.file, spans_of(window, ask.grep))), gap


def offset_at_time(times: Sequence[line_times.Record], ask: ReadLog) -> int:
    """Return the offset at which a window shows one line before the first one at the requested time. Raises LogError."""
    first = line_times.offset_at(times, ask.at)
    if first is None:
        raise LogError(f"no times of {ask.file} were recorded: distui was not there when it was written")
    return max(first - 1, 0)


def window_of(descriptor: int, ask: ReadLog, gap: gaps.Gap | None = None) -> Window:
    """Return `read_window` of an open file from `offset` on, without times.

    The window is within one stretch. The end of a stretch is read like the end of a file: its last line may be partial.
    """
    limit, size = min(max(ask.limit, 1), MAX_LIMIT), os.fstat(descriptor).st_size
    start = min(ask.offset, size)
    if ask.offset < 0:
        start = max(_written_end(descriptor, size, gap) + ask.offset, 0)
    begin, end = next(gaps.stretches(descriptor, start, gap), (size, size))
    if ask.grep:
        first = begin if begin > start else _line_before(descriptor, start)
        matches, starts, position = search.search(descriptor, first, limit, ask.grep, gap)
        return Window(ask.file, first, position, max(size, position), matches, starts=starts)
    if ask.offset < 0 and begin <= start:
        first = _tail_start(descriptor, start, end, limit)
        data = _lines_from(descriptor, first, end, limit)
    else:
        start = max(start, begin)
        first = _line_before(descriptor, start)
        data = _lines_from(descriptor, first, end, limit)
        if first < start and first + len(data) <= start:  # the line's part before `start` fills the limit
            first, data = start, _lines_from(descriptor, start, end, limit)
    return Window(ask.file, first, first + len(data), max(size, end), data)


def _lines_from(descriptor: int, start: int, end: int, limit: int) -> bytes:
    """Return complete lines of the bytes from `start` to `end`."""
    return _whole_lines(os.pread(descriptor, min(limit, max(end - start, 0)), start), start, end)


def _whole_lines(data: bytes, start: int, end: int) -> bytes:
    """Remove a last line that continues after `data`, unless it is the only line. `end`: of the stretch."""
    cut = data.rfind(b"\n") + 1
    return data[:cut] if cut and start + len(data) < end else data


def spans_of(window: Window, grep: str) -> list[tuple[int, int]]:
    """Return begin and end of the window, or of each line that a search has found."""
    if not grep:
        return [(window.offset, window.next)]
    lines = window.data.removesuffix(b"\n").split(b"\n")
    return [(start, start + len(line) + 1) for start, line in zip(window.starts, lines, strict=False)]


def _line_before(descriptor: int, offset: int) -> int:
    """Return the start of the line with byte `offset`, or `offset` if the start is more than REACH before it."""
    low = max(offset - REACH, 0)
    newline = os.pread(descriptor, offset - low, low).rfind(b"\n")
    if newline >= 0:
        return low + newline + 1
    return 0 if low == 0 else offset


def _written_end(descriptor: int, size: int, gap: gaps.Gap | None) -> int:
    """Return the end of the last stretch; `size` if there is none, or too many to search."""
    stretches = list(itertools.islice(gaps.stretches(descriptor, 0, gap), search.MOST_STRETCHES))
    if not stretches or len(stretches) == search.MOST_STRETCHES:
        return size
    _, end = stretches[-1]
    return end


def _tail_start(descriptor: int, start: int, end: int, limit: int) -> int:
    """Return where a window of bytes `start` to `end` begins: after a partial line, unless it is the last line."""
    before = _line_before(descriptor, start)
    if before == start:
        return start
    newline = os.pread(descriptor, min(REACH, end - start), start).find(b"\n")
    if newline >= 0 and start + newline + 1 < end:
        return start + newline + 1
    return before if end - before <= limit else start
