"""Python stacks of a rank by faulthandler: on SIGUSR2, at a crash, and on request."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import os
import signal
from typing import IO

from .control import private


def owns_signal() -> bool:
    """Whether SIGUSR2 still writes stacks: a script may have installed another handler.

    Python does not tell this from a script that has set SIG_DFL; the agent therefore reads the kernel's mask, too.
    """
    return signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


def register_stack_signal() -> None:
    """Have SIGUSR2 write the stacks, also while the GIL is held: faulthandler writes them in the signal handler.

    SIGSEGV and other fatal signals write them, too. At exit the interpreter removes faulthandler's handler of SIGUSR2
    while torch still shuts down, and restores the previous one. We therefore first set SIG_IGN through libc: with
    SIG_DFL a late SIGUSR2 would kill the rank. signal.getsignal still returns SIG_DFL, as scripts expect.
    """
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ignore = ctypes.CDLL(None).signal
        ignore.argtypes, ignore.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
        ignore(signal.SIGUSR2, int(signal.SIG_IGN))
    file = open(os.environ["DISTUI_RANK_FILES"] + ".stacks", "w", opener=private)  # noqa: SIM115
    faulthandler.register(signal.SIGUSR2, file, all_threads=True)
    if not faulthandler.is_enabled():  # else PYTHONFAULTHANDLER has it on stderr
        faulthandler.enable(file, all_threads=True)


def stacks() -> str:
    """Return the Python stacks of all threads from faulthandler, written into memory as the disk may be full.

    Raises OSError if neither memory nor disk has room for them.
    """
    with _scratch() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        if not os.fstat(file.fileno()).st_size:
            raise OSError(errno.ENOSPC, "there is no room for the stacks")
        file.seek(0)
        return file.read()


def _scratch() -> IO[str]:
    """Open a file without a name: in memory, or on disk if a sandbox or an old glibc has no memfd_create."""
    try:
        return open(os.memfd_create("stacks"), "w+")
    except (OSError, AttributeError):
        import tempfile  # slow

        return tempfile.TemporaryFile("w+", dir=os.path.dirname(os.environ["DISTUI_RANK_FILES"]))
