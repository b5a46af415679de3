"""The ranks' output on the job's own stdout, so that whoever shows a job's log shows what the ranks say.

The files are the truth; this is a view that is never in anybody's way: a flood is cut short, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from ..logs.files import LogError, LogFile, opened, parse_file_id

CHUNK = 1 << 16
"""Bytes shown of one file at a time."""
BEHIND = 1 << 20
"""Bytes that may wait to be shown; of more only the last chunk is."""
PAUSE_S = 0.25
"""Between two chunks: at most 256 KiB a second of each file."""


class Echo:
    """Shows what files grow by, each line with its rank before it."""

    def __init__(self, run_dir: Path, write: Callable[[bytes], object]) -> None:
        self._run_dir, self._write = run_dir, write
        self._sizes: dict[str, int] = {}
        self._shown: dict[str, int] = {}
        self._news = asyncio.Event()

    def skip(self) -> None:
        """What is there already was shown by an earlier job."""
        for path in self._run_dir.glob("node-*/attempt-*/*"):
            name = path.relative_to(self._run_dir).as_posix()
            if wanted(name):
                self._shown[name] = path.stat().st_size

    def grew(self, sizes: dict[str, int]) -> None:
        """Sizes in bytes of files that grew."""
        self._sizes |= {name: size for name, size in sizes.items() if wanted(name)}
        self._news.set()

    async def run(self) -> None:
        """Show for ever; cancel to stop."""
        while True:
            await self._news.wait()
            self._news.clear()
            while await self._round():
                await asyncio.sleep(PAUSE_S)

    async def rest(self, seconds: float) -> None:
        """Show what is left, also lines without an end, but not for longer than `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while await self._round(last=True):
                    continue

    async def _round(self, last: bool = False) -> bool:
        """A chunk of every file; whether any of them has more."""
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
    """Whether a file is shown: what ranks and commands write to stdout and stderr."""
    file = parse_file_id(name)
    return file is not None and file.source in ("rank", "command") and file.stream in ("out", "err")


def take(run_dir: Path, name: str, shown: int, size: int, last: bool) -> tuple[int, bytes]:
    """Read on from `shown` in a file of `size` bytes: how far that was, and the text to show.

    Only whole lines, unless they are longer than a chunk or `last`.
    """
    file = parse_file_id(name)
    assert file is not None
    skipped = b""
    if size - shown > BEHIND:
        missed, shown = size - shown - CHUNK, size - CHUNK
        text = f"… {missed / 2**20:.1f} MiB of {name} are not shown here: `distui logs` has all of it\n"
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
    """ "[rank 3] "."""
    return f"[{file.label}] ".encode()


def lines(data: bytes, before: bytes) -> bytes:
    """Each line with `before` in front; of one that was written over (a progress bar) what was seen last."""
    found = []
    for line in data.removesuffix(b"\n").split(b"\n"):
        seen = [part for part in line.split(b"\r") if part]
        found.append(before + (seen[-1] if seen else b"") + b"\n")
    return b"".join(found)


def to_stdout(data: bytes) -> None:
    """All of `data`, or nothing more once nobody reads."""
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(1, view) :]
