"""Convert windows of one log into lines with sort keys in time among the lines of other logs. Pure.

A line's own timestamp decides if it is plausible, else the time when the agent saw the line. Lines of one log keep their
order: no line is earlier than the line above it. Lines with equal times are ordered by rank. So all readers of the same
bytes get the same order, whenever and in whatever pieces they read.
"""

from __future__ import annotations

from typing import NamedTuple

from ...presets.sanitize import WIDTH, clean_line
from ..run.formatting import size_text
from ..run.log_files import LogFile
from ..run.wire.client import Window
from .line_times import LATEST, UNKNOWN, LineTime, TimeRecords
from .own_stamps import own_time

CARRY = 1 << 20
"""Maximum bytes kept of an unfinished line. A longer one becomes a line."""
SHARP_S = 2.0
"""Maximum uncertainty in seconds of a line that is shown with its time."""

Key = tuple[float, int, int, str, int]
"""Sort key of lines: time, rank, stream, file and offset. The time is 0.0 if unknown."""

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


def key_of(file: LogFile, when: float, offset: int) -> Key:
    """Return a line's sort key among all logs. Without a time, rank 0's stdout is last."""
    rank = -1 if file.rank is None else file.rank
    stream = _STREAMS.index(file.stream)
    return (when, rank, stream, file.id, offset) if when else (0.0, -rank, -stream, file.id, offset)


def _state(piece: bytes) -> int:
    """Return the start of the visible text: in a progress bar, after its last carriage return."""
    return piece.rstrip(b"\r").rfind(b"\r") + 1


class LogSpan:
    """The loaded part of one file, from `begin` to `next`, without gaps except the file's own."""

    def __init__(self, file: LogFile, begin: int = 0, dated: bool = True, width: int = WIDTH) -> None:
        """`dated`: whether times matter, which may be false for a single file. `width`: maximum characters per line."""
        self._wanted, self._width = dated, width
        self.file = file
        self.begin = self.next = begin
        self.size = 0
        """Size of the file at its last read."""
        self.carry = b""
        """Bytes after the last newline."""
        self.carried = UNKNOWN
        """Time of those bytes."""
        self.skip = False
        """Whether the line at `next` is loaded, but not the text after it."""
        self._floor = self._shift = 0.0

    @property
    def behind(self) -> bool:
        """Whether the file has more data."""
        return self.next < self.size

    def feed(self, window: Window, now: float, came: float | None = None) -> list[Dated]:
        """Return the lines that a window completes. The window was requested from `next` on.

        `came`: approximate time of the new data, if a viewer saw the file grow.
        """
        if 0 <= window.size < self.next:
            self.begin = self.next = self.size = 0
            self.carry, self.carried = b"", UNKNOWN
            self.size = window.size
            return [self._note("(the file was truncated and begins anew)")]
        self.size = window.size
        self._take_shift(window)
        if window.starts:
            return self._hits(window, now)
        lines: list[Dated] = []
        if window.offset > self.next:
            if self.begin == self.next:  # the request named a time or a line
                self.begin = window.offset
            else:  # of a lost node only some pieces may be stored
                lines += self._finished(now)
                lines.append(
                    self._note(
                        f"(… {size_text(window.offset - self.next)} left out: not kept, or never written …)"
                    )
                )
            self.next = window.offset
        elif window.offset < self.begin:
            self.begin = self.next = window.offset
        timeline = TimeRecords(window.times)
        fresh = window.data[max(self.next - window.offset, 0) :]
        data, offset = self.carry + fresh, self.next - len(self.carry)
        held = self.next if self.carry else offset  # text before it came with an earlier window
        pieces = data.split(b"\n")
        rest = pieces.pop()
        if len(rest) > CARRY:
            pieces.append(rest)
            rest = b""
        for piece in pieces:
            at = offset + _state(piece)
            moment = timeline.of(at) if at >= held else self.carried
            lines.append(self._dated(piece, offset, moment, now, came))
            offset += len(piece) + 1
        if rest and (at := offset + _state(rest)) >= held:
            self.carried = timeline.of(at)
        self.carry, self.next = rest, max(window.next, self.next)
        if self.skip and lines:
            self.skip = False
            return lines[1:]
        return lines

    def _take_shift(self, window: Window) -> None:
        self._shift = window.shift if abs(window.shift) < LATEST else 0.0

    def _hits(self, window: Window, now: float) -> list[Dated]:
        timeline, lines = TimeRecords(window.times), list[Dated]()
        pieces = window.data.removesuffix(b"\n").split(b"\n")
        for piece, start in zip(pieces, window.starts, strict=False):
            lines.append(self._dated(piece, start, timeline.of(start + _state(piece)), now, None))
        self.next = max(window.next, self.next)
        return lines

    def front(self, window: Window, now: float, first: Key | None) -> list[Dated]:
        """Return the lines of a window before `begin`, which may overlap. `first`: key of the current first line."""
        data = window.data[: max(0, self.begin - window.offset)]
        self._take_shift(window)
        timeline, offset, lines = TimeRecords(window.times), window.offset, list[Dated]()
        floor, self._floor = self._floor, 0.0
        for piece in data.removesuffix(b"\n").split(b"\n") if data else ():
            lines.append(self._dated(piece, offset, timeline.of(offset + _state(piece)), now, None))
            offset += len(piece) + 1
        self._floor = max(floor, self._floor)
        if data:
            self.begin = window.offset
        if first is not None:
            lines = [
                line if line.key <= first else line._replace(key=key_of(self.file, first[0], line.offset))
                for line in lines
            ]
        return lines

    def unfinished(self, now: float) -> Dated | None:
        """Return the text after the last newline, such as a progress bar."""
        if not self.carry:
            return None
        floor = self._floor
        line = self._dated(self.carry, self.next - len(self.carry), self.carried, now, None)
        self._floor = floor
        return line

    def _finished(self, now: float) -> list[Dated]:
        line = self.unfinished(now)
        self.carry, self.carried = b"", UNKNOWN
        return [] if line is None else [line]

    def last_words(self, now: float) -> list[Dated]:
        """Return the text without a newline at the end of a complete file."""
        return self._finished(now)

    def _note(self, text: str) -> Dated:
        return Dated(text, key_of(self.file, self._floor, self.next))

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
        self._floor = max(self._floor, when)
        return Dated(text, key_of(self.file, self._floor, offset), at, own is not None)
