"""An index of the times of a log's lines. The agent writes it, and readers use it with every window.

`times/node-0/attempt-001/rank-0.out` has records of 16 bytes, little endian: size of the log in bytes (u64), and time
(u64, microseconds of Unix time). Bytes below a record's offset existed by its time. Bytes from the previous record's
offset on did not exist at that record's time. If both times are close, the time of the line is known. If the agent did
not run in between, only the bounds are known. Old records are thinned out, never moved.
"""

from __future__ import annotations

import os
import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ...presets.base_dirs import private_folder
from ..run.opened_logs import LogError, opened

FOLDER = "times"
"""Folder in a run directory with the path of each log below it. Not a log folder: the watch would report its writes."""
RECORD = struct.Struct("<QQ")
MOST_RECORDS = 1 << 16
"""Maximum number of records of one log on disk: 1 MiB."""
MOST_SENT = 2048
"""Maximum number of records per window."""
SHARP_S = 0.5
"""Maximum gap in seconds without an extra record. It holds the last time when the log still had its old size."""
FINE_S = 0.2
"""Records closer than this many seconds are removed first."""
AGE_SHARE = 8000
"""If there are too many records, a line's time may be uncertain by its age in seconds divided by this."""
LATEST = 1e11
"""Larger Unix times are from a damaged file."""

Record = tuple[int, float]
"""Size of the log in bytes, and Unix time."""


class LineTime(NamedTuple):
    by: float | None
    """Earliest known Unix time when the line existed; None if unknown."""
    after: float | None
    """Latest known Unix time when the line did not exist yet; None if unknown."""

    @property
    def slack(self) -> float:
        """Maximum error of `by` in seconds."""
        return self.by - self.after if self.by is not None and self.after is not None else float("inf")


UNKNOWN = LineTime(None, None)


class TimeRecords:
    """The records of a window, for the lookup of lines."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records
        self._offsets = [offset for offset, _ in records]

    def of(self, offset: int) -> LineTime:
        """Return the time of the line that begins at this offset."""
        place = bisect_right(self._offsets, offset)
        if place == len(self._records):
            return UNKNOWN
        by = self._records[place][1]
        before = self._records[place - 1][1] if place else None
        return LineTime(by, before if before is None or before <= by else None)


def of_lines(run_dir: str | Path, file: str, spans: Sequence[tuple[int, int]]) -> tuple[Record, ...]:
    """Return the records for lines with these begins and ends, in order; () without any. Never raises."""
    by_place: dict[int, Record] = {}
    try:
        with opened(run_dir, f"{FOLDER}/{file}") as descriptor:
            count = os.fstat(descriptor).st_size // RECORD.size
            for begin, end in spans:
                by_place.update(_between(descriptor, count, begin, end))
    except (LogError, OSError):
        return ()
    return tuple(fitted(sound(record for _, record in sorted(by_place.items())), MOST_SENT))


def _between(descriptor: int, count: int, begin: int, end: int) -> Iterator[tuple[int, Record]]:
    """Yield the indexes and records that bound these bytes."""
    place = max(bisect_right(range(count), begin, key=partial(_offset_at, descriptor)) - 1, 0)
    while place < count:
        data = os.pread(descriptor, 256 * RECORD.size, place * RECORD.size)
        for record in unpacked(data):
            yield place, record
            place += 1
            if record[0] >= end:
                return


def _offset_at(descriptor: int, place: int) -> int:
    data = os.pread(descriptor, RECORD.size, place * RECORD.size)
    return int(RECORD.unpack(data)[0]) if len(data) == RECORD.size else 1 << 63


def sound(records: Iterable[Record]) -> list[Record]:
    """Return the records without those of a damaged file."""
    kept: list[Record] = []
    for offset, at in records:
        if 0 < at < LATEST and (not kept or offset >= kept[-1][0]):
            kept.append((offset, at))
    return kept


def fitted(records: list[Record], most: int) -> list[Record]:
    """Return at most `most` records, and keep exact times as long as possible."""
    gap = FINE_S
    while len(records) > most:
        records = thinned(records, partial(_same, gap))
        gap *= 2
    return records


def _same(gap: float, at: float) -> float:
    return gap


def _by_age(now: float, share: float, at: float) -> float:
    return max(FINE_S, (now - at) / share)


def thinned(records: Sequence[Record], allowed: Callable[[float], float]) -> list[Record]:
    """Remove the records whose neighbours are at most `allowed(time)` seconds apart. Pure."""
    kept: list[Record] = []
    for place, record in enumerate(records):
        if 0 < place < len(records) - 1:
            gap = records[place + 1][1] - kept[-1][1]
            if 0 <= gap <= allowed(record[1]):
                continue
        kept.append(record)
    return kept


def unpacked(data: bytes) -> Iterator[Record]:
    """Yield the complete records of a file."""
    for offset, stamp in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]):
        yield offset, stamp / 1e6


def packed(records: Iterable[Record]) -> bytes:
    """Return the records in their format on disk."""
    return b"".join(RECORD.pack(offset, max(0, round(at * 1e6))) for offset, at in records)


def offset_at(records: Sequence[Record], at: float) -> int | None:
    """Return the offset of the first line written at this Unix time or later; None without records. Pure."""
    before = 0
    for offset, when in records:
        if when >= at:
            return before
        before = offset
    return before if records else None


def kept(run_dir: str | Path, file: str) -> list[Record]:
    """Return all records of a log, sorted; [] without any. Those that a hub has kept may be unsorted on disk."""
    try:
        with opened(run_dir, f"{FOLDER}/{file}") as descriptor:
            data = os.pread(descriptor, 8 << 20, 0)
    except (LogError, OSError):
        return []
    return sound(sorted(set(unpacked(data))))


def within(records: Sequence[Record], spans: Iterable[tuple[int, int]]) -> tuple[Record, ...]:
    """Return the records that bound these bytes, in order. Pure."""
    offsets, places = [offset for offset, _ in records], set[int]()
    for begin, end in spans:
        first = max(bisect_right(offsets, begin) - 1, 0)
        places.update(range(first, min(bisect_left(offsets, end) + 1, len(records))))
    return tuple(fitted([records[place] for place in sorted(places)], MOST_SENT))


class CutPiece(NamedTuple):
    """A piece of a file inside another text."""

    begin: int
    end: int
    """Offset in the file."""
    text_end: int
    """Offset in the text where the piece ends."""


def moved(
    places: Sequence[CutPiece], records: Iterable[Record], text: bytes, masked: bytes
) -> list[Record]:
    """Convert a file's records to a text of its pieces whose lines were masked afterwards. Pure."""
    there: list[Record] = []
    for offset, at in records:
        place = next((place for place in places if offset <= place.end), places[-1] if places else None)
        if place is not None:
            inside = min(max(offset, place.begin), place.end)
            there.append((place.text_end - (place.end - inside), at))
    if text == masked:
        return sound(there)
    old, new = _line_starts(text), _line_starts(masked)
    if len(old) != len(new):
        return []
    return sound((_of_line(old, new, offset), at) for offset, at in there)


def _line_starts(text: bytes) -> list[int]:
    return [0, *(match.end() for match in re.finditer(b"\n", text))]


def _of_line(old: Sequence[int], new: Sequence[int], offset: int) -> int:
    """Return the new start of the offset's line, plus one byte if the offset is inside the line."""
    line = bisect_right(old, offset) - 1
    return new[line] + (offset > old[line])


class _Index:
    """Index of one log in memory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.pending = bytearray()
        self.count = 0
        self.last: Record | None = None
        self.anew = False
        """Whether the records on disk belong to an earlier file of that name, so that they must be replaced."""

    @classmethod
    def resumed(cls, path: str) -> _Index:
        """Continue the index on disk."""
        index = cls(path)
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                index.count = size // RECORD.size
                index.anew = size % RECORD.size != 0
                if index.count and not index.anew:
                    file.seek((index.count - 1) * RECORD.size)
                    (index.last,) = unpacked(file.read(RECORD.size))
        except OSError:
            pass
        return index

    @property
    def size(self) -> int:
        """Size of the log at the last record; 0 without records."""
        return self.last[0] if self.last is not None else 0

    def restart(self) -> None:
        """Forget the records of a truncated log, which are of other bytes."""
        self.pending.clear()
        self.anew, self.last, self.count = True, None, 0

    def add(self, *records: Record) -> None:
        self.pending += packed(records)
        self.last = records[-1]


class LineTimes:
    """Record when logs grow. One per run directory; `flush` writes."""

    def __init__(self, run_dir: str | Path) -> None:
        self._run_dir = str(run_dir)
        self._indexes: dict[str, _Index] = {}

    def note(self, file: str, size: int, written: float, before: float | None, now: float) -> None:
        """Record that the log has this size `now`. `written`: its modification time.

        `before`: time of the previous size check; None if this agent made none. All are Unix times.
        """
        if file not in self._indexes:
            self._indexes[file] = _Index.resumed(f"{self._run_dir}/{FOLDER}/{file}")
        index = self._indexes[file]
        if size < index.size:
            index.restart()
        offset, last = index.last or (0, None)
        if size == offset and last is not None:
            return
        if before is not None and (last is None or not 0 <= before - last <= SHARP_S):
            index.add((offset, before))
        index.add((size, _grown_at(written, before, last or 0.0, now)))

    def flush(self, file: str | None = None) -> None:
        """Write the new records of one log or of all. If the write fails, they are lost and their lines have no time."""
        for index in self._indexes.values() if file is None else filter(None, [self._indexes.get(file)]):
            if index.pending or index.anew:
                try:
                    _append(index)
                except OSError:
                    index.pending.clear()


def _grown_at(written: float, before: float | None, last: float, now: float) -> float:
    """Time of a log's growth: between two size checks, else after the last record. See `LineTimes.note`."""
    if before is not None:
        return max(before, min(written, now))
    if written > now:
        return max(last, now)
    return written if written >= last else now


def _append(index: _Index) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    private_folder(Path(index.path).parent)
    descriptor = os.open(index.path, flags | (os.O_TRUNC if index.anew else 0), 0o600)
    try:
        if os.write(descriptor, index.pending) < len(index.pending):
            os.ftruncate(descriptor, index.count * RECORD.size)  # disk full: remove the partial record
            return
    finally:
        os.close(descriptor)
    index.anew = False
    index.count += len(index.pending) // RECORD.size
    index.pending.clear()
    if index.count > MOST_RECORDS:
        _thin(index)


def _thin(index: _Index) -> None:
    """Rewrite the index with fewer records: the older the lines, the less exact their times."""
    path = Path(index.path)
    records, share = sound(unpacked(path.read_bytes())), float(AGE_SHARE)
    now = records[-1][1] if records else 0.0
    while len(records) > MOST_RECORDS * 3 // 4:
        records = thinned(records, partial(_by_age, now, share))
        share /= 2
    other = path.with_name(path.name + "~")
    other.write_bytes(packed(records))
    os.replace(other, path)
    index.count = len(records)
