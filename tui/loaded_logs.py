"""The loaded parts of some log files, and their lines in order of time."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Awaitable, Callable, Sequence

from ..runners.logs.dating import FIRST, Dated, Key, LogSpan
from ..runners.logs.levels import Level, level_of
from ..runners.run import clock
from ..runners.run.commands import ReadLog
from ..runners.run.log_files import LogFile
from ..runners.run.wire.client import Window
from .rows.log import label_of
from .rows.log_lines import LogLine

WINDOW = 65536
"""Bytes per request."""

KEPT = 20_000
"""Maximum lines; a quarter more triggers the removal of those farthest from the reader."""

BEHIND = 1 << 20
"""Minimum unread bytes that are left out to reach the end."""

OWN = 1 << 30
"""Replaces the rank in the keys of the screen's own lines, which follow the ranks' lines of that time."""

Reader = Callable[[ReadLog], Awaitable[Window]]
"""Reads one window of a log file. Raises LinkError."""


class LoadedLogs:
    """The loaded lines of some files: base of a window around a place, and of the lines that match a pattern."""

    searching = False
    """Whether the bytes from before a search are not yet searched to the end."""

    def __init__(
        self,
        read: Reader,
        files: Sequence[LogFile],
        label: Callable[[LogFile], str] = label_of,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self.lines: list[LogLine] = []
        """The shown lines, in order."""
        self.unfinished: dict[str, LogLine] = {}
        """The text after the last newline by file id, such as a progress bar."""
        self.count = 0
        """Number of lines that were read, including those that are no longer held."""
        self.problem = ""
        """Why a file could not be read, in one sentence. A file that does not exist yet is no problem."""
        self._read, self._label, self._clock = read, label, clock
        self._all: list[LogLine] = []
        self._spans = {file.id: LogSpan(file) for file in files}

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self._spans)

    def __contains__(self, name: object) -> bool:
        return name in self._spans

    @property
    def behind(self) -> bool:
        """Whether a file has unread bytes."""
        return any(span.behind for span in self._spans.values())

    def add(self, files: Sequence[LogFile], separator: str = "") -> None:
        """Add files that were created since, to be read from their beginning."""
        fresh = [file for file in files if file.id not in self._spans]
        if fresh and separator:
            last = self._all[-1].key if self._all else FIRST
            self._insert([LogLine(separator, "", Level.NONE, key=(last[0], OWN, 0, "", 0))])
        self._spans.update((file.id, LogSpan(file)) for file in fresh)

    async def _window(self, span: LogSpan, ask: ReadLog) -> Window | None:
        """Read a window of a file; None if it cannot be read until it grows."""
        window = await self._read(ask)
        if not window.error:
            return window
        if "does not exist" not in window.error:
            self.problem = window.error
        span.size = span.next
        return None

    def _take(self, span: LogSpan, window: Window, came: float | None = None) -> None:
        """Add the lines of the next window. `came`: approximate time of the new data, if it is new."""
        lines = span.feed(window, self._clock(), came)
        self.count += len(lines)
        self._insert(self._shaped(span.file, lines))

    def _shaped(self, file: LogFile, lines: Sequence[Dated]) -> list[LogLine]:
        label, rank = self._label(file), file.rank
        return [LogLine(text, label, level_of(text), at, own, key, rank) for text, key, at, own in lines]

    def _insert(self, lines: Sequence[LogLine]) -> None:
        """Insert lines in order; lines of one file arrive sorted."""
        held = self._all
        if not lines:
            return
        if not held or held[-1].key <= lines[0].key:
            held += lines
        elif lines[-1].key < held[0].key:
            held[:0] = lines
        elif len(lines) < 8:
            for line in lines:
                insort(held, line, key=key_of_line)
        else:
            at = bisect_left(held, lines[0].key, key=key_of_line)
            held[at:] = sorted([*held[at:], *lines], key=key_of_line)

    def _show(self) -> None:
        """Update the shown lines."""
        self.lines = self._all[:]

    def _trim_front(self) -> None:
        over = len(self.lines) - KEPT
        if over <= KEPT // 4:  # not each time, since it rebuilds all rows
            return
        del self._all[: bisect_left(self._all, self.lines[over].key, key=key_of_line)]
        kept = self._kept()
        for name, span in self._spans.items():
            span.keep_end(kept.get(name))
        self._show()

    def _kept(self) -> dict[str, tuple[Key, Key]]:
        """Map each file to the keys of its first and last line."""
        ends: dict[str, tuple[Key, Key]] = {}
        for line in self._all:
            if line.key[1] != OWN:
                name = line.key[3]
                first = ends[name][0] if name in ends else line.key
                ends[name] = (first, line.key)
        return ends


def key_of_line(line: LogLine) -> Key:
    return line.key
