"""The search for lines in parts of files that are not loaded, which the files' nodes carry out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..runners.run.commands import ReadLog
from ..runners.run.log_files import LogFile
from ..runners.run.wire.client import Window
from .loaded_logs import Reader
from .rows.log_lines import LogLine

HITS = 4096
"""Bytes of hits per request."""


class Part(NamedTuple):
    """A range of bytes of one file."""

    file: LogFile
    begin: int
    end: int


class LineSearch(NamedTuple):
    """A pattern with a condition, and the reader of the files."""

    read: Reader
    shape: Callable[[LogFile, int, Window], list[LogLine]]
    """Converts the hits of a window, requested from an offset on, into lines."""
    pattern: str
    wanted: Callable[[LogLine], bool]
    newest: bool
    """Whether each part's last line is wanted, not its first."""

    async def search(self, parts: Sequence[Part], progress: Callable[[int], None]) -> list[LogLine]:
        """Return wanted lines of the parts, among them the first or the last. Raises LinkError.

        `progress` receives the bytes that were searched since its last call.
        """
        found = await asyncio.gather(*(self._search(part, progress) for part in parts))
        return [line for lines in found for line in lines]

    async def _search(self, part: Part, progress: Callable[[int], None]) -> list[LogLine]:
        at, found = part.begin, list[LogLine]()
        while at < part.end and (self.newest or not found):
            window = await self.read(ReadLog(part.file.id, at, HITS, self.pattern))
            lines = self.shape(part.file, at, window)
            found += [line for line in lines if line.key[4] < part.end and self.wanted(line)]
            is_over = bool(window.error) or window.next <= at
            following = part.end if is_over else min(window.next, part.end)
            progress(following - at)
            at = following
        return found
