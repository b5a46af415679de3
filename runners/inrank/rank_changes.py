"""The changes that the hook makes in a rank.

At the start: rank 0 of a single node opens the store of its ranks only on loopback, and logs drop lines if the disk is
full. On request: the debug levels of NCCL and c10d. At an exit for the next attempt: no garbage collection.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import logging
import os
import socket
import stat
import sys
from types import ModuleType
from typing import Any, TextIO, cast

from .control import FULL, is_loopback
from .import_watch import when_imported

MODULE = "torch.distributed.rendezvous"
BACKLOG = 2048
LIBUV_LISTENS = (2, 8)
"""First version of torch whose libuv backend of the store takes a socket; before, only the older backend does."""


def version_of(text: str) -> tuple[int, int]:
    """Return major and minor of a version such as "2.13.0a0+git1234"."""
    major, minor = text.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def keep_store_on_loopback() -> None:
    """If MASTER_ADDR is a loopback address, patch torch's rendezvous module once it is loaded."""
    if is_loopback(os.environ.get("MASTER_ADDR", "")):
        when_imported(MODULE, _replace_store)


def _replace_store(module: ModuleType) -> None:
    """Replace the `TCPStore` of env:// and tcp:// by a function that passes a listening socket to torch's.

    If the arguments are not the expected ones, or torch takes no socket, torch's store is opened as usual.
    """
    theirs = getattr(module, "TCPStore", None)
    if theirs is None:
        return

    def store(*words: Any, **named: Any) -> Any:
        listening = _listening(words, named)
        if listening is None:
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


SONAME = "libnccl.so.2"
_UNSET = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV"}
"""Values that replace unset variables: to unset a variable while NCCL reads it is not safe."""


def nccl_libraries() -> list[Any]:
    """Return every libnccl that this process has mapped, first the one that torch calls. Loads nothing."""
    paths: list[str] = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = "/" + line.rstrip("\n").partition("/")[2]
            if path.rpartition("/")[2].startswith("libnccl.so") and path not in paths:
                paths.append(path)
    libraries = []
    for path in paths:
        try:
            libraries.append(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW))
        except OSError:  # replaced on disk since it was loaded; the loader knows it by its soname
            libraries.append(ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW))
    # A libnccl from LD_PRELOAD serves all calls, though torch 2.14 also loads the one of its wheel.
    preloaded = _address(ctypes.CDLL(None))
    if preloaded is not None:
        libraries.sort(key=lambda library: _address(library) != preloaded)
    return libraries


def _address(library: Any) -> int | None:
    """Return the address of a library's ncclGetVersion, or None."""
    function = getattr(library, "ncclGetVersion", None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


def nccl_state() -> dict[str, Any]:
    """Return {"loaded", "live", "version", "debug", "backend"}; live: the library exports ncclResetDebugInit."""
    libraries = nccl_libraries()
    return {
        "loaded": bool(libraries),
        "live": hasattr(libraries[0], "ncclResetDebugInit") if libraries else None,
        "version": version(libraries[0]) if libraries else None,
        "debug": os.environ.get("NCCL_DEBUG"),
        "backend": backend(),
    }


def version(library: Any) -> str | None:
    """Return NCCL's version as text, from ncclGetVersion (X*10000 + Y*100 + Z since 2.9)."""
    if not hasattr(library, "ncclGetVersion"):
        return None
    number = ctypes.c_int()
    if library.ncclGetVersion(ctypes.byref(number)) != 0:
        return None
    value = number.value
    if value < 10000:
        return "%d.%d.%d" % (value // 1000, value // 100 % 10, value % 100)
    return "%d.%d.%d" % (value // 10000, value // 100 % 100, value % 100)


def backend() -> str | None:
    """Return the backend of the default process group; None before its initialization."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not getattr(distributed, "is_initialized", bool)():
        return None
    return str(distributed.get_backend())


class Levels:
    """The debug levels of NCCL and c10d in this process, and the levels to restore after a limited time."""

    def __init__(self) -> None:
        self._lasting = {name: os.environ.get(name) or unset for name, unset in _UNSET.items()}
        self._part = 0
        self._c10d: str | None = None
        """c10d's level before the first limited one; None if no limited level is set."""

    def set_nccl(self, env: dict[str, str], lasting: bool = True) -> dict[str, Any]:
        """Set NCCL_DEBUG variables and let NCCL read them again if it can. Return `nccl_state` plus "changed".

        `lasting`: `back` restores these values. NCCL 2.24 and newer export ncclResetDebugInit (deprecated since 2.28,
        so it may be missing). If a loaded NCCL lacks it, nothing is changed. Raises ValueError for other variables.
        """
        for name in env:
            if name not in _UNSET:
                raise ValueError("%s is no variable of NCCL's debug output" % name)
        state = nccl_state()
        state["changed"] = False
        if state["loaded"] and not state["live"]:
            return state
        os.environ.update(env)
        if lasting:
            self._lasting.update(env)
        if state["live"]:
            os.environ["NCCL_DEBUG_FILE"] = self._new_file()
            for library in nccl_libraries():
                if hasattr(library, "ncclResetDebugInit"):
                    library.ncclResetDebugInit.restype = None
                    library.ncclResetDebugInit()
            state["changed"] = True
        state["debug"] = os.environ.get("NCCL_DEBUG")
        return state

    def _new_file(self) -> str:
        """Return an unused path: NCCL truncates the file that it opens."""
        while True:
            self._part += 1
            path = "%s.%d.nccl" % (os.environ["DISTUI_RANK_FILES"], self._part)
            if not os.path.exists(path):
                return path

    def set_c10d(self, level: str, lasting: bool = True) -> dict[str, str]:
        """Set torch's distributed debug level, "OFF", "INFO" or "DETAIL", and return {"text": the change in words}."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not hasattr(distributed, "DebugLevel"):
            return {"text": ""}
        if not lasting and self._c10d is None:
            self._c10d = distributed.get_debug_level().name
        if lasting:
            self._c10d = None
        names = {"OFF": distributed.DebugLevel.OFF, "INFO": distributed.DebugLevel.INFO}
        distributed.set_debug_level(names.get(level, distributed.DebugLevel.DETAIL))
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
        python_level = logging.WARNING if level == "OFF" else logging.INFO
        log_distributed(python_level)
        name = logging.getLevelName(python_level)
        return {"text": "TORCH_DISTRIBUTED_DEBUG=%s, c10d logging %s" % (level, name)}

    def back(self) -> dict[str, Any]:
        """Restore the levels of NCCL and c10d after a limited time."""
        if self._c10d is not None:
            self.set_c10d(self._c10d)
        if all(os.environ.get(name) == value for name, value in self._lasting.items()):
            return dict(nccl_state(), changed=False)
        return self.set_nccl(dict(self._lasting))


def log_distributed(level: int) -> None:
    """Set the level of Python's torch.distributed loggers, through torch if possible: torch owns their handlers."""
    logs = getattr(sys.modules.get("torch"), "_logging", None)
    if logs is not None and hasattr(logs, "set_logs"):
        logs.set_logs(distributed=level)
    else:
        logging.getLogger("torch.distributed").setLevel(level)


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
