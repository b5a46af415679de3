"""The log pane: rows of the loaded lines, the cursor, and the keys."""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import ClassVar

from msgspec.structs import replace
from textual.binding import Binding
from textual.events import Resize
from textual.message import Message
from textual.signal import Signal

from ...runners.run.state import RunState
from ..background import keep_running
from ..keys import bindings
from ..loaded_logs import Reader
from ..rows.frame import Frame
from ..rows.log import Jump, Selection, named, smart_case
from .log_feed import LogFeed
from .log_finder import LineFinder
from .log_layout import mark_of
from .log_pane import LogPane
from .log_title import LogTitle


class LogView(LogPane):
    """Shows a window of the chosen files, merged by time."""

    BINDINGS: ClassVar[list[Binding]] = bindings("list")  # type: ignore[assignment]

    class Zoomed(Message):
        """The user wants the log on the whole screen."""

    def __init__(self, frames: Signal[Frame], read: Reader, grown: Signal[None], *, id: str) -> None:
        super().__init__(frames, id=id)
        self.feed = LogFeed(self, read)
        self.finder = LineFinder(self, self.feed)
        self.title = LogTitle(self, self.feed)
        self._growth = grown

    def on_mount(self) -> None:
        self._growth.subscribe(self, lambda _: self.feed.wake(), immediate=True)
        keep_running(self, "log", self.feed.run)

    # --- choice and place

    def select(self, selection: Selection) -> None:
        if selection != self.selection:
            self.selection = selection
            pattern = selection.pattern
            self.laid_out.hits = re.compile(smart_case(pattern)) if pattern else None
            self.laid_out.marks.clear()
            self.left = 0
            self.feed.restart(self._moment)

    def show(self, frame: Frame) -> None:
        self.frame = frame
        self._go_with(frame)
        self.feed.take_frame(frame)
        self.feed.show_fresh()
        self.name_it()

    @property
    def _moment(self) -> Jump | None:
        """The place of the shown moment in the past; None for live."""
        until = self.laid_out.until
        return None if until is None else Jump(at=until, ends=True)

    def _go_with(self, frame: Frame) -> None:
        """Follow the cockpit to its moment in the past, and back to the end."""
        past = frame.moment.at if frame.moment is not None else None
        if past != self.laid_out.until:
            self.laid_out.until = past
            self.feed.lay_out()
            self.set_follow(True)

    def set_follow(self, on: bool) -> None:
        """Stay at the end of the log, in the past at that of the shown moment; or stay at the current line."""
        self.follow = on
        if on:
            if self._is_elsewhere():
                self.feed.restart(self._moment)
            self.feed.ask()
            self.to_last_row()
            self.refresh()
        self.name_it()

    def _is_elsewhere(self) -> bool:
        """Whether the loaded lines do not reach the end to stay at."""
        tail = self.feed.tail
        if self.laid_out.until is not None:
            return self.feed.jump != self._moment and not self.selection.filters
        return self.feed.jump is not None or (tail is not None and (not tail.at_end or tail.far_behind))

    def go_to_time(self, at: float) -> None:
        """Move to the first line at this Unix time, and stay there."""
        self.follow = False
        if not self.selection.filters:
            self.feed.restart(Jump(at=at))
            return
        lines = self.laid_out.lines
        index = bisect_left(lines, at, key=lambda line: line.key[0])
        self.move_to(self.laid_out.row_of(min(index, len(lines) - 1)))

    def to_own_log(self) -> bool:
        """Switch from all ranks to the log of the rank that wrote the current line, at that line.

        Return False if the log already shows only one rank.
        """
        line = self.current
        wrote = named(line.key[3]) if line is not None else None
        if line is None or wrote is None or wrote.rank is None or self.selection.rank is not None:
            return False
        self.select(replace(self.selection, rank=wrote.rank))
        self.feed.go_to_line(line)
        return True

    # --- rows

    def change_layout(self) -> None:
        """Lay out all rows again; the cursor stays on its line."""
        current = self.current
        self.laid_out.clear()
        self.feed.lay_out()
        if current is not None and not self.follow:
            index = min(self.laid_out.index_of(current), len(self.laid_out.lines) - 1)
            self.move_to(self.laid_out.row_of(index))
        self.refresh()

    # --- the title

    def name_it(self) -> None:
        """Show the choice and the state in the title."""
        self.entitle(self.title.text)

    # --- keys

    def chosen_text(self) -> str:
        """Return the marked lines, or the one under the cursor."""
        line = self.current
        return self.laid_out.marked_text() or (self.laid_out.text(line) if line is not None else "")

    def on_resize(self, event: Resize) -> None:
        self.feed.lay_out()
        self.call_after_refresh(self._hold_end)
        self.feed.ask()

    def _hold_end(self) -> None:
        """Scroll to the last row after the pane's size changed, while following, and move the thumb there."""
        if self.follow and self.scroll_offset.y < self.max_scroll_y:
            self._scroll_row(len(self.rows))
        if self.show_vertical_scrollbar:  # rows that came before the scrollbar did not move its thumb
            self.slide(self.virtual_size.height, self.scroll_y)

    def on_mouse_scroll_up(self) -> None:
        """Stop following, as the movement keys do."""
        if self.follow:
            self.set_follow(False)

    def cursor_moved(self) -> None:
        """Stop following if the user left the last line; load more lines at both ends."""
        at_end = self.cursor >= len(self.rows) - 1
        if not at_end:
            self.set_follow(False)
        if at_end or self.cursor <= 1:
            self.feed.ask()
        self.name_it()

    def action_end(self, bottom: bool) -> None:
        """Go to the end of the files, or to their first line, even if these are not loaded."""
        tail = self.feed.tail
        if bottom and tail is not None and not tail.at_end:
            self.set_follow(True)
        elif not bottom and tail is not None and not tail.beginning:
            self.follow = False
            self.feed.restart(Jump())
        else:
            super().action_end(bottom)

    def action_mark(self) -> None:
        line = self.current
        if line is not None:
            self.laid_out.marks ^= {mark_of(line)}
            index = self.laid_out.index_at(self.cursor)
            row, rows = self.laid_out.row_of(index), self.laid_out.rows_of(index)
            self.rows[row : row + len(rows)] = rows
            self.paint_rows(range(row, row + len(rows)))
            self.action_cursor(len(rows))

    def action_zoom(self) -> None:
        """With a filter, toggle between hits and their context. Without, show the log on the whole screen."""
        line = self.current
        if not self.selection.pattern:
            self.post_message(self.Zoomed())
            return
        self.select(replace(self.selection, only_hits=not self.selection.only_hits))
        if not self.selection.only_hits and line is not None:
            self.feed.go_to_line(line)


def culprit(state: RunState) -> int | None:
    """Return the rank that failed first in the newest attempt; None if none did."""
    cause = state.first_cause
    return cause.rank if cause is not None and cause.rank in state.ranks else None


class LogLead:
    """Switches the log to a rank, unless the user chose a rank, a stream or a filter."""

    def __init__(self, log: LogView) -> None:
        self._log = log
        self._led: Selection | None = None
        self._culprit: int | None = None

    def to(self, rank: int | None) -> None:
        """Show this rank, or all (None), at the newest line."""
        if self._log.selection not in (Selection(), self._led):
            return
        self._led = Selection(rank=rank)
        if self._led != self._log.selection:
            self._log.select(self._led)
            self._log.set_follow(True)

    def to_culprit(self, state: RunState) -> None:
        """Show the first failed rank once per failure, and all ranks again when the next attempt begins."""
        rank = culprit(state)
        if rank != self._culprit:
            self._culprit = rank
            self.to(rank)

    def chosen(self) -> None:
        """Note that the user chose the current selection."""
        self._led = None
