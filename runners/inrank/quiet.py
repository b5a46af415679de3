"""A full disk must not end a training: its log lines are dropped instead."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from typing import Any, TextIO, cast

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No room on the file system, in the quota, or under the limit of a file's size."""


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
