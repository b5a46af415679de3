"""A rank that makes room for the next attempt leaves without looking for garbage.

The last act of an interpreter is to collect cyclic garbage, and it goes through everything that torch has imported:
about 0.8 s of a core (torch 2.13), for which the next attempt waits. Python promises no finalizer to what lives at the
end (see object.__del__). All else stays: exit functions, threads joined, files flushed, the exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import socket
import threading
from collections.abc import Iterable
from io import IOBase
from typing import Any

FILE: Any = IOBase.__base__
"""What every file of the interpreter's own is; io.IOBase itself is asked far more slowly."""

UNWILLING = (OSError, ValueError, RuntimeError, AttributeError, TypeError)
"""What flushing raises: the disk is full, the file is closed, or one of the script's own has lost its parts."""

ANSWER_SECONDS = 1.0
"""How long a rank's hook may take; a rank that is busy ends as it always does."""


class Leaving:
    """The rank's side: told that another attempt follows, its interpreter ends without the collection."""

    def __init__(self) -> None:
        self._soon = False
        atexit.register(self._leave)  # the first to be registered runs last

    def soon(self) -> dict[str, Any]:
        """This rank is about to be ended for the next attempt."""
        self._soon = True
        return {"leaving": True}

    def _leave(self) -> None:
        if self._soon:
            flush_files()
            gc.freeze()


def flush_files() -> None:
    """Write out what open files hold: one in a reference cycle would have been closed by the collection."""
    for item in gc.get_objects():
        if issubclass(type(item), FILE):  # type(), as a proxy's __class__ may run code
            with contextlib.suppress(*UNWILLING):
                item.flush()


def announce(paths: Iterable[str]) -> None:
    """The runner's side: tell the hooks at these sockets that their ranks make room. Returns at once."""
    threading.Thread(target=_announce_all, args=(list(paths),), name="distui-announce", daemon=True).start()


def _announce_all(paths: list[str]) -> None:
    hooks = []
    for path in paths:
        hook = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        hook.settimeout(ANSWER_SECONDS)
        try:
            hook.connect(path)
            hook.sendall(json.dumps({"op": "leave"}).encode() + b"\n")
        except OSError:
            hook.close()  # no hook, or gone
            continue
        hooks.append(hook)
    for hook in hooks:  # closed before the hook has said hello, it would not read
        with hook, hook.makefile("rb") as lines, contextlib.suppress(OSError):
            while b'"leaving"' not in (lines.readline() or b'"leaving"'):
                continue
