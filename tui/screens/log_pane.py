"""A pane of log lines: it lays out loaded lines, and keeps the cursor on its line."""

from __future__ import annotations

from contextlib import nullcontext

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.signal import Signal
from textual.widget import Widget

from ..loaded_logs import LoadedLogs
from ..rows.frame import Frame
from ..rows.log import Jump, Selection
from ..rows.log_lines import LogLine
from .log_layout import LogLayout, mark_of
from .panes import Pane


class LogPane(Pane):
    """Shows loaded lines; it does not know how they are loaded."""

    def __init__(self, frames: Signal[Frame], *, id: str) -> None:
        super().__init__(frames, id=id, cursor=True)
        self.selection = Selection()
        self.follow = True
        self.laid_out = LogLayout()

    @property
    def current(self) -> LogLine | None:
        """The line under the cursor."""
        lines = self.laid_out.lines
        return lines[self.laid_out.index_at(self.cursor)] if lines else None

    def name_it(self) -> None:
        """Show the choice and the state in the title."""
        raise NotImplementedError

    def clear(self) -> None:
        """Remove the rows of the previous choice."""
        self.laid_out.clear()
        self.set_rows([])
        self.cursor = 0

    def lay_out(self, logs: LoadedLogs) -> None:
        """Build rows for the new lines, or for all lines if the columns changed."""
        if self.frame is None:
            return
        current, old_rows = self.current, len(self.rows)
        beside_bar = self.size.width - self.styles.scrollbar_size_vertical
        reshaped = self.laid_out.reshape(logs, self.frame.state, self.size.width, beside_bar)
        useful = self.laid_out.useful.columns
        changed = self.laid_out.update(logs, reshaped)
        if changed is None:
            return
        if self.laid_out.useful.columns != useful:
            self.call_next(self.app.publish)  # the panes are placed with each frame
        first, rows = changed
        self.rows[first:] = rows
        repaint = {self.cursor, *range(first, max(len(self.rows), old_rows))}
        with self.pacer.together() if self.pacer is not None else nullcontext():
            self._set_height()
            if self.follow:
                self.to_last_row()
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

    def to_last_row(self) -> None:
        self.cursor = max(0, len(self.rows) - 1)
        self._scroll_row(len(self.rows))

    def land(self, jump: Jump) -> None:
        """Move the cursor to the place of a jump."""
        if jump.ends:
            self.to_last_row()
            return
        lines = self.laid_out.lines
        reached = (line.key[0] >= jump.at for line in lines)
        if jump.file:
            reached = (mark_of(line) == (jump.file, jump.offset) for line in lines)
        index = next((index for index, is_there in enumerate(reached) if is_there), len(lines) - 1)
        self.move_to(self.laid_out.row_of(max(0, index)))
        if jump.file:
            self._scroll_row(self.cursor - self.shown // 2)  # centre it among its neighbours

    def scroll_sideways(self, left: int) -> None:
        if left != self.left:
            self.left = left
            self.refresh()

    def cut(self, segments: list[Segment], width: int, plain: Style) -> list[Segment]:
        return self.laid_out.cut(segments, self.left, width, plain)

    def _farthest(self) -> int:
        return self.laid_out.widest(self.rows) - self.laid_out.room(self.columns)
