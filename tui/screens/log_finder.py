"""Moves the log pane to hits of its pattern, and to errors and warnings, also those that are not loaded."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from ...runners.logs.levels import ALARMS, Level
from ..rows.log import smart_case
from ..rows.log_lines import LogLine
from .log_feed import LogFeed
from .log_pane import LogPane

Wanted = Callable[[LogLine], bool]

NEWEST_ALARM = "the newest error or warning; f E goes to the first one"
FIRST_ALARM = "the first error or warning"
"""Descriptions of what `next_error` reached from the end that the pane follows."""
_ALARMS = ("the error or warning below", "the error or warning above")
_FROM_THE_END = (
    "no error or warning below: from the top again",
    "no error or warning above: the newest again",
)
"""Descriptions of what `next_error` reached, downwards and upwards."""


def is_alarm(line: LogLine) -> bool:
    return line.level >= Level.WARN


def _matches(hits: re.Pattern[str]) -> Wanted:
    return lambda line: bool(hits.search(line.text))


class Reached(Enum):
    """The result of a search."""

    AHEAD = "at a line in the direction of the search"
    AROUND = "at a line from the other end on"


class LineFinder:
    """Searches the loaded lines of a pane, then the rest of its files."""

    def __init__(self, pane: LogPane, feed: LogFeed) -> None:
        self._pane, self._feed = pane, feed

    def to_loaded_hit(self, step: int) -> bool:
        """Move to the next (1) or previous (-1) hit among the loaded lines; False if there is none."""
        hits = self._pane.laid_out.hits
        if hits is None:
            return False
        has_all = self._feed.tail is None  # a filter loads every hit
        move = self._to if has_all else self._to_ahead
        if not move(_matches(hits), step, self._here):
            return False
        self._show_match(hits)
        return True

    async def next_hit(self, step: int, progress: Callable[[float], None]) -> bool:
        """Move to the next or previous hit in the rest of the files, then from the other end.

        Return False if there is none. Raises LinkError.
        """
        hits, pattern = self._pane.laid_out.hits, smart_case(self._pane.selection.pattern)
        if hits is None:
            return False
        if await self._search(pattern, _matches(hits), step, progress):
            return True
        if not self._to(_matches(hits), step, self._here):
            return False
        self._show_match(hits)
        return True

    def _show_match(self, hits: re.Pattern[str]) -> None:
        """Scroll sideways to the match in the current line."""
        line = self._pane.current
        match = hits.search(line.text) if line is not None else None
        if match is not None and not self._pane.laid_out.wrap:
            self._show_columns(match.start(), match.end())

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
        pane, here = self._pane, self._here
        up, words = step < 0, _ALARMS[step < 0]
        around = _FROM_THE_END[up]
        if pane.follow:
            around = words = FIRST_ALARM
        if up and pane.follow:
            here, words = len(pane.laid_out.lines), NEWEST_ALARM
        if self._to_ahead(is_alarm, step, here):
            pane.scroll_sideways(0)
            return words
        reached = await self._search(ALARMS, is_alarm, step, progress)
        if reached is Reached.AHEAD:
            return words
        if reached is Reached.AROUND:
            return around
        if not self._to(is_alarm, step, here):
            return ""
        pane.scroll_sideways(0)
        return around

    async def _search(
        self, pattern: str, wanted: Wanted, step: int, progress: Callable[[float], None]
    ) -> Reached | None:
        """Show the lines around one that is not loaded: first in this direction, then from the other end."""
        tail, up = self._feed.tail, step < 0
        if tail is None:
            return None
        for before in (up, not up):
            hit = await tail.find(pattern, self._by_then(wanted), before, progress, up)
            if tail is not self._feed.tail:
                return Reached.AHEAD  # another choice is shown by now
            if hit is not None:
                self._feed.go_to_line(hit)
                return Reached.AHEAD if before == up else Reached.AROUND
        return None

    def _by_then(self, wanted: Wanted) -> Wanted:
        """Return a condition that also excludes lines after the shown moment in the past."""
        until = self._pane.laid_out.until
        return wanted if until is None else lambda line: line.key[0] <= until and wanted(line)

    @property
    def _here(self) -> int:
        return self._pane.laid_out.index_at(self._pane.cursor)

    def _to_ahead(self, wanted: Wanted, step: int, here: int) -> bool:
        """Move to the next wanted line in this direction."""
        lines = self._pane.laid_out.lines
        ahead = lines[:here] if step < 0 else lines[here + 1 :]
        return any(map(wanted, ahead)) and self._to(wanted, step, here)

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
