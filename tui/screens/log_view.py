"""The log pane: loading, filtering, marking, copying."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import ClassVar, Protocol

from textual.binding import Binding
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message
from textual.signal import Signal
from textual.widget import Widget

from ...presets.sanitize import clean_line, clean_lines
from ...runners.formatting import size_short
from ...runners.logs.follow import Level, Merge, level_of
from ...runners.logs.log_files import LogFile
from ...runners.state import RunState
from ...runners.wire.client import LinkError, Window
from ..keys import bindings
from ..rows.frame import Frame, names
from ..rows.glyphs import Row
from ..rows.log import (
    LogLine,
    Selection,
    choices,
    chosen_title,
    common,
    files_for,
    label_of,
    log_row,
    node_width,
)
from ..rows.run_status import launching
from .panes import Pane

WINDOW = 65536
"""Bytes of one request."""

KEPT = 20_000
"""Lines kept; the oldest go first."""

BEHIND = 1 << 20
"""A reader that is further behind than this jumps to the end and shows that."""

WINDOWS_A_PULL = 8
"""Windows of one file read before the screen gets a turn."""


class Reader(Protocol):
    """Reads one window of a log file. Raises LinkError."""

    def __call__(
        self, file: str, offset: int, limit: int = WINDOW, grep: str = ""
    ) -> Awaitable[Window]: ...


class LogTail:
    """The lines of some files in the order in which they came in.

    `grep` is applied where the file is: only matching lines travel.
    """

    def __init__(
        self,
        read: Reader,
        files: Sequence[LogFile],
        grep: str = "",
        label: Callable[[LogFile], str] = label_of,
    ) -> None:
        self.lines: list[LogLine] = []
        self.unfinished: dict[str, LogLine] = {}
        """By file id: what stands after the last newline, such as a progress bar."""
        self.dropped = 0
        """Lines that went because there were too many."""
        self.problem = ""
        """Why a file could not be read, one sentence; a file that does not exist yet is no problem."""
        self._read = read
        self._grep = grep
        self._label = label
        self._merges: dict[str, Merge] = {}
        self._files: dict[str, LogFile] = {}
        self._sizes: dict[str, int] = {}
        self._start: dict[str, int] = {}
        self._opened: set[str] = set()
        """Files read once; from then on only their growth, which is reported, makes them worth reading."""
        self._new = list(files)

    @property
    def files(self) -> list[LogFile]:
        """What is shown."""
        return [*self._files.values(), *self._new]

    @property
    def beginning(self) -> bool:
        """Whether nothing earlier can be loaded."""
        return len(self._files) != 1 or bool(self._grep) or all(at <= 0 for at in self._start.values())

    def add(self, files: Sequence[LogFile], separator: str = "") -> None:
        """Files that came into being; they are read from their beginning."""
        ids = {file.id for file in self.files}
        fresh = [file for file in files if file.id not in ids]
        if fresh and separator:
            self.lines.append(LogLine(separator, "", Level.NONE))
        for file in fresh:
            self._follow(file, 0)

    def _follow(self, file: LogFile, start: int) -> None:
        self._files[file.id] = file
        self._merges[file.id] = Merge([file])
        self._merges[file.id].add(file, start)
        self._sizes[file.id] = self._start[file.id] = start

    async def begin(self) -> None:
        """The ends of the files; rank 0's stdout comes last, because it is read first."""
        files, self._new = self._new, []
        if self._grep:
            for file in files:
                self._follow(file, 0)
            return
        back = WINDOW if len(files) == 1 else 4096
        windows = await asyncio.gather(*(self._read(file.id, -back, WINDOW) for file in files))
        keep = KEPT if len(files) == 1 else max(6, 200 // max(len(files), 1))
        order = sorted(zip(files, windows, strict=True), key=lambda pair: _first_read_last(pair[0]))
        for file, window in order:
            self._follow(file, max(window.offset, 0) if not window.error else 0)
            self._opened.add(file.id)
            if window.error:
                self._note(window)
            else:
                self._take(file, window, keep)

    async def pull(self, sizes: Mapping[str, int]) -> int:
        """What was written since; `sizes` are the sizes known now. Returns how many lines came."""
        before = len(self.lines) + self.dropped
        for file in list(self._files.values()):
            for _ in range(WINDOWS_A_PULL):
                at = self._merges[file.id].wants(file.id)
                size = self._sizes[file.id] if file.id in self._opened else None
                if at == self._sizes[file.id] == sizes.get(file.id, size):
                    break
                if not await self._advance(file, at):
                    break
        self._trim()
        return len(self.lines) + self.dropped - before

    @property
    def behind(self) -> bool:
        """Whether a file has more than was read."""
        return any(merge.wants(name) < self._sizes[name] for name, merge in self._merges.items())

    async def _advance(self, file: LogFile, at: int) -> bool:
        window = await self._read(file.id, at, WINDOW, self._grep)
        self._opened.add(file.id)
        if window.error:
            self._note(window)
            return False
        if not self._grep and window.size - at > BEHIND:
            skipped = window.size - WINDOW - at
            self.lines.append(LogLine(f"… {size_short(skipped)} not shown", self._label(file), Level.NONE))
            self._follow(file, window.size - WINDOW)
            return True
        self._take(file, window, KEPT)
        return window.next < window.size

    def _take(self, file: LogFile, window: Window, keep: int) -> None:
        label = self._label(file)
        fresh = self._merges[file.id].feed(window)
        self._sizes[file.id] = window.size
        self.lines += [LogLine(text, label, level_of(text)) for text in fresh[-keep:]]
        rest = window.data.rpartition(b"\n")[2]
        self.unfinished.pop(file.id, None)
        if rest and not self._grep:
            text = clean_line(rest)
            self.unfinished[file.id] = LogLine(text, label, level_of(text))

    def _note(self, window: Window) -> None:
        if "does not exist" not in window.error:
            self.problem = window.error

    def _trim(self) -> None:
        over = len(self.lines) - KEPT
        if over > 0:
            del self.lines[:over]
            self.dropped += over

    async def earlier(self) -> int:
        """One window of what stands before; returns how many lines were put in front."""
        if self.beginning:
            return 0
        ((name, file),) = self._files.items()
        end = self._start[name]
        window = await self._read(name, max(0, end - WINDOW), WINDOW)
        begin, data, reached = window.offset, window.data, window.next
        while begin < reached < end and not window.error:
            window = await self._read(name, reached, end - reached)
            if window.next <= reached:
                break
            data, reached = data + window.data[reached - window.offset :], window.next
        data = data[: max(0, end - begin)]
        self._start[name] = begin if data else 0
        label = self._label(file)
        front = [LogLine(text, label, level_of(text)) for text in clean_lines(data)]
        self.lines[:0] = front
        return len(front)


def _first_read_last(file: LogFile) -> tuple[int, int]:
    order = ("log", "nccl", "err", "out")
    return (-(file.rank if file.rank is not None else -1), order.index(file.stream))


PAUSE_S = 0.5
"""Between two pulls of files that have more than was read: a flood costs no more than this."""

HELD_S = 0.4
"""How long new lines wait for a frame to be painted with."""


class LogView(Pane):
    """Follows the chosen files by window; never holds more than KEPT lines."""

    BINDINGS: ClassVar[list[Binding]] = bindings("list")  # type: ignore[assignment]

    class Zoomed(Message):
        """The user wants the log on the whole screen."""

    def __init__(self, frames: Signal[Frame], read: Reader, grown: Signal[None], *, id: str) -> None:
        super().__init__(frames, id=id, cursor=True)
        self.selection = Selection()
        self.follow = True
        self._tail: LogTail | None = None
        self._marks: set[int] = set()
        self._lines: list[LogLine] = []
        self._read = read
        self._growth = grown
        self._attempt = 0
        self._basis: tuple[int, ...] = ()
        """What the choice of files depends on, as it was when they were chosen."""
        self._wake = asyncio.Event()
        self._asked = False
        """By what does not wait: keys, a new size, a new attempt."""
        self._behind = False
        self._fresh = False
        """Whether lines were read that are not laid out yet."""
        self._sizes: dict[str, int] = {}
        self._reason = ""
        self._label_width = 0

    def on_mount(self) -> None:
        self._growth.subscribe(self, lambda _: self._wake.set(), immediate=True)
        self.run_worker(self._keep_pulling(), group="log", exclusive=True, exit_on_error=False)

    # --- what is shown

    def select(self, selection: Selection) -> None:
        """Show something else."""
        if selection != self.selection:
            self.selection = selection
            self._tail = None
            self._marks.clear()
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
        self.call_after_refresh(self._hold_end)
        self._ask()

    async def _keep_pulling(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(HELD_S if self._fresh else PAUSE_S if self._behind else None):
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
        elif self.follow or self.cursor >= len(self.rows) - self.shown:
            self._fresh = await tail.pull(self._sizes) > 0 or bool(tail.unfinished) or self._fresh
            self._behind = tail.behind
        if tail is self._tail and asked:
            self._lay_out(tail)
            self._name_it()

    async def _begin(self, frame: Frame) -> None:
        chosen = self.selection
        files = files_for(frame.state, chosen.rank, chosen.stream)
        if not files:
            self._lines = []
            self.set_rows([])  # what was chosen before is not what is chosen now
            self._name_it()
            return
        tail = LogTail(self._read, files, chosen.pattern if chosen.only_hits else "", self._label)
        await tail.begin()
        if chosen == self.selection:
            self._tail, self._attempt, self._lines = tail, frame.state.attempt, []
            self._basis = ()
            self.set_rows([])  # also where the new ones will be fewer
            self.cursor = 0

    def _add_files(self, tail: LogTail, state: RunState) -> None:
        """Files that have come into being since, and a line between attempts."""
        another = state.attempt != self._attempt
        basis = (state.attempt, len(state.log_sizes), len(state.ranks))
        if another or basis != self._basis:
            between = f"── attempt {state.attempt} ──" if another and self._attempt else ""
            tail.add(files_for(state, self.selection.rank, self.selection.stream), between)
            self._attempt, self._basis = state.attempt, basis

    async def _load_earlier(self, tail: LogTail) -> None:
        came = await tail.earlier()
        if came and tail is self._tail:
            self._lay_out(tail)
            self.move_to(self.cursor + came)

    def _lay_out(self, tail: LogTail) -> None:
        """Rows for the lines that are new; all of them where the front changed."""
        self._fresh = False
        lines = [*tail.lines, *tail.unfinished.values()]
        if self._width_of_labels(tail) != self._label_width:
            self._label_width, self._lines = self._width_of_labels(tail), []
        same = common(self._lines, lines)
        if same == len(lines) == len(self._lines):
            return
        gone = self._lines_gone(lines)
        self._lines = lines
        fresh = [self._row(index, line) for index, line in enumerate(lines[same:], same)]
        self.rows[same:] = fresh
        changed = {self.cursor, *range(same, len(self.rows))}
        with self.pacer.together() if self.pacer is not None else nullcontext():
            self._grown()
            if self.follow:
                self.cursor = max(0, len(self.rows) - 1)
                self._scroll_row(len(self.rows))
            elif gone:
                self.cursor = max(0, self.cursor - gone)
            self.paint_rows(sorted(changed | {self.cursor}))

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

    def _lines_gone(self, lines: list[LogLine]) -> int:
        """How many lines were dropped at the front to make room."""
        if not self._lines or not lines or self._lines[0] is lines[0]:
            return 0
        first = lines[0]
        return next((at for at, line in enumerate(self._lines) if line is first), 0)

    def _row(self, index: int, line: LogLine) -> Row:
        return log_row(line, self._number(index) in self._marks, self._hits(), self._label_width)

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

    def _name_it(self) -> None:
        problem = self._reason or (self._tail.problem if self._tail is not None else "")
        empty = "" if self.rows else "nothing written yet · "
        how = problem or empty + ("FOLLOW" if self.follow else "paused, f follows")
        early = self.frame is not None and launching(self.frame.state)
        self.entitle(f"log · {chosen_title(self.selection, early)} · {how}")

    # --- hits, marks, text

    def _number(self, index: int) -> int:
        """A line's number that does not change when lines in front of it go."""
        return index + (self._tail.dropped if self._tail is not None else 0)

    def _hits(self) -> re.Pattern[str] | None:
        return re.compile(self.selection.pattern) if self.selection.pattern else None

    def to_hit(self, step: int) -> bool:
        """Move to the next (1) or previous (-1) hit; False when there is none."""
        hits = self._hits()
        if hits is None:
            return False
        return self._to(lambda line: bool(hits.search(line.text)), step)

    def to_error(self) -> bool:
        """Move to the next error or warning, from the top again after the last."""
        return self._to(lambda line: line.level >= Level.WARN, 1)

    def _to(self, wanted: Callable[[LogLine], bool], step: int) -> bool:
        count = len(self._lines)
        for offset in range(1, count + 1):
            at = (self.cursor + offset * step) % count
            if wanted(self._lines[at]):
                self.set_follow(False)
                self.move_to(at)
                return True
        return False

    def chosen_text(self) -> str:
        """The marked lines, or the one under the cursor."""
        marked = [line.text for at, line in enumerate(self._lines) if self._number(at) in self._marks]
        if marked:
            return "\n".join(marked)
        return self._lines[self.cursor].text if 0 <= self.cursor < len(self._lines) else ""

    def whole_text(self) -> str:
        """Everything that is loaded."""
        several = self._tail is not None and len(self._tail.files) > 1
        return "".join(f"{line.label + '  ' if several else ''}{line.text}\n" for line in self._lines)

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

    def set_follow(self, on: bool) -> None:
        """Follow the end, or hold still."""
        self.follow = on
        if on:
            self._ask()
            self.cursor = max(0, len(self.rows) - 1)
            self._scroll_row(len(self.rows))
            self.refresh()
        self._name_it()

    def next_stream(self) -> None:
        """The next of all, out, err, nccl."""
        if self.frame is not None:
            streams = choices(self.frame.state)
            at = streams.index(self.selection.stream) if self.selection.stream in streams else -1
            self.select(replace(self.selection, stream=streams[(at + 1) % len(streams)]))

    def action_mark(self) -> None:
        if 0 <= self.cursor < len(self._lines):
            self._marks ^= {self._number(self.cursor)}
            self.rows[self.cursor] = self._row(self.cursor, self._lines[self.cursor])
            self._refresh_rows([self.cursor])
            self.action_cursor(1)

    def action_zoom(self) -> None:
        """With a pattern: show it in its context, and back. Without: the log on the whole screen."""
        if self.selection.pattern:
            self.select(replace(self.selection, only_hits=not self.selection.only_hits))
        else:
            self.post_message(self.Zoomed())
