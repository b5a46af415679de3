"""The lines of some log files that match a pattern, which each file's node searches."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from ..runners.logs.dating import FIRST, LogSpan
from ..runners.logs.levels import Level
from ..runners.run import clock
from ..runners.run.commands import ReadLog
from ..runners.run.formatting import size_short
from ..runners.run.log_files import LogFile
from .loaded_logs import BEHIND, KEPT, OWN, WINDOW, LoadedLogs, Reader, key_of_line
from .rows.log import label_of
from .rows.log_lines import LogLine

COUNTED = 50_000
"""Maximum lines of a filter. Beyond it, the filter skips to the ends of the files."""

SEARCHES, SIFTED = 2, 16
"""Maximum files that are read at a time: during a search, which costs the node CPU time, and after it."""


class LogFilter(LoadedLogs):
    """Searches files from their beginnings to their ends, the newest attempt first, then follows them.

    Only matching lines are transferred.
    """

    def __init__(
        self,
        read: Reader,
        files: Sequence[LogFile],
        pattern: str,
        label: Callable[[LogFile], str] = label_of,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        super().__init__(read, files, label, clock)
        self._pattern = pattern
        self.searching = True
        self.skipped = False
        """Whether more lines match than were read."""
        self._done = self._left = 0
        """Bytes of the attempts that were closed after their search, and of those that are not open yet."""

    @property
    def searched(self) -> float:
        """Searched share of the bytes, 0 to 1."""
        spans = self._spans.values()
        whole = self._done + self._left + sum(max(span.size, 0) for span in spans)
        if not whole:
            return 0.0 if self.searching else 1.0
        return (self._done + sum(min(span.next, span.size) for span in spans)) / whole

    async def pull(self, sizes: Mapping[str, int]) -> int:
        """Search one more window of the first files of `_most_behind`. Return the number of new lines.

        `sizes`: the current sizes by file id.
        """
        before = self.count
        if not self._open:
            self._search_attempt(max(self._open.all, default=0))
        for name, span in self._spans.items():
            span.size = max(span.size, sizes.get(name, -1))
        most = SEARCHES if self.searching else SIFTED
        await asyncio.gather(*map(self._advance, self._most_behind()[:most]))
        if self.searching and not self.skipped and self.count > COUNTED:
            self._skip()
        if self.searching and not self._most_behind():
            self.searching = self._search_older()
        self._show()
        self._trim_front()
        return self.count - before

    def _most_behind(self) -> list[LogSpan]:
        """Return files with unread bytes, or of unknown size, the one with the most first."""
        left = [span for span in self._spans.values() if span.behind or span.size < 0]
        return sorted(left, key=lambda span: span.next - span.size)

    def _search_older(self) -> bool:
        """Search the attempt before, and close the searched one, unless it may still grow; False if there is none."""
        older, newest = self._open.older, max(self._open.all, default=0)
        if older is None:
            return False
        for name in [name for name in self._spans if (self._files[name].attempt or newest) < newest]:
            self._done += self._spans.pop(name).next
        self._search_attempt(older)
        return True

    def _search_attempt(self, number: int) -> None:
        for name in self._opened(number):
            self._spans[name].size = self._sizes.get(name, -1)
        self._left = sum(self._size_of(file) for file in self._files.values())

    def _size_of(self, file: LogFile) -> int:
        """Return the bytes of a file of an attempt before the open ones, else 0."""
        if file.attempt is None or file.attempt in self._open:
            return 0
        return self._sizes.get(file.id, 0)

    async def _advance(self, span: LogSpan) -> None:
        window = await self._window(span, ReadLog(span.file.id, span.next, WINDOW, self._pattern))
        if window is not None:
            self._take(span, window)

    def _skip(self) -> None:
        """Skip earlier attempts, and so much of each other file that the rest yields about KEPT lines."""
        self.skipped = True
        self._open.lowest = self._left = 0
        read = self._done + sum(span.next - span.begin for span in self._spans.values())
        rest = 1.5 * KEPT / self.count * read
        for span in self._spans.values():
            to = span.size - int(min(rest, span.size))
            if to - span.next > BEHIND:
                self._leave_out(span, to)

    def _show(self) -> None:
        """Show all lines, with a rule above those of each attempt but the run's first."""
        self.lines = self._all[:]
        end = len(self.lines)
        for _, rule in sorted(self._rules.items(), reverse=True):
            place = bisect_left(self.lines, rule.key, hi=end, key=key_of_line)
            if place < end:
                self.lines.insert(place, rule)
            end = place

    def _leave_out(self, span: LogSpan, to: int) -> None:
        """Continue reading a file at `to`; a line shows how much was left out."""
        name, at, above = span.file.id, span.next, span.last or FIRST
        key = (above[0], OWN, 0, name, at) if above[0] else (*above[:4], at)
        text = f"… {size_short(to - at)} not shown"
        self._insert([LogLine(text, self._label(span.file), Level.NONE, key=key)])
        span.restart(to)
