"""What a rank can change or tell about NCCL and c10d while it runs."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import sys
import time
from typing import Any

SONAME = "libnccl.so.2"
_UNSET = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV"}
"""What a variable goes back to that had no value; to take it away would not be safe while NCCL reads."""


def nccl_paths() -> list[str]:
    """Paths of every libnccl that this process has mapped."""
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = "/" + line.rstrip("\n").partition("/")[2]
            if path.rpartition("/")[2].startswith("libnccl.so") and path not in found:
                found.append(path)
    return found


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
        "live": all(hasattr(one, "ncclResetDebugInit") for one in libraries) if libraries else None,
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


def flight(newest: int = 128) -> str:
    """torch's flight recorder as JSON text in its own layout, for gloo too (2.13). Raises RuntimeError without one.

    Of 2,000 entries the `newest` ones, with the last 8 of each group and all that have not completed; of their stacks
    the frames outside torch, innermost first.
    """
    told = _recorded()
    entries = told.get("entries") or []
    left: dict[Any, int] = {}
    kept = []
    for place, entry in enumerate(reversed(entries)):
        group = entry.get("pg_id")
        left[group] = left.get(group, 8) - 1
        if place < newest or left[group] >= 0 or not _completed(entry):
            kept.append(_brief(entry))
    return json.dumps(dict(told, entries=kept[::-1], left_out=len(entries) - len(kept)), default=str)


def _recorded() -> dict[str, Any]:
    """What the recorder holds: its pickle has stacks, its JSON has none."""
    import pickle

    core = getattr(getattr(sys.modules.get("torch"), "_C", None), "_distributed_c10d", None)
    for name in ("_dump_fr_trace", "_dump_nccl_trace", "_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(core, name, None)
        if dump is not None:
            raw = dump()
            told = (
                json.loads(raw) if name.endswith("json") else pickle.loads(raw)
            )  # our own process wrote it
            return dict(told)
    raise RuntimeError("this torch has no flight recorder, or is not imported yet")


def _completed(entry: dict[str, Any]) -> bool:
    """gloo's entries stay "scheduled" for ever: that they are retired is what tells."""
    return bool(entry.get("retired")) or entry.get("state") == "completed"


_BRIEF = (
    "record_id", "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "op_id", "profiling_name", "is_p2p",
    "time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns", "duration_ms",
    "input_sizes", "input_dtypes", "output_sizes", "output_dtypes", "state", "retired",
)  # fmt: skip


def _brief(entry: dict[str, Any], most: int = 6) -> dict[str, Any]:
    brief = {name: entry[name] for name in _BRIEF if entry.get(name) is not None}
    frames = entry.get("frames") or []
    inside = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or "/nonexistent/torch")
    outside = [one for one in frames if not str(one.get("filename")).startswith(inside + os.sep)]
    brief["frames"] = (outside or frames)[:most]
    return brief


_STATS = (
    "allocated_bytes.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.current",
    "reserved_bytes.all.peak", "inactive_split_bytes.all.current", "active_bytes.all.current",
    "requested_bytes.all.current", "num_alloc_retries", "num_ooms",
)  # fmt: skip


def memory() -> str:
    """What this process holds, as JSON text: resident bytes and their peak, and of each CUDA device it uses the
    allocator's numbers, with the path of torch's own snapshot of them."""
    import resource

    held, peak = resident(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    # the kernel's two counters lag by different amounts
    facts: dict[str, Any] = {"max_rss_bytes": max(held, peak), "rss_bytes": held}
    cuda = _cuda()
    if cuda is None:
        facts["note"] = NO_CUDA
        return json.dumps(facts)
    stats = {device: cuda.memory_stats(device) for device in range(cuda.device_count())}
    facts["cuda"] = {
        str(device): dict({name: its.get(name) for name in _STATS}, total_bytes=_total(cuda, device))
        for device, its in stats.items()
        if its.get("reserved_bytes.all.peak")
    }
    facts["recording"] = _recording
    facts.update(_snapshot(cuda))
    return json.dumps(facts)


NO_CUDA = "no CUDA in this rank: there is no allocator to take a snapshot of"
_recording = False
"""Whether torch keeps the history of allocations for the next snapshot."""


def record(entries: int = 100_000) -> str:
    """Have torch keep its last `entries` allocations, so that the next snapshot holds their curve; what came of it.

    Costs some microseconds an allocation, and goes on until the process ends. Raises RuntimeError without CUDA.
    """
    global _recording
    cuda = _cuda()
    start = getattr(getattr(cuda, "memory", None), "_record_memory_history", None)
    if start is None:
        raise RuntimeError(NO_CUDA)
    start(max_entries=entries)
    _recording = True
    return "allocations are recorded from now on: the next dump of memory has their curve"


def resident() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _cuda() -> Any:
    """torch.cuda where this process has used it; None where not: asking must not start it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _total(cuda: Any, device: int) -> int | None:
    try:
        return int(cuda.get_device_properties(device).total_memory)
    except (RuntimeError, AssertionError):
        return None


def _snapshot(cuda: Any) -> dict[str, str]:
    """{"snapshot": path} of a new file that pytorch.org/memory_viz opens, or {"snapshot_error": why there is none}."""
    import pickle

    take = getattr(getattr(cuda, "memory", None), "_snapshot", None)
    if take is None:
        return {"snapshot_error": "this torch takes no snapshots"}
    path = "%s.memory-%d.pickle" % (os.environ["DISTUI_RANK_FILES"], time.time_ns() // 1_000_000)
    try:
        with open(path + ".tmp", "xb") as file:
            pickle.dump(take(), file)
        os.rename(path + ".tmp", path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(path + ".tmp")
        return {"snapshot_error": "%s could not be written: %s" % (path, error.strerror)}
    return {"snapshot": path}
