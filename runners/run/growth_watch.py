"""Growth of log files: a stat of the newest attempts' files, and a directory listing only if a file may be new."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from .log_files import parse_file_id

SETTLED_S = 2.0
"""Seconds after a change while every poll lists the folder again, because directory timestamps are coarse."""


class _Folder:
    """One folder, listed again only while it changes."""

    def __init__(self, path: str, prefix: str) -> None:
        self.path = path
        self._prefix = prefix
        self._stamp = -1
        self._until = 0.0
        self.folders: list[str] = []
        """Names of its direct subfolders."""
        self._logs: list[tuple[str, str]] = []
        """ID and path of each log file directly in it."""

    def refresh(self, now: float) -> bool:
        """Update the content. Return False if the folder does not exist."""
        try:
            stamp = os.stat(self.path).st_mtime_ns
            if stamp != self._stamp:
                self._stamp, self._until = stamp, now + SETTLED_S
            elif now >= self._until:
                return True
            self._list()
        except OSError:
            self._stamp, self.folders, self._logs = -1, [], []
            return False
        return True

    def _list(self) -> None:
        with os.scandir(self.path) as scan:
            entries = list(scan)
        self.folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        self._logs = [
            (self._prefix + entry.name, entry.path)
            for entry in entries
            if entry.is_file(follow_symlinks=False) and parse_file_id(self._prefix + entry.name)
        ]

    def sizes(self) -> dict[str, tuple[int, float]]:
        """Return bytes and Unix time of the last write of its log files, by ID."""
        sizes = {}
        for name, path in self._logs:
            try:
                about = os.stat(path, follow_symlinks=False)
            except OSError:
                continue
            sizes[name] = (about.st_size, about.st_mtime)
        return sizes


GONE = -1
"""Replaces the size of a log file that was renamed or removed."""


def keep_sizes(sizes: dict[str, int], changed: Mapping[str, int]) -> None:
    """Update the sizes of all files in bytes, by ID. GONE removes a file."""
    sizes.update(changed)
    for name in [name for name, size in changed.items() if size == GONE]:
        del sizes[name]


class GrowthWatch:
    """Sizes of the log files of a run directory, from one `poll` to the next.

    The first poll lists all attempts. Later ones watch the two newest of each node (the previous attempt still writes
    while it ends), and `runner.log` and `agent.log`.
    """

    def __init__(self, run_dir: str | Path) -> None:
        self.run_dir = str(run_dir)
        self.sizes: dict[str, int] = {}
        """Bytes by file ID, of every file seen so far."""
        self.written: dict[str, float] = {}
        """Modification times (Unix, file system's clock) of the files that the last `poll` returned."""
        self._folders: dict[str, _Folder] = {}
        self._has_listed_all = False

    @property
    def folders(self) -> tuple[str, ...]:
        """Paths of the folders that the last `poll` listed, where new files may appear."""
        return tuple(folder.path for folder in self._folders.values())

    def poll(self, now: float) -> dict[str, int]:
        """Return the sizes in bytes that changed since the last call, by file ID. `now`: monotonic seconds.

        A smaller size (a truncated file) is also a change. GONE marks a renamed or removed file.
        Return nothing if the run directory does not exist.
        """
        changed: dict[str, int] = {}
        self.written = {}
        scanned = self._scan(now)
        for name, (size, written) in scanned.items():
            if self.sizes.get(name) != size:
                changed[name], self.written[name] = size, written
        if not changed.keys() <= self.sizes.keys():
            changed |= dict.fromkeys(self._vanished(scanned), GONE)
        keep_sizes(self.sizes, changed)
        return changed

    def _vanished(self, scanned: Collection[str]) -> list[str]:
        """Return the files that no longer exist in the folders that were listed."""
        folders = self._folders
        return [
            name for name in self.sizes if name not in scanned and name[: name.rfind("/") + 1] in folders
        ]

    def _scan(self, now: float) -> dict[str, tuple[int, float]]:
        seen, ended = self._refreshed("", now), list[_Folder]()
        for node in self._below(seen[-1:], "node-"):
            below = self._refreshed(f"{node}/", now)
            seen += below
            attempts = sorted(self._below(below, "attempt-"), key=_number)
            for attempt in attempts[-2:]:
                seen += self._refreshed(f"{node}/{attempt}/", now)
            if not self._has_listed_all:
                ended += [self._folder(f"{node}/{attempt}/") for attempt in attempts[:-2]]
        self._has_listed_all = True
        self._folders = {prefix: folder for prefix, folder in self._folders.items() if folder in seen}
        sizes: dict[str, tuple[int, float]] = {}
        for folder in [*(folder for folder in ended if folder.refresh(now)), *seen]:
            sizes |= folder.sizes()
        return sizes

    def _folder(self, prefix: str) -> _Folder:
        return _Folder(f"{self.run_dir}/{prefix}".rstrip("/"), prefix)

    def _refreshed(self, prefix: str, now: float) -> list[_Folder]:
        """Return the folder of this ID prefix, or nothing if it does not exist."""
        folder = self._folders.get(prefix)
        if folder is None:
            folder = self._folders[prefix] = self._folder(prefix)
        return [folder] if folder.refresh(now) else []

    @staticmethod
    def _below(folders: list[_Folder], start: str) -> list[str]:
        return [name for folder in folders for name in folder.folders if name.startswith(start)]


def _number(name: str) -> int:
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1
