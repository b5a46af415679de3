"""Which log files grew, and how fast: a stat of the newest attempts' files, a listing only where one may be new."""

from __future__ import annotations

import os
from pathlib import Path

from .files import parse_file_id

RATE_SECONDS = 1.0
"""Shortest time over which a rate is taken."""
SETTLED_S = 2.0
"""Time stamps of folders are coarse: one that changed is listed again by every poll for this long."""


class _Folder:
    """One folder, listed again only while it changes."""

    def __init__(self, path: str, prefix: str) -> None:
        self.path = path
        self._prefix = prefix
        self._stamp = -1
        self._until = 0.0
        self.folders: list[str] = []
        """Names of the folders right in it."""
        self._logs: list[tuple[str, str]] = []
        """Id and path of each log file right in it."""

    def look(self, now: float) -> bool:
        """See what is in it; False when it is gone."""
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
        with os.scandir(self.path) as found:
            entries = list(found)
        self.folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        self._logs = [
            (self._prefix + entry.name, entry.path)
            for entry in entries
            if entry.is_file(follow_symlinks=False) and parse_file_id(self._prefix + entry.name)
        ]

    def sizes(self) -> dict[str, int]:
        """Bytes of its log files, by id."""
        sizes = {}
        for name, path in self._logs:
            try:
                sizes[name] = os.stat(path, follow_symlinks=False).st_size
            except OSError:
                continue
        return sizes


class GrowthWatch:
    """Sizes of the log files of a run directory, from one `poll` to the next.

    Looks at the two newest attempts of each node (the one before may still be written to while it ends),
    and at `runner.log` and `agent.log`; `node` leaves out the other nodes of a shared file system.
    """

    def __init__(self, run_dir: str | Path, node: int | None = None) -> None:
        self.run_dir = str(run_dir)
        self.sizes: dict[str, int] = {}
        """Bytes by file id, of every file seen so far."""
        self._node = None if node is None else f"node-{node}"
        self._known: dict[str, _Folder] = {}
        self._marks: dict[str, tuple[float, int]] = {}
        self._rates: dict[str, float] = {}

    @property
    def folders(self) -> tuple[str, ...]:
        """Paths of the folders that the last `poll` looked at: where anything new can come from."""
        return tuple(folder.path for folder in self._known.values())

    def poll(self, now: float) -> dict[str, int]:
        """Sizes in bytes, by file id, that changed since the last call; `now` is monotonic seconds.

        A size that went down (a truncated file) is a change too. Nothing when the run directory is gone.
        """
        changed: dict[str, int] = {}
        for name, size in self._scan(now).items():
            if self.sizes.get(name) != size:
                changed[name] = size
            self._rate(name, size, now)
        self.sizes.update(changed)
        return changed

    def rate(self, file: str) -> float | None:
        """Bytes a second over the last second or so; None until one has passed."""
        return self._rates.get(file)

    @property
    def total_rate(self) -> float | None:
        """Bytes a second of all files together; None until one second has passed."""
        return sum(self._rates.values()) if self._rates else None

    def _rate(self, name: str, size: int, now: float) -> None:
        then, before = self._marks.setdefault(name, (now, size))
        if now - then >= RATE_SECONDS:
            self._rates[name] = max(size - before, 0) / (now - then)
            self._marks[name] = (now, size)

    def _scan(self, now: float) -> dict[str, int]:
        seen = self._look("", now)
        for node in self._below(seen[-1:], "node-"):
            if self._node not in (None, node):
                continue
            below = self._look(f"{node}/", now)
            seen += below
            for attempt in sorted(self._below(below, "attempt-"), key=_number)[-2:]:
                seen += self._look(f"{node}/{attempt}/", now)
        self._known = {prefix: folder for prefix, folder in self._known.items() if folder in seen}
        sizes: dict[str, int] = {}
        for folder in seen:
            sizes |= folder.sizes()
        for name in self._rates.keys() - sizes.keys():
            del self._rates[name]
        return sizes

    def _look(self, prefix: str, now: float) -> list[_Folder]:
        """The folder of these ids, or nothing when it is gone."""
        folder = self._known.get(prefix)
        if folder is None:
            path = f"{self.run_dir}/{prefix}".rstrip("/")
            folder = self._known[prefix] = _Folder(path, prefix)
        return [folder] if folder.look(now) else []

    @staticmethod
    def _below(folders: list[_Folder], start: str) -> list[str]:
        return [name for folder in folders for name in folder.folders if name.startswith(start)]


def _number(name: str) -> int:
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1
