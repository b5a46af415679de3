"""The curves of a run on disk: means over 1, 10 and 60 seconds, each level bounded.

`metrics/{1s,10s,60s}.jsonl` hold one row a line; a full file becomes `….jsonl.1`, replacing the one before.
So a level keeps between one and two files' worth: 1 s for 10 to 20 minutes, 10 s for 2 to 4 hours, 60 s for
7 to 14 days. A row of 8 GPUs and 8 ranks takes about 0.6 KB: at most 0.7, 0.9 and 12 MB.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from ..model import Gpu, Host, RankSample


class Resolution(msgspec.Struct, frozen=True):
    """One resolution of the store."""

    seconds: int
    rows: int
    """Rows a file; at most twice as many are kept."""

    @property
    def name(self) -> str:
        """File name."""
        return f"{self.seconds}s.jsonl"


LEVELS = (Resolution(1, 600), Resolution(10, 720), Resolution(60, 10080))

Values = tuple[float | None, ...]


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """Means over one bucket. None: not known at any time in it."""

    time: float
    """Unix seconds at which the bucket begins."""
    seconds: int = 1
    """Length of the bucket."""
    gpus: dict[int, tuple[float | None, float | None, float | None, float | None]] = {}
    """NVML index → util (percent), memory used (bytes), power (W), temperature (°C)."""
    ranks: dict[int, tuple[float | None, float | None, float | None]] = {}
    """Rank → cpu (percent of a core), rss (bytes), step (seconds)."""
    host: tuple[float | None, float | None] = (None, None)
    """Cpu (percent of all cores), memory used (bytes)."""


class MetricsStore:
    """Writes the curves below `directory` (made when missing, its parents not): one writer, many readers.

    No method raises for a disk that is full or gone: `append` then answers False and `problem` says why.
    """

    def __init__(self, directory: str | Path, levels: tuple[Resolution, ...] = LEVELS) -> None:
        self._directory = Path(directory)
        self._levels = levels
        self._buckets = [_Bucket(level.seconds) for level in levels]
        self._files = [_File(self._directory / level.name, level.rows) for level in levels]
        self.problem: str | None = None
        """Why the newest rows are not on disk, as a sentence; None when they are."""

    def append(
        self,
        time: float,
        gpus: Iterable[Gpu] = (),
        ranks: Iterable[RankSample] = (),
        host: Host | None = None,
    ) -> bool:
        """Take one sample of `time` (unix seconds); rows are written as their buckets end.

        False when a row that was due could not be written; it is then lost, the store goes on.
        """
        values = _flat(gpus, ranks, host)
        ended = [bucket.add(time, values) for bucket in self._buckets]
        return self._write(ended)

    def flush(self) -> bool:
        """Write the buckets that are still open; for the end of a run. False as in `append`."""
        return self._write([bucket.end() for bucket in self._buckets])

    def _write(self, rows: list[Row | None]) -> bool:
        done = True
        for file, row in zip(self._files, rows, strict=True):
            if row is None:
                continue
            try:
                file.write(msgspec.json.encode(row))
            except OSError as error:
                done = False
                self.problem = _sentence(error, self._directory)
        if done and any(row is not None for row in rows):
            self.problem = None
        return done


class _File:
    """One level's file: appends lines, and begins a new file after `rows` of them."""

    def __init__(self, path: Path, rows: int) -> None:
        self._path = path
        self._limit = rows
        self._rows: int | None = None
        self._whole = True

    def write(self, line: bytes) -> None:
        """Append one line; raises OSError, after which the next line still begins on a line of its own."""
        if self._rows is None:
            self._rows, self._whole = self._existing()
        if self._rows >= self._limit:
            os.replace(self._path, self._path.with_name(self._path.name + ".1"))
            self._rows, self._whole = 0, True
        data = (b"" if self._whole else b"\n") + line + b"\n"
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._whole = False
            if os.write(handle, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._whole = True
        finally:
            os.close(handle)
        self._rows += 1

    def _existing(self) -> tuple[int, bool]:
        """Lines that an earlier agent left, and whether the last one is whole."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._path.parent, 0o700)  # alone: a run directory that was removed is not made again
        try:
            data = self._path.read_bytes() if self._path.is_file() else b""
        except FileNotFoundError:
            data = b""
        return data.count(b"\n"), not data or data.endswith(b"\n")


class _Bucket:
    """Sums of the samples that fall into one stretch of time."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._number: int | None = None
        self._sums: dict[tuple[str, int], list[list[float]]] = {}

    def add(self, time: float, values: Mapping[tuple[str, int], Values]) -> Row | None:
        """Take one sample; the row of the bucket before it when this sample begins a new one."""
        number = int(time // self._seconds)
        row = self.end() if self._number is not None and number != self._number else None
        self._number = number
        for key, fields in values.items():
            sums = self._sums.setdefault(key, [[0.0, 0] for _ in fields])
            for pair, value in zip(sums, fields, strict=True):
                if value is not None:
                    pair[0] += value
                    pair[1] += 1
        return row

    def end(self) -> Row | None:
        """The row so far, and begin anew; None when there was no sample."""
        if self._number is None:
            return None
        begin, means = float(self._number * self._seconds), _means(self._sums)
        self._number, self._sums = None, {}
        return msgspec.convert(
            {
                "time": begin,
                "seconds": self._seconds,
                "gpus": {number: fields for (kind, number), fields in means.items() if kind == "gpu"},
                "ranks": {number: fields for (kind, number), fields in means.items() if kind == "rank"},
                "host": means.get(("host", 0), (None, None)),
            },
            Row,
        )


def _means(sums: Mapping[tuple[str, int], list[list[float]]]) -> dict[tuple[str, int], Values]:
    """Six digits, which is finer than any of the sources."""
    return {
        key: tuple(float(f"{total / count:.6g}") if count else None for total, count in fields)
        for key, fields in sums.items()
    }


def _flat(
    gpus: Iterable[Gpu], ranks: Iterable[RankSample], host: Host | None
) -> dict[tuple[str, int], Values]:
    flat: dict[tuple[str, int], Values] = {}
    for gpu in gpus:
        flat["gpu", gpu.index] = (gpu.util, gpu.mem_used, gpu.power_w, gpu.temp_c)
    for rank in ranks:
        flat["rank", rank.rank] = (rank.cpu_percent, rank.rss_bytes, rank.step_s)
    if host is not None:
        flat["host", 0] = (host.cpu_percent, host.mem_used)
    return flat


def _sentence(error: OSError, directory: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: no metrics are kept in {directory}; free space there"
    return f"no metrics are kept in {directory}: {error.strerror}"
