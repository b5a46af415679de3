"""Loads the lines of the log pane: the newest ones while it follows, else those around its position."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ...runners.run import clock
from ...runners.run.log_files import LogFile
from ...runners.run.state import RunState
from ...runners.run.wire.client import LinkError
from ..loaded_logs import Reader
from ..log_filter import LogFilter
from ..log_tail import LogTail
from ..rows.frame import Frame, names
from ..rows.log import Jump, files_for, label_of, smart_case
from ..rows.log_lines import LogLine
from .log_pane import LogPane

PAUSE_S = 0.5
"""Seconds between two pulls of files that still have unread bytes; limits the cost of a flood of lines."""

SIFT_S = 2.0
"""Seconds between two searches of new bytes: each search starts a process on the node for each file."""

SEARCH_S = 0.02
"""Seconds between two pulls while a search is running; the node sets its pace."""

HELD_S = 0.4
"""Maximum seconds that new lines wait for the next frame."""


class LogFeed:
    """Pulls windows if files grow, if the pane reaches the end of the loaded lines, or if a key requests it."""

    def __init__(self, pane: LogPane, read: Reader) -> None:
        self._pane, self._read = pane, read
        self.logs: LogTail | LogFilter | None = None
        """The loaded lines; None before the first window of a choice arrived."""
        self.jump: Jump | None = None
        """The place to load next; None for the end."""
        self.fresh = False
        """Whether lines were read that are not laid out yet."""
        self.is_empty = False
        """Whether the current choice has no file yet."""
        self.begun = 0.0
        """Time when the current choice was made, by the monotonic clock."""
        self._reason = ""
        """Why the last pull failed."""
        self._wake = asyncio.Event()
        self._asked = False
        """Whether a key, a resize or a new attempt requests an immediate pull."""
        self._behind = False
        self._pulled = float("-inf")
        """Time of the last pull, by the monotonic clock."""
        self._sizes: dict[str, int] = {}
        self._attempt = 0
        self._basis: tuple[int, ...] = ()
        """The inputs of the choice of files when the files were last chosen."""

    @property
    def tail(self) -> LogTail | None:
        """The loaded lines, unless they are filtered."""
        return self.logs if isinstance(self.logs, LogTail) else None

    @property
    def searching(self) -> bool:
        return self.logs is not None and self.logs.searching

    @property
    def problem(self) -> str:
        """Why lines are missing, in one sentence."""
        return self._reason or (self.logs.problem if self.logs is not None else "")

    def restart(self, jump: Jump | None = None) -> None:
        """Load the current choice again, at a place or at the end."""
        self.logs, self.jump, self.begun = None, jump, clock.monotonic()
        self.ask()

    def go_to_line(self, line: LogLine) -> None:
        """Load the lines around a line outside the loaded ones, and move the cursor to it."""
        self._pane.follow = False
        self._pane.left = 0
        self.restart(Jump(offset=line.key[4], file=line.key[3], at=line.key[0]))

    def ask(self) -> None:
        """Pull immediately, and show the result immediately."""
        self._asked = True
        self.wake()

    def wake(self) -> None:
        self._wake.set()

    def take_frame(self, frame: Frame) -> None:
        """Pull immediately if a new attempt began."""
        if self.logs is None or frame.state.attempt != self._attempt:
            self.ask()

    async def run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience()):
                    await self._wake.wait()
            if self._is_busy:  # a flood must not outrun the terminal
                await asyncio.sleep(PAUSE_S / 2)
                continue
            self._wake.clear()
            self.show_fresh()
            if not self._has_news():
                continue
            try:
                await self._pull()
                self._reason = ""
            except LinkError as error:
                self._reason = str(error)
            self._pane.name_it()

    def show_fresh(self) -> None:
        """Lay out the lines that wait for a frame, unless the terminal is still busy."""
        if self.fresh and not self._is_busy:
            self.lay_out()

    def lay_out(self) -> None:
        """Show the loaded lines."""
        if self.logs is not None:
            self.fresh = False
            self._pane.lay_out(self.logs)

    @property
    def _is_busy(self) -> bool:
        """Whether the terminal still draws the previous change."""
        return self._pane.pacer is not None and self._pane.pacer.busy

    def _patience(self) -> float | None:
        """Return the seconds until the next pull without a wake-up; None for no such pull."""
        if self.searching:
            return PAUSE_S if self._reason else SEARCH_S
        if self.fresh:
            return HELD_S
        return PAUSE_S if self._behind or self._is_held_back() else None

    def _is_held_back(self) -> bool:
        """Whether new bytes wait for SIFT_S before the filter reads them."""
        frame = self._pane.frame
        if not isinstance(self.logs, LogFilter) or self.logs.searching or frame is None:
            return False
        return clock.monotonic() < self._pulled + SIFT_S and self._sizes != frame.state.log_sizes

    def _has_news(self) -> bool:
        """Whether there are bytes to read. A search continues to its end even while the screen is paused."""
        frame, asked = self._pane.frame, self._asked or self.searching
        if frame is None:
            return False
        if not asked and (frame.view.paused or self._is_held_back()):
            return False
        if self._sizes == frame.state.log_sizes:
            return self._behind or asked
        self._sizes = dict(frame.state.log_sizes)
        return True

    async def _pull(self) -> None:
        pane, asked = self._pane, self._asked
        self._asked, self._pulled = False, clock.monotonic()
        if pane.frame is None or not pane.display:
            return
        if self.logs is None:
            asked = True
            await self._begin(pane.frame)
        logs = self.logs
        if logs is None:
            return
        self._add_files(logs, pane.frame.state)
        asked = await self._load(logs) or asked
        if logs is self.logs and asked:
            self.lay_out()

    async def _load(self, logs: LogTail | LogFilter) -> bool:
        """Load the lines that the pane's position needs; return whether to show them immediately."""
        pane, in_past = self._pane, self._pane.laid_out.until is not None
        if isinstance(logs, LogFilter) or (pane.follow and not in_past):
            return await self._follow(logs)
        if pane.cursor <= 1 and not logs.beginning:
            return await logs.earlier() > 0
        if pane.cursor < len(pane.rows) - pane.shown or self._reaches_the_moment(logs):
            self._behind = False
            return False
        if logs.at_end:
            return await self._follow(logs)
        await logs.later()
        self._behind = False
        return True

    def _reaches_the_moment(self, logs: LogTail) -> bool:
        """Whether later lines are after the shown moment in the past."""
        until = self._pane.laid_out.until
        if until is None:
            return False
        return not logs.behind or bool(logs.lines and logs.lines[-1].key[0] > until)

    async def _follow(self, logs: LogTail | LogFilter) -> bool:
        """Load new lines; return whether to show them immediately."""
        searching = logs.searching
        came = await logs.pull(self._sizes)
        self.fresh = came > 0 or bool(logs.unfinished) or self.fresh
        self._behind = logs.behind or logs.searching
        return searching

    async def last_lines(self, most: int) -> list[LogLine]:
        """Return about the last `most` lines of the current choice, which need not be loaded.

        At another place than the end, and with a filter, return the loaded lines. Raises LinkError.
        """
        frame, loaded = self._pane.frame, self._pane.laid_out.lines
        if frame is None or self.tail is None or not self.tail.at_end:
            return loaded
        logs = self._chosen_logs(frame.state)
        if not isinstance(logs, LogTail):
            return loaded
        await logs.begin()
        while not logs.beginning and len(logs.lines) < most:
            await logs.earlier()
        return [*logs.lines, *logs.unfinished.values()]

    def _chosen_logs(self, state: RunState) -> LogTail | LogFilter | None:
        """Return the logs of the current choice with nothing loaded; None if they have no file yet."""
        chosen = self._pane.selection
        files = files_for(state, chosen.rank, chosen.stream)
        if not files:
            return None
        now = getattr(self._pane.app, "clock", clock.now)
        logs: LogTail | LogFilter
        if chosen.filters:
            logs = LogFilter(self._read, files, smart_case(chosen.pattern), self._label, now)
        else:
            logs = LogTail(self._read, files, self._label, now)
        logs.take_attempts(state.attempts, state.log_sizes)
        return logs

    async def _begin(self, frame: Frame) -> None:
        pane, chosen, jump = self._pane, self._pane.selection, self.jump
        logs = self._chosen_logs(frame.state)
        if logs is None:
            self.is_empty = True
            pane.clear()
            return
        if isinstance(logs, LogTail):
            await (logs.begin() if jump is None else logs.begin_at(jump))
        if chosen != pane.selection or jump != self.jump:
            return  # the user chose otherwise in the meantime
        self.logs, self._attempt, self._basis = logs, frame.state.attempt, ()
        self.is_empty, self.jump = False, None
        pane.clear()
        if jump is not None:
            self.lay_out()
            pane.land(jump)

    def _label(self, file: LogFile) -> str:
        """Return the writer of a line, with its node if there are several."""
        frame = self._pane.frame
        return label_of(file, None if frame is None else names(frame.state))

    def _add_files(self, logs: LogTail | LogFilter, state: RunState) -> None:
        """Add attempts that began and files that were created since."""
        basis = (state.attempt, len(state.log_sizes), len(state.ranks))
        if basis == self._basis:
            return
        chosen = self._pane.selection
        logs.take_attempts(state.attempts, state.log_sizes)
        logs.add(files_for(state, chosen.rank, chosen.stream))
        self._attempt, self._basis = state.attempt, basis
