"""A window of some log files, merged by time: the lines that the log pane holds, and the lines that it loads next."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from ..runners.logs.attempt_bounds import UNBOUNDED
from ..runners.logs.dating import FIRST, LAST, Key, LogSpan, begin_key, key_of
from ..runners.run.commands import ReadLog
from ..runners.run.log_files import LogFile
from ..runners.run.wire.client import Window
from .line_search import LineSearch, Part
from .loaded_logs import BEHIND, KEPT, WINDOW, LoadedLogs, key_of_line
from .rows.log import Jump
from .rows.log_lines import LogLine

WINDOWS_A_PULL = 8
"""Windows of one file that are read per pull."""

TAIL = 4096
"""Bytes initially read of each of several files."""

ENOUGH = 120
"""Lines to load after a jump, if the files have so many."""

ROUNDS = 12
"""Maximum consecutive requests for earlier or later lines."""


class LogTail(LoadedLogs):
    """The lines around the reader's position.

    Only the files of the attempts there are open, so that a long run costs as much as a short one. Of these files, the
    one with the smallest loaded range limits the shown lines, so that no line is missing in between.
    """

    @property
    def beginning(self) -> bool:
        """Whether no earlier lines can be loaded."""
        return self._open.older is None and all(span.begin <= 0 for span in self._spans.values())

    @property
    def behind(self) -> bool:
        """Whether later lines can be loaded."""
        return self._open.newer is not None or super().behind

    @property
    def far_behind(self) -> bool:
        """Whether a reader who wants to follow has to restart at the end."""
        return any(span.size - span.next > BEHIND for span in self._spans.values())

    # --- attempts

    def _close_unshown(self, before: bool) -> None:
        """Close the attempts before, or after, the loaded lines."""
        numbers = (self._files[name].attempt for name in self._kept())
        kept = [number for number in numbers if number is not None]
        if before:
            self._open.lowest = min(kept, default=self._open.lowest)
        else:
            self._open.highest = max(kept, default=self._open.highest)
        for name in [name for name in self._spans if self._files[name].attempt not in self._open]:
            del self._spans[name]
            self._rests.pop(name, None)

    # --- beginning

    async def begin(self) -> None:
        """Load the ends of the newest files."""
        names = self._opened(max(self._open.all, default=0))
        back = WINDOW if len(names) == 1 else TAIL
        await self._begin_with([ReadLog(name, -back, WINDOW) for name in names])
        await self._more_in_front(ENOUGH)

    async def begin_at(self, jump: Jump) -> None:
        """Load the files from their beginning, from a time, or around a time or a line.

        `problem` is set for a file that does not support the jump.
        """
        self.at_end = False
        number = self._attempt_at(jump)
        names = self._opened(number)
        asks = [ReadLog(name, 0, WINDOW, at=jump.at) for name in names]
        if jump.file:
            has_time = jump.at > self._begin_of(number)
            asks = [self._around(jump, ask, has_time) for ask in asks]
        await self._begin_with(asks)
        if jump.file or jump.ends:
            await self._more_in_front(len(self.lines) + ENOUGH // 2)

    def _attempt_at(self, jump: Jump) -> int:
        """Return the attempt that a jump leads to."""
        file = self._files.get(jump.file)
        if file is not None and file.attempt is not None:
            return file.attempt
        begun = [number for number in self._open.all if self._begin_of(number) <= jump.at]
        return max(begun, default=min(self._open.all, default=0))

    def _begin_of(self, number: int) -> float:
        return self._bounds.get(number, UNBOUNDED).begin

    def _around(self, jump: Jump, ask: ReadLog, has_time: bool) -> ReadLog:
        """Return the first request to a file for the lines around one line.

        Lines without a time are in the order of their files, so that of a file before only the end is near.
        """
        if ask.file == jump.file:
            return ReadLog(ask.file, max(0, jump.offset - WINDOW // 2), WINDOW)
        if has_time:
            return ask
        is_before = key_of(self._files[ask.file], 0.0, 0) < key_of(self._files[jump.file], 0.0, 0)
        return ReadLog(ask.file, -TAIL if is_before else 0, WINDOW)

    async def _begin_with(self, asks: Sequence[ReadLog]) -> None:
        """Load the first window of each file."""
        spans = [self._spans[ask.file] for ask in asks]
        windows = await asyncio.gather(*map(self._window, spans, asks))
        for span, window in zip(spans, windows, strict=True):
            if window is not None:
                span.restart(window.offset)
                self._take(span, window)
        self._show()

    # --- a line that is not shown

    async def find(
        self,
        pattern: str,
        wanted: Callable[[LogLine], bool],
        before: bool,
        progress: Callable[[float], None],
        newest: bool = False,
    ) -> LogLine | None:
        """Return the first wanted line that matches, or the `newest`, `before` or after the loaded lines.

        Attempts whose lines cannot be better are not searched. Raises LinkError.
        """
        parts = self._unloaded(before)
        whole = sum(part.end - part.begin for of_attempt in parts.values() for part in of_attempt)
        done, best = 0, max if newest else min

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress(done / whole)

        search = LineSearch(self._read, self._hits, pattern, wanted, newest)
        hits = list(filter(wanted, self._hidden(before)))
        for number in sorted(parts, reverse=newest):
            hits += await search.search(parts[number], advance)
            if hits and self._is_within(best(hits, key=key_of_line), number, newest):
                break
        return best(hits, key=key_of_line, default=None)

    def _is_within(self, line: LogLine, number: int, newest: bool) -> bool:
        """Whether no line of an earlier attempt (`newest`), or of a later one, can be better than this one."""
        bounds = self._bounds.get(number, UNBOUNDED)
        return line.key >= begin_key(bounds) if newest else line.key[0] <= bounds.end

    def _unloaded(self, before: bool) -> dict[int, list[Part]]:
        """Return the parts of files before or after the loaded lines, by attempt."""
        nearest = self._open.lowest if before else self._open.highest
        parts: dict[int, list[Part]] = {nearest: []}
        for span in self._spans.values():
            begin, end = (0, span.begin) if before else (span.next, span.size)
            if begin < end:
                parts[nearest].append(Part(span.file, begin, end))
        for file in self._files.values():
            number, size = file.attempt, self._sizes.get(file.id, 0)
            if number is None or number in self._open or not size:
                continue
            if (number < nearest) is before:
                parts.setdefault(number, []).append(Part(file, 0, size))
        return parts

    def _hits(self, file: LogFile, at: int, window: Window) -> list[LogLine]:
        """Return the lines of a window of hits."""
        if not window.starts:
            return []
        return self._shaped(file, self._new_span(file, at).feed(window, self._clock()))

    def _hidden(self, before: bool) -> list[LogLine]:
        """Return loaded lines that are not shown because other files are not loaded that far."""
        if not self.lines:
            return []
        if before:
            return self._all[: bisect_left(self._all, self.lines[0].key, key=key_of_line)]
        return self._all[bisect_right(self._all, self.lines[-1].key, key=key_of_line) :]

    # --- going on

    async def pull(self, sizes: Mapping[str, int]) -> int:
        """Load new lines; `sizes` are the current sizes. Return the number of new lines."""
        before = self.count
        for name, span in self._spans.items():
            for _ in range(WINDOWS_A_PULL):
                has_grown = span.next != span.size or sizes.get(name, span.size) != span.size
                if not has_grown or not await self._advance(span):
                    break
        self._show()
        self._trim_front()
        return self.count - before

    async def _advance(self, span: LogSpan) -> bool:
        """Read one window; return whether there is more."""
        at = span.next
        window = await self._window(span, ReadLog(span.file.id, at, WINDOW))
        if window is None:
            return False
        if self.at_end and window.size - at > BEHIND:  # go on at the end; earlier lines can be loaded again
            self._all = [line for line in self._all if line.key[3] != span.file.id]
            span.restart(window.size - WINDOW)
            span.size = window.size
            return True
        is_new = self.at_end and window.size - at < WINDOW
        self._take(span, window, self._clock() if is_new else None)
        return window.next < window.size

    def _take(self, span: LogSpan, window: Window, came: float | None = None) -> None:
        super()._take(span, window, came)
        self._rests.pop(span.file.id, None)
        rest = None if span.behind else span.unfinished(self._clock())
        if rest is not None:
            (self._rests[span.file.id],) = self._shaped(span.file, [rest])

    async def later(self) -> None:
        """Load the next lines without following the end."""
        before = len(self.lines)
        for _ in range(ROUNDS):
            if len(self.lines) >= before + ENOUGH or not await self._add_below():
                break
        self._trim_front()

    async def _add_below(self) -> bool:
        """Load later lines of the open files, or the beginning of the next attempt. Return False at the end."""
        left, newer = [span for span in self._spans.values() if span.behind], self._open.newer
        if left:
            left.sort(key=lambda span: span.last or FIRST)
            await asyncio.gather(*map(self._advance, _half(left)))
            self._show()
        elif newer is not None:
            await self._begin_with([ReadLog(name, 0, WINDOW) for name in self._opened(newer)])
        else:
            return False
        return True

    async def earlier(self) -> int:
        """Load earlier lines; return how many were added in front."""
        if self.beginning:
            return 0
        before, first = len(self.lines), self.lines[0] if self.lines else None
        await self._more_in_front(before + ENOUGH)
        came = len(self.lines) - before
        if first is not None:
            came = bisect_left(self.lines, first.key, key=key_of_line)
        self._trim_back()
        return came

    async def _more_in_front(self, wanted: int) -> None:
        size = WINDOW if len(self._spans) <= 4 else WINDOW // 4
        for _ in range(ROUNDS):
            if len(self.lines) >= wanted or not await self._add_in_front(size):
                break

    async def _add_in_front(self, size: int) -> bool:
        """Load earlier lines of the open files, or the end of the attempt before. Return False at the beginning."""
        left, older = [span for span in self._spans.values() if span.begin > 0], self._open.older
        if left:
            left.sort(key=lambda span: span.first or LAST, reverse=True)
            await asyncio.gather(*(self._load_front(span, size) for span in _half(left)))
            self._show()
        elif older is not None:
            await self._begin_with([ReadLog(name, -TAIL, WINDOW) for name in self._opened(older)])
        else:
            return False
        return True

    async def _load_front(self, span: LogSpan, size: int) -> None:
        """Load about `size` bytes before the loaded part of a file."""
        name, end = span.file.id, span.begin
        window = await self._before(name, end, size)
        while window.offset < window.next < end and not window.error:
            after = await self._read(ReadLog(name, window.next, end - window.next))
            if not after.error and (after.next <= window.next or after.offset >= end):
                break  # no more lines are stored before `end`
            window = _joined(window, after)
        if window.error or window.offset >= end:
            span.begin = 0
        else:
            self._insert(self._shaped(span.file, span.front(window, self._clock())))

    async def _before(self, name: str, end: int, size: int) -> Window:
        """Return a window of about `size` bytes before `end`, or before the gap in the log that ends there."""
        low, high = max(0, end - size), end
        window = await self._read(ReadLog(name, low, size + TAIL))  # mostly reaches `end`: lines are short
        while not window.error and window.offset >= end and low > 0:
            low, high = max(0, end - 2 * (end - low)), low
            window = await self._read(ReadLog(name, low, size))
        while not window.error and high < end and high - low > size:
            middle = (low + high) // 2
            nearer = await self._read(ReadLog(name, middle, size))
            if nearer.error or nearer.offset >= end:
                high = middle
            else:
                low, window = middle, nearer
        return window

    # --- the shown lines

    def _show(self) -> None:
        """Show the range that is complete: from the latest first line to the earliest last line of unfinished files."""
        firsts: list[Key] = []
        lasts: list[Key] = []
        for span in self._spans.values():
            if span.first is not None and span.begin > 0:
                firsts.append(span.first)
            if span.last is not None and span.behind:
                lasts.append(span.last)
        low, high = max(firsts, default=FIRST), min(lasts, default=LAST)
        begin = bisect_left(self._all, low, key=key_of_line)
        end = bisect_right(self._all, high, key=key_of_line)
        self.lines = self._all[begin:end] if begin < end else self._all[begin:]
        for number, rule in self._rules.items():
            if number in self._open and low <= rule.key <= high:
                insort(self.lines, rule, key=key_of_line)
        self._show_rests()

    def _show_rests(self) -> None:
        """Show text without a newline below all lines, but that of an earlier attempt among its lines."""
        newest = max(self._open.all, default=0)
        self.unfinished = {}
        for name, line in self._rests.items():
            if (self._files[name].attempt or newest) == newest:
                self.unfinished[name] = line
            else:
                insort(self.lines, line, key=key_of_line)

    def _trim_front(self) -> bool:
        if not super()._trim_front():
            return False
        self._close_unshown(before=True)
        self._show()
        return True

    def _trim_back(self) -> None:
        if len(self.lines) <= KEPT:
            return
        last = self.lines[KEPT - 1].key
        del self._all[bisect_right(self._all, last, key=key_of_line) :]
        self.at_end = False
        self._rests.clear()
        self._close_unshown(before=False)
        kept = self._kept()
        for name, span in self._spans.items():
            span.keep_begin(kept.get(name))
        self._show()


def _half(files: list[LogSpan]) -> list[LogSpan]:
    """Return the first half of some files, at least one."""
    return files[: max(1, len(files) // 2)]


def _joined(window: Window, after: Window) -> Window:
    """Return both windows as one; only `after` if there is a gap between them, whose front is loaded next."""
    if after.error or after.offset > window.next:
        return after
    return replace(
        window,
        next=after.next,
        size=after.size,
        data=window.data + after.data[window.next - after.offset :],
        times=tuple(sorted({*window.times, *after.times})),
        shift=after.shift,
    )
