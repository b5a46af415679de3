"""A rank's memory, and on request torch's record of its allocations."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
import time
from typing import Any

from .control import NotReady, private

_STATS = (
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "reserved_bytes.all.current",
    "reserved_bytes.all.peak",
    "inactive_split_bytes.all.current",
    "active_bytes.all.current",
    "requested_bytes.all.current",
    "num_alloc_retries",
    "num_ooms",
)


def memory() -> str:
    """Return the memory of this process as JSON.

    It has the resident bytes and their peak. With CUDA it also has the allocator's statistics per device in use, and the
    path of a new snapshot of torch.
    """
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
"""True once torch records the history of allocations for snapshots."""


def record(entries: int = 100_000) -> str:
    """Let torch record its last `entries` allocations for the curve in the next snapshot; return a sentence.

    Costs some microseconds per allocation until the process ends. Raises NotReady without CUDA.
    """
    global _recording
    cuda = _cuda()
    if cuda is None:
        raise NotReady(NO_CUDA)
    cuda.memory._record_memory_history(max_entries=entries)
    _recording = True
    return "allocations are recorded from now on: the next dump of memory has their curve"


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _cuda() -> Any:
    """Return torch.cuda if this process has initialized it, else None. Does not initialize it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _total(cuda: Any, device: int) -> int | None:
    try:
        return int(cuda.get_device_properties(device).total_memory)
    except (RuntimeError, AssertionError):
        return None


def _snapshot(cuda: Any) -> dict[str, str]:
    """Write a snapshot for pytorch.org/memory_viz. Return {"snapshot": path} or {"snapshot_error": reason}."""
    path = "%s.memory-%d.pickle" % (os.environ["DISTUI_RANK_FILES"], time.time_ns() // 1_000_000)
    try:
        with open(path + ".tmp", "xb", opener=private) as file:
            pickle.dump(cuda.memory._snapshot(), file)
        os.rename(path + ".tmp", path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(path + ".tmp")
        return {"snapshot_error": "%s could not be written: %s" % (path, error.strerror)}
    return {"snapshot": path}
