"""The log pane: following, filtering, marking and copying the lines of a LogTail, and jumping to places in it."""

from __future__ import annotations

import asyncio
import re
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

from msgspec.structs import replace
from textual.binding import Binding
from textual.events import Resize
from textual.message import Message
from textual.signal import Signal

from ...presets.plurals import plural
from ...runners.logs.levels import ALARMS, Level, level_of
from ...runners.run import clock
from ...runners.run.formatting import size_short, time_of_day
from ...runners.run.state import RunState
from ...runners.run.wire.client import LinkError
from ..background import keep_running
from ..keys import bindings
from ..log_tail import LogTail, Reader
from ..rows.frame import Frame
from ..rows.log import (
    TIMES,
    Jump,
    LogLine,
    Selection,
    choices,
    chosen_title,
    files_for,
    large,
    named,
    smart_case,
)
from ..rows.run_status import launching
from .log_rows import LogRows

PAUSE_S = 0.5
"""Seconds between two pulls of files that still have unread bytes; limits the cost of a flood of lines."""

SIFT_S = 2.0
"""Seconds between two searches of new bytes: each search starts a process on the node for each file."""

SEARCH_S = 0.02
"""Seconds between two pulls while a search is running; the node sets its pace."""

_ALARMS = ("the error or warning below", "the error or warning above")
_FROM_THE_END = (
    "no error or warning below: from the top again",
    "no error or warning above: the newest again",
)
"""Descriptions of what `next_error` reached, downwards and upwards."""

SLOW_S = 0.5
"""Once a search takes longer than this many seconds, the title shows its progress."""

HELD_S = 0.4
"""Maximum seconds that new lines wait for the next frame."""


class LogView(LogRows):
    """Shows a window of the chosen files, merged by time; never holds more than KEPT lines."""

    BINDINGS: ClassVar[list[Binding]] = bindings("list")  # type: ignore[assignment]

    class Zoomed(Message):
        """The user wants the log on the whole screen."""

    def __init__(self, frames: Signal[Frame], read: Reader, grown: Signal[None], *, id: str) -> None:
        super().__init__(frames, id=id)
        self._read = read
        self._growth = grown
        self._attempt = 0
        self._basis: tuple[int, ...] = ()
        """The inputs of the choice of files when the files were last chosen."""
        self._jump: Jump | None = None
        """The place to load next; None for the end."""
        self._wake = asyncio.Event()
        self._asked = False
        """Whether a key, a resize or a new attempt requests an immediate pull."""
        self._behind = False
        self._pulled = float("-inf")
        """Time of the last pull, by the monotonic clock."""
        self._begun = 0.0
        """Time when the shown tail was begun, by the monotonic clock."""
        self._sizes: dict[str, int] = {}
        self._reason = ""
        self._errand = ""
        """Progress text of a search for an error, next to the filter."""
        self._past: float | None = None
        """The past moment that the pane shows; None for live."""
        self._fileless = False
        """Whether the current choice has no file yet."""

    def on_mount(self) -> None:
        self._growth.subscribe(self, lambda _: self._wake.set(), immediate=True)
        keep_running(self, "log", self._keep_pulling)

    # --- selection

    def select(self, selection: Selection) -> None:
        if selection != self.selection:
            self.selection = selection
            self._left = 0
            self._begin_anew()
            self._marks.clear()

    def _begin_anew(self, jump: Jump | None = None) -> None:
        self._tail, self._jump, self._begun = None, jump, clock.monotonic()
        self._ask()

    def _ask(self) -> None:
        """Pull immediately, and show the result immediately."""
        self._asked = True
        self._wake.set()

    def show(self, frame: Frame) -> None:
        self.frame = frame
        if self.ascii_only != frame.view.ascii:
            self.ascii_only = frame.view.ascii
            self.repaint()
        self._go_with(frame)
        if self._tail is None or frame.state.attempt != self._attempt:
            self._ask()
        self._lay_out_fresh()
        self._name_it()

    def _go_with(self, frame: Frame) -> None:
        """Follow the cockpit to its moment in the past, and back to the end."""
        at = frame.moment.at if frame.moment is not None else None
        if at == self._past:
            return
        self._past = at
        if at is None:
            self.set_follow(True)
        else:
            self.go_to(Jump(at=at))

    def _lay_out_fresh(self) -> None:
        """Lay out lines that wait for a frame, unless the terminal is still busy."""
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
        if self._searching:
            return SEARCH_S if not self._reason else PAUSE_S
        if self._fresh:
            return HELD_S
        return PAUSE_S if self._behind or self._held_back() else None

    @property
    def _searching(self) -> bool:
        return self._tail is not None and self._tail.searching

    def _held_back(self) -> bool:
        """Whether new bytes wait for SIFT_S before the filter reads them."""
        tail = self._tail
        if tail is None or not tail.filtered or tail.searching or self.frame is None:
            return False
        soon = clock.monotonic() < self._pulled + SIFT_S
        return soon and self._sizes != self.frame.state.log_sizes

    def _news(self) -> bool:
        """Whether there are bytes to read."""
        frame = self.frame
        asked = (
            self._asked or self._searching
        )  # a search continues to its end even while the screen is paused
        if frame is None or (not asked and (frame.view.paused or self._held_back())):
            return False
        if self._sizes == frame.state.log_sizes:
            return self._behind or asked
        self._sizes = dict(frame.state.log_sizes)
        return True

    async def _pull(self) -> None:
        frame, asked = self.frame, self._asked
        self._asked, self._pulled = False, clock.monotonic()
        if frame is None or not self.display:
            return
        if self._tail is None:
            asked = True
            await self._begin(frame)
        tail = self._tail
        if tail is None:
            return
        self._add_files(tail, frame.state)
        if self._wants_earlier(tail):
            await self._load_earlier(tail)
        elif self._wants_more(tail):
            asked = await self._load_later(tail) or asked
        if tail is self._tail and asked:
            self._lay_out(tail)
        self._name_it()

    def _wants_earlier(self, tail: LogTail) -> bool:
        return not self.follow and self.cursor <= 1 and not tail.beginning

    def _wants_more(self, tail: LogTail) -> bool:
        return tail.filtered or self.follow or self.cursor >= len(self.rows) - self.shown

    async def _load_later(self, tail: LogTail) -> bool:
        """Load the next lines; return whether to show them immediately."""
        if self.follow or tail.at_end:
            searching = tail.searching
            came = await tail.pull(self._sizes)
            self._fresh = came > 0 or bool(tail.unfinished) or self._fresh
            self._behind = tail.behind or tail.searching
            return searching
        await tail.later()
        self._behind = False
        return True

    async def _begin(self, frame: Frame) -> None:
        chosen, jump = self.selection, self._jump
        files = files_for(frame.state, chosen.rank, chosen.stream)
        if not files:
            self._lines, self._firsts, self._fileless = [], [], True
            self.set_rows([])  # the lines of the previous choice must not stay
            self._name_it()
            return
        now = getattr(self.app, "clock", clock.now)
        tail = LogTail(
            self._read, files, smart_case(chosen.pattern) if chosen.only_hits else "", self._label, now
        )
        if jump is None:
            await tail.begin()
        else:
            await tail.begin_at(jump)
        if chosen == self.selection and jump == self._jump:
            self._tail, self._attempt, self._fileless = tail, frame.state.attempt, False
            self._lines, self._firsts, self._basis, self._jump = [], [], (), None
            self._folds.clear()
            self.set_rows([])  # needed if the new choice has fewer rows
            self.cursor = 0
            if jump is not None:
                self._lay_out(tail)
                self.move_to(self._row_of(self._place_of(jump)))
                if jump.file:
                    self._scroll_row(self.cursor - self.shown // 2)  # centre it among its neighbours

    def _place_of(self, jump: Jump) -> int:
        """Return the index of the shown line where a jump lands."""
        for index, line in enumerate(self._lines):
            if jump.file:
                if line.key[3:] == (jump.file, jump.offset):
                    return index
            elif line.key[0] >= jump.at:
                return index
        return max(0, len(self._lines) - 1)

    def _add_files(self, tail: LogTail, state: RunState) -> None:
        """Add files that were created since, and a separator line between attempts."""
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

    # --- the title

    def _name_it(self) -> None:
        problem = self._reason or (self._tail.problem if self._tail is not None else "")
        early = self.frame is not None and launching(self.frame.state)
        state = problem or self._errand or self._state()
        size = (
            large(self.frame.state, self._tail) if self._tail is not None and self.frame is not None else 0
        )
        parts = ["log", chosen_title(self.selection, early), size_short(size) if size else "", state]
        self.entitle(" · ".join(filter(None, parts)))

    def name_search(self, text: str) -> None:
        """Show the progress of a search for an error in the title; "" when it is over."""
        self._errand = text
        self._name_it()

    @property
    def state_text(self) -> str:
        """The number of lines that match the filter, or the position."""
        return self._state()

    def _state(self) -> str:
        """Return the progress of a search, and whether the pane follows the end."""
        tail = self._tail
        if tail is not None and self._filters:
            return self._matches(tail)
        if self.rows:
            return self._where()
        reading = tail is None and not self._fileless
        return "reading" if reading else f"nothing written yet · {self._where()}"

    @property
    def _filters(self) -> bool:
        """Whether lines without a hit are left out."""
        return bool(self.selection.pattern) and self.selection.only_hits

    def _matches(self, tail: LogTail) -> str:
        """Return the number of lines that match; a slow search also has its progress."""
        count = len(tail.lines) + max(0, tail.dropped)
        hits = f"{plural(count, 'line')} {'matches' if count == 1 else 'match'}" if count else ""
        if tail.skipped:
            hits = f"more than {hits}"
        if not tail.searching:
            return f"{hits or 'no line matches'} · {self._where()}"
        if clock.monotonic() < self._begun + SLOW_S:
            return hits
        searching = f"searching {int(tail.searched * 100)} %"
        return f"{searching} · {hits}" if hits else searching

    def _where(self) -> str:
        if self.follow:
            return "FOLLOW"
        line = self._current()
        clock = f" {time_of_day(line.at)}" if line is not None and line.at else ""
        return f"AT{clock or ' line'}, f follows"

    # --- hits, marks, text

    def to_hit(self, step: int) -> bool:
        """Move to the next (1) or previous (-1) hit; return False if there is none."""
        hits = self._hits()
        if hits is None or not self._to(lambda line: bool(hits.search(line.text)), step):
            return False
        self._show_hit(hits)
        return True

    def _show_hit(self, hits: re.Pattern[str]) -> None:
        """Scroll sideways only as far as needed to make the hit visible."""
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

    async def next_error(self, step: int, progress: Callable[[float], None]) -> str:
        """Move to the error or warning above (-1; while following, the newest) or below (1).

        Search the loaded lines, then the rest of the files, then from the other end. Return a description of the line,
        or "" if there is none. Raises LinkError.
        """
        up, tail, here = step < 0, self._tail, self._index()
        words = _ALARMS[up]
        if up and self.follow:
            here, words = len(self._lines), "the newest error or warning"
        beside = self._lines[:here] if up else self._lines[here + 1 :]
        if any(line.level >= Level.WARN for line in beside):
            self._to_alarm(here, step)
            return words
        if tail is not None and not self._filters:
            found = await self._find_alarm(tail, up, words, progress)
            if found:
                return found
        return _FROM_THE_END[up] if self._to_alarm(here, step) else ""

    async def _find_alarm(
        self, tail: LogTail, up: bool, words: str, progress: Callable[[float], None]
    ) -> str:
        """Show the lines around an alarm that is not loaded: first in this direction, then from the other end."""
        for before in (up, not up):
            hit = await tail.find(ALARMS, lambda text: level_of(text) >= Level.WARN, before, progress, up)
            if tail is not self._tail:
                return words  # another choice is shown by now
            if hit is not None:
                self._show_hit_at(hit)
                return words if before == up else _FROM_THE_END[up]
        return ""

    def _to_alarm(self, here: int, step: int) -> bool:
        if not self._to(lambda line: line.level >= Level.WARN, step, here):
            return False
        if self._left:
            self._left = 0
            self.refresh()
        return True

    def to_own_log(self) -> bool:
        """Switch from all ranks to the log of the rank that wrote the current line, at that line.

        Return False if the log already shows only one rank.
        """
        line = self._current()
        wrote = named(line.key[3]) if line is not None else None
        if line is None or wrote is None or wrote.rank is None or self.selection.rank is not None:
            return False
        self.select(replace(self.selection, rank=wrote.rank))
        self._show_hit_at(line)
        return True

    def _show_hit_at(self, hit: LogLine) -> None:
        """Load the lines around a hit outside the loaded lines, and move the cursor to it."""
        self.follow = False
        self._left = 0
        self._begin_anew(Jump(offset=hit.key[4], file=hit.key[3], at=hit.key[0]))

    def _to(self, wanted: Callable[[LogLine], bool], step: int, here: int | None = None) -> bool:
        count, here = len(self._lines), self._index() if here is None else here
        for offset in range(1, count + 1):
            at = (here + offset * step) % count
            if wanted(self._lines[at]):
                self.set_follow(False)
                self.move_to(self._row_of(at))
                return True
        return False

    def chosen_text(self) -> str:
        """Return the marked lines, or the one under the cursor."""
        marked = [self._copied(line) for line in self._lines if self._mark_of(line) in self._marks]
        if marked:
            return "\n".join(marked)
        line = self._current()
        return "" if line is None else self._copied(line)

    def _copied(self, line: LogLine) -> str:
        several = self._tail is not None and len(self._tail) > 1
        return f"{line.label}  {line.text}" if several and line.label else line.text

    def whole_text(self) -> str:
        """Return all loaded lines."""
        return "".join(f"{self._copied(line)}\n" for line in self._lines)

    # --- keys

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
            self._ask()
        self._name_it()

    def set_follow(self, on: bool) -> None:
        """Follow the end, or stay at the current line."""
        self.follow = on
        if on:
            tail = self._tail
            if self._jump is not None or (tail is not None and (not tail.at_end or tail.far_behind)):
                self._begin_anew()
            self._ask()
            self.cursor = max(0, len(self.rows) - 1)
            self._scroll_row(len(self.rows))
            self.refresh()
        self._name_it()

    def action_end(self, bottom: bool) -> None:
        """Go to the end of the files, or to their first line, even if these are not loaded."""
        tail = self._tail
        if bottom and tail is not None and not tail.at_end:
            self.set_follow(True)
        elif not bottom and tail is not None and not tail.beginning:
            self.go_to(Jump(line=1))
        else:
            super().action_end(bottom)

    def go_to(self, jump: Jump) -> str:
        """Show that place; return "" or why it cannot be shown."""
        tail = self._tail
        if jump.line > 1 and tail is not None and len(tail) > 1:
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
        """Switch to the next form of times; return its name."""
        self.times = TIMES[(TIMES.index(self.times) + 1) % len(TIMES)]
        self._again()
        return self.times

    def toggle_wrap(self) -> bool:
        """Toggle between wrapping and cutting long lines."""
        self.wrap, self._left = not self.wrap, 0
        self._again()
        return self.wrap

    def toggle_fold(self) -> bool:
        """Toggle between folding equal lines of many ranks and showing each."""
        self.fold = not self.fold
        self._again()
        return self.fold

    def _again(self) -> None:
        """Lay out all rows again; the cursor stays on its line."""
        current, tail = self._current(), self._tail
        self._lines, self._firsts = [], []
        if tail is not None:
            self._lay_out(tail)
            if current is not None and not self.follow:
                self.move_to(self._row_of(min(self._index_of(current), len(self._lines) - 1)))
        self.refresh()

    def draw_rule(self) -> None:
        """Draw a rule with the time after the newest line, as a mark before the lines to come."""
        last = self._lines[-1] if self._lines else None
        now = getattr(self.app, "clock", clock.now)()
        text = f"── mark {time.strftime('%H:%M:%S', time.localtime(now))} " + "─" * 40
        key = (last.key[0] if last is not None else 0.0, (1 << 30) + 1, len(self._rules), "", 0)
        self._rules.append(LogLine(text, "", Level.NONE, key=key))
        self._again()

    def next_stream(self) -> None:
        """Switch to the next stream: all, out, err, nccl, launch or service."""
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
        """With a filter, toggle between hits and their context. Without, show the log on the whole screen."""
        line = self._current()
        if self.selection.pattern:
            self.select(replace(self.selection, only_hits=not self.selection.only_hits))
            if not self.selection.only_hits and line is not None:
                self._show_hit_at(line)
        else:
            self.post_message(self.Zoomed())


def culprit(state: RunState) -> int | None:
    """Return the rank that failed first in the newest attempt; None if none did."""
    cause = state.attempts[-1].first_cause if state.attempts else None
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
