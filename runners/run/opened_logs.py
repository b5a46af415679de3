"""The only function that opens a run's log files."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class LogError(Exception):
    """A log cannot be read. The text is one sentence with the reason and the remedy."""


@contextlib.contextmanager
def opened(run_dir: str | Path, file: str) -> Iterator[int]:
    """Yield a read-only descriptor of the regular file `file` under `run_dir`, and close it at the end.

    Each path component is opened relative to the one before with O_NOFOLLOW. So no name leads out of the run
    directory, even if another process changes it at the same time. Raises LogError.
    """
    parts = file.split("/")
    if "\0" in file or any(part in ("", ".", "..") for part in parts):
        raise LogError(
            f"{file!r} is not a log of this run: give a path below the run directory, without '..'"
        )
    try:
        descriptor = _open_below(str(run_dir), parts)
    except OSError as error:
        raise LogError(_why(file, error)) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise LogError(f"{file} is not a regular file: distui reads only plain log files")
        yield descriptor
    finally:
        os.close(descriptor)


def _open_below(run_dir: str, parts: list[str]) -> int:
    at = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part, last in zip(parts, [False] * (len(parts) - 1) + [True], strict=True):
        try:
            # O_NONBLOCK: opening a FIFO must not wait for a writer. Regular files ignore it.
            below = os.open(part, _OPEN | (os.O_NONBLOCK if last else os.O_DIRECTORY), dir_fd=at)
        finally:
            os.close(at)
        at = below
    return at


def _why(file: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return (
            f"{file} does not exist: nothing has been written there yet, or the run directory was cleaned"
        )
    if isinstance(error, PermissionError):
        return f"{file} cannot be read: it belongs to another user"
    # O_NOFOLLOW fails with ELOOP or ENOTDIR for a link.
    return f"{file} cannot be read: {(error.strerror or str(error)).lower()} (links are not followed)"
