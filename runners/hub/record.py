"""Keeps what was read of the nodes' logs, for when the nodes are gone."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ..logs import pieces
from ..logs.files import parse_file_id
from ..wire.link import Window

MOST_BYTES = 512 << 20
"""Of one run; what is read after that is shown and not kept."""


class Record:
    """The kept pieces of one run."""

    def __init__(self, run_dir: Path) -> None:
        self._root = run_dir / pieces.FOLDER
        self._held = pieces.pieces(run_dir)
        self._bytes = sum(end - at for held in self._held.values() for at, end in held.items())

    def sizes(self) -> dict[str, int]:
        """Bytes that each file had when it was last read."""
        return pieces.sizes(self._held)

    def missing(self, file: str, size: int, tail: int) -> int | None:
        """Where to read on so that the last `tail` bytes of a file are kept; None when they are."""
        held = self._held.get(file, {})
        at = max(size - tail, 0)
        for begin, end in held.items():
            if begin <= at < end:
                at = end
        return at if at < size else None

    def keep(self, window: Window) -> None:
        """Add a window that was read without a pattern. What the disk refuses is not kept."""
        if window.error or not window.data or parse_file_id(window.file) is None:
            return
        held = self._held.setdefault(window.file, {})
        with contextlib.suppress(OSError):
            if held and window.size < max(held.values()):
                self._forget(window.file, held)  # the file was truncated and begins anew
            begin = next((at for at, end in held.items() if at <= window.offset <= end), window.offset)
            known = held.get(begin, begin)
            data = window.data[known - window.offset :]
            if data and self._bytes + len(data) <= MOST_BYTES:
                self._append(self._path(window.file, begin), data)
                held[begin] = known + len(data)
                self._bytes += len(data)
        self._held[window.file] = dict(sorted(held.items()))

    def _path(self, file: str, begin: int) -> Path:
        return self._root / f"{file}@{begin}"

    @staticmethod
    def _append(path: Path, data: bytes) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
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
