"""The debug levels of NCCL and c10d, which the agent changes in a live rank."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from typing import Any

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
                raise ValueError("%s is not a variable of NCCL's debug output" % name)
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
        sys.modules["torch"]._logging.set_logs(distributed=python_level)
        name = logging.getLevelName(python_level)
        return {"text": "TORCH_DISTRIBUTED_DEBUG=%s, c10d logging %s" % (level, name)}

    def back(self) -> dict[str, Any]:
        """Restore the levels of NCCL and c10d after a limited time."""
        if self._c10d is not None:
            self.set_c10d(self._c10d)
        if all(os.environ.get(name) == value for name, value in self._lasting.items()):
            return dict(nccl_state(), changed=False)
        return self.set_nccl(dict(self._lasting))
