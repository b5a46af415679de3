"""Windows into a log file: a piece of it, from a line start, never more than asked for."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..wire.link import Window
from .files import LogError, opened

MAX_LIMIT = 1 << 20
"""Most bytes that one window holds."""
REACH = 65536
"""How far, in bytes, a window looks for a line start."""
SCAN_BYTES = 64 << 20
"""Most bytes that one grep looks at; the next one goes on from there."""
SCAN_SECONDS = 1.0
"""When a grep stops looking and gives what it has."""
GREP_TIMEOUT = 3.0
"""When a pattern that backtracks without end is killed."""

_GREP = str(Path(__file__).with_name("grep.py"))
# Searches wait for each other, so that no number of viewers can take the node's cores from the training.
_SEARCHES = ThreadPoolExecutor(max_workers=2, thread_name_prefix="log-search")


async def ask_window(
    run_dir: str | Path, file: str, offset: int, limit: int = REACH, grep: str = ""
) -> Window:
    """`read_window` off the event loop, a LogError told in `Window.error`: what agent and viewer call."""

    def read() -> Window:
        try:
            return read_window(run_dir, file, offset, limit, grep)
        except LogError as error:
            return Window(file, max(offset, 0), max(offset, 0), 0, b"", str(error))

    return await asyncio.get_running_loop().run_in_executor(_SEARCHES if grep else None, read)


def read_window(run_dir: str | Path, file: str, offset: int, limit: int = REACH, grep: str = "") -> Window:
    """At most `limit` bytes (and 1 MiB) of `file` from the line that holds byte `offset`.

    A negative `offset` counts from the end, and then the window begins at the first line start after it.
    A window that does not reach the end of the file ends with a whole line. Where no line start is within
    64 KiB the window begins exactly at the offset. `next` is always past `offset` while the file has
    more. A window whose `offset` is smaller than the one asked for repeats the beginning of a line; where
    it is smaller because `size` is, the file was truncated.

    `grep` is a Python regular expression: `data` then holds only matching lines, from at most 64 MiB and
    one second of search; with `limit=1`, `next` is the end of the first one. That search is a process of
    its own, killed after 3 s: this call blocks at most that long, so an event loop uses `ask_window`.
    Raises LogError.
    """
    limit = min(max(limit, 1), MAX_LIMIT)
    with opened(run_dir, file) as descriptor:
        return window_of(descriptor, file, offset, limit, grep)


def window_of(descriptor: int, file: str, offset: int, limit: int, grep: str = "") -> Window:
    """`read_window` of a file that is already open."""
    size = os.fstat(descriptor).st_size
    if grep:
        start = _line_before(descriptor, max(size + offset, 0) if offset < 0 else min(offset, size))
        found, position = _search(descriptor, start, limit, grep)
        return Window(file, start, position, max(size, position), found)
    start = _tail_start(descriptor, size, -offset, limit) if offset < 0 else min(offset, size)
    if offset >= 0:
        before = _line_before(descriptor, start)
        data = _whole_lines(os.pread(descriptor, limit, before), before, size)
        if before + len(data) > start or start == before:
            return Window(file, before, before + len(data), size, data)
    data = _whole_lines(os.pread(descriptor, limit, start), start, size)
    return Window(file, start, start + len(data), size, data)


def _line_before(descriptor: int, offset: int) -> int:
    """Start of the line that holds byte `offset`, or `offset` itself where that is out of reach."""
    low = max(offset - REACH, 0)
    newline = os.pread(descriptor, offset - low, low).rfind(b"\n")
    if newline >= 0:
        return low + newline + 1
    return 0 if low == 0 else offset


def _tail_start(descriptor: int, size: int, back: int, limit: int) -> int:
    """Where a window of the last `back` bytes begins: after a line it would cut, unless it is the last."""
    start = max(size - back, 0)
    before = _line_before(descriptor, start)
    if before == start:
        return start
    newline = os.pread(descriptor, min(REACH, size - start), start).find(b"\n")
    if newline >= 0 and start + newline + 1 < size:
        return start + newline + 1
    return before if size - before <= limit else start


def _whole_lines(data: bytes, start: int, size: int) -> bytes:
    """Without a last line that goes on after the window, unless it is all there is."""
    cut = data.rfind(b"\n") + 1
    return data[:cut] if cut and start + len(data) < size else data


def _search(descriptor: int, start: int, limit: int, pattern: str) -> tuple[bytes, int]:
    if "\0" in pattern:
        raise LogError("the pattern holds a NUL character: write it as \\x00")
    numbers = (str(value) for value in (start, limit, SCAN_BYTES, SCAN_SECONDS))
    argv = [sys.executable, "-I", "-S", _GREP, *numbers, pattern]
    try:
        done = subprocess.run(
            argv, stdin=descriptor, capture_output=True, timeout=GREP_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LogError(
            f"the pattern {pattern!r} was still searching after {GREP_TIMEOUT:.0f} s: "
            "nested repeats such as (a+)+ never end, write a simpler one"
        ) from error
    except (OSError, ValueError) as error:
        raise LogError(f"the search could not be started: {error}") from error
    if done.returncode:
        why = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise LogError(
            f"the pattern {pattern!r} is not a regular expression: {why[-1] if why else 'it crashed'}"
        )
    head, _, found = done.stdout.partition(b"\n")
    return found, int(head)
