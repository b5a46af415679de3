"""What the runner's own output does without: lines that a full disk has no room for, and C++ stack traces."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No room on the file system, in the quota, or under the limit of a file's size."""


def private(path: str, flags: int) -> int:
    """For `open(..., opener=private)`: what it creates is this user's alone, whatever the umask."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


class LosingFile(io.FileIO):
    """A log file that loses what the file system has no room for."""

    def write(self, data: Any) -> int:
        """Bytes taken; all of them where there is no room. Raises OSError for anything else."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno in FULL:
                return memoryview(data).nbytes
            raise


@contextlib.contextmanager
def errors_alone() -> Iterator[None]:
    """Import torch inside: its C++ then prints errors, and no stack for each connection that closes.

    The store prints one whenever a node leaves; what it means arrives as an exception, too. Not for the ranks: the
    variable is gone when they are started. A user's own choice stays.
    """
    name = "TORCH_CPP_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = "ERROR"
    try:
        yield
    finally:
        os.environ.pop(name, None)


def survive_full_disk() -> None:
    """Put a LosingFile under stdout and stderr where they are regular files."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stat.S_ISREG(os.fstat(number).st_mode):
            stream.flush()
            fresh = losing(stream, number)
            setattr(sys, name, fresh)
            setattr(sys, "__%s__" % name, fresh)


def losing(stream: io.TextIOWrapper, number: int) -> TextIO:
    """A stream like `stream`, buffered as it is, on the same descriptor."""
    raw: Any = LosingFile(number, "w", closefd=False)
    below = io.BufferedWriter(raw) if isinstance(stream.buffer, io.BufferedWriter) else raw
    fresh = io.TextIOWrapper(
        below,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    cast(Any, fresh).mode = "w"  # as the interpreter's own streams have it
    return fresh
