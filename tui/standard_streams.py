"""Standard input, output and error as a verb can rely on: they are there, and take every text.

Losing their reader is no traceback.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable

GONE = 141
"""Exit status when the reader of stdout went away, as a shell gives it for SIGPIPE."""
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def complete() -> None:
    """Open what the caller had closed: a file or socket of ours would get its number, and be written to."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free is this one
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the locale's encoding lacks is printed as \xd7
            stream.reconfigure(errors="backslashreplace")


def leave_in_order() -> None:
    """Have SIGTERM and SIGHUP end a verb as Ctrl-C does, so that what it made for itself goes; nohup stays nohup."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def guarded(verb: Callable[[], int]) -> int:
    """The exit status of `verb`, with all that it printed written, or GONE where nobody reads it."""
    try:
        try:
            return verb()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _silence()
        return GONE
    except OSError as error:
        if error.errno not in UNWRITABLE or error.filename is not None:
            raise
        _silence()
        sys.stderr.write(f"distui: standard output cannot be written: {error.strerror}\n")
        return 1


def _silence() -> None:
    """What stays in buffers goes nowhere, also when the interpreter writes it at its end."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(devnull, stream.fileno())
    os.close(devnull)
