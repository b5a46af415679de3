"""What the hook changes in a rank.

At the start: rank 0 of a single node opens the store of its ranks on the loopback alone, and logs lose lines that a full
disk has no room for. On request: the debug levels of NCCL and c10d. At the exit of a rank that makes room for the next
attempt: no search for garbage.
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
"""From this version of torch on, the store's libuv backend takes a socket; before, only the older backend does."""


def version_of(text: str) -> tuple[int, int]:
    """Major and minor of a version such as "2.13.0a0+git1234"."""
    major, minor = text.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def keep_store_on_loopback() -> None:
    """In a rank whose group meets on the loopback: change torch's module as soon as it is loaded."""
    if is_loopback(os.environ.get("MASTER_ADDR", "")):
        when_imported(MODULE, _replace_store)


def _replace_store(module: ModuleType) -> None:
    """Replace `TCPStore`, with which env:// and tcp:// open the store, by one that passes a socket to torch's.

    torch takes a socket that listens already. Where anything is otherwise than expected, torch does as it does.
    """
    theirs = getattr(module, "TCPStore", None)
    if theirs is None:
        return

    def store(*words: Any, **named: Any) -> Any:
        listening = _listening(words, named)
        if listening is None:
            return theirs(*words, **named)
        descriptor = listening.detach()  # torch owns it from now on
        if version_of(sys.modules["torch"].__version__) < LIBUV_LISTENS:
            named["use_libuv"] = False
        try:
            return theirs(*words, **named, master_listen_fd=descriptor)
        except TypeError:  # a torch that takes no such socket
            os.close(descriptor)
            return theirs(*words, **named)

    module.TCPStore = store  # type: ignore[attr-defined]


def _listening(words: tuple[Any, ...], named: dict[str, Any]) -> socket.socket | None:
    """The socket for a store that opens on the loopback; None for any other."""
    host, port = named.get("host_name"), named.get("port")
    if words or not named.get("is_master") or not is_loopback(host) or "master_listen_fd" in named:
        return None
    if not isinstance(host, str) or not isinstance(port, int):
        return None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError:  # taken: perhaps by a store that this process shares; torch names the error
        return None


class LosingFile(io.FileIO):
    """A log file that loses what the file system has no room for."""

    def write(self, data: Any) -> int:
        """Bytes taken; all of them where there is no room. Raises OSError for other errors."""
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
    """A stream like `stream`, with the same buffering, on the same descriptor."""
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


SONAME = "libnccl.so.2"
_UNSET = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV"}
"""Values for variables that had none; to unset them would not be safe while NCCL reads."""


def nccl_libraries() -> list[Any]:
    """Every libnccl that this process has mapped, the one that torch calls first; nothing is loaded for it."""
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
        except OSError:  # replaced on disk since it was loaded: the loader still has it by its name
            libraries.append(ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW))
    # One of LD_PRELOAD is before all others for whoever calls NCCL, though torch 2.14 loads that of its wheel beside it.
    preloaded = _address(ctypes.CDLL(None))
    if preloaded is not None:
        libraries.sort(key=lambda library: _address(library) != preloaded)
    return libraries


def _address(library: Any) -> int | None:
    """Where a library has ncclGetVersion; None where it has not."""
    function = getattr(library, "ncclGetVersion", None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


def nccl_state() -> dict[str, Any]:
    """{"loaded", "live", "version", "debug", "backend"}; live: whether the library exports ncclResetDebugInit."""
    libraries = nccl_libraries()
    return {
        "loaded": bool(libraries),
        "live": hasattr(libraries[0], "ncclResetDebugInit") if libraries else None,
        "version": version(libraries[0]) if libraries else None,
        "debug": os.environ.get("NCCL_DEBUG"),
        "backend": backend(),
    }


def version(library: Any) -> str | None:
    """NCCL's version as text, from ncclGetVersion (X*10000 + Y*100 + Z since 2.9)."""
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
    """Backend of the default process group once there is one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not getattr(distributed, "is_initialized", bool)():
        return None
    return str(distributed.get_backend())


class Levels:
    """NCCL's and c10d's debug levels of this process, and those to return to."""

    def __init__(self) -> None:
        self._lasting = {name: os.environ.get(name) or unset for name, unset in _UNSET.items()}
        self._part = 0
        self._c10d: str | None = None
        """c10d's level before the first limited one."""

    def set_nccl(self, env: dict[str, str], lasting: bool = True) -> dict[str, Any]:
        """Set NCCL_DEBUG variables and have NCCL read them again, where it can; `nccl_state` and "changed".

        `lasting`: `back` returns to them from now on. NCCL 2.24 and newer export ncclResetDebugInit
        (deprecated since 2.28, hence looked up, never assumed); what an older one has read stays, and so
        does its environment. Raises ValueError for other variables.
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
        """A name never used before: NCCL truncates what it opens."""
        while True:
            self._part += 1
            path = "%s.%d.nccl" % (os.environ["DISTUI_RANK_FILES"], self._part)
            if not os.path.exists(path):
                return path

    def set_c10d(self, level: str, lasting: bool = True) -> dict[str, str]:
        """Torch's own logging of distributed: "OFF", "INFO" or "DETAIL"; what changed, in words."""
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
        """Take a limited level back, NCCL's and c10d's."""
        if self._c10d is not None:
            self.set_c10d(self._c10d)
        if all(os.environ.get(name) == value for name, value in self._lasting.items()):
            return dict(nccl_state(), changed=False)
        return self.set_nccl(dict(self._lasting))


def log_distributed(level: int) -> None:
    """Python's own loggers of torch.distributed, through torch where it can: it owns their handlers."""
    logs = getattr(sys.modules.get("torch"), "_logging", None)
    if logs is not None and hasattr(logs, "set_logs"):
        logs.set_logs(distributed=level)
    else:
        logging.getLogger("torch.distributed").setLevel(level)


FILE: Any = io.IOBase.__base__
"""Base of all files of the interpreter's own; an isinstance check with io.IOBase itself is far slower."""
UNWILLING = (OSError, ValueError, RuntimeError, AttributeError, TypeError)
"""What flushing raises: the disk is full, the file is closed, or a file class of the script's own has lost its parts."""


class Leaving:
    """Once another attempt is announced, the interpreter exits without collecting cyclic garbage.

    It would go through everything that torch has imported: about 0.8 s of a core (torch 2.13), for which the next
    attempt waits. Python promises no finalizer to what lives at the exit (see object.__del__). All else stays: exit
    functions, threads joined, files flushed, the exit code.
    """

    def __init__(self) -> None:
        self._soon = False
        atexit.register(self._leave)  # the first to be registered runs last

    def soon(self) -> dict[str, Any]:
        """This rank is about to end for the next attempt."""
        self._soon = True
        return {"leaving": True}

    def _leave(self) -> None:
        if self._soon:
            flush_files()
            gc.freeze()


def flush_files() -> None:
    """Flush all open files: the collection would have closed those in a reference cycle."""
    for item in gc.get_objects():
        if issubclass(type(item), FILE):  # type(), as a proxy's __class__ may run code
            with contextlib.suppress(*UNWILLING):
                item.flush()
