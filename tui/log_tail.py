"""A window of some log files, merged by time: the lines that the log pane holds, and the lines that it loads next."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ..runners.logs.dating import Dated, Key, LogSpan
from ..runners.logs.levels import Level, level_of
from ..runners.run import clock
from ..runners.run.formatting import size_short
from ..runners.run.log_files import LogFile
from ..runners.run.model import ReadLog
from ..runners.run.wire.client import Window
from .rows.log import Jump, LogLine, label_of

WINDOW = 65536
"""Bytes per request."""

KEPT = 20_000
"""Maximum lines; a quarter more triggers the removal of those farthest from the reader."""

COUNTED = 50_000
"""Maximum lines of a filter. Beyond it, the filter skips to the ends of the files."""

BEHIND = 1 << 20
"""Unread bytes from there on make a follower jump to the end."""

WINDOWS_A_PULL = 8
"""Windows of one file that are read per pull."""

TAIL = 4096
"""Bytes initially read of each of several files."""

ENOUGH = 120
"""Lines to load after a jump, if the files have so many."""

SIFTED = 16
"""Maximum files that a filter searches for new lines at a time."""

ROUNDS = 12
"""Maximum consecutive requests for earlier or later lines."""

FIRST, LAST = (float("-inf"), 0, 0, "", 0), (float("inf"), 0, 0, "", 0)


Reader = Callable[[ReadLog], Awaitable[Window]]
"""Reads one window of a log file. Raises LinkError."""


class LogTail:
    """The lines of some files, merged by time: the part of each file around the reader's position.

    The file with the smallest loaded range limits the shown lines, so that no line is missing in between. `grep` is
    applied on the file's node, so that only matching lines are transferred.
    """

    def __init__(
        self,
        read: Reader,
        files: Sequence[LogFile],
        grep: str = "",
        label: Callable[[LogFile], str] = label_of,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self.lines: list[LogLine] = []
        """The shown lines, in order."""
        self.unfinished: dict[str, LogLine] = {}
        """The text after the last newline by file id, such as a progress bar."""
        self.dropped = 0
        """Lines removed at the front because there were too many, minus those added there."""
        self.problem = ""
        """Why a file could not be read, in one sentence. A file that does not exist yet is no problem."""
        self.at_end = True
        """Whether the tail reaches the end of the files; otherwise it does not follow them."""
        self._read, self._grep, self._label, self._clock = read, grep, label, clock
        self._all: list[LogLine] = []
        self._ends: dict[str, tuple[Key, Key]] = {}
        """Keys of the first and last loaded line by file."""
        self._spans: dict[str, LogSpan] = {}
        self._opened: set[str] = set()
        """Files that were read once. From then on they are read only if they grow."""
        self._new = list(files)
        self._searched_through = False
        self.skipped = False
        """Whether more lines match than were read."""

    # --- queries

    @property
    def files(self) -> list[LogFile]:
        """The shown files."""
        return [*(span.file for span in self._spans.values()), *self._new]

    def __len__(self) -> int:
        """Return the number of shown files."""
        return len(self._spans) + len(self._new)

    def __contains__(self, name: object) -> bool:
        return name in self._spans or any(file.id == name for file in self._new)

    @property
    def beginning(self) -> bool:
        """Whether no earlier lines can be loaded."""
        return bool(self._grep) or all(span.begin <= 0 for span in self._spans.values())

    @property
    def behind(self) -> bool:
        """Whether a file has unread bytes."""
        return any(span.next < span.size for span in self._spans.values())

    @property
    def far_behind(self) -> bool:
        """Whether a reader who wants to follow has to restart at the end."""
        return not self._grep and any(span.size - span.next > BEHIND for span in self._spans.values())

    @property
    def searched(self) -> float:
        """Searched share of the bytes, 0 to 1."""
        whole = sum(span.size for span in self._spans.values())
        done = sum(min(span.next, span.size) for span in self._spans.values())
        return done / whole if whole else float(len(self._opened) >= len(self._spans))

    @property
    def searching(self) -> bool:
        """Whether the bytes from before the search are not yet searched to the end; later ones are followed."""
        return self.filtered and not self._searched_through

    @property
    def filtered(self) -> bool:
        """Whether only matching lines are loaded."""
        return bool(self._grep)

    # --- beginning

    def add(self, files: Sequence[LogFile], separator: str = "") -> None:
        """Add files that were created since, to be read from their beginning."""
        fresh = [file for file in files if file.id not in self]
        if fresh and separator:
            last = self._all[-1].key if self._all else FIRST
            self._insert([LogLine(separator, "", Level.NONE, key=(last[0], 1 << 30, 0, "", 0))])
        for file in fresh:
            self._spans[file.id] = LogSpan(file)

    async def begin(self) -> None:
        """Load the ends of the files; a search begins at their beginnings."""
        files, self._new = self._new, []
        for file in files:
            self._spans[file.id] = LogSpan(file)
        if self._grep:
            return
        back = WINDOW if len(files) == 1 else TAIL
        windows = await asyncio.gather(*(self._read(ReadLog(file.id, -back, WINDOW)) for file in files))
        for file, window in zip(files, windows, strict=True):
            self._begin_at(file, window)
        self._show()
        await self._more_in_front(min(ENOUGH, KEPT))

    async def begin_at(self, jump: Jump) -> None:
        """Load the files from a line, a time, or a share of their bytes.

        `problem` is set for a file that does not support the jump.
        """
        files, self._new = self.files, []
        self._spans = {file.id: LogSpan(file) for file in files}
        self.at_end = False
        if jump.file and (len(files) == 1 or not jump.at):
            await self._begin_around(files, jump)
            return
        at, offsets = jump.at, [0] * len(files)
        if jump.share is not None:
            at = await self._time_of(files, jump.share) if len(files) > 1 else 0.0
            if not at:
                offsets = await self._offsets_of(files, jump.share)
        asked = [
            self._read(ReadLog(file.id, to, WINDOW, line=jump.line, at=at))
            for file, to in zip(files, offsets, strict=True)
        ]
        for file, window in zip(files, await asyncio.gather(*asked), strict=True):
            self._begin_at(file, window)
        self._show()

    async def _offsets_of(self, files: Sequence[LogFile], share: float) -> list[int]:
        sizes = await asyncio.gather(*(self._read(ReadLog(file.id, -1, 1)) for file in files))
        return [int(window.size * share) for window in sizes]

    async def _begin_around(self, files: Sequence[LogFile], jump: Jump) -> None:
        """Load one file around a line; without times, load the other files at the same share of their bytes."""
        own = await self._read(ReadLog(jump.file, max(0, jump.offset - WINDOW // 2), WINDOW))
        share = jump.offset / own.size if own.size else 0.0
        for file in files:
            if file.id == jump.file:
                self._begin_at(file, own)
                continue
            size = (await self._read(ReadLog(file.id, -1, 1))).size
            self._begin_at(file, await self._read(ReadLog(file.id, int(size * share), WINDOW)))
        self._show()

    async def find(
        self,
        pattern: str,
        wanted: Callable[[str], bool],
        before: bool,
        progress: Callable[[float], None],
        newest: bool = False,
    ) -> LogLine | None:
        """Return the first wanted line that matches, or the `newest`, `before` or after the loaded lines.

        Raises LinkError.
        """

        def fits(line: LogLine) -> bool:
            return wanted(line.text)

        spans = self._unloaded(before)
        whole, done = sum(end - begin for _, begin, end in spans), 0
        hits = list(filter(fits, self._hidden(before)))
        for file, begin, end in spans:
            at = begin
            while at < end:
                lines, at = await self._search_window(file, at, end, pattern)
                fitting = list(filter(fits, lines))
                hits += fitting[-1:] if newest else fitting[:1]
                if fitting and not newest:
                    break
                progress((done + min(at, end) - begin) / whole)
            done += end - begin
        best = max if newest else min
        return best(hits, key=_key, default=None)

    def _unloaded(self, before: bool) -> list[tuple[LogFile, int, int]]:
        """Return each file's range of bytes before or after its loaded lines."""
        spans = [
            (span.file, 0, span.begin) if before else (span.file, span.next, span.size)
            for span in self._spans.values()
        ]
        return [(file, begin, end) for file, begin, end in spans if begin < end]

    async def _search_window(
        self, file: LogFile, at: int, end: int, pattern: str
    ) -> tuple[list[LogLine], int]:
        """Return hits before `end`, and where the next window begins: at `end` if the file cannot be read on."""
        window = await self._read(ReadLog(file.id, at, TAIL, pattern))
        lines = LogSpan(file, at).feed(window, self._clock()) if window.starts else []
        hits = [line for line in self._shaped(file, lines) if line.key[4] < end]
        return hits, end if window.error or window.next <= at else window.next

    def _hidden(self, before: bool) -> list[LogLine]:
        """Return loaded lines that are not shown because other files are not loaded that far."""
        if not self.lines:
            return []
        first, last = self.lines[0].key, self.lines[-1].key
        return [line for line in self._all if (line.key < first if before else line.key > last)]

    async def _time_of(self, files: Sequence[LogFile], share: float) -> float:
        """Return the approximate time of that share of the longest file; 0.0 if it has no times."""
        windows = await asyncio.gather(*(self._read(ReadLog(file.id, -1, 1)) for file in files))
        longest = max(zip(files, windows, strict=True), key=lambda pair: pair[1].size)
        window = await self._read(ReadLog(longest[0].id, int(longest[1].size * share), 4096))
        lines = LogSpan(longest[0], window.offset).feed(window, self._clock())
        return next((line.key[0] for line in lines if line.key[0]), 0.0)

    def _begin_at(self, file: LogFile, window: Window) -> None:
        span = self._spans[file.id]
        span.begin = span.next = max(window.offset, 0) if not window.error else 0
        self._opened.add(file.id)
        if window.error:
            self._note(window)
        else:
            self._take(span, window)

    # --- going on

    async def pull(self, sizes: Mapping[str, int]) -> int:
        """Load new lines; `sizes` are the current sizes. Return the number of new lines."""
        before = len(self.lines) + self.dropped
        if self._grep:
            await self._search(sizes)
        else:
            spans = self._spans.items()
            grew = [span for name, span in spans if not span.next == span.size == sizes.get(name, -1)]
            for span in grew:  # also files of unknown size; `_grew` decides about them
                await self._pull(span, sizes)
        self._show()
        self._trim_front()
        return len(self.lines) + self.dropped - before

    def _grew(self, name: str, span: LogSpan, sizes: Mapping[str, int]) -> bool:
        """Whether a file is known or assumed to have unread bytes."""
        size = span.size if name in self._opened else None
        return not span.next == span.size == sizes.get(name, size)

    async def _pull(self, span: LogSpan, sizes: Mapping[str, int]) -> None:
        for _ in range(WINDOWS_A_PULL):
            if not self._grew(span.file.id, span, sizes) or not await self._advance(span):
                break

    async def _search(self, sizes: Mapping[str, int]) -> None:
        """Search one more window of the files with the most unread bytes; a node runs two searches at a time."""
        for name, span in self._spans.items():
            span.size = max(span.size, sizes.get(name, 0))
        most_behind = self._most_behind()[: 2 if self.searching else SIFTED]
        await asyncio.gather(*map(self._advance, most_behind))
        if self.searching and not self.skipped and len(self._all) + self.dropped > COUNTED:
            self._skip()
        if not self.behind and len(self._opened) == len(self._spans):
            self._searched_through = True

    def _most_behind(self) -> list[LogSpan]:
        """Return files with unread bytes, the one with the most first."""
        left = [span for name, span in self._spans.items() if span.behind or name not in self._opened]
        return sorted(left, key=lambda span: span.next - span.size)

    def _skip(self) -> None:
        """Skip so much of each file that the rest yields about KEPT lines."""
        self.skipped = True
        read = sum(span.next - span.begin for span in self._spans.values())
        share = 1.5 * KEPT / (len(self._all) + self.dropped)
        for span in self._spans.values():
            to = span.size - int(min(read * share, span.size))
            if to - span.next > BEHIND:
                self._leave_out(span, to)

    def _leave_out(self, span: LogSpan, to: int) -> LogSpan:
        """Continue reading a file at `to`; a line shows how much was left out."""
        file, size = span.file, span.size
        text = f"… {size_short(to - span.next)} not shown"
        above = self._ends[file.id][1] if file.id in self._ends else FIRST
        key = (above[0], 1 << 30, 0, file.id, span.next) if above[0] else (*above[:4], span.next)
        self._insert([LogLine(text, self._label(file), Level.NONE, key=key)])
        self._forget(file.id)
        fresh = self._spans[file.id] = LogSpan(file, to)
        fresh.size = size
        return fresh

    async def _advance(self, span: LogSpan) -> bool:
        """Read one window; return whether there is more."""
        file, at = span.file, span.next
        window = await self._read(ReadLog(file.id, at, WINDOW, self._grep))
        self._opened.add(file.id)
        if window.error:
            self._note(window)
            span.size = span.next  # no more requests until it grows
            return False
        if not self._grep and self.at_end and window.size - at > BEHIND:
            span.size = window.size
            self._leave_out(span, window.size - WINDOW)
            return True
        self._take(span, window, live=self.at_end)
        return window.next < window.size

    async def later(self) -> int:
        """Load the next lines without following the end; return how many were added."""
        before = len(self.lines)
        for _ in range(ROUNDS):
            left = [span for span in self._spans.values() if span.behind]
            left.sort(key=lambda span: self._ends.get(span.file.id, (FIRST, FIRST))[1])
            if not left or len(self.lines) >= before + ENOUGH:
                break
            await asyncio.gather(*(self._advance(span) for span in left[: max(1, len(left) // 2)]))
            self._show()
        came = len(self.lines) - before
        self._trim_front()
        return came

    async def earlier(self) -> int:
        """Load earlier lines; return how many were added in front."""
        if self.beginning:
            return 0
        before = len(self.lines)
        first = self.lines[0] if self.lines else None
        await self._more_in_front(before + ENOUGH)
        came = len(self.lines) - before if first is None else self._place(first)
        self.dropped -= came
        self._trim_back()
        return came

    def _place(self, line: LogLine) -> int:
        at = bisect_left(self.lines, line.key, key=_key)
        while at < len(self.lines) and self.lines[at] is not line:
            at += 1
        return at

    async def _more_in_front(self, wanted: int) -> None:
        for _ in range(ROUNDS):
            left = [span for span in self._spans.values() if span.begin > 0]
            if not left or len(self.lines) >= wanted:
                break
            left.sort(key=lambda span: self._ends.get(span.file.id, (LAST, LAST))[0], reverse=True)
            chosen = left[: max(1, len(left) // 2)]
            size = WINDOW if len(self._spans) <= 4 else WINDOW // 4
            await asyncio.gather(*(self._load_front(span, size) for span in chosen))
            self._show()

    async def _load_front(self, span: LogSpan, size: int) -> None:
        name, end = span.file.id, span.begin
        window = await self._before(name, end, size)
        begin, data, reached, times = window.offset, window.data, window.next, window.times
        while begin < reached < end and not window.error:
            window = await self._read(ReadLog(name, reached, end - reached))
            if window.next <= reached or window.offset >= end:
                break  # no more lines are stored before `end`
            if window.offset > reached:  # the part before a gap is loaded next
                begin, data, reached, times = window.offset, window.data, window.next, window.times
                continue
            data, reached = data + window.data[reached - window.offset :], window.next
            times += window.times
        if window.error or begin >= end:
            span.begin = 0
            return
        whole = Window(name, begin, reached, window.size, data, times=_in_order(times), shift=window.shift)
        first = self._ends.get(name, (None, None))[0]
        lines = span.front(whole, self._clock(), first)
        self._insert(self._shaped(span.file, lines))
        if lines:
            self._ends[name] = (lines[0].key, self._ends.get(name, (FIRST, lines[-1].key))[1])

    async def _before(self, name: str, end: int, size: int) -> Window:
        """Return a window of about `size` bytes before `end`, or before the gap in the log that ends there."""
        low, high = max(0, end - size), end
        window = await self._read(ReadLog(name, low, size))
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

    # --- the lines

    def _take(self, span: LogSpan, window: Window, live: bool = False) -> None:
        now = self._clock()
        near = window.size - span.next < WINDOW
        lines = span.feed(window, now, now if live and near else None)
        self._insert(self._shaped(span.file, lines))
        name = span.file.id
        if lines:
            self._ends[name] = (self._ends.get(name, (lines[0].key, FIRST))[0], lines[-1].key)
        self.unfinished.pop(name, None)
        rest = span.unfinished(now) if not self._grep and not span.behind else None
        if rest is not None:
            self.unfinished[name] = self._shaped(span.file, [rest])[0]

    def _shaped(self, file: LogFile, lines: Sequence[Dated]) -> list[LogLine]:
        label, rank = self._label(file), file.rank
        return [LogLine(text, label, level_of(text), at, own, key, rank) for text, key, at, own in lines]

    def _insert(self, lines: Sequence[LogLine]) -> None:
        """Insert lines in order; lines of one file arrive sorted."""
        held = self._all
        if not lines:
            return
        if not held or held[-1].key <= lines[0].key:
            held += lines
        elif lines[-1].key < held[0].key:
            held[:0] = lines
        elif len(lines) < 8:
            for line in lines:
                insort(held, line, key=_key)
        else:
            at = bisect_left(held, lines[0].key, key=_key)
            held[at:] = sorted([*held[at:], *lines], key=_key)

    def _show(self) -> None:
        """Show the range that is complete: from the latest first line to the earliest last line of unfinished files."""
        first, last = (None, None) if self._grep else self._complete_range()
        begin = 0 if first is None else bisect_left(self._all, first, key=_key)
        end = len(self._all) if last is None else bisect_right(self._all, last, key=_key)
        self.lines = self._all[begin:end] if begin < end else self._all[begin:]

    def _complete_range(self) -> tuple[Key | None, Key | None]:
        """Return the limits that unfinished files set; None without a limit."""
        firsts: list[Key] = []
        lasts: list[Key] = []
        for name, span in self._spans.items():
            if name not in self._ends:
                continue
            first, last = self._ends[name]
            if span.begin > 0:
                firsts.append(first)
            if span.behind:
                lasts.append(last)
        return max(firsts, default=None), min(lasts, default=None)

    def _trim_front(self) -> None:
        over = len(self.lines) - KEPT
        if over > KEPT // 4:  # not each time, since it rebuilds all rows
            first = self.lines[over]
            del self._all[: bisect_left(self._all, first.key, key=_key)]
            self.dropped += over
            self._keep_spans(front=True)
            self._show()

    def _trim_back(self) -> None:
        if len(self.lines) > KEPT:
            last = self.lines[KEPT - 1]
            del self._all[bisect_right(self._all, last.key, key=_key) :]
            self.at_end = False
            self.unfinished.clear()
            self._keep_spans(front=False)
            self._show()

    def _keep_spans(self, front: bool) -> None:
        """Update the range of each file after lines were removed."""
        ends = self._kept_ends()
        for name, span in self._spans.items():
            was = self._ends.pop(name, None)
            if name in ends:
                self._ends[name] = ends[name]
                if front:
                    span.begin = ends[name][0][4]
                    continue
            if was is None:
                continue
            if front:
                span.begin = span.next - len(span.carry)
            elif name not in ends or ends[name][1] != was[1]:
                self._cut_back(span, ends.get(name))

    def _kept_ends(self) -> dict[str, tuple[Key, Key]]:
        """Map each file to its first and last line."""
        ends: dict[str, tuple[Key, Key]] = {}
        for line in self._all:
            if line.key[1] != 1 << 30:
                name = line.key[3]
                ends[name] = (ends[name][0] if name in ends else line.key, line.key)
        return ends

    def _cut_back(self, span: LogSpan, ends: tuple[Key, Key] | None) -> None:
        """Reset a file to continue after its last kept line."""
        fresh = LogSpan(span.file, span.begin)
        fresh.size = span.size
        if ends is not None:
            fresh.next = ends[1][4]
            fresh.skip = True
        self._spans[span.file.id] = fresh

    def _forget(self, name: str) -> None:
        """Forget a file's range, which then no longer limits the shown lines."""
        self._ends.pop(name, None)

    def _note(self, window: Window) -> None:
        if "does not exist" not in window.error:
            self.problem = window.error


def _key(line: LogLine) -> Key:
    return line.key


def _in_order(times: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(set(times)))
