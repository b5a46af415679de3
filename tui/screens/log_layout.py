"""The rows of log lines: columns, folding, wrapping, marks; and the first row of each line."""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from ...runners.logs.levels import Level
from ...runners.run.state import RunState
from ..loaded_logs import OWN, LoadedLogs
from ..rows.cycle import following
from ..rows.frame import names
from ..rows.glyphs import Row, row_width
from ..rows.line_widths import UsefulWidth
from ..rows.log import node_width
from ..rows.log_lines import (
    TIMES,
    LogLine,
    TimeColumn,
    common,
    fixed_cells,
    folded,
    log_row,
    time_column,
    wrapped,
)

Mark = tuple[str, int]
"""File and offset of a line."""


def mark_of(line: LogLine) -> Mark:
    return line.key[3], line.key[4]


class LogLayout:
    """Lays out lines; only new lines become new rows."""

    def __init__(self) -> None:
        self.times = TIMES[0]
        self.wrap = False
        self.fold = True
        self.marks: set[Mark] = set()
        self.until: float | None = None
        """Unix time of the shown moment in the past, after which no line is shown; None for live."""
        self.rules: list[LogLine] = []
        """Rules that the user drew between lines."""
        self.hits: re.Pattern[str] | None = None
        """Pattern of the text to highlight."""
        self.lines: list[LogLine] = []
        """The shown lines, one for each line or group of equal lines."""
        self.has_labels = False
        """Whether lines are of several writers."""
        self._firsts: list[int] = []
        """The first row of each line."""
        self._end = 0
        """The number of rows."""
        self._ordered = 0
        """The number of complete lines; the unfinished ones follow."""
        self._folds: dict[tuple[int, int], LogLine] = {}
        self._label_width = 0
        self._column = TimeColumn()
        self._columns = 0
        """Columns of the wrapped rows; 0 if lines are cut."""
        self.useful = UsefulWidth()

    def clear(self) -> None:
        """Forget the lines of the previous choice."""
        self.lines, self._firsts, self._end, self._ordered = [], [], 0, 0
        self._folds.clear()

    def reshape(self, logs: LoadedLogs, state: RunState, width: int, columns: int) -> bool:
        """Set the columns for a pane of this width. Return whether they changed.

        Lines are wrapped to `columns`, which leave room for a scrollbar: wrapping may be what makes it appear.
        """
        self.has_labels = logs.writers > 1
        times = self._time_column(logs, state, width)
        shape = (self._width_of_labels(names(state)), times, columns if self.wrap else 0)
        if shape == (self._label_width, self._column, self._columns):
            return False
        self._label_width, self._column, self._columns = shape
        return True

    def _width_of_labels(self, nodes: dict[int, str]) -> int:
        """Return the columns in front of each line; 0 if all lines are from one writer."""
        if not self.has_labels:
            return 0
        return 7 if len(nodes) < 2 else 8 + node_width(nodes)

    def _time_column(self, logs: LoadedLogs, state: RunState, width: int) -> TimeColumn:
        """Return the time column for the pane's width; off if no recent line has a time."""
        timed = any(line.at is not None for line in logs.lines[-500:])
        began = tuple(attempt.began for attempt in state.attempts)
        return time_column(self.times if timed else "off", width, began)

    def update(self, logs: LoadedLogs, whole: bool = False) -> tuple[int, list[Row]] | None:
        """Lay out the lines that changed; return the first changed row and the rows from there, or None.

        `whole`: lay out all lines, since the columns changed.
        """
        lines = list(logs.lines)
        for rule in self.rules:
            lines.insert(bisect_left(lines, rule.key, key=lambda line: line.key), rule)
        lines = self._shown(lines)
        if self.fold:
            lines = folded(lines, self._folds)
        self._ordered = len(lines)
        lines += self._shown([line for _, line in sorted(logs.unfinished.items())])
        same = 0 if whole else common(self.lines, lines)
        if not whole and same == len(lines) == len(self.lines):
            return None
        first = self.row_of(same) if same else 0
        self.lines = lines
        del self._firsts[same:]
        rows: list[Row] = []
        for index in range(same, len(lines)):
            self._firsts.append(first + len(rows))
            rows += self.rows_of(index)
        self._end = first + len(rows)
        if not self.wrap:
            self.useful.add(map(row_width, rows))
        return first, rows

    def _shown(self, lines: list[LogLine]) -> list[LogLine]:
        """Return the lines that were written by the shown moment."""
        until = self.until
        return lines if until is None else [line for line in lines if line.key[0] <= until]

    def rows_of(self, index: int) -> list[Row]:
        """Build the rows of a line."""
        line, above = self.lines[index], self.lines[index - 1] if index else None
        when = self._column.text(line, above)
        row = log_row(line, mark_of(line) in self.marks, self.hits, self._label_width, when)
        return wrapped(row, self._fixed, self._columns - 1) if self.wrap else [row]

    def row_of(self, index: int) -> int:
        """Return the first row of a line."""
        return self._firsts[index] if 0 <= index < len(self._firsts) else self._end

    def index_at(self, row: int) -> int:
        """Return the index of the line in a row."""
        return max(0, min(bisect_left(self._firsts, row + 1) - 1, len(self.lines) - 1))

    def index_of(self, line: LogLine) -> int:
        """Return the index of a line, or its insertion point; unfinished lines are below all others."""
        for at in range(self._ordered, len(self.lines)):
            if mark_of(self.lines[at]) == mark_of(line):
                return at
        return bisect_left(self.lines, line.key, hi=self._ordered, key=lambda each: each.key)

    # --- keys

    def next_times(self) -> str:
        """Switch to the next form of times; return its name."""
        self.times = following(TIMES, self.times)
        return self.times

    def draw_rule(self, now: float) -> None:
        """Draw a rule with the time after the newest line, as a mark before the lines to come."""
        text = f"── mark {time.strftime('%H:%M:%S', time.localtime(now))} " + "─" * 40
        key = (self.lines[-1].key[0] if self.lines else 0.0, OWN + 1, len(self.rules), "", 0)
        self.rules.append(LogLine(text, "", Level.NONE, key=key))

    # --- scrolling sideways

    @property
    def _fixed(self) -> int:
        return fixed_cells(self._label_width, self._column.width)

    def room(self, columns: int) -> int:
        """Return the columns for text of a pane with so many."""
        before = sum(width + 1 for width in (self._label_width, self._column.width) if width)
        return max(1, columns - 2 - before)

    def widest(self, rows: Sequence[Row]) -> int:
        """Return the columns of the longest text."""
        return max((row_width(row[self._fixed :]) for row in rows), default=0)

    def cut(self, segments: list[Segment], left: int, width: int, plain: Style) -> list[Segment]:
        """Keep rank and time in place; `…` marks omitted text."""
        fixed = segments[: 1 + self._fixed]
        room = max(1, width - sum(segment.cell_length for segment in fixed))
        body = Strip(segments[1 + self._fixed :])
        shown = body.crop(left, left + room)
        if left and body.cell_length:
            shown = Strip([Segment("…", plain), *shown.crop(1)])
        if body.cell_length > left + room:
            shown = Strip([*shown.crop(0, room - 1), Segment("…", plain)])
        return [*fixed, *shown.adjust_cell_length(room, plain)]

    # --- text

    def text(self, line: LogLine) -> str:
        """Return a line as it is copied."""
        return f"{line.label}  {line.text}" if self.has_labels and line.label else line.text

    def marked_text(self) -> str:
        """Return the marked lines."""
        return "\n".join(self.text(line) for line in self.lines if mark_of(line) in self.marks)

    def text_of(self, lines: Iterable[LogLine]) -> str:
        """Return lines as they are copied, each with its newline."""
        return "".join(f"{self.text(line)}\n" for line in lines)
