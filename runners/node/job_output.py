"""The ranks' output on the job's own stdout, so that the job's log contains it.

The log files are authoritative, and this copy blocks nothing: a flood is cut, with a line that reports it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from ..run.formatting import size_text
from ..run.log_files import LogFile, parse_file_id
from ..run.opened_logs import LogError, opened

CHUNK = 1 << 16
"""Maximum bytes per file and round."""
BEHIND = 1 << 20
"""Maximum bytes waiting for output; of more, only the last chunk is printed."""
PAUSE_S = 0.25
"""Seconds between two chunks: at most 256 KiB per second and file."""


class Echo:
    """Prints the growth of files, each line with its rank as prefix."""

    def __init__(self, run_dir: Path, write: Callable[[bytes], object]) -> None:
        self._run_dir, self._write = run_dir, write
        self._sizes: dict[str, int] = {}
        self._shown: dict[str, int] = {}
        self._news = asyncio.Event()

    def skip(self) -> None:
        """Skip existing output, because an earlier job printed it."""
        for path in self._run_dir.glob("node-*/attempt-*/*"):
            name = path.relative_to(self._run_dir).as_posix()
            if wanted(name):
                self._shown[name] = path.stat().st_size

    def grew(self, sizes: dict[str, int]) -> None:
        """Set the new sizes in bytes of files that grew."""
        self._sizes |= {name: size for name, size in sizes.items() if wanted(name)}
        self._news.set()

    async def run(self) -> None:
        """Print until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while await self._round():
                await asyncio.sleep(PAUSE_S)

    async def rest(self, seconds: float) -> None:
        """Print the rest, including incomplete lines, for at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while await self._round(last=True):
                    continue

    async def _round(self, last: bool = False) -> bool:
        """Print a chunk of every file, and return whether any has more."""
        more = False
        for name, size in sorted(self._sizes.items()):
            shown = self._shown.get(name, 0)
            if shown < size:
                self._shown[name], text = take(self._run_dir, name, shown, size, last)
                if text:
                    await asyncio.to_thread(self._write, text)
                more = more or shown < self._shown[name] < size
        return more


def wanted(name: str) -> bool:
    """Whether to print a file: stdout and stderr of ranks and commands."""
    file = parse_file_id(name)
    return file is not None and file.source in ("rank", "command") and file.stream in ("out", "err")


def take(run_dir: Path, name: str, shown: int, size: int, last: bool) -> tuple[int, bytes]:
    """Read a file of `size` bytes from `shown`; return the new offset, and the text to print.

    The text ends with a line, unless the line is longer than a chunk, or `last`.
    """
    file = parse_file_id(name)
    assert file is not None
    skipped = b""
    if size - shown > BEHIND:
        missed, shown = size - shown - CHUNK, size - CHUNK
        text = f"… {size_text(missed)} of {name} are not shown here: `distui logs` has all of it\n"
        skipped = prefix(file) + text.encode()
    try:
        with opened(run_dir, name) as descriptor:
            data = os.pread(descriptor, min(CHUNK, size - shown), shown)
    except (LogError, OSError):
        return size, b""
    whole = data.rfind(b"\n") + 1
    if not whole and not last and len(data) < CHUNK:
        return shown, skipped
    if whole and not (last and shown + len(data) == size):
        data = data[:whole]
    return shown + len(data), skipped + lines(data, prefix(file))


def prefix(file: LogFile) -> bytes:
    """Prefix of a file's lines: "[rank 3] "."""
    return f"[{file.label}] ".encode()


def lines(data: bytes, before: bytes) -> bytes:
    """Prefix each line with `before`; keep only the last state of an overwritten line (progress bar)."""
    shown = []
    for line in data.removesuffix(b"\n").split(b"\n"):
        seen = [part for part in line.split(b"\r") if part]
        shown.append(before + (seen[-1] if seen else b"") + b"\n")
    return b"".join(shown)


def to_stdout(data: bytes) -> None:
    """Write all of `data`; ignore a closed reader."""
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(1, view) :]
