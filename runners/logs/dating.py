"""Convert windows of one log into lines with sort keys in time among the lines of other logs. Pure.

A line's own timestamp decides if it is plausible, else the time when the agent saw the line. Lines of one log keep their
order: no line is earlier than the line above it. Lines of an attempt are between its begin and the next attempt's.
Lines with equal times are ordered by rank. So all readers of the same bytes get the same order, whenever and in whatever
pieces they read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...presets.sanitize import WIDTH, clean_line
from ..run.formatting import size_text
from ..run.log_files import LogFile
from ..run.wire.client import Window
from .attempt_bounds import UNBOUNDED, Bounds
from .line_times import LATEST, UNKNOWN, LineTime, TimeRecords
from .own_stamps import own_time

CARRY = 1 << 20
"""Maximum bytes kept of an unfinished line. A longer one becomes a line."""
SHARP_S = 2.0
"""Maximum uncertainty in seconds of a line that is shown with its time."""

Key = tuple[float, int, int, str, int]
"""Sort key of lines: time, rank, stream, file and offset. Without a time, it is the attempt's begin, or 0.0."""
FIRST: Key = (float("-inf"), 0, 0, "", 0)
LAST: Key = (float("inf"), 0, 0, "", 0)
"""Keys before and after all lines."""
_BEFORE_RANKS = -(1 << 30)

_STREAMS = ("log", "out", "err", "nccl")


class Dated(NamedTuple):
    """One line of a log, cleaned."""

    text: str
    key: Key
    at: float | None = None
    """Unix time to show; None if unknown."""
    own: bool = False
    """Whether the line contains that time."""

    @property
    def offset(self) -> int:
        """Offset in its file."""
        return self.key[4]


def key_of(file: LogFile, when: float, offset: int, begin: float = 0.0) -> Key:
    """Return a line's sort key among all logs. Lines without a time are at `begin`, rank 0's stdout last."""
    rank = -1 if file.rank is None else file.rank
    stream = _STREAMS.index(file.stream)
    if when:
        return (when, rank, stream, file.id, offset)
    return (begin, -rank, -stream, file.id, offset)


def bound_key(key: Key, bounds: Bounds) -> Key:
    """Return the key of a line that was read before its attempt's end was known."""
    return (min(key[0], bounds.end), *key[1:])


def begin_key(bounds: Bounds, number: int = 0) -> Key:
    """Return the sort key before the first line of an attempt. `number` tells such keys apart."""
    return (bounds.begin, _BEFORE_RANKS, 0, "", number)


def _state(piece: bytes) -> int:
    """Return the start of the visible text: in a progress bar, after its last carriage return."""
    return piece.rstrip(b"\r").rfind(b"\r") + 1


class LogSpan:
    """The loaded part of one file, from `begin` to `next`, without gaps except the file's own."""

    def __init__(
        self,
        file: LogFile,
        begin: int = 0,
        dated: bool = True,
        width: int = WIDTH,
        bounds: Bounds = UNBOUNDED,
    ) -> None:
        """`dated`: whether times matter, which may be false for a single file. `width`: maximum characters per line."""
        self._wanted, self._width = dated, width
        self.file, self.bounds = file, bounds
        self.begin = self.next = begin
        self.first: Key | None = None
        self.last: Key | None = None
        """Keys of the first and last loaded line."""
        self.size = -1
        """Size of the file at its last read; -1 before the first one."""
        self.carry = b""
        """Bytes after the last newline."""
        self.carried = UNKNOWN
        """Time of those bytes."""
        self._repeats = False
        """Whether the line at `next` is loaded, but not the text after it."""
        self._floor = self._shift = 0.0

    def bound(self, bounds: Bounds) -> None:
        """Set the times of the file's attempt, also for the loaded lines: see `bound_key`."""
        self.bounds = bounds
        self._floor = min(self._floor, bounds.end)
        if self.first is not None and self.last is not None:
            self.first, self.last = bound_key(self.first, bounds), bound_key(self.last, bounds)

    @property
    def behind(self) -> bool:
        """Whether the file has more data."""
        return self.next < self.size

    # --- the loaded part

    def restart(self, offset: int) -> None:
        """Forget the loaded part, and continue at an offset."""
        self.begin = self.next = offset
        self.first = self.last = None
        self.carry, self.carried, self._repeats = b"", UNKNOWN, False
        self._floor = 0.0

    def keep_end(self, kept: tuple[Key, Key] | None) -> None:
        """Forget the lines before the kept ones, given by the first and last key."""
        if kept is not None:
            self.first, self.last = kept
            self.begin = kept[0][4]
        elif self.first is not None:
            self.first = self.last = None
            self.begin = self.next - len(self.carry)

    def keep_begin(self, kept: tuple[Key, Key] | None) -> None:
        """Forget the lines after the kept ones, so that reading continues after the last of them."""
        if self.last is None or (kept is not None and kept[1] == self.last):
            return
        self.restart(self.begin)
        if kept is not None:
            self.first, self.last = kept
            self.next, self._repeats = kept[1][4], True

    # --- lines

    def feed(self, window: Window, now: float, came: float | None = None) -> list[Dated]:
        """Return the lines that a window completes. The window was requested from `next` on.

        `came`: approximate time of the new data, if a viewer saw the file grow.
        """
        if 0 <= window.size < self.next:
            self.begin = self.next = 0
            self.carry, self.carried = b"", UNKNOWN
            lines = [self._note("(the file was truncated and starts again)")]
        elif window.starts:
            self._take_shift(window)
            lines = self._hits(window, now)
        else:
            self._take_shift(window)
            lines = [*self._passed(window, now), *self._next_lines(window, now, came)]
            if self._repeats and lines:
                self._repeats = False
                del lines[0]
        self.size = window.size
        if lines:
            self.first, self.last = self.first or lines[0].key, lines[-1].key
        return lines

    def _take_shift(self, window: Window) -> None:
        self._shift = window.shift if abs(window.shift) < LATEST else 0.0

    def _hits(self, window: Window, now: float) -> list[Dated]:
        """Return the lines that a search has found."""
        times, lines = TimeRecords(window.times), list[Dated]()
        pieces = window.data.removesuffix(b"\n").split(b"\n")
        for piece, start in zip(pieces, window.starts, strict=False):
            lines += self._lines([piece], start, times.of, now)
        self.next = max(window.next, self.next)
        return lines

    def _passed(self, window: Window, now: float) -> list[Dated]:
        """Continue at a window that begins elsewhere; return a note about the bytes in between."""
        lines: list[Dated] = []
        if window.offset < self.begin or (window.offset > self.next == self.begin):
            self.begin = self.next = window.offset  # the request named a time or a line
        elif window.offset > self.next:  # of a lost node only some pieces may be stored
            missing = size_text(window.offset - self.next)
            lines = self.last_words(now)
            lines.append(self._note(f"(… {missing} left out: not kept, or never written …)"))
            self.next = window.offset
        return lines

    def _next_lines(self, window: Window, now: float, came: float | None) -> list[Dated]:
        times = TimeRecords(window.times)
        offset = self.next - len(self.carry)
        fresh = self.next if self.carry else offset  # text before it came with an earlier window

        def time_of(at: int) -> LineTime:
            return times.of(at) if at >= fresh else self.carried

        data = self.carry + window.data[max(self.next - window.offset, 0) :]
        pieces = data.split(b"\n")
        rest = pieces.pop()
        if len(rest) > CARRY:
            pieces.append(rest)
            rest = b""
        lines = self._lines(pieces, offset, time_of, now, came)
        if rest:
            self.carried = time_of(offset + len(data) - len(rest) + _state(rest))
        self.carry, self.next = rest, max(window.next, self.next)
        return lines

    def front(self, window: Window, now: float) -> list[Dated]:
        """Return the lines of a window before `begin`, which may overlap."""
        data = window.data[: max(0, self.begin - window.offset)]
        self._take_shift(window)
        if not data:
            return []
        floor, self._floor = self._floor, 0.0
        pieces = data.removesuffix(b"\n").split(b"\n")
        lines = self._lines(pieces, window.offset, TimeRecords(window.times).of, now)
        self._floor = max(floor, self._floor)
        self.begin = window.offset
        for index, line in enumerate(lines):
            if self.first is not None and line.key > self.first:
                lines[index] = line._replace(key=(*self.first[:4], line.offset))
        self.first, self.last = lines[0].key, self.last or lines[-1].key
        return lines

    def unfinished(self, now: float) -> Dated | None:
        """Return the text after the last newline, such as a progress bar."""
        if not self.carry:
            return None
        floor = self._floor
        line = self._dated(self.carry, self.next - len(self.carry), self.carried, now, None)
        self._floor = floor
        return line

    def last_words(self, now: float) -> list[Dated]:
        """Return the text without a newline at the end of a complete file."""
        line = self.unfinished(now)
        self.carry, self.carried = b"", UNKNOWN
        return [] if line is None else [line]

    def _note(self, text: str) -> Dated:
        return Dated(text, self._key(self.next))

    def _key(self, offset: int) -> Key:
        return key_of(self.file, self._floor, offset, self.bounds.begin)

    def _lines(
        self,
        pieces: Sequence[bytes],
        offset: int,
        time_of: Callable[[int], LineTime],
        now: float,
        came: float | None = None,
    ) -> list[Dated]:
        """Return consecutive lines; `offset`: of the first one."""
        lines = []
        for piece in pieces:
            lines.append(self._dated(piece, offset, time_of(offset + _state(piece)), now, came))
            offset += len(piece) + 1
        return lines

    def _dated(self, piece: bytes, offset: int, moment: LineTime, now: float, came: float | None) -> Dated:
        text = clean_line(piece, self._width)
        if not self._wanted:
            return Dated(text, (0.0, 0, 0, self.file.id, offset))
        if moment.by is None and came is not None:
            moment = LineTime(came, came)
        own = own_time(text, moment, now, self._shift)
        at: float | None
        if own is not None:
            at, when = own, own
        else:
            at = moment.by if moment.slack <= SHARP_S else None
            when = moment.by or 0.0
        if when:
            self._floor = max(self._floor, self.bounds.clamped(when))
        return Dated(text, self._key(offset), at, own is not None)
