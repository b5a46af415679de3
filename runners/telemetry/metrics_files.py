"""Files of metrics: levels, rows, and reading, for files of any version and with any damage.

See `metrics.py` for the format. This module never writes.
"""

from __future__ import annotations

import gzip
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..run import file_io
from .metric_names import METRICS, source_of


class Resolution(msgspec.Struct, frozen=True):
    """One resolution of the store."""

    seconds: int
    rows: int
    """Maximum rows per file."""
    pieces: int
    """Number of full files to keep, besides the current file."""
    packed: bool = True
    """Whether full files are compressed."""

    @property
    def name(self) -> str:
        """Name of the current file."""
        return f"{self.seconds}s.jsonl"


LEVELS = (
    Resolution(1, 300, 3, packed=False),  # 15 to 20 minutes
    Resolution(10, 360, 3),  # 3 to 4 hours
    Resolution(60, 360, 28),  # 7 days
    Resolution(600, 1008, 4),  # 4 to 5 weeks
)
FOLDER = "metrics"
"""Folder in a run directory."""
TRIES = 3
NEAR = 1 << 18
"""Bytes that contain the first rows of a file, or the last ones."""
MOST_BYTES = 256 << 20
"""Maximum bytes to read from one file, uncompressed."""
Cell = list[float]
"""[sum, samples, low, high] of one series in one bucket; for a count [newest value, 1, low, high]."""
Cells = dict[str, dict[int, Cell]]
"""Metric → index → cell."""

COUNTS = frozenset(name for name, kept in METRICS.items() if kept.curve.last)


class Row(NamedTuple):
    """One bucket as read from a file."""

    time: int
    """Unix seconds at the begin of the bucket."""
    seconds: int
    samples: int
    """Samples per series, unless its columns have their own numbers."""
    indexes: Mapping[str, list[int]]
    """Source → indexes."""
    columns: Mapping[str, msgspec.Raw]
    """Metric → columns; see `columns_of`."""

    @property
    def end(self) -> int:
        return self.time + self.seconds


_PIECE = re.compile(r"(\d{1,5})s-(\d{1,18})\.jsonl(?:\.gz)?")


def pieces(directory: Path, level: Resolution) -> list[tuple[int, Path]]:
    """Return a level's full files, oldest first, each with the unix time of its begin, or raise OSError."""
    by_begin: dict[int, Path] = {}
    for name in sorted(os.listdir(directory)):  # a compressed file replaces the plain one
        match = _PIECE.fullmatch(name)
        if match is not None and int(match[1]) == level.seconds:
            by_begin[int(match[2])] = directory / name
    return sorted(by_begin.items())


def read_rows(
    directory: str | Path, level: Resolution, begin: float = -math.inf, end: float = math.inf
) -> Iterator[Row]:
    """Yield the rows of one level with buckets that begin in [begin, end), in the order of writing.

    Skip lines that do not decode (torn by a crash) and unreadable files.
    """
    for lines in _contents(Path(directory), level, begin, end):
        for line in lines:
            row = decode_row(line)
            if row is not None and begin <= row.time < end:
                yield row


def oldest(directory: str | Path, level: Resolution) -> int | None:
    """Unix time of a level's first row; None without rows."""
    begin = _oldest(directory, level)
    return _oldest(directory, level) if begin is None else begin  # a writer may have begun a new file


def _oldest(directory: str | Path, level: Resolution) -> int | None:
    for begin, path in [*_pieces_or_none(Path(directory), level), (0, Path(directory) / level.name)]:
        if begin:
            return begin
        row = next(
            (row for line in _content(path, NEAR).splitlines() if (row := decode_row(line)) is not None),
            None,
        )
        if row is not None:
            return row.time
    return None


def end_of(directory: str | Path, level: Resolution) -> float:
    """Unix time at the end of a level's last row; -inf without rows."""
    for path in reversed([*_files(Path(directory), level, -math.inf, math.inf)]):
        ends = [
            row.end
            for line in _content(path, -NEAR).splitlines()[-64:]
            if (row := decode_row(line)) is not None
        ]
        if ends:
            return max(ends)
    return -math.inf


def _pieces_or_none(directory: Path, level: Resolution) -> list[tuple[int, Path]]:
    try:
        return pieces(directory, level)
    except OSError:
        return []


def _files(directory: Path, level: Resolution, begin: float, end: float) -> list[Path]:
    """Files that may have rows of that time, the current one last."""
    full = _pieces_or_none(directory, level)
    until = [at for at, _ in full[1:]]  # begin of the next file; the last one's end is unknown
    wanted = [
        path
        for place, (at, path) in enumerate(full)
        if at < end and (place >= len(until) or until[place] > begin)
    ]
    return [*wanted, directory / level.name]


def _contents(directory: Path, level: Resolution, begin: float, end: float) -> list[list[bytes]]:
    """Lines of the files of that time; read them again if a writer has begun a new file."""
    for _ in range(TRIES):
        files = _files(directory, level, begin, end)
        contents = [_lines(path) for path in files]
        if _files(directory, level, begin, end) == files:
            break
    return contents


def _lines(path: Path) -> list[bytes]:
    return _content(path).splitlines()


def _content(path: Path, most: int = MOST_BYTES) -> bytes:
    """Readable bytes of a file: `most` from its beginning, or -`most` from the end of an uncompressed one."""
    try:
        with file_io.opened(path) as file:
            if path.suffix == ".gz":
                return gzip.GzipFile(fileobj=file).read(most if most > 0 else MOST_BYTES)
            if most < 0:
                file.seek(max(0, os.fstat(file.fileno()).st_size + most))
            return file.read(abs(most))
    except file_io.FileError as error:
        packed = path.with_name(path.name + ".gz")  # compressed after the folder was listed
        return _content(packed, most) if error.missing and path.suffix != ".gz" and packed.exists() else b""
    except (OSError, EOFError, zlib.error):
        return b""


class _Line(msgspec.Struct):
    t: int
    m: dict[str, msgspec.Raw]
    i: dict[str, list[int]]
    s: int = 1
    n: int = 1


_line = msgspec.json.Decoder(_Line)
_Column = float | None | list[float | None]
_columns_of = msgspec.json.Decoder(list[_Column])


def decode_row(line: bytes) -> Row | None:
    """Decode one line; None if it is not a row."""
    try:
        row = _line.decode(line)
        return Row(row.t, row.s, row.n, row.i, row.m) if row.s > 0 else None
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError):
        return None


def gathered(directory: Path, level: Resolution, most: int) -> tuple[bytes, bool]:
    """Join the newest rows of a level, at most `most` bytes, and return them with whether lines are damaged."""
    damaged, size = False, 0
    kept: list[bytes] = []
    for path in reversed(_files(directory, level, -math.inf, math.inf)):
        data = _content(path)
        torn = b"" if data.endswith(b"\n") else data.rpartition(b"\n")[2]  # still being written
        for line in reversed(data.splitlines()):
            if decode_row(line) is None:
                damaged = damaged or (bool(line) and line != torn)
            elif (size := size + len(line) + 1) <= most:
                kept.append(line)
    return b"".join(line + b"\n" for line in reversed(kept)), damaged


def cells_of(row: Row) -> Cells:
    """Decode all cells of a row."""
    cells: Cells = {}
    for name in row.columns:
        columns = columns_of(row, name)
        if columns is None:
            continue
        held: dict[int, Cell] = {}
        for index, mean, low, high, count in zip(*columns, strict=True):
            if mean is not None and low is not None and high is not None and count:
                held[index] = [mean if name in COUNTS else mean * count, count, low, high]
        if held:
            cells[name] = held
    return cells


class Columns(NamedTuple):
    """One metric of a row, by index: lists of equal length."""

    indexes: list[int]
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]
    samples: list[float | None]


def columns_of(row: Row, name: str) -> Columns | None:
    """Decode one metric of a row; None if it is missing or damaged."""
    raw = row.columns.get(name)
    indexes = row.indexes.get(source_of(name))
    if raw is None or not indexes:
        return None
    try:
        columns = _columns_of.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
    size = len(indexes)
    usual = 1.0 if name in COUNTS else float(row.samples)
    lists = [column if isinstance(column, list) else [column] * size for column in columns]
    if len(lists) not in (1, 3, 4) or any(len(each) != size for each in lists):
        return None
    mean = lists[0]
    low, high = (mean, mean) if len(lists) == 1 else lists[1:3]
    samples: list[float | None] = lists[3] if len(lists) == 4 else [usual] * size
    return Columns(indexes, mean, low, high, samples)
