"""What a rank can change or tell about NCCL and c10d while it runs."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from typing import Any

SONAME = "libnccl.so.2"
_UNSET = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV"}
"""What a variable goes back to that had no value; to take it away would not be safe while NCCL reads."""


def nccl_paths() -> list[str]:
    """Paths of every libnccl that this process has mapped."""
    paths = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = "/" + line.rstrip("\n").partition("/")[2]
            if path.rpartition("/")[2].startswith("libnccl.so") and path not in paths:
                paths.append(path)
    return paths


def nccl_libraries() -> list[Any]:
    """Every libnccl of this process; nothing is loaded for it."""
    libraries = []
    for path in nccl_paths():
        try:
            libraries.append(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW))
        except OSError:  # replaced on disk since it was loaded: known by its name still
            libraries.append(ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW))
    return libraries


def nccl_state() -> dict[str, Any]:
    """{"loaded", "live", "version", "debug", "backend"}; live: whether every one exports ncclResetDebugInit."""
    libraries = nccl_libraries()
    return {
        "loaded": bool(libraries),
        "live": all(hasattr(library, "ncclResetDebugInit") for library in libraries) if libraries else None,
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
    """NCCL's and c10d's debug levels of this process, and what they go back to."""

    def __init__(self) -> None:
        self._lasting = {name: os.environ.get(name) or unset for name, unset in _UNSET.items()}
        self._part = 0
        self._c10d: str | None = None
        """c10d's level before the first limited one."""

    def set_nccl(self, env: dict[str, str], lasting: bool = True) -> dict[str, Any]:
        """Set NCCL_DEBUG variables and have NCCL read them again, where it can; `nccl_state` and "changed".

        `lasting`: what `back` goes back to from now on. NCCL 2.24 and newer export ncclResetDebugInit
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
