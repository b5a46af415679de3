"""Log lines pulled by window: the newest lines of some files, and earlier ones of a single file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from ...runners.logs.clean import clean_line, clean_lines
from ...runners.logs.files import LogFile
from ...runners.logs.follow import Merge
from ...runners.logs.level import Level, level_of
from ...runners.wire.link import Window
from ..rows.cells import amount
from ..rows.log import LogLine, label_of

WINDOW = 65536
"""Bytes asked for at once."""

KEPT = 20_000
"""Lines kept; the oldest go first."""

BEHIND = 1 << 20
"""A reader that is further behind than this jumps to the end and says so."""

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
        self._looked: set[str] = set()
        """Files read once; from then on only their growth, which is told, makes them worth reading."""
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
        known = {file.id for file in self.files}
        fresh = [file for file in files if file.id not in known]
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
            self._looked.add(file.id)
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
                known = self._sizes[file.id] if file.id in self._looked else None
                if at == self._sizes[file.id] == sizes.get(file.id, known):
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
        self._looked.add(file.id)
        if window.error:
            self._note(window)
            return False
        if not self._grep and window.size - at > BEHIND:
            skipped = window.size - WINDOW - at
            self.lines.append(LogLine(f"… {amount(skipped)} not shown", self._label(file), Level.NONE))
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
