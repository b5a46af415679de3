"""The loaded parts of some log files, and their lines in order of time."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ..runners.logs.attempt_bounds import UNBOUNDED, Bounds, bounds_of
from ..runners.logs.dating import Dated, Key, LogSpan, begin_key, bound_key
from ..runners.logs.levels import Level, level_of
from ..runners.run import clock
from ..runners.run.commands import ReadLog
from ..runners.run.log_files import LogFile
from ..runners.run.state import Attempt
from ..runners.run.wire.client import Window
from .open_attempts import OpenAttempts
from .rows.attempt_rule import attempt_rule
from .rows.log import label_of
from .rows.log_lines import LogLine

WINDOW = 65536
"""Bytes per request."""

KEPT = 20_000
"""Maximum lines; a quarter more triggers the removal of those farthest from the reader."""

BEHIND = 1 << 20
"""Minimum unread bytes that are left out to reach the end."""

OWN = 1 << 30
"""Replaces the rank in the keys of the screen's own lines, which follow the ranks' lines of that time."""

Reader = Callable[[ReadLog], Awaitable[Window]]
"""Reads one window of a log file. Raises LinkError."""


class LoadedLogs:
    """The loaded lines of some files: base of a window around a place, and of the lines that match a pattern."""

    searching = False
    """Whether the bytes from before a search are not yet searched to the end."""
    at_end = True
    """Whether new lines are shown below the others."""

    def __init__(
        self,
        read: Reader,
        files: Sequence[LogFile],
        label: Callable[[LogFile], str] = label_of,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self.lines: list[LogLine] = []
        """The shown lines, in order."""
        self.unfinished: dict[str, LogLine] = {}
        """The text after the last newline by file id, such as a progress bar, of the newest attempt."""
        self.count = 0
        """Number of lines that were read, including those that are no longer held."""
        self.problem = ""
        """Why a file could not be read, in one sentence. A file that does not exist yet is no problem."""
        self._read, self._label, self._clock = read, label, clock
        self._all: list[LogLine] = []
        self._rests: dict[str, LogLine] = {}
        """The text after the last newline of each file."""
        self._files: dict[str, LogFile] = {}
        """The chosen files of all attempts."""
        self._open = OpenAttempts()
        self._spans: dict[str, LogSpan] = {}
        """The loaded parts of the files that were opened."""
        self._bounds: dict[int, Bounds] = {}
        self._rules: dict[int, LogLine] = {}
        """The line above the first line of each attempt but the first, by number."""
        self._sizes: Mapping[str, int] = {}
        self.writers = 0
        """Number of streams of ranks and other writers, each in any number of attempts."""
        self.add(files)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    @property
    def behind(self) -> bool:
        """Whether a file has unread bytes."""
        return any(span.behind for span in self._spans.values())

    def take_attempts(self, attempts: Sequence[Attempt], sizes: Mapping[str, int]) -> None:
        """Take over the attempts of the run so far, and the sizes of its logs."""
        before, self._bounds, self._sizes = self._bounds, bounds_of(attempts), sizes
        for attempt in attempts[1:]:
            number = attempt.number
            key = begin_key(self._bounds[number], number)
            rule = LogLine(attempt_rule(attempts, number), "", Level.NONE, key=key)
            if self._rules.get(number) != rule:  # lines that stay the same objects are not painted again
                self._rules[number] = rule
        for span in self._spans.values():
            span.bound(self._bounds_of(span.file))
        ends = [self._bounds[number].end for number in self._bounds.keys() & before.keys()]
        self._move_back(min(set(ends) - {bounds.end for bounds in before.values()}, default=math.inf))

    def _move_back(self, end: float) -> None:
        """Move lines that were read before their attempt's `end` was known above the rule of the next attempt."""
        lines, index = self._all, len(self._all)
        while index and lines[index - 1].key[0] >= end:
            index -= 1
            line = lines[index]
            file = self._files.get(line.key[3])
            if file is not None and line.key[0] > self._bounds_of(file).end:
                lines[index] = line._replace(key=bound_key(line.key, self._bounds_of(file)))
        lines[index:] = sorted(lines[index:], key=key_of_line)

    def add(self, files: Sequence[LogFile]) -> None:
        """Add files that were created since. Those of open attempts are read, and at the end also a new attempt's."""
        fresh = [file for file in files if file.id not in self._files]
        if fresh:
            self._files.update((file.id, file) for file in fresh)
            self._count_files()
        if self._open and self.at_end:
            self._open.open_newest()
        for file in fresh:
            if file.attempt in self._open:
                self._spans[file.id] = self._new_span(file)

    def _count_files(self) -> None:
        chosen = self._files.values()
        self.writers = len({(file.node, file.label, file.stream) for file in chosen})
        self._open.all = sorted({file.attempt for file in chosen if file.attempt is not None})

    def _opened(self, number: int) -> list[str]:
        """Open an attempt, and at first also logs of no attempt; return the names of their files."""
        wanted = (number,) if self._open else (number, None)
        self._open.open(number)
        names = [name for name, file in self._files.items() if file.attempt in wanted]
        self._spans.update((name, self._new_span(self._files[name])) for name in names)
        return names

    def _new_span(self, file: LogFile, begin: int = 0) -> LogSpan:
        return LogSpan(file, begin, bounds=self._bounds_of(file))

    def _bounds_of(self, file: LogFile) -> Bounds:
        return self._bounds.get(file.attempt or 0, UNBOUNDED)

    async def _window(self, span: LogSpan, ask: ReadLog) -> Window | None:
        """Read a window of a file; None if it cannot be read until it grows."""
        window = await self._read(ask)
        if not window.error:
            return window
        if "does not exist" not in window.error:
            self.problem = window.error
        span.size = span.next
        return None

    def _take(self, span: LogSpan, window: Window, came: float | None = None) -> None:
        """Add the lines of the next window. `came`: approximate time of the new data, if it is new."""
        lines = span.feed(window, self._clock(), came)
        self.count += len(lines)
        self._insert(self._shaped(span.file, lines))

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
                insort(held, line, key=key_of_line)
        else:
            at = bisect_left(held, lines[0].key, key=key_of_line)
            held[at:] = sorted([*held[at:], *lines], key=key_of_line)

    def _show(self) -> None:
        """Update the shown lines."""
        raise NotImplementedError

    def _trim_front(self) -> bool:
        """Remove the first lines if there are too many; return whether any were removed."""
        over = len(self.lines) - KEPT
        if over <= KEPT // 4:  # not each time, since it rebuilds all rows
            return False
        del self._all[: bisect_left(self._all, self.lines[over].key, key=key_of_line)]
        kept = self._kept()
        for name, span in self._spans.items():
            span.keep_end(kept.get(name))
        self._show()
        return True

    def _kept(self) -> dict[str, tuple[Key, Key]]:
        """Map each file to the keys of its first and last line."""
        ends: dict[str, tuple[Key, Key]] = {}
        for line in self._all:
            if line.key[1] != OWN:
                name = line.key[3]
                first = ends[name][0] if name in ends else line.key
                ends[name] = (first, line.key)
        return ends


def key_of_line(line: LogLine) -> Key:
    return line.key
