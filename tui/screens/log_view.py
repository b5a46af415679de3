"""The log pane: what it shows of a LogTail, following, filtering, marking, copying, going somewhere."""

from __future__ import annotations

import asyncio
import re
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message
from textual.signal import Signal
from textual.strip import Strip
from textual.widget import Widget

from ...runners.formatting import plural
from ...runners.logs.follow import ALARMS, Level, level_of
from ...runners.logs.log_files import LogFile
from ...runners.state import RunState
from ...runners.wire.client import LinkError
from ..keys import bindings
from ..log_tail import LogTail, Reader
from ..rows.frame import Frame, names
from ..rows.glyphs import Row, row_width
from ..rows.log import (
    TIMES,
    Jump,
    LogLine,
    Selection,
    TimeColumn,
    choices,
    chosen_title,
    common,
    files_for,
    fixed_cells,
    folded,
    label_of,
    log_row,
    node_width,
    time_column,
    wrapped,
)
from ..rows.run_status import launching
from .panes import Pane

PAUSE_S = 0.5
"""Between two pulls of files that have more than was read: a flood costs no more than this."""

SEARCH_S = 0.02
"""The same while a search goes on, which the node paces."""

HELD_S = 0.4
"""How long new lines wait for a frame to be painted with."""


class LogView(Pane):
    """Shows the chosen files by window, merged by time; never holds more than KEPT lines."""

    BINDINGS: ClassVar[list[Binding]] = bindings("list")  # type: ignore[assignment]

    class Zoomed(Message):
        """The user wants the log on the whole screen."""

    def __init__(self, frames: Signal[Frame], read: Reader, grown: Signal[None], *, id: str) -> None:
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
        """What is shown, one for each line or group of equal lines."""
        self._firsts: list[int] = []
        """The row with which each of them begins."""
        self._folds: dict[tuple[int, int], LogLine] = {}
        self._read = read
        self._growth = grown
        self._attempt = 0
        self._basis: tuple[int, ...] = ()
        """What the choice of files depends on, as it was when they were chosen."""
        self._jump: Jump | None = None
        """Where to begin next; None: at the end."""
        self._wake = asyncio.Event()
        self._asked = False
        """By what does not wait: keys, a new size, a new attempt."""
        self._behind = False
        self._fresh = False
        """Whether lines were read that are not laid out yet."""
        self._sizes: dict[str, int] = {}
        self._reason = ""
        self._errand = ""
        self._label_width = 0
        self._column = TimeColumn()
        self._pattern: tuple[str, re.Pattern[str] | None] = ("", None)

    def on_mount(self) -> None:
        self._growth.subscribe(self, lambda _: self._wake.set(), immediate=True)
        self.run_worker(self._keep_pulling(), group="log", exclusive=True, exit_on_error=False)

    # --- what is shown

    def select(self, selection: Selection) -> None:
        """Show something else."""
        if selection != self.selection:
            self.selection = selection
            self._left = 0
            self._begin_anew()
            self._marks.clear()

    def _begin_anew(self, jump: Jump | None = None) -> None:
        self._tail, self._jump = None, jump
        self._ask()

    def _ask(self) -> None:
        """Pull now, and show it now."""
        self._asked = True
        self._wake.set()

    def show(self, frame: Frame) -> None:
        self.frame = frame
        if self.ascii_only != frame.view.ascii:
            self.ascii_only = frame.view.ascii
            self.repaint()
        if self._tail is None or frame.state.attempt != self._attempt:
            self._ask()
        self._lay_out_fresh()
        self._name_it()

    def _lay_out_fresh(self) -> None:
        """Lines that wait for a frame, unless the terminal is not ready for one."""
        if self._fresh and self._tail is not None and not (self.pacer is not None and self.pacer.busy):
            self._lay_out(self._tail)

    def on_resize(self, event: Resize) -> None:
        if self._tail is not None and (self.wrap or self._time_column() != self._column):
            self._lay_out(self._tail)
        self.call_after_refresh(self._hold_end)
        self._ask()

    async def _keep_pulling(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience()):
                    await self._wake.wait()
            if self.pacer is not None and self.pacer.busy:  # a flood must not outrun the terminal
                await asyncio.sleep(PAUSE_S / 2)
                continue
            self._wake.clear()
            self._lay_out_fresh()
            if not self._news():
                continue
            try:
                await self._pull()
                self._reason = ""
            except LinkError as error:
                self._reason = str(error)
                self._name_it()

    def _patience(self) -> float | None:
        if self._tail is not None and self._tail.searching:
            return SEARCH_S
        return HELD_S if self._fresh else PAUSE_S if self._behind else None

    def _news(self) -> bool:
        """Whether there is something to pull."""
        frame = self.frame
        if frame is None or (frame.view.paused and not self._asked):
            return False
        if self._sizes == frame.state.log_sizes:
            return self._behind or self._asked
        self._sizes = dict(frame.state.log_sizes)
        return True

    async def _pull(self) -> None:
        frame, asked = self.frame, self._asked
        self._asked = False
        if frame is None or not self.display:
            return
        if self._tail is None:
            asked = True
            await self._begin(frame)
        tail = self._tail
        if tail is None:
            return
        self._add_files(tail, frame.state)
        if not self.follow and self.cursor <= 1 and not tail.beginning:
            await self._load_earlier(tail)
        elif self._wants_more(tail):
            asked = await self._load_later(tail) or asked
        if tail is self._tail and asked:
            self._lay_out(tail)
        self._name_it()

    def _wants_more(self, tail: LogTail) -> bool:
        return tail.searching or self.follow or self.cursor >= len(self.rows) - self.shown

    async def _load_later(self, tail: LogTail) -> bool:
        """What follows; whether to show it now."""
        if self.follow or tail.at_end:
            searching = tail.searching
            came = await tail.pull(self._sizes)
            self._fresh = came > 0 or bool(tail.unfinished) or self._fresh
            self._behind = tail.behind
            return searching
        await tail.later()
        self._behind = False
        return True

    async def _begin(self, frame: Frame) -> None:
        chosen, jump = self.selection, self._jump
        files = files_for(frame.state, chosen.rank, chosen.stream)
        if not files:
            self._lines, self._firsts = [], []
            self.set_rows([])  # what was chosen before is not what is chosen now
            self._name_it()
            return
        clock = getattr(self.app, "clock", time.time)
        tail = LogTail(self._read, files, chosen.pattern if chosen.only_hits else "", self._label, clock)
        if jump is None:
            await tail.begin()
        else:
            await tail.begin_at(jump)
        if chosen == self.selection and jump == self._jump:
            self._tail, self._attempt = tail, frame.state.attempt
            self._lines, self._firsts, self._basis, self._jump = [], [], (), None
            self._folds.clear()
            self.set_rows([])  # also where the new ones will be fewer
            self.cursor = 0
            if jump is not None:
                self._lay_out(tail)
                self.move_to(self._row_of(self._place_of(jump)))

    def _place_of(self, jump: Jump) -> int:
        """The line at which a jump lands, of those that are shown."""
        for index, line in enumerate(self._lines):
            if jump.file:
                if line.key[3:] == (jump.file, jump.offset):
                    return index
            elif line.key[0] >= jump.at:
                return index
        return max(0, len(self._lines) - 1)

    def _add_files(self, tail: LogTail, state: RunState) -> None:
        """Files that have come into being since, and a line between attempts."""
        another = state.attempt != self._attempt
        basis = (state.attempt, len(state.log_sizes), len(state.ranks))
        if another or basis != self._basis:
            between = f"── attempt {state.attempt} ──" if another and self._attempt else ""
            tail.add(files_for(state, self.selection.rank, self.selection.stream), between)
            self._attempt, self._basis = state.attempt, basis

    async def _load_earlier(self, tail: LogTail) -> None:
        current = self._current()
        came = await tail.earlier()
        if came and tail is self._tail:
            self._lay_out(tail)
            if current is not None and current in self._lines:
                self.move_to(self._row_of(self._lines.index(current)))

    # --- rows

    def _lay_out(self, tail: LogTail) -> None:
        """Rows for the lines that are new; all of them where the front changed."""
        self._fresh = False
        lines = self._shown_lines(tail)
        shape = (self._width_of_labels(tail), self._time_column())
        if shape != (self._label_width, self._column):
            (self._label_width, self._column), self._lines = shape, []
        same = common(self._lines, lines)
        if same == len(lines) == len(self._lines):
            return
        current, old_rows = self._current(), len(self.rows)
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
        return [*lines, *tail.unfinished.values()]

    def _stay_on(self, line: LogLine) -> None:
        """Lines were put before the current one, or went there."""
        at = bisect_left(self._lines, line.key, key=lambda each: each.key)
        before, self.cursor = self.cursor, max(0, min(self._row_of(at), len(self.rows) - 1))
        if before != self.cursor:
            self._scroll_row(max(0, self.scroll_offset.y + self.cursor - before))

    def _rows_of(self, index: int) -> list[Row]:
        line = self._lines[index]
        above = self._lines[index - 1] if index else None
        when = self._column.text(line, above)
        row = log_row(line, self._mark_of(line) in self._marks, self._hits(), self._label_width, when)
        if not self.wrap:
            return [row]
        return wrapped(row, self._fixed, self.size.width - 1)

    @property
    def _fixed(self) -> int:
        return fixed_cells(self._label_width, self._column.width)

    def _row_of(self, index: int) -> int:
        """The first row of a line."""
        return self._firsts[index] if 0 <= index < len(self._firsts) else len(self.rows)

    def _index(self) -> int:
        """The line under the cursor."""
        at = bisect_left(self._firsts, self.cursor + 1) - 1
        return max(0, min(at, len(self._lines) - 1))

    def _current(self) -> LogLine | None:
        return self._lines[self._index()] if self._lines else None

    def _time_column(self) -> TimeColumn:
        """As much as there is room for, where any line has a time."""
        tail, mode = self._tail, self.times
        if tail is None or not any(line.at is not None for line in tail.lines[-500:]):
            mode = "off"
        attempts = self.frame.state.attempts if self.frame is not None else []
        return time_column(mode, self.size.width, attempts[-1].began if attempts else None)

    def _hold_end(self) -> None:
        """A pane of another size has another last row at its bottom."""
        if self.follow and self.scroll_offset.y < self.max_scroll_y:
            self._scroll_row(len(self.rows))

    def _grown(self) -> None:
        """Tell Textual how many rows there are. A layout would paint the whole pane, and is needed only
        where the scrollbar comes or goes."""
        size = Size(0, len(self.rows))
        if self.show_vertical_scrollbar != (size.height > self.size.height):
            self.virtual_size = size
            return
        self.set_reactive(Widget.virtual_size, size)
        if self.show_vertical_scrollbar and not self.follow:  # who follows scrolls, which moves the thumb
            self.slide(size.height, self.vertical_scrollbar.position)

    def _label(self, file: LogFile) -> str:
        """Who wrote a line: also on which node, where there are several."""
        return label_of(file, self._named())

    def _named(self) -> dict[int, str]:
        return {} if self.frame is None else names(self.frame.state)

    def _width_of_labels(self, tail: LogTail) -> int:
        """Columns in front of each line; none where all lines are of one file."""
        if len(tail.files) == 1:
            return 0
        nodes = self._named()
        return 7 if len(nodes) < 2 else 8 + node_width(nodes)

    def _cut(self, segments: list[Segment], width: int, plain: Style) -> list[Segment]:
        """Rank and time stay; `…` stands where text is left out."""
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
        """Columns for text."""
        labels = self._label_width + bool(self._label_width)
        times = self._column.width + bool(self._column.width)
        return max(1, self.size.width - 2 - labels - times)

    # --- the title

    def _name_it(self) -> None:
        problem = self._reason or (self._tail.problem if self._tail is not None else "")
        early = self.frame is not None and launching(self.frame.state)
        state = problem or self._errand or self._state()
        parts = ["log", chosen_title(self.selection, early), state]
        self.entitle(" · ".join(part for part in parts if part))

    def name_search(self, text: str) -> None:
        """Say in the title how far a search for an error is; "" when it is over."""
        self._errand = text
        self._name_it()

    @property
    def state_text(self) -> str:
        """What the filter has found."""
        return self._state()

    def _state(self) -> str:
        """How far a search is, and whether the end is followed."""
        tail = self._tail
        if tail is not None and self.selection.pattern and self.selection.only_hits:
            count = len(tail.lines) + max(0, tail.dropped)
            hits = f"{plural(count, 'line')} {'matches' if count == 1 else 'match'}" if count else ""
            if tail.searching:
                searching = f"searching {int(tail.searched * 100)} %"
                return " · ".join(part for part in (searching, hits) if part)
            hits = hits or "no line matches"
            return f"{hits} · {self._where()}"
        if not self.rows:
            return f"nothing written yet · {self._where()}" if tail is not None else "reading"
        return self._where()

    def _where(self) -> str:
        if self.follow:
            return "FOLLOW"
        line = self._current()
        clock = time.strftime(" %H:%M:%S", time.localtime(line.at)) if line is not None and line.at else ""
        return f"AT{clock or ' line'}, f follows"

    # --- hits, marks, text

    @staticmethod
    def _mark_of(line: LogLine) -> tuple[str, int]:
        return (line.key[3], line.key[4])

    def _hits(self) -> re.Pattern[str] | None:
        text = self.selection.pattern
        if self._pattern[0] != text:
            self._pattern = (text, re.compile(text) if text else None)
        return self._pattern[1]

    def to_hit(self, step: int) -> bool:
        """Move to the next (1) or previous (-1) hit; False when there is none."""
        hits = self._hits()
        if hits is None or not self._to(lambda line: bool(hits.search(line.text)), step):
            return False
        self._show_hit(hits)
        return True

    def _show_hit(self, hits: re.Pattern[str]) -> None:
        """Scroll sideways where the hit is not seen, and no farther."""
        line, room = self._current(), self._room()
        match = hits.search(line.text) if line is not None else None
        if match is None or self.wrap:
            return
        left = self._left
        if match.start() < left or match.end() > left + room - 1:
            left = 0 if match.end() < room else max(0, match.start() - room // 3)
        if left != self._left:
            self._left = left
            self.refresh()

    def to_error(self) -> bool:
        """Move to the next error or warning of the lines that are loaded, from the top again after the last."""
        if not self._to(lambda line: line.level >= Level.WARN, 1):
            return False
        if self._left:
            self._left = 0
            self.refresh()
        return True

    async def next_error(self, progress: Callable[[float], None]) -> bool:
        """Move to the next error or warning: below, then in what is not loaded, then from the top. Raises LinkError."""
        below = any(line.level >= Level.WARN for line in self._lines[self._index() + 1 :])
        tail = self._tail
        if below or tail is None or (self.selection.pattern and self.selection.only_hits):
            return self.to_error()
        for before in (False, True):
            found = await tail.find(ALARMS, lambda text: level_of(text) >= Level.WARN, before, progress)
            if tail is not self._tail:
                return True  # something else is shown by now
            if found is not None:
                self._show_found(found)
                return True
        return self.to_error()

    def _show_found(self, found: LogLine) -> None:
        """Load the lines around one that was found elsewhere; the cursor goes to it."""
        self.follow = False
        self._left = 0
        self._begin_anew(Jump(offset=found.key[4], file=found.key[3], at=found.key[0]))

    def _to(self, wanted: Callable[[LogLine], bool], step: int) -> bool:
        count, here = len(self._lines), self._index()
        for offset in range(1, count + 1):
            at = (here + offset * step) % count
            if wanted(self._lines[at]):
                self.set_follow(False)
                self.move_to(self._row_of(at))
                return True
        return False

    def chosen_text(self) -> str:
        """The marked lines, or the one under the cursor."""
        marked = [self._copied(line) for line in self._lines if self._mark_of(line) in self._marks]
        if marked:
            return "\n".join(marked)
        line = self._current()
        return "" if line is None else self._copied(line)

    def _copied(self, line: LogLine) -> str:
        several = self._tail is not None and len(self._tail.files) > 1
        return f"{line.label}  {line.text}" if several and line.label else line.text

    def whole_text(self) -> str:
        """Everything that is loaded."""
        return "".join(f"{self._copied(line)}\n" for line in self._lines)

    # --- keys

    def on_mouse_scroll_up(self) -> None:
        """Stop following, as the keys do."""
        if self.follow:
            self.set_follow(False)

    def cursor_moved(self) -> None:
        """Going up holds the log still; both ends ask for more lines."""
        at_end = self.cursor >= len(self.rows) - 1
        if not at_end:
            self.set_follow(False)
        if at_end or self.cursor <= 1:
            self._ask()
        self._name_it()

    def set_follow(self, on: bool) -> None:
        """Follow the end, or hold still."""
        self.follow = on
        if on:
            if self._tail is not None and (not self._tail.at_end or self._tail.far_behind):
                self._begin_anew()
            self._ask()
            self.cursor = max(0, len(self.rows) - 1)
            self._scroll_row(len(self.rows))
            self.refresh()
        self._name_it()

    def action_end(self, bottom: bool) -> None:
        """To the end of the files, or to their first line, also where neither is loaded."""
        tail = self._tail
        if bottom and tail is not None and not tail.at_end:
            self.set_follow(True)
        elif not bottom and tail is not None and not tail.beginning:
            self.go_to(Jump(line=1))
        else:
            super().action_end(bottom)

    def go_to(self, jump: Jump) -> str:
        """Show that place; "" or why it cannot be."""
        tail = self._tail
        if jump.line > 1 and tail is not None and len(tail.files) > 1:
            return "lines are counted in one file: choose a rank with Enter and a stream with v first"
        self.follow = False
        if self.selection.pattern and self.selection.only_hits:
            if not jump.at:
                self.move_to(0 if jump.line else int(len(self.rows) * (jump.share or 0)))
                return ""
            at = bisect_left(self._lines, jump.at, key=lambda line: line.key[0])
            self.move_to(self._row_of(min(at, len(self._lines) - 1)))
            return ""
        self._begin_anew(jump)
        return ""

    def next_times(self) -> str:
        """Another form of the times; its name."""
        self.times = TIMES[(TIMES.index(self.times) + 1) % len(TIMES)]
        self._again()
        return self.times

    def toggle_wrap(self) -> bool:
        """Long lines over several rows, or cut."""
        self.wrap, self._left = not self.wrap, 0
        self._again()
        return self.wrap

    def toggle_fold(self) -> bool:
        """Equal lines of many ranks as one, or each."""
        self.fold = not self.fold
        self._again()
        return self.fold

    def _again(self) -> None:
        """All rows anew; the cursor stays on its line."""
        current, tail = self._current(), self._tail
        self._lines, self._firsts = [], []
        if tail is not None:
            self._lay_out(tail)
            if current is not None and not self.follow:
                at = bisect_left(self._lines, current.key, key=lambda line: line.key)
                self.move_to(self._row_of(min(at, len(self._lines) - 1)))
        self.refresh()

    def draw_rule(self) -> None:
        """A rule with the time after the newest line, to see what comes from now on."""
        last = self._lines[-1] if self._lines else None
        now = getattr(self.app, "clock", time.time)()
        text = f"── mark {time.strftime('%H:%M:%S', time.localtime(now))} " + "─" * 40
        key = (last.key[0] if last is not None else 0.0, (1 << 30) + 1, len(self._rules), "", 0)
        self._rules.append(LogLine(text, "", Level.NONE, key=key))
        self._again()

    def next_stream(self) -> None:
        """The next of all, out, err, nccl."""
        if self.frame is not None:
            streams = choices(self.frame.state)
            at = streams.index(self.selection.stream) if self.selection.stream in streams else -1
            self.select(replace(self.selection, stream=streams[(at + 1) % len(streams)]))

    def action_mark(self) -> None:
        line = self._current()
        if line is not None:
            self._marks ^= {self._mark_of(line)}
            index = self._index()
            row = self._row_of(index)
            rows = self._rows_of(index)
            self.rows[row : row + len(rows)] = rows
            self._refresh_rows(range(row, row + len(rows)))
            self.action_cursor(len(rows))

    def action_zoom(self) -> None:
        """With a pattern: show it in its context, and back. Without: the log on the whole screen."""
        line = self._current()
        if self.selection.pattern:
            self.select(replace(self.selection, only_hits=not self.selection.only_hits))
            if not self.selection.only_hits and line is not None and line.at is not None:
                self.follow = False
                self._jump = Jump(at=line.key[0] - 1.0)
        else:
            self.post_message(self.Zoomed())
