"""The log pane: rows of the loaded lines, the cursor, and the keys."""

from __future__ import annotations

import re
from bisect import bisect_left
from contextlib import nullcontext
from typing import ClassVar

from msgspec.structs import replace
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message
from textual.signal import Signal
from textual.widget import Widget

from ...runners.run.state import RunState
from ..background import keep_running
from ..keys import bindings
from ..loaded_logs import Reader
from ..rows.frame import Frame
from ..rows.log import Jump, Selection, named, smart_case
from ..rows.log_lines import LogLine
from .log_feed import LogFeed
from .log_finder import LineFinder
from .log_layout import LogLayout, mark_of
from .log_title import LogTitle
from .panes import Pane


class LogView(Pane):
    """Shows a window of the chosen files, merged by time."""

    BINDINGS: ClassVar[list[Binding]] = bindings("list")  # type: ignore[assignment]

    class Zoomed(Message):
        """The user wants the log on the whole screen."""

    def __init__(self, frames: Signal[Frame], read: Reader, grown: Signal[None], *, id: str) -> None:
        super().__init__(frames, id=id, cursor=True)
        self.selection = Selection()
        self.follow = True
        self.laid_out = LogLayout()
        self.feed = LogFeed(self, read)
        self.finder = LineFinder(self)
        self.title = LogTitle(self)
        self._growth = grown
        self._past: float | None = None
        """The past moment that the pane shows; None for live."""

    def on_mount(self) -> None:
        self._growth.subscribe(self, lambda _: self.feed.wake(), immediate=True)
        keep_running(self, "log", self.feed.run)

    @property
    def current(self) -> LogLine | None:
        """The line under the cursor."""
        lines = self.laid_out.lines
        return lines[self.laid_out.index_at(self.cursor)] if lines else None

    # --- choice and place

    def select(self, selection: Selection) -> None:
        if selection != self.selection:
            self.selection = selection
            pattern = selection.pattern
            self.laid_out.hits = re.compile(smart_case(pattern)) if pattern else None
            self.laid_out.marks.clear()
            self.left = 0
            self.feed.restart()

    def show(self, frame: Frame) -> None:
        self.frame = frame
        if self.ascii_only != frame.view.ascii:
            self.ascii_only = frame.view.ascii
            self.repaint()
        self._go_with(frame)
        self.feed.take_frame(frame)
        self.feed.show_fresh()
        self.name_it()

    def _go_with(self, frame: Frame) -> None:
        """Follow the cockpit to its moment in the past, and back to the end."""
        past = frame.moment.at if frame.moment is not None else None
        if past == self._past:
            return
        self._past = past
        if past is None:
            self.set_follow(True)
        else:
            self.go_to(Jump(at=past))

    def set_follow(self, on: bool) -> None:
        """Follow the end, or stay at the current line."""
        self.follow = on
        if on:
            tail = self.feed.tail
            if self.feed.jump is not None or (tail is not None and (not tail.at_end or tail.far_behind)):
                self.feed.restart()
            self.feed.ask()
            self._to_last_row()
            self.refresh()
        self.name_it()

    def _to_last_row(self) -> None:
        self.cursor = max(0, len(self.rows) - 1)
        self._scroll_row(len(self.rows))

    def go_to(self, jump: Jump) -> str:
        """Show that place; return "" or why it cannot be shown."""
        if jump.line > 1 and self.laid_out.has_labels:
            return "lines are counted in one file: choose a rank with Enter and a stream with v first"
        self.follow = False
        if not self.selection.filters:
            self.feed.restart(jump)
        elif jump.at:
            lines = self.laid_out.lines
            at = bisect_left(lines, jump.at, key=lambda line: line.key[0])
            self.move_to(self.laid_out.row_of(min(at, len(lines) - 1)))
        else:
            self.move_to(0 if jump.line else int(len(self.rows) * (jump.share or 0)))
        return ""

    def go_to_line(self, line: LogLine) -> None:
        """Load the lines around a line outside the loaded ones, and move the cursor to it."""
        self.follow = False
        self.left = 0
        self.feed.restart(Jump(offset=line.key[4], file=line.key[3], at=line.key[0]))

    def land(self, jump: Jump) -> None:
        """Move the cursor to the place of a jump after its lines were loaded."""
        self.lay_out()
        lines = self.laid_out.lines
        reached = (line.key[0] >= jump.at for line in lines)
        if jump.file:
            reached = (mark_of(line) == (jump.file, jump.offset) for line in lines)
        index = next((index for index, is_there in enumerate(reached) if is_there), len(lines) - 1)
        self.move_to(self.laid_out.row_of(max(0, index)))
        if jump.file:
            self._scroll_row(self.cursor - self.shown // 2)  # centre it among its neighbours

    def to_own_log(self) -> bool:
        """Switch from all ranks to the log of the rank that wrote the current line, at that line.

        Return False if the log already shows only one rank.
        """
        line = self.current
        wrote = named(line.key[3]) if line is not None else None
        if line is None or wrote is None or wrote.rank is None or self.selection.rank is not None:
            return False
        self.select(replace(self.selection, rank=wrote.rank))
        self.go_to_line(line)
        return True

    # --- rows

    def clear(self) -> None:
        """Remove the rows of the previous choice."""
        self.laid_out.clear()
        self.set_rows([])
        self.cursor = 0

    def lay_out(self) -> None:
        """Build rows for the new lines, or for all lines if the columns changed."""
        logs, laid_out = self.feed.logs, self.laid_out
        if logs is None or self.frame is None:
            return
        self.feed.fresh = False
        current, old_rows = self.current, len(self.rows)
        changed = laid_out.update(
            logs, laid_out.reshape(logs, self.frame.state, self.size.width, self.columns)
        )
        if changed is None:
            return
        first, rows = changed
        self.rows[first:] = rows
        repaint = {self.cursor, *range(first, max(len(self.rows), old_rows))}
        with self.pacer.together() if self.pacer is not None else nullcontext():
            self._set_height()
            if self.follow:
                self._to_last_row()
            elif current is not None:
                self._stay_on(current)
            self.paint_rows(sorted(repaint | {self.cursor}))

    def _stay_on(self, line: LogLine) -> None:
        """Keep the cursor on its line after lines were inserted or removed before it."""
        row, before = self.laid_out.row_of(self.laid_out.index_of(line)), self.cursor
        self.cursor = max(0, min(row, len(self.rows) - 1))
        if before != self.cursor:
            self._scroll_row(max(0, self.scroll_offset.y + self.cursor - before))

    def _set_height(self) -> None:
        """Set the number of rows without a layout, which would repaint the whole pane.

        A layout is needed only if the scrollbar appears or disappears.
        """
        size = Size(0, len(self.rows))
        if self.show_vertical_scrollbar != (size.height > self.size.height):
            self.virtual_size = size
            return
        self.set_reactive(Widget.virtual_size, size)
        if self.show_vertical_scrollbar and not self.follow:  # following scrolls, which moves the thumb
            self.slide(size.height, self.vertical_scrollbar.position)

    def change_layout(self) -> None:
        """Lay out all rows again; the cursor stays on its line."""
        current = self.current
        self.laid_out.clear()
        self.lay_out()
        if current is not None and not self.follow:
            index = min(self.laid_out.index_of(current), len(self.laid_out.lines) - 1)
            self.move_to(self.laid_out.row_of(index))
        self.refresh()

    # --- scrolling sideways

    def scroll_sideways(self, left: int) -> None:
        if left != self.left:
            self.left = left
            self.refresh()

    def cut(self, segments: list[Segment], width: int, plain: Style) -> list[Segment]:
        return self.laid_out.cut(segments, self.left, width, plain)

    def _farthest(self) -> int:
        return self.laid_out.widest(self.rows) - self.laid_out.room(self.columns)

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
        self.lay_out()
        self.call_after_refresh(self._hold_end)
        self.feed.ask()

    def _hold_end(self) -> None:
        """Scroll to the last row after the pane's size changed, while following."""
        if self.follow and self.scroll_offset.y < self.max_scroll_y:
            self._scroll_row(len(self.rows))

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
            self.go_to(Jump(line=1))
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
            self.go_to_line(line)


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
