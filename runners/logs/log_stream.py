"""The lines of a run's logs, merged by time, once or as they are written."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from ..run.commands import ReadLog
from ..run.errors import RunError
from ..run.log_files import LogFile, parse_file_id
from ..run.model import CaughtUp, LogGrew, RunEnded
from ..run.state import Attempt, RunState
from ..run.wire.client import Link
from .attempt_bounds import Bounds, bounds_of
from .choice import check_there, choose
from .dating import LAST, Key, begin_key
from .merging import Line, MergedLogs, prefixes
from .search import compile_grep


class LogRequest(Struct, frozen=True, kw_only=True):
    """The requested lines of a run's logs."""

    ranks: tuple[int, ...] = ()
    """() for all."""
    node: int | None = None
    streams: tuple[str, ...] = ("out", "err")
    """Names among "out", "err", "nccl", and "log" for distui's own runner and agent."""
    attempt: int | None = None
    """None for all."""
    grep: str = ""
    """Regular expression that lines must match."""
    since: float | None = None
    """Unix seconds of the first line."""
    tail: int | None = None
    """Number of the last lines that are there. None for all."""
    follow: bool = False
    """Also lines that are written later, until the run has ended."""
    dated: bool = False
    """Whether lines need times. Those of several files have them in any case."""


class LogLine(Struct, frozen=True):
    """A line of a run's logs, without terminal control codes."""

    time: float | None
    """Unix seconds; None if unknown."""
    own: bool
    """Whether the line itself has the time."""
    attempt: int | None
    """None for logs of distui's runner and agent, which outlive attempts."""
    rank: int | None
    node: int
    stream: str
    source: str
    text: str

    def __str__(self) -> str:
        return self.text


def log_line(line: Line) -> LogLine:
    """Return a line with its log."""
    dated, file = line
    at = None if dated.at is None else round(dated.at, 6)
    return LogLine(at, dated.own, file.attempt, file.rank, file.node, file.stream, file.source, dated.text)


class LogStream:
    """Reads the requested lines of one run."""

    def __init__(self, link: Link, asked: LogRequest, run_dir: Path) -> None:
        """Create the reader of a run in a directory. Raises LogError for an invalid pattern."""
        compile_grep(asked.grep)
        self.prefix: Callable[[LogFile], str] = prefixes(())
        """Returns what tells the lines of several files apart: "[rank 0] "."""
        self._link, self._asked, self._run_dir = link, asked, run_dir
        self._state = RunState()
        self._merged = MergedLogs(asked.grep)
        self.problems = self._merged.problems
        """Reason why a file cannot be read, by file. Complete after the last line."""
        self._dated = asked.dated or asked.since is not None
        self._oldest = 0
        """The oldest attempt to read."""

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts of the run."""
        return self._state.attempts

    async def portions(self) -> AsyncIterator[list[Line]]:
        """Yield lines in order. Raises RunError for ranks, attempts and nodes that the run does not have."""
        existing: deque[Line] = deque(maxlen=self._asked.tail)
        caught_up = False
        async for stamped in self._link.events():
            self._state.apply(stamped)
            if not self._state.live or not isinstance(stamped.event, CaughtUp | LogGrew | RunEnded):
                continue
            check_there(
                self._state, self._files(), self._asked.ranks, self._asked.attempt, self._asked.node
            )
            async for lines in self._read_new():
                if caught_up or self._asked.tail is None:
                    yield lines
                else:
                    existing.extend(lines)
            if not caught_up:
                yield list(existing)
                caught_up = True
            if not self._asked.follow:
                break
        if not self._asked.grep:
            yield self._wanted(self._merged.last_words(self._merged.files))
        if self._state.attempts and not self._merged:
            _check_readable(self._run_dir)

    def _files(self) -> list[LogFile]:
        return [file for name in self._state.log_sizes if (file := parse_file_id(name)) is not None]

    async def _read_new(self) -> AsyncIterator[list[Line]]:
        """Yield new lines, attempt after attempt, so that memory holds windows of only one attempt."""
        asked, files = self._asked, self._files()
        chosen = choose(files, asked.ranks, asked.streams, asked.attempt, asked.node)
        bounds = bounds_of(self._state.attempts)
        groups = _by_attempt(chosen)
        self._merged.take_new_names(files)
        begins = dict[str, int]()
        if not self._merged:
            self.prefix = prefixes(chosen)
            self._dated = self._dated or len(chosen) > 1
            begins = await self._first_offsets(groups, bounds)
        numbers = [number for number in groups if not number or number >= self._oldest]
        for number, following in pairwise([*numbers, 0]):
            for file in groups[number]:
                if file not in self._merged:
                    self._merged.add(file, begins.get(file.id, 0), self._dated)
                self._merged.bound(file, bounds.get(number))
                self._merged.grow(file, self._state.log_sizes.get(file.id, 0))
            async for lines in self._merged.read(self._link, _until(bounds.get(following))):
                yield self._wanted(lines)

    async def _first_offsets(
        self, groups: dict[int, list[LogFile]], bounds: dict[int, Bounds]
    ) -> dict[str, int]:
        """Return the offset of each file's first line to read, and find the oldest attempt to read."""
        asked, offsets = self._asked, dict[str, int]()
        for number in sorted(groups, key=lambda number: number or _NEWEST, reverse=True):
            if _is_over(bounds.get(number), asked.since):
                break
            begins = await asyncio.gather(*(self._begin(file) for file in groups[number]))
            offsets |= {file.id: begin for file, begin in zip(groups[number], begins, strict=True)}
            self._oldest = number or self._oldest
            if number and asked.tail is not None and any(begins):
                break  # one of its files has enough lines
        return offsets

    def _wanted(self, lines: list[Line]) -> list[Line]:
        since = self._asked.since
        return lines if since is None else [line for line in lines if line.dated.key[0] >= since]

    async def _begin(self, file: LogFile) -> int:
        """Return the offset of the first line to read."""
        asked, size = self._asked, self._state.log_sizes.get(file.id, 0)
        if asked.since is not None:
            window = await self._link.read_log(ReadLog(file.id, limit=1, at=asked.since))
            return 0 if window.error else window.offset
        if asked.tail is not None and not asked.grep:
            return await self._tail(file.id, size, asked.tail)
        return 0

    async def _tail(self, file: str, size: int, count: int) -> int:
        """Return the offset of the last `count` lines of a file, or an earlier one."""
        back = 1 << 14
        while back < size:
            window = await self._link.read_log(ReadLog(file, size - back, min(back, 1 << 20)))
            if window.error or window.data.count(b"\n") > count:
                return window.offset
            back *= 8
        return 0


_NEWEST = 1 << 30
"""Sorts logs of no attempt after all attempts."""


def _by_attempt(files: list[LogFile]) -> dict[int, list[LogFile]]:
    """Return the files of each attempt, the oldest first. 0: of no attempt."""
    groups: dict[int, list[LogFile]] = {}
    for file in sorted(files, key=lambda file: file.attempt or 0):
        groups.setdefault(file.attempt or 0, []).append(file)
    return groups


def _is_over(bounds: Bounds | None, since: float | None) -> bool:
    """Whether an attempt ended before the requested lines."""
    return bounds is not None and since is not None and bounds.end < since


def _until(following: Bounds | None) -> Key:
    """Return the key that no printed line may reach. `following`: bounds of the next attempt to read."""
    return LAST if following is None else begin_key(following)


def _check_readable(run_dir: Path) -> None:
    """Raise RunError if log directories exist that cannot be read, which must not look like missing output."""
    for folder in sorted(run_dir.glob("node-*")):
        if not os.access(folder, os.R_OK | os.X_OK):
            raise RunError(f"{folder} cannot be read: its permissions do not let you (`ls -ld` shows them)")
