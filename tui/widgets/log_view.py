"""The log pane: all ranks or one, one stream or all, followed, filtered, searched, copied."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import ClassVar

from textual.binding import Binding
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message
from textual.signal import Signal
from textual.widget import Widget

from ...runners.logs.files import LogFile
from ...runners.state import RunState
from ...runners.wire.link import LinkError
from ..actions import bindings
from ..rows.cells import Row
from ..rows.frame import Frame
from ..rows.launching import launching
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
from ..rows.nodes import names
from .log_lines import Lines
from .log_tail import LogTail, Reader

PAUSE_S = 0.5
"""Between two pulls of files that have more than was read: a flood costs no more than this."""

HELD_S = 0.4
"""How long new lines wait for a frame to be painted with."""


class LogView(Lines):
    """Follows the chosen files by window; never holds more than `log_tail.KEPT` lines."""

    BINDINGS: ClassVar[list[Binding]] = bindings("list")  # type: ignore[assignment]

    class Zoomed(Message):
        """The user wants the log on the whole screen."""

    def __init__(self, frames: Signal[Frame], read: Reader, grown: Signal[None], *, id: str) -> None:
        super().__init__(frames, id=id)
        self.follow = True
        self._read = read
        self._growth = grown
        self._attempt = 0
        self._known: tuple[int, ...] = ()
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
            self._known = ()
            self.set_rows([])  # also where the new ones will be fewer
            self.cursor = 0

    def _add_files(self, tail: LogTail, state: RunState) -> None:
        """Files that have come into being since, and a line between attempts."""
        another = state.attempt != self._attempt
        known = (state.attempt, len(state.log_sizes), len(state.ranks))
        if another or known != self._known:
            between = f"── attempt {state.attempt} ──" if another and self._attempt else ""
            tail.add(files_for(state, self.selection.rank, self.selection.stream), between)
            self._attempt, self._known = state.attempt, known

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
            if self.pacer is not None:
                self.pacer.sent()

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
        how = problem or empty + ("FOLLOW" if self.follow else "held, f follows")
        early = self.frame is not None and launching(self.frame.state)
        self.entitle(f"log · {chosen_title(self.selection, early)} · {how}")

    # --- keys

    def on_mouse_scroll_up(self) -> None:
        """The wheel looks back: stop following, as the keys do."""
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
            known = choices(self.frame.state)
            at = known.index(self.selection.stream) if self.selection.stream in known else -1
            self.select(replace(self.selection, stream=known[(at + 1) % len(known)]))

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
