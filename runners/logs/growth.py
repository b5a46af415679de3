"""Which log files grew, and how fast: a stat of the newest attempts' files, cheap four times a second."""

from __future__ import annotations

import os
from pathlib import Path

from .files import parse_file_id

RATE_SECONDS = 1.0
"""Shortest time over which a rate is taken."""


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
        self._marks: dict[str, tuple[float, int]] = {}
        self._rates: dict[str, float] = {}

    def poll(self, now: float) -> dict[str, int]:
        """Sizes in bytes, by file id, that changed since the last call; `now` is monotonic seconds.

        A size that went down (a truncated file) is a change too. Nothing when the run directory is gone.
        """
        changed: dict[str, int] = {}
        for name, size in self._scan().items():
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

    def _scan(self) -> dict[str, int]:
        sizes = _sizes(self.run_dir, "")
        nodes = [name for name in _folders(self.run_dir, "node-") if self._node in (None, name)]
        for node in nodes:
            sizes |= _sizes(f"{self.run_dir}/{node}", f"{node}/")
            for attempt in sorted(_folders(f"{self.run_dir}/{node}", "attempt-"), key=_number)[-2:]:
                sizes |= _sizes(f"{self.run_dir}/{node}/{attempt}", f"{node}/{attempt}/")
        for name in self._rates.keys() - sizes.keys():
            del self._rates[name]
        return sizes


def _number(name: str) -> int:
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1


def _folders(path: str, prefix: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [
                e.name for e in entries if e.name.startswith(prefix) and e.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []


def _sizes(path: str, prefix: str) -> dict[str, int]:
    """Sizes of the log files right in this folder, by file id."""
    sizes: dict[str, int] = {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False) and parse_file_id(prefix + entry.name):
                    sizes[prefix + entry.name] = entry.stat(follow_symlinks=False).st_size
    except OSError:
        return sizes
    return sizes
