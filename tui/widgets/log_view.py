"""The log pane: all ranks or one, one stream or all, followed, filtered, searched, copied."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

from textual.binding import Binding
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message
from textual.signal import Signal
from textual.widget import Widget

from ...runners.logs.level import Level
from ...runners.wire.link import LinkError
from ..actions import bindings
from ..rows.cells import Row
from ..rows.frame import Frame
from ..rows.log import CHOICES, LogLine, files_for, log_row
from .log_tail import LogTail, Reader
from .panes import Pane

PAUSE_S = 0.5
"""Between two pulls, unless a key asks: two paints a second are enough for eyes, and a flood costs no more."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What the pane shows."""

    rank: int | None = None
    stream: str = "all"
    pattern: str = ""
    only_hits: bool = True
    """Whether lines without a hit are left out."""


class LogView(Pane):
    """Follows the chosen files by window; never holds more than `log_tail.KEPT` lines."""

    BINDINGS: ClassVar[list[Binding]] = bindings("list")  # type: ignore[assignment]

    class Zoomed(Message):
        """The user wants the log on the whole screen."""

    def __init__(self, frames: Signal[Frame], read: Reader, *, id: str) -> None:
        super().__init__(frames, id=id, cursor=True)
        self.selection = Selection()
        self.follow = True
        self._read = read
        self._tail: LogTail | None = None
        self._attempt = 0
        self._wake = asyncio.Event()
        """Set by what does not wait: keys, a new size, a new attempt."""
        self._behind = False
        self._marks: set[int] = set()
        self._lines: list[LogLine] = []
        self._sizes: dict[str, int] = {}
        self._reason = ""

    def on_mount(self) -> None:
        self.run_worker(self._keep_pulling(), group="log", exclusive=True, exit_on_error=False)

    # --- what is shown

    def select(self, selection: Selection) -> None:
        """Show something else."""
        if selection != self.selection:
            self.selection = selection
            self._tail = None
            self._marks.clear()
            self._wake.set()

    def show(self, frame: Frame) -> None:
        self.frame = frame
        if self.ascii_only != frame.view.ascii:
            self.ascii_only = frame.view.ascii
            self.repaint()
        state = frame.state
        if self._tail is not None and state.attempt != self._attempt:
            files = files_for(state, self.selection.rank, self.selection.stream)
            self._tail.add(files, f"── attempt {state.attempt} ──" if self._attempt else "")
            self._attempt = state.attempt
            self._wake.set()
        if self._tail is None:
            self._wake.set()
        self._name_it()

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self._hold_end)
        self._wake.set()

    async def _keep_pulling(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    await self._wake.wait()
            if self.pacer is not None and self.pacer.busy:  # a flood must not outrun the terminal
                await asyncio.sleep(PAUSE_S / 2)
                continue
            if not self._news():
                continue
            self._wake.clear()
            try:
                await self._pull()
                self._reason = ""
            except LinkError as error:
                self._reason = str(error)
            self._name_it()

    def _news(self) -> bool:
        """Whether there is something to pull. Frames come once a second, files grow in between."""
        frame = self.frame
        if frame is None or (frame.view.paused and not self._wake.is_set()):
            return False
        if self._sizes == frame.state.log_sizes:
            return self._behind or self._wake.is_set()
        self._sizes = dict(frame.state.log_sizes)
        return True

    async def _pull(self) -> None:
        frame = self.frame
        if frame is None or not self.display:
            return
        if self._tail is None:
            await self._begin(frame)
        tail = self._tail
        if tail is None:
            return
        tail.add(files_for(frame.state, self.selection.rank, self.selection.stream))
        if not self.follow and self.cursor <= 1 and not tail.beginning:
            await self._load_earlier(tail)
        elif self.follow or self.cursor >= len(self.rows) - self.shown:
            await tail.pull(self._sizes)
            self._behind = tail.behind
        if tail is self._tail:
            self._lay_out(tail)

    async def _begin(self, frame: Frame) -> None:
        chosen = self.selection
        files = files_for(frame.state, chosen.rank, chosen.stream)
        if not files:
            return
        tail = LogTail(self._read, files, chosen.pattern if chosen.only_hits else "")
        await tail.begin()
        if chosen == self.selection:
            self._tail, self._attempt, self._lines = tail, frame.state.attempt, []
            self.rows.clear()
            self.cursor = 0

    async def _load_earlier(self, tail: LogTail) -> None:
        came = await tail.earlier()
        if came and tail is self._tail:
            self._lay_out(tail)
            self.move_to(self.cursor + came)

    def _lay_out(self, tail: LogTail) -> None:
        """Rows for the lines that are new; all of them where the front changed."""
        lines = [*tail.lines, *tail.unfinished.values()]
        same = _common(self._lines, lines)
        if same == len(lines) == len(self._lines):
            return
        gone = self._lines_gone(lines)
        self._lines = lines
        fresh = [self._row(index, line) for index, line in enumerate(lines[same:], same)]
        self.rows[same:] = fresh
        changed = {self.cursor, *range(same, len(self.rows))}
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
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.window_virtual_size = size.height

    def _lines_gone(self, lines: list[LogLine]) -> int:
        """How many lines were dropped at the front to make room."""
        if not self._lines or not lines or self._lines[0] is lines[0]:
            return 0
        first = lines[0]
        return next((at for at, line in enumerate(self._lines) if line is first), 0)

    def _row(self, index: int, line: LogLine) -> Row:
        width = 0 if self._tail is None or len(self._tail.files) == 1 else 7
        return log_row(line, self._number(index) in self._marks, self._hits(), width)

    def _number(self, index: int) -> int:
        """A line's number that does not change when lines in front of it go."""
        return index + (self._tail.dropped if self._tail is not None else 0)

    def _hits(self) -> re.Pattern[str] | None:
        return re.compile(self.selection.pattern) if self.selection.pattern else None

    def _name_it(self) -> None:
        chosen = self.selection
        who = "all ranks" if chosen.rank is None else f"rank {chosen.rank}"
        stream = "" if chosen.stream == "all" else f" · {chosen.stream}"
        pattern = f" · /{chosen.pattern}/" if chosen.pattern else ""
        if pattern and not chosen.only_hits:
            pattern += " in context"
        problem = self._reason or (self._tail.problem if self._tail is not None else "")
        empty = "" if self.rows else "nothing written yet · "
        how = problem or empty + ("FOLLOW" if self.follow else "held, f follows")
        self.entitle(f"log · {who}{stream}{pattern} · {how}")

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
            self._wake.set()

    def set_follow(self, on: bool) -> None:
        """Follow the end, or hold still."""
        self.follow = on
        if on:
            self._wake.set()
            self.cursor = max(0, len(self.rows) - 1)
            self._scroll_row(len(self.rows))
            self.refresh()
        self._name_it()

    def next_stream(self) -> None:
        """The next of all, out, err, nccl."""
        at = CHOICES.index(self.selection.stream)
        self.select(replace(self.selection, stream=CHOICES[(at + 1) % len(CHOICES)]))

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


def _common(old: list[LogLine], new: list[LogLine]) -> int:
    """How many lines at the front are the very same."""
    count = min(len(old), len(new))
    if count and old[count - 1] is new[count - 1] and old[0] is new[0]:
        return count
    return next((at for at in range(count) if old[at] is not new[at]), count)
