"""Detect the checkpoints of this node's ranks, from their hooks or else from the checkpoint folder."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..run import clock, file_io
from ..run.checkpoints import (
    SaveReport,
    Seen,
    checkpoint_of,
    common_path,
    folder_option,
    grouped,
    is_checkpoint_name,
    settled,
    settled_parts,
)
from ..run.log_files import attempt_dir
from ..run.model import CheckpointSaved
from . import checkpoint_disk
from .runner_process import ServedRun

POLL_S = 2.0
FOLDER_S = 10.0
"""Seconds between two checks of a folder. An entry that did not change in between is complete."""
MOST_ENTRIES = 5000
"""Most entries of a folder, and files of a checkpoint, to check."""
DEEPEST = 4

_reports = msgspec.json.Decoder(SaveReport)
Part = tuple[int, SaveReport]


class CheckpointWatch:
    """Reports a CheckpointSaved for every checkpoint. Changes nothing."""

    def __init__(self, run: ServedRun) -> None:
        self._run = run
        self._offsets: dict[Path, int] = {}
        self._open: dict[int, SaveReport] = {}
        """Saves in progress, by rank."""
        self._done: list[Part] = []
        """Saves that wait for the other parts of their checkpoint."""
        self._reported_until = 0.0
        """Unix time of the newest save that an earlier agent reported."""
        folder = folder_option(run.plan.command)
        self._folder = None if folder is None else Path(run.plan.cwd, folder)
        self._held: list[Seen] = []

    async def run(self) -> None:
        """Watch until cancelled. The hooks' files contain the saves before the agent's start."""
        self._reported_until = max((each.at for each in self._run.state.checkpoints), default=0.0)
        checked = 0.0
        while True:
            self.read_reports(self._run.state.attempt)
            now = asyncio.get_running_loop().time()
            if now - checked >= FOLDER_S:
                checked = now
                if self._folder is not None and self._watches_folder():
                    await self._check_folder(self._folder)
                room = await asyncio.to_thread(checkpoint_disk.check, self._run, self._folder)
                checkpoint_disk.report(self._run, room)
            await asyncio.sleep(POLL_S)

    def read_reports(self, attempt: int) -> None:
        """Read the hooks' new reports of an attempt, and report the complete checkpoints."""
        for path in sorted((self._run.run_dir / attempt_dir(self._run.node, attempt)).glob("rank-*.saves")):
            number = path.stem.removeprefix("rank-")
            if number.isdecimal():
                for report in self._new(path):
                    self._take(int(number), report)
        self._report_done(attempt, clock.now())

    def close(self, attempt: int) -> None:
        """Report the remaining saves after the attempt's ranks have exited. Saves in progress are torn."""
        self.read_reports(attempt)
        self._done += self._open.items()
        self._open.clear()
        self._report_done(attempt, math.inf)
        self._offsets.clear()

    def _new(self, path: Path) -> Iterator[SaveReport]:
        with contextlib.suppress(file_io.FileError, OSError):
            if path.stat().st_size <= self._offsets.get(path, 0):
                return
            for offset, line in file_io.lines(path, self._offsets.get(path, 0)):
                self._offsets[path] = offset
                report = file_io.decoded(_reports, line)
                if report is not None:
                    yield report

    def _take(self, rank: int, report: SaveReport) -> None:
        if report.state == "began":
            self._open[rank] = report
            return
        if rank in self._open and self._open[rank].key == report.key:
            del self._open[rank]
        if report.end is not None and report.end > self._reported_until:
            self._done.append((rank, report))

    def _report_done(self, attempt: int, now: float) -> None:
        """Report the groups without a part that any rank is still writing or renaming."""
        writing = {report.path for report in self._open.values()}
        beside = set(map(_save, self._open.values()))
        waiting: list[Part] = []
        for parts in grouped(self._done):
            whole = beside.isdisjoint(_save(report) for _, report in parts)
            if whole and settled_parts(parts, writing, now):
                self._report(attempt, parts)
            else:
                waiting += parts
        self._done = waiting

    def _report(self, attempt: int, parts: list[Part]) -> None:
        moved = [(rank, msgspec.structs.replace(report, path=now_at(report))) for rank, report in parts]
        path = common_path(moved)
        sizes = [report.file[2] for _, report in moved if report.file is not None]
        size = sum(sizes) if len(sizes) == len(moved) else bytes_of(Path(path))
        if len(moved) > 1 and sizes and path in {report.path for _, report in moved}:
            size = sizes[0]  # copies of one file
        self._run.emit(CheckpointSaved(attempt, checkpoint_of(moved, path, size)))

    def _watches_folder(self) -> bool:
        """Return True if no hook has reported a save: hooks know more than the folder."""
        reported = any(each.source != "folder" for each in self._run.state.checkpoints)
        return not reported and not self._open

    async def _check_folder(self, folder: Path) -> None:
        """Report checkpoints that no longer change and are newer than the run."""
        state = self._run.state
        seen = await asyncio.to_thread(lambda: list(seen_in(folder)))
        fresh = [each for each in seen if each.changed >= state.began]
        for checkpoint in settled(self._held, fresh, state.checkpoints):
            self._run.emit(CheckpointSaved(state.attempt, checkpoint))
        self._held = fresh


def _save(report: SaveReport) -> tuple[str, int | None]:
    """Return the key that the parts of a save have in common."""
    return os.path.dirname(report.path), report.count


def now_at(report: SaveReport) -> str:
    """Return the current path of a file that was saved under a temporary name, found by its inode."""
    if report.file is None:
        return report.path
    device, inode, _ = report.file
    with contextlib.suppress(OSError):
        about = os.stat(report.path)
        if (about.st_dev, about.st_ino) == (device, inode):
            return report.path
    folder = os.path.dirname(report.path)
    for entry in _entries(Path(folder)):
        if entry.inode() == inode:
            return entry.path
    return report.path


def bytes_of(path: Path) -> int | None:
    """Return the bytes of a file, or of all files below a folder. None if it is unreadable or has too many."""
    try:
        about = path.lstat()
    except OSError:
        return None
    if not stat.S_ISDIR(about.st_mode):
        return about.st_size
    total = 0
    for number, entry in enumerate(_below(path, DEEPEST)):
        if number >= MOST_ENTRIES:
            return None
        with contextlib.suppress(OSError):
            total += entry.stat(follow_symlinks=False).st_size
    return total


def seen_in(folder: Path) -> Iterator[Seen]:
    """Yield the checkpoints in a folder, and one level below in folders of single runs."""
    for entry in _entries(folder):
        with contextlib.suppress(OSError):
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_checkpoint_name(entry.name, is_folder):
                yield _seen(entry, is_folder)
            elif is_folder:
                yield from (
                    _seen(inner, inner.is_dir(follow_symlinks=False))
                    for inner in _entries(Path(entry.path))
                    if is_checkpoint_name(inner.name, inner.is_dir(follow_symlinks=False))
                )


def _seen(entry: os.DirEntry[str], folder: bool) -> Seen:
    about = entry.stat(follow_symlinks=False)
    if not folder:
        return Seen(entry.path, about.st_mtime, about.st_size)
    changed, size, names = about.st_mtime, 0, set()
    for number, inner in enumerate(_below(Path(entry.path), DEEPEST)):
        if number >= MOST_ENTRIES:
            break
        about = inner.stat(follow_symlinks=False)
        changed, size = max(changed, about.st_mtime), size + about.st_size
        names.add(inner.name)
    sharded = any(name.endswith(".distcp") for name in names)
    return Seen(entry.path, changed, size, whole=not sharded or ".metadata" in names)


def _below(folder: Path, depth: int) -> Iterator[os.DirEntry[str]]:
    for entry in _entries(folder):
        if entry.is_dir(follow_symlinks=False):
            if depth > 1:
                yield from _below(Path(entry.path), depth - 1)
        else:
            yield entry


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield at most MOST_ENTRIES of a folder. None if it is unreadable."""
    with contextlib.suppress(OSError), os.scandir(folder) as listed:
        for number, entry in enumerate(listed):
            if number >= MOST_ENTRIES:
                return
            yield entry
