"""The changes that the hook makes in a rank.

At the start: rank 0 of a single node opens the store of its ranks only on loopback, the other ranks connect once it
listens, and logs drop lines if the disk is full. At an exit for the next attempt: no garbage collection.
debug_levels.py has the changes on request.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import socket
import stat
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any, TextIO, cast

from .control import FULL, is_loopback
from .import_watch import when_imported

MODULE = "torch.distributed.rendezvous"
BACKLOG = 2048
LISTENER_S, LOOK_S = 3.0, 0.01
"""Longest wait (s) of a client for rank 0's store, and the interval of looking. torch would look again after 1 s."""
SOCKET_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
LISTENS = "0A"
"""State of a listening socket in SOCKET_TABLES (TCP_LISTEN in Linux's include/net/tcp_states.h)."""
LIBUV_LISTENS = (2, 8)
"""First version of torch whose libuv backend of the store takes a socket; before, only the older backend does."""


def version_of(text: str) -> tuple[int, int]:
    """Return major and minor of a version such as "2.13.0a0+git1234"."""
    major, minor = text.split("+")[0].split(".")[:2]
    return int(major), int(minor)


@contextlib.contextmanager
def defaulted(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment inside this context, unless the user has set it."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)


def keep_store_on_loopback() -> None:
    """If MASTER_ADDR is a loopback address, patch torch's rendezvous module once it is loaded."""
    if is_loopback(os.environ.get("MASTER_ADDR", "")):
        when_imported(MODULE, _replace_store)


def _replace_store(module: ModuleType) -> None:
    """Replace the `TCPStore` of env:// and tcp:// by a function that passes a listening socket to torch's.

    A client waits for the listener first, because torch repeats a refused connection only after about a second. If the
    arguments are not the expected ones, or torch takes no socket, torch's store is opened as usual.
    """
    theirs = getattr(module, "TCPStore", None)
    if theirs is None:
        return

    def store(*words: Any, **named: Any) -> Any:
        listening = _listening(words, named)
        if listening is None:
            _await_listener(named)
            return theirs(*words, **named)
        descriptor = listening.detach()  # torch now owns it
        if version_of(sys.modules["torch"].__version__) < LIBUV_LISTENS:
            named["use_libuv"] = False
        try:
            return theirs(*words, **named, master_listen_fd=descriptor)
        except TypeError:  # a torch that takes no such socket
            os.close(descriptor)
            return theirs(*words, **named)

    module.TCPStore = store  # type: ignore[attr-defined]


def _listening(words: tuple[Any, ...], named: dict[str, Any]) -> socket.socket | None:
    """Return a socket for a store that listens on loopback; None for any other store."""
    host, port = named.get("host_name"), named.get("port")
    if words or not named.get("is_master") or not is_loopback(host) or "master_listen_fd" in named:
        return None
    if not isinstance(host, str) or not isinstance(port, int):
        return None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError:  # in use, perhaps by a store that this process shares; torch reports the error
        return None


def _await_listener(named: dict[str, Any]) -> None:
    """Wait until a socket of this machine listens on the port of a client, at most LISTENER_S."""
    port = named.get("port")
    if named.get("is_master") or not isinstance(port, int) or not is_loopback(named.get("host_name")):
        return
    deadline = time.monotonic() + LISTENER_S
    with contextlib.suppress(OSError):
        while not _is_listening(port) and time.monotonic() < deadline:
            time.sleep(LOOK_S)


def _is_listening(port: int) -> bool:
    """Return whether a socket of this machine listens on the port. Raises OSError if /proc cannot be read."""
    local = ":%04X" % port
    for table in SOCKET_TABLES:
        if not os.path.exists(table):
            continue
        with open(table, encoding="ascii") as file:
            for line in file:
                fields = line.split(None, 4)
                if fields[1].endswith(local) and fields[3] == LISTENS:
                    return True
    return False


class LosingFile(io.FileIO):
    """A log file that drops data if the file system is full."""

    def write(self, data: Any) -> int:
        """Return the number of written or dropped bytes. Raises OSError for other errors than a full disk."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno in FULL:
                return memoryview(data).nbytes
            raise


def survive_full_disk() -> None:
    """Put a LosingFile under stdout and stderr if they are regular files."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stat.S_ISREG(os.fstat(number).st_mode):
            stream.flush()
            fresh = losing(stream, number)
            setattr(sys, name, fresh)
            setattr(sys, "__%s__" % name, fresh)


def losing(stream: io.TextIOWrapper, number: int) -> TextIO:
    """Return a stream like `stream` with a LosingFile: with the same buffering, on the same descriptor."""
    raw: Any = LosingFile(number, "w", closefd=False)
    below = io.BufferedWriter(raw) if isinstance(stream.buffer, io.BufferedWriter) else raw
    fresh = io.TextIOWrapper(
        below,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    cast(Any, fresh).mode = "w"  # as in the interpreter's streams
    return fresh


FILE: Any = io.IOBase.__base__
"""Base class of the interpreter's file classes; isinstance with io.IOBase is far slower."""
UNWILLING = (OSError, ValueError, RuntimeError, AttributeError, TypeError)
"""Exceptions of a flush: full disk, closed file, or a file class of the script without its attributes at exit."""


class Leaving:
    """Skips the collection of cyclic garbage at exit once another attempt was announced.

    The collection traverses all objects that torch has imported, and so delays the next attempt by 0.8 s of CPU time
    (torch 2.13). Python does not guarantee finalizers at exit (see object.__del__). Exit functions, the join of
    threads, the flush of files and the exit code stay.
    """

    def __init__(self) -> None:
        self._soon = False
        atexit.register(self._leave)  # the first to be registered runs last

    def soon(self) -> dict[str, Any]:
        """Note that this rank will be ended for the next attempt."""
        self._soon = True
        return {"leaving": True}

    def _leave(self) -> None:
        if self._soon:
            flush_files()
            gc.freeze()


def flush_files() -> None:
    """Flush all open files, because the collection would have closed those in a reference cycle."""
    for item in gc.get_objects():
        if issubclass(type(item), FILE):  # type(), as a proxy's __class__ may run code
            with contextlib.suppress(*UNWILLING):
                item.flush()
