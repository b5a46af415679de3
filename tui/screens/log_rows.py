"""The lines of a log as rows of a pane: columns, folding, wrapping, and the cells that do not scroll sideways."""

from __future__ import annotations

import re
from bisect import bisect_left
from contextlib import nullcontext

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.signal import Signal
from textual.strip import Strip
from textual.widget import Widget

from ...runners.run.log_files import LogFile
from ..log_tail import LogTail
from ..rows.frame import Frame, names
from ..rows.glyphs import Row, row_width
from ..rows.log import (
    TIMES,
    LogLine,
    Selection,
    TimeColumn,
    common,
    fixed_cells,
    folded,
    label_of,
    log_row,
    node_width,
    smart_case,
    time_column,
    wrapped,
)
from .panes import Pane


class LogRows(Pane):
    """Lays out the lines of a LogTail; only new lines become new rows."""

    def __init__(self, frames: Signal[Frame], *, id: str) -> None:
        super().__init__(frames, id=id, cursor=True)
        self.selection = Selection()
        self.follow = True
        self.times = TIMES[0]
        self.wrap = False
        self.fold = True
        self._tail: LogTail | None = None
        self._marks: set[tuple[str, int]] = set()
        """Marked lines, by file and offset."""
        self._rules: list[LogLine] = []
        """Rules that the user drew between lines."""
        self._lines: list[LogLine] = []
        """The shown lines, one for each line or group of equal lines."""
        self._firsts: list[int] = []
        """The first row of each of them."""
        self._folds: dict[tuple[int, int], LogLine] = {}
        self._fresh = False
        """Whether lines were read that are not laid out yet."""
        self._label_width = 0
        self._column = TimeColumn()
        self._wrapped_at = 0
        """Columns of the wrapped rows; 0 if lines are cut."""
        self._pattern: tuple[str, re.Pattern[str] | None] = ("", None)

    def _lay_out(self, tail: LogTail) -> None:
        """Build rows for the new lines, or for all lines from the first changed one."""
        self._fresh = False
        lines = self._shown_lines(tail)
        current, old_rows = self._current(), len(self.rows)
        shape = (self._width_of_labels(tail), self._time_column(), self.columns if self.wrap else 0)
        if shape != (self._label_width, self._column, self._wrapped_at):
            (self._label_width, self._column, self._wrapped_at), self._lines = shape, []
        same = common(self._lines, lines)
        if same == len(lines) == len(self._lines):
            return
        self._lines = lines
        cut = self._firsts[same] if same < len(self._firsts) else len(self.rows)
        cut = cut if same else 0
        del self._firsts[same:]
        fresh: list[Row] = []
        for index in range(same, len(lines)):
            self._firsts.append(cut + len(fresh))
            fresh += self._rows_of(index)
        self.rows[cut:] = fresh
        changed = {self.cursor, *range(cut, max(len(self.rows), old_rows))}
        with self.pacer.together() if self.pacer is not None else nullcontext():
            self._grown()
            if self.follow:
                self.cursor = max(0, len(self.rows) - 1)
                self._scroll_row(len(self.rows))
            elif current is not None:
                self._stay_on(current)
            self.paint_rows(sorted(changed | {self.cursor}))

    def _shown_lines(self, tail: LogTail) -> list[LogLine]:
        lines = list(tail.lines)
        for rule in self._rules:
            lines.insert(bisect_left(lines, rule.key, key=lambda line: line.key), rule)
        if self.fold:
            lines = folded(lines, self._folds)
        return [*lines, *(line for _, line in sorted(tail.unfinished.items()))]

    def _stay_on(self, line: LogLine) -> None:
        """Keep the cursor on its line after lines were inserted or removed before it."""
        at = self._index_of(line)
        before, self.cursor = self.cursor, max(0, min(self._row_of(at), len(self.rows) - 1))
        if before != self.cursor:
            self._scroll_row(max(0, self.scroll_offset.y + self.cursor - before))

    def _index_of(self, line: LogLine) -> int:
        """Return the index of a line, or its insertion point; unfinished lines are below all others."""
        ordered = len(self._lines) - (len(self._tail.unfinished) if self._tail is not None else 0)
        for at in range(ordered, len(self._lines)):
            if self._mark_of(self._lines[at]) == self._mark_of(line):
                return at
        return bisect_left(self._lines, line.key, hi=ordered, key=lambda each: each.key)

    def _rows_of(self, index: int) -> list[Row]:
        line = self._lines[index]
        above = self._lines[index - 1] if index else None
        when = self._column.text(line, above)
        row = log_row(line, self._mark_of(line) in self._marks, self._hits(), self._label_width, when)
        if not self.wrap:
            return [row]
        return wrapped(row, self._fixed, self.columns - 1)

    @property
    def _fixed(self) -> int:
        return fixed_cells(self._label_width, self._column.width)

    def _row_of(self, index: int) -> int:
        """Return the first row of a line."""
        return self._firsts[index] if 0 <= index < len(self._firsts) else len(self.rows)

    def _index(self) -> int:
        """Return the index of the line under the cursor."""
        at = bisect_left(self._firsts, self.cursor + 1) - 1
        return max(0, min(at, len(self._lines) - 1))

    def _current(self) -> LogLine | None:
        return self._lines[self._index()] if self._lines else None

    def _time_column(self) -> TimeColumn:
        """Return the time column for the pane's width; off if no recent line has a time."""
        tail, mode = self._tail, self.times
        if tail is None or not any(line.at is not None for line in tail.lines[-500:]):
            mode = "off"
        attempts = self.frame.state.attempts if self.frame is not None else []
        return time_column(mode, self.size.width, attempts[-1].began if attempts else None)

    def _hold_end(self) -> None:
        """Scroll to the last row after the pane's size changed, while following."""
        if self.follow and self.scroll_offset.y < self.max_scroll_y:
            self._scroll_row(len(self.rows))

    def _grown(self) -> None:
        """Set the number of rows without a layout, which would repaint the whole pane.

        A layout is needed only if the scrollbar appears or disappears.
        """
        size = Size(0, len(self.rows))
        if self.show_vertical_scrollbar != (size.height > self.size.height):
            self.virtual_size = size
            return
        self.set_reactive(Widget.virtual_size, size)
        if (
            self.show_vertical_scrollbar and not self.follow
        ):  # following scrolls anyway, which moves the thumb
            self.slide(size.height, self.vertical_scrollbar.position)

    def _label(self, file: LogFile) -> str:
        """Return the writer of a line, with its node if there are several."""
        return label_of(file, self._named())

    def _named(self) -> dict[int, str]:
        return {} if self.frame is None else names(self.frame.state)

    def _width_of_labels(self, tail: LogTail) -> int:
        """Return the columns in front of each line; 0 if all lines are from one file."""
        if len(tail) == 1:
            return 0
        nodes = self._named()
        return 7 if len(nodes) < 2 else 8 + node_width(nodes)

    def _cut(self, segments: list[Segment], width: int, plain: Style) -> list[Segment]:
        """Keep rank and time in place; `…` marks omitted text."""
        fixed = segments[: 1 + self._fixed]
        room = max(1, width - sum(segment.cell_length for segment in fixed))
        body = Strip(segments[1 + self._fixed :])
        shown = body.crop(self._left, self._left + room)
        if self._left and body.cell_length:
            shown = Strip([Segment("…", plain), *shown.crop(1)])
        if body.cell_length > self._left + room:
            shown = Strip([*shown.crop(0, room - 1), Segment("…", plain)])
        return [*fixed, *shown.adjust_cell_length(room, plain)]

    def _farthest(self) -> int:
        return max((row_width(row[self._fixed :]) for row in self.rows), default=0) - self._room()

    def _room(self) -> int:
        """Return the columns for text."""
        labels = self._label_width + bool(self._label_width)
        times = self._column.width + bool(self._column.width)
        return max(1, self.columns - 2 - labels - times)

    @staticmethod
    def _mark_of(line: LogLine) -> tuple[str, int]:
        return (line.key[3], line.key[4])

    def _hits(self) -> re.Pattern[str] | None:
        text = self.selection.pattern
        if self._pattern[0] != text:
            self._pattern = (text, re.compile(smart_case(text)) if text else None)
        return self._pattern[1]
