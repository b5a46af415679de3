"""What a rank tells of itself when it is asked to: its flight recorders, and what its memory holds."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any

from . import collectives


def flight(newest: int = 128) -> str:
    """torch's flight recorders as JSON text: "recorders", each in torch's own layout, and "members" of the groups.

    Of 2,000 entries the `newest` ones, with the last 8 of each group and all that have not completed; of their stacks
    the frames outside torch, innermost first. Raises RuntimeError without a recorder or a process group.
    """
    import pickle

    core = getattr(getattr(sys.modules.get("torch"), "_C", None), "_distributed_c10d", None)
    kinds = [kind for kind in collectives.RECORDERS if hasattr(core, "_dump_%s_trace" % kind)]
    if not kinds:
        raise RuntimeError("this torch has no flight recorder, or is not imported yet")
    distributed = sys.modules.get("torch.distributed")
    # to look would fix the recorder's settings before the script has made its own
    if not getattr(distributed, "is_initialized", bool)():
        raise RuntimeError("there is no process group yet, and so no flight recorder")
    found: list[dict[str, Any]] = []
    members = {name: ranks for name, ranks, _ in collectives.members()}
    for kind in kinds:
        dump = getattr(core, "_dump_%s_trace" % kind)
        told = dict(pickle.loads(dump(False, False, False)), kind=kind)  # our own process wrote it
        entries = collectives.dumped(dump, True)
        kept = [_brief(entry) for entry in _wanted(entries, newest) if _lives(entry, members)]
        found.append(dict(told, entries=kept, left_out=len(entries) - len(kept)))
    return json.dumps({"recorders": found, "members": members}, default=str)


def _wanted(entries: list[dict[str, Any]], newest: int) -> list[dict[str, Any]]:
    left: dict[Any, int] = {}
    kept = []
    for place, entry in enumerate(reversed(entries)):
        group = entry.get("pg_id")
        left[group] = left.get(group, 8) - 1
        if place < newest or left[group] >= 0 or not collectives.completed(entry):
            kept.append(entry)
    return kept[::-1]


def _lives(entry: dict[str, Any], members: dict[str, tuple[int, ...]]) -> bool:
    """What a group left behind that was destroyed waits for nobody."""
    return not members or collectives.completed(entry) or str(entry["process_group"][0]) in members


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
