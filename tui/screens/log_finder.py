"""Moves the log pane to hits of its pattern, and to errors and warnings, also those that are not loaded."""

from __future__ import annotations

from collections.abc import Callable

from ...runners.logs.levels import ALARMS, Level
from ..log_tail import LogTail
from ..rows.log_lines import LogLine
from .log_feed import LogFeed
from .log_pane import LogPane

Wanted = Callable[[LogLine], bool]

_ALARMS = ("the error or warning below", "the error or warning above")
_FROM_THE_END = (
    "no error or warning below: from the top again",
    "no error or warning above: the newest again",
)
"""Descriptions of what `next_error` reached, downwards and upwards."""


def is_alarm(line: LogLine) -> bool:
    return line.level >= Level.WARN


class LineFinder:
    """Searches the loaded lines of a pane, then the rest of its files."""

    def __init__(self, pane: LogPane, feed: LogFeed) -> None:
        self._pane, self._feed = pane, feed

    def to_hit(self, step: int) -> bool:
        """Move to the next (1) or previous (-1) hit; return False if there is none."""
        hits = self._pane.laid_out.hits
        if hits is None or not self._to(lambda line: bool(hits.search(line.text)), step, self._here):
            return False
        line = self._pane.current
        match = hits.search(line.text) if line is not None else None
        if match is not None and not self._pane.laid_out.wrap:
            self._show_columns(match.start(), match.end())
        return True

    def _show_columns(self, first: int, after: int) -> None:
        """Scroll sideways only as far as needed to make these columns of the text visible."""
        left, room = self._pane.left, self._pane.laid_out.room(self._pane.columns)
        if first < left or after > left + room - 1:
            self._pane.scroll_sideways(0 if after < room else max(0, first - room // 3))

    async def next_error(self, step: int, progress: Callable[[float], None]) -> str:
        """Move to the error or warning above (-1; while following, the newest) or below (1).

        Search the loaded lines, then the rest of the files, then from the other end. Return a description of the line,
        or "" if there is none. Raises LinkError.
        """
        pane, lines, here = self._pane, self._pane.laid_out.lines, self._here
        up, words = step < 0, _ALARMS[step < 0]
        if up and pane.follow:
            here, words = len(lines), "the newest error or warning"
        ahead = lines[:here] if up else lines[here + 1 :]
        if any(map(is_alarm, ahead)):
            self._to_alarm(step, here)
            return words
        tail = self._feed.tail
        found = await self._find_alarm(tail, up, words, progress) if tail is not None else ""
        if found:
            return found
        return _FROM_THE_END[up] if self._to_alarm(step, here) else ""

    async def _find_alarm(
        self, tail: LogTail, up: bool, words: str, progress: Callable[[float], None]
    ) -> str:
        """Show the lines around an alarm that is not loaded: first in this direction, then from the other end."""
        for before in (up, not up):
            hit = await tail.find(ALARMS, is_alarm, before, progress, up)
            if tail is not self._feed.tail:
                return words  # another choice is shown by now
            if hit is not None:
                self._feed.go_to_line(hit)
                return words if before == up else _FROM_THE_END[up]
        return ""

    def _to_alarm(self, step: int, here: int) -> bool:
        if not self._to(is_alarm, step, here):
            return False
        self._pane.scroll_sideways(0)
        return True

    @property
    def _here(self) -> int:
        return self._pane.laid_out.index_at(self._pane.cursor)

    def _to(self, wanted: Wanted, step: int, here: int) -> bool:
        """Move to the next wanted line, from the other end if there is none in this direction."""
        laid_out = self._pane.laid_out
        count = len(laid_out.lines)
        for offset in range(1, count + 1):
            index = (here + offset * step) % count
            if wanted(laid_out.lines[index]):
                self._pane.follow = False
                self._pane.move_to(laid_out.row_of(index))
                return True
        return False
