"""The pieces of nodes' logs that the hub keeps on disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ...presets.base_dirs import private_folder
from ..logs import kept_pieces, line_times
from ..run.log_files import parse_file_id
from ..run.wire.client import Window

MOST_TIMES = 4 << 20
"""Maximum bytes of one log's times; above that they are thinned out."""
MOST_BYTES = 512 << 20
"""Maximum kept bytes per run; later windows are shown but not kept."""


class Record:
    """The kept pieces of one run."""

    def __init__(self, run_dir: Path) -> None:
        self._root = run_dir / kept_pieces.FOLDER
        self._held = kept_pieces.pieces(run_dir)
        self._bytes = sum(end - at for held in self._held.values() for at, end in held.items())

    def sizes(self) -> dict[str, int]:
        """File → size in bytes at its last read."""
        return kept_pieces.sizes(self._held)

    def missing(self, file: str, size: int, tail: int) -> int | None:
        """Offset to continue at so that the last `tail` bytes of a file are kept; None if they are."""
        held = self._held.get(file, {})
        at = max(size - tail, 0)
        for begin, end in held.items():
            if begin <= at < end:
                at = end
        return at if at < size else None

    def keep(self, window: Window) -> None:
        """Add a window that was read without a pattern. An OSError drops it."""
        if window.error or not window.data or parse_file_id(window.file) is None:
            return
        held = self._held.setdefault(window.file, {})
        with contextlib.suppress(OSError):
            if held and window.size < max(held.values()):
                self._forget(window.file, held)  # the file was truncated and begins again
            begin = next((at for at, end in held.items() if at <= window.offset <= end), window.offset)
            until = held.get(begin, begin)
            data = window.data[until - window.offset :]
            if data and self._bytes + len(data) <= MOST_BYTES:
                self._keep_shift(window)
                self._append(self._path(window.file, begin), data)
                self._keep_times(window)
                held[begin] = until + len(data)
                self._bytes += len(data)
        self._held[window.file] = dict(sorted(held.items()))

    def _times_path(self, file: str) -> Path:
        return self._root / line_times.FOLDER / file

    def _path(self, file: str, begin: int) -> Path:
        return self._root / f"{file}@{begin}"

    def _keep_times(self, window: Window) -> None:
        """Store a window's times next to the pieces. Their order is restored at reading."""
        if not window.times:
            return
        path = self._times_path(window.file)
        self._append(path, line_times.packed(window.times))
        if path.stat().st_size > MOST_TIMES:
            records = line_times.kept(self._root, window.file)
            path.write_bytes(line_times.packed(line_times.fitted(records, line_times.MOST_RECORDS)))

    def _keep_shift(self, window: Window) -> None:
        if kept_pieces.kept_shift(self._root.parent, window.file) != window.shift:
            path = self._root / window.file.partition("/")[0] / kept_pieces.CLOCK
            private_folder(path.parent)
            path.write_text(f"{window.shift}\n", encoding="ascii")

    @staticmethod
    def _append(path: Path, data: bytes) -> None:
        private_folder(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            before = os.fstat(descriptor).st_size
            if os.write(descriptor, data) < len(data):
                os.ftruncate(descriptor, before)
                raise OSError("no room")
        finally:
            os.close(descriptor)

    def _forget(self, file: str, held: dict[int, int]) -> None:
        for begin in list(held):
            self._path(file, begin).unlink(missing_ok=True)
            del held[begin]
        self._times_path(file).unlink(missing_ok=True)
