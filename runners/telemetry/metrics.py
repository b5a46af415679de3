"""The curves of a run on disk: minimum, mean and maximum of each bucket of 1, 10, 60 and 600 seconds.

`metrics/1s.jsonl` (10s, 60s, 600s) has one row per line. A full file is renamed to `1s-<unix time of its first
row>.jsonl`, and compressed (`.jsonl.gz`) for the coarser levels; the oldest is deleted. Buckets begin at multiples of
their length in unix time. A row is `{"t": begin, "s": seconds, "n": samples, "i": {source: indexes}, "m": {metric:
columns}}`. Columns are `[mean]`, `[mean, low, high]` or `[mean, low, high, samples]`. A column is one number for all
indexes, or a list in their order with null for unknown values.

Coarse rows are made from finer ones, so no data is lost if a process dies between two of them. Readers continue with
finer rows after the end of a coarse level, and the next writer rebuilds the missing rows from them.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from ...presets.sanitize import clean_line
from ..run.samples import Gpu, Host, RankSample, TrainingSample
from .metric_names import METRICS, NO_INDEX, source_of
from .metrics_files import (
    COUNTS,
    LEVELS,
    Cell,
    Cells,
    Resolution,
    Row,
    cells_of,
    decode_row,
    end_of,
    pieces,
    read_rows,
)
from .quantities import BY_KIND

MOST_OWN = 64
"""Maximum number of a script's own names."""
MOST_NAME = 64
"""Maximum characters of a name."""


def _names_and_fields(kind: str) -> tuple[tuple[str, str], ...]:
    return tuple((each.name, each.field) for each in BY_KIND[kind] if each.name)


_GPU = _names_and_fields("gpu")
_RANK = _names_and_fields("rank")
_HOST = _names_and_fields("host")
_TRAIN = _names_and_fields("train")


class MetricsStore:
    """Writes the curves to `directory` (created if missing, but not its parents): one writer, many readers.

    No method raises for a full or missing disk: `append` then returns False, and `problem` has the reason.
    """

    def __init__(self, directory: str | Path, levels: tuple[Resolution, ...] = LEVELS) -> None:
        self._directory = Path(directory)
        self._levels = levels
        self._buckets = [_Bucket(level.seconds) for level in levels]
        self._files = [_File(self._directory, level) for level in levels]
        self._reported: dict[int, float] = {}
        """Rank → time of its last recorded training signals."""
        self._own: set[str] = set()
        self._resumed = False
        self.problem: str | None = None
        """Why the newest rows are not on disk, as a sentence; None if they are."""

    def append(
        self,
        time: float,
        gpus: Iterable[Gpu] = (),
        ranks: Iterable[RankSample] = (),
        host: Host | None = None,
        training: Iterable[TrainingSample] = (),
    ) -> bool:
        """Add one sample at unix time `time`; each row is written at the end of its bucket.

        Return False if a due row could not be written; it is then lost, but the store continues.
        """
        if not self._resumed:
            self._resumed = True
            self._resume()
        cells: Cells = {}
        for gpu in gpus:
            _take(cells, _GPU, gpu.index, gpu)
        for rank in ranks:
            _take(cells, _RANK, rank.rank, rank)
        if host is not None:
            _take(cells, _HOST, NO_INDEX, host)
        for signals in training:
            self._take_training(cells, signals)
        return self._add(0, time, cells)

    def flush(self) -> bool:
        """Write the open second, for the end of a run. Readers compute the coarser rows that are still due."""
        ended = self._buckets[0].end()
        return ended is None or self._ended(0, *ended)

    def open_row(self) -> Row | None:
        """Return the row of the second that is not written yet, for readers in this process."""
        bucket = self._buckets[0]
        if bucket.number is None:
            return None
        return decode_row(encoded(bucket.begin, self._levels[0].seconds, bucket.cells))

    def _take_training(self, cells: Cells, signals: TrainingSample) -> None:
        """Add a script's signals, which it reports now and then: each report counts once."""
        if self._reported.get(signals.rank) == signals.at:
            return
        self._reported[signals.rank] = signals.at
        _take(cells, _TRAIN, signals.rank, signals)
        for own, value in signals.values.items():
            name = "train." + clean_line(own.encode(errors="replace"))[:MOST_NAME]
            if name in METRICS or (name not in self._own and len(self._own) >= MOST_OWN):
                continue
            self._own.add(name)
            _set(cells, name, signals.rank, value)

    def _add(self, level: int, time: float, cells: Cells) -> bool:
        """Add cells to a level's bucket; write a finished bucket, and add it to the next level."""
        ended = self._buckets[level].add(time, cells)
        return ended is None or self._ended(level, *ended)

    def _ended(self, level: int, begin: int, cells: Cells) -> bool:
        done = True
        try:
            self._files[level].write(encoded(begin, self._levels[level].seconds, cells), begin)
        except OSError as error:
            done = False
            self.problem = _sentence(error, self._directory)
        if level + 1 < len(self._levels):
            done = self._add(level + 1, begin, cells) and done
        if done and level == 0:
            self.problem = None
        return done

    def _resume(self) -> None:
        """Add the finer rows of an earlier writer that it had not added to the coarse levels."""
        for level in range(1, len(self._levels)):
            newest = end_of(self._directory, self._levels[level])
            for row in read_rows(self._directory, self._levels[level - 1], newest):
                self._add(level, row.time, cells_of(row))


class _Bucket:
    """The cells of one time interval."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self.number: int | None = None
        self.cells: Cells = {}

    @property
    def begin(self) -> int:
        return (self.number or 0) * self._seconds

    def add(self, time: float, cells: Cells) -> tuple[int, Cells] | None:
        """Add values at `time`; if they begin a new bucket, return begin and cells of the previous one."""
        number = int(time // self._seconds)
        ended = self.end() if self.number is not None and number != self.number else None
        self.number = number
        if self.cells:
            merge(self.cells, cells)
        else:
            self.cells = cells  # not shared with any other code
        return ended

    def end(self) -> tuple[int, Cells] | None:
        """Return begin and cells so far, and clear them; None if empty."""
        if self.number is None:
            return None
        ended = (self.begin, self.cells)
        self.number, self.cells = None, {}
        return ended


def merge(into: Cells, cells: Cells) -> None:
    """Merge newer cells into older ones, exactly."""
    for name, by_index in cells.items():
        held = into.get(name)
        if held is None:
            into[name] = {index: [*cell] for index, cell in by_index.items()}
            continue
        last = name in COUNTS
        for index, cell in by_index.items():
            mine = held.get(index)
            if mine is None:
                held[index] = [*cell]
                continue
            if last:
                mine[0] = cell[0]
            else:
                mine[0] += cell[0]
                mine[1] += cell[1]
            if cell[2] < mine[2]:
                mine[2] = cell[2]
            if cell[3] > mine[3]:
                mine[3] = cell[3]


def _take(cells: Cells, fields: tuple[tuple[str, str], ...], index: int, sample: object) -> None:
    for name, field in fields:
        _set(cells, name, index, getattr(sample, field))


def _set(cells: Cells, name: str, index: int, value: float | None) -> None:
    if value is None or not math.isfinite(value):
        return
    held = cells.get(name)
    if held is None:
        held = cells[name] = {}
    held[index] = [value, 1, value, value]


def encoded(begin: int, seconds: int, cells: Cells) -> bytes:
    """Encode one row as a line. Four digits, six for training signals; counts are integers."""
    indexes: dict[str, list[int]] = {}
    samples = 1.0
    for name, held in cells.items():
        source = source_of(name)
        order = indexes.get(source)
        if order is None:
            indexes[source] = [*held]
        elif order != [*held]:
            indexes[source] = [*dict.fromkeys((*order, *held))]
        for cell in held.values():
            if cell[1] > samples:
                samples = cell[1]
    columns = ",".join(
        f"{_quoted(name)}:[{_columns(name, held, indexes[source_of(name)], samples)}]"
        for name, held in cells.items()
    )
    parts = ",".join(f"{_quoted(source)}:{held}" for source, held in indexes.items()).replace(" ", "")
    return f'{{"t":{begin},"s":{seconds},"n":{samples:.0f},"i":{{{parts}}},"m":{{{columns}}}}}\n'.encode()


def _columns(name: str, held: Mapping[int, Cell], indexes: list[int], samples: float) -> str:
    digits = _digits(name)
    of_row = [held.get(index) for index in indexes]
    if samples == 1.0 and name not in COUNTS:
        return _column(of_row, lambda cell: digits % cell[0])
    mean = _column(of_row, lambda cell: digits % (cell[0] / cell[1]))
    low = _column(of_row, lambda cell: digits % cell[2])
    high = _column(of_row, lambda cell: digits % cell[3])
    counted = name in COUNTS or all(cell is None or cell[1] == samples for cell in of_row)
    if not counted:
        return f"{mean},{low},{high},{_column(of_row, lambda cell: f'{cell[1]:.0f}')}"
    return mean if low == high == mean else f"{mean},{low},{high}"


def _digits(name: str) -> str:
    if name in COUNTS:
        return "%.15g"
    return "%.6g" if source_of(name) == "train" else "%.4g"


def _column(of_row: list[Cell | None], text_of: Callable[[Cell], str]) -> str:
    """One number for all indexes, or a list with null for unknown values."""
    texts = ["null" if cell is None else text_of(cell) for cell in of_row]
    first = texts[0]
    if first != "null" and texts.count(first) == len(texts):
        return first
    return f"[{','.join(texts)}]"


_NAMES: dict[str, str] = {}


def _quoted(name: str) -> str:
    text = _NAMES.get(name)
    if text is None:
        text = msgspec.json.encode(name).decode()
        if len(_NAMES) < 4 * (len(METRICS) + MOST_OWN):
            _NAMES[name] = text
    return text


class _File:
    """One level's files: appends lines, and begins a new file after `rows` of them."""

    def __init__(self, directory: Path, level: Resolution) -> None:
        self._directory, self._level = directory, level
        self._path = directory / level.name
        self._rows: int | None = None
        self._first = 0
        """Unix time of the first row in the file."""
        self._whole = True

    def write(self, line: bytes, begin: int) -> None:
        """Append one line. After an OSError, the next call begins on a new line."""
        if self._rows is None:
            self._rows, self._whole = self._existing()
        if self._rows >= self._level.rows:
            self._turn()
        data = (b"" if self._whole else b"\n") + line
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(self._path, flags, 0o600)
        try:
            self._whole = False
            if os.write(handle, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._whole = True
        finally:
            os.close(handle)
        if not self._rows:
            self._first = begin
        self._rows += 1

    def _existing(self) -> tuple[int, bool]:
        """Prepare the directory; return an earlier agent's number of lines, and whether the last is complete."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._directory, 0o700)  # not its parents: a removed run directory is not recreated
        with contextlib.suppress(OSError):
            for left in self._directory.glob(f"{self._level.seconds}s-*.tmp"):
                left.unlink()
        try:
            data = self._path.read_bytes() if self._path.is_file() else b""
        except FileNotFoundError:
            data = b""
        row = next(map(decode_row, data.splitlines()[:8]), None)
        self._first = 0 if row is None else row.time
        return data.count(b"\n"), not data or data.endswith(b"\n")

    def _turn(self) -> None:
        """Begin a new file, compress full ones, and delete the oldest. Raises OSError if it cannot begin one."""
        level, begin = self._level, self._first
        while (piece := self._directory / f"{level.seconds}s-{begin}.jsonl").exists() or piece.with_name(
            piece.name + ".gz"
        ).exists():
            begin += 1
        os.replace(self._path, piece)
        self._rows, self._whole = 0, True
        with contextlib.suppress(OSError):
            full = pieces(self._directory, level)
            for _, path in full[: -level.pieces]:
                path.unlink(missing_ok=True)
            for _, path in full[-level.pieces :] if level.packed else ():
                if path.suffix != ".gz":
                    _pack(path)


def _pack(path: Path) -> None:
    """Compress a file; at every moment at least one complete version exists. Raises OSError."""
    packed = path.with_name(path.name + ".gz")
    new = path.with_name(path.name + ".tmp")
    data = gzip.compress(path.read_bytes(), compresslevel=1, mtime=0)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.replace(new, packed)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    path.unlink(missing_ok=True)


def _sentence(error: OSError, directory: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: no metrics are kept in {directory}; free space there"
    return f"no metrics are kept in {directory}: {error.strerror}"
