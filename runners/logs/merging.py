"""Merge several growing logs into one stream in order of time. Memory holds at most a window of each."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import NamedTuple

from ...presets.sanitize import WIDTH
from ..run import clock
from ..run.commands import ReadLog
from ..run.log_files import LogFile
from ..run.wire.client import Link
from .attempt_bounds import UNBOUNDED, Bounds
from .dating import FIRST, LAST, Dated, Key, LogSpan

REQUEST = 1 << 20
"""Maximum bytes per request."""
LEAST = 1 << 14
HELD = 1 << 22
"""Bytes of all windows together. With many files each still gets LEAST bytes."""


class Line(NamedTuple):
    """One line and its log."""

    dated: Dated
    file: LogFile


def prefixes(files: Collection[LogFile]) -> Callable[[LogFile], str]:
    """Return the prefix of lines: "" for one writer, `[rank 0] ` for several, `[rank 0 err] ` for several streams."""
    if len({(file.node, file.label, file.stream) for file in files}) < 2:
        return lambda file: ""
    streams = len({file.stream for file in files}) > 1
    return lambda file: f"[{file.label} {file.stream}] " if streams else f"[{file.label}] "


def _stream_of(file: LogFile) -> tuple[int | None, int | None, str]:
    return file.node, file.attempt, file.stream


class MergedLogs:
    """The lines read from some logs. A line is returned once no other log can have an earlier one."""

    def __init__(self, grep: str = "", width: int = WIDTH) -> None:
        """`width`: maximum characters per line."""
        self.problems: dict[str, str] = {}
        """Reason why a file cannot be read, by file."""
        self._grep, self._width = grep, width
        self._spans: dict[str, LogSpan] = {}
        self._waiting: dict[str, list[Dated]] = {}
        """Lines that were read but must wait for possibly earlier ones of other logs, by file."""

    def __contains__(self, file: LogFile) -> bool:
        return file.id in self._spans

    def __bool__(self) -> bool:
        return bool(self._spans)

    @property
    def files(self) -> list[LogFile]:
        return [span.file for span in self._spans.values()]

    def add(self, file: LogFile, begin: int = 0, dated: bool = True) -> None:
        """Read one more file from byte `begin` on. `dated`: whether times matter."""
        self._spans[file.id] = LogSpan(file, begin, dated, self._width)

    def bound(self, file: LogFile, bounds: Bounds | None) -> None:
        """Set the times of the file's attempt, which lines read from now on do not leave. None: unknown."""
        self._spans[file.id].bound(bounds or UNBOUNDED)

    def take_new_names(self, files: Iterable[LogFile]) -> None:
        """Continue files under their new names. `files`: all current files."""
        there = {file.id: file for file in files}
        fresh = {_stream_of(file): file for name, file in there.items() if name not in self._spans}
        for span in [span for span in self._spans.values() if fresh and span.file.id not in there]:
            new = fresh.pop(_stream_of(span.file), None)
            if new is None:
                continue
            old, span.file = span.file.id, new
            self._spans[new.id] = self._spans.pop(old)
            if old in self._waiting:
                self._waiting[new.id] = self._waiting.pop(old)
            self.problems.pop(old, None)

    def grow(self, file: LogFile, size: int) -> None:
        """Set the reported size of a file in bytes."""
        self._spans[file.id].size = size

    def to_the_end(self, files: Collection[LogFile]) -> None:
        """Read these files to their end, whatever sizes were reported."""
        for span in (self._spans[file.id] for file in files):
            span.size = max(span.size, span.next + 1)

    async def read(self, link: Link, until: Key = LAST) -> AsyncIterator[list[Line]]:
        """Yield new lines before `until` in order, in portions. Raises LinkError.

        Unyielded lines follow in the next call.
        """
        while left := [name for name in self._spans if self._lacks(name)]:
            await asyncio.gather(*(self._read(link, name) for name in left))
            yield self._ready(until)
        yield self._ready(until)

    def last_words(self, files: Collection[LogFile]) -> list[Line]:
        """Return the text without a newline at the ends of files that are complete."""
        now = clock.now()
        return [Line(dated, file) for file in files for dated in self._spans[file.id].last_words(now)]

    def _lacks(self, name: str) -> bool:
        return self._spans[name].behind and not self._waiting.get(name) and name not in self.problems

    async def _read(self, link: Link, name: str) -> None:
        span = self._spans[name]
        at, size = span.next, span.size
        limit = min(REQUEST, max(LEAST, HELD // len(self._spans)))
        window = await link.read_log(ReadLog(name, at, limit, self._grep))
        if span.file.id != name:
            return  # the file was renamed and is read under its new name
        if window.error:
            self.problems[name] = window.error
            return
        lines = span.feed(window, clock.now())
        span.size = max(span.size, size) if window.next >= at else window.size
        self._waiting.setdefault(name, []).extend(lines)
        if window.next <= at and not lines:
            span.size = span.next  # the file has no more data, whatever was reported

    def _ready(self, until: Key) -> list[Line]:
        """Return the lines before `until` that no later line can precede."""
        spans = [span for name, span in self._spans.items() if name not in self.problems]
        bound = min([until, *(span.last or FIRST for span in spans if span.behind)])
        ready: list[Line] = []
        for name, lines in self._waiting.items():
            count = bisect_right(lines, bound, key=lambda line: line.key)
            ready += [Line(line, self._spans[name].file) for line in lines[:count]]
            del lines[:count]
        if len(self._spans) > 1:
            ready.sort(key=lambda line: line.dated.key)
        return ready
