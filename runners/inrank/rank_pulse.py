"""A rank's reports about itself: its pulse, its collectives, and on request its flight recorders and memory.

The pulse (stack, CPU time, steps, collectives) has the form of runners/run/model.py. There are three ways to read the
flight recorder: only the counts of the groups (0.03 ms), every entry (2,000 cost 10 ms), or every entry with its call
site (15 ms).
"""

from __future__ import annotations

import contextlib
import gc
import json
import opcode
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Container, Iterable
from functools import partial
from operator import methodcaller
from types import FrameType, ModuleType
from typing import Any

from .control import private
from .thread_waits import Threads, main_wait

FRAMES, INNERMOST, DEPTH = 24, 8, 400
"""Most frames in a pulse, how many innermost ones are always kept, and the most frames that are read."""
SAMPLES, APART_S = 20, 0.02
HELD_UP = ("futex", "lock", "sleep", "poll")
"""The other threads are sampled during these waits of the main thread: it may wait for one of them."""
UNREADABLE = (
    OSError,
    RuntimeError,
    AttributeError,
    ValueError,
    LookupError,
    TypeError,
    pickle.PickleError,
    EOFError,
)
"""Exceptions that torch's private attributes may raise in future versions."""


class PulseSampler:
    """Takes pulses of this process, and keeps the state that the next one needs."""

    def __init__(self, threads: Threads) -> None:
        self._collectives, self._threads = Collectives(), threads

    def take(
        self, count: int, last: float, samples: int = 1, whole: bool = False, sites: bool = False
    ) -> dict[str, Any]:
        """Take a pulse.

        `count`, `last`: optimizer steps, and unix time of the newest one. `samples`: stack samples, at most SAMPLES. For
        `whole` and `sites` see Collectives.sample.
        """
        main = threading.main_thread().ident
        seen: set[Any] = set()
        stack: list[list[Any]] = []
        samples = max(1, min(samples, SAMPLES))
        loops = 0
        for number in range(samples):
            if number:
                time.sleep(APART_S)
            loops += jumps_back(main)
            stack = stack_of(main)
            seen.add(tuple(stack[0]) if stack else None)
        taken: dict[str, Any] = {
            "stack": stack,
            "sites": len(seen),
            "samples": samples,
            "loops": loops,
            "cpu_s": thread_seconds(main),
            "process_s": time.process_time(),
            "torch": "torch.distributed" in sys.modules,
            "step": count,
            "last_step": last or None,
            "world_size": os.environ.get("WORLD_SIZE"),
            "master": master(),
        }
        taken.update(main_wait())
        if taken.get("call") in HELD_UP:
            taken["threads"] = self._threads.sample()
        try:
            taken.update(self._collectives.sample(whole, sites))
        except UNREADABLE:
            taken["recorder"] = False
        return taken


def torch_home() -> str:
    """Return torch's folder with a trailing separator."""
    return os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or "/no/torch") + os.sep


def recorders() -> dict[str, Callable[..., bytes]]:
    """Return kind → dump function of torch's flight recorders; {} before torch is imported."""
    core = getattr(getattr(sys.modules.get("torch"), "_C", None), "_distributed_c10d", None)
    dumps = {kind: getattr(core, "_dump_%s_trace" % kind, None) for kind in RECORDERS}
    return {kind: dump for kind, dump in dumps.items() if dump is not None}


def recording() -> dict[str, Callable[..., bytes]]:
    """Return `recorders` and, from torch 2.15 on, those of the backends with separate ones. Needs a process group.

    torch raises an exception for a backend that it does not have.
    """
    dumps = recorders()
    general = dumps.get("fr")
    if general is not None and "backend" in (general.__doc__ or ""):
        for backend in OF_BACKENDS:
            dump = partial(general, backend=backend)
            with contextlib.suppress(*UNREADABLE):
                dump(False, False, False)
                dumps[backend] = dump
    return dumps


def master() -> str | None:
    """Return MASTER_ADDR:MASTER_PORT of the current environment, or None."""
    address = os.environ.get("MASTER_ADDR")
    return None if address is None else "%s:%s" % (address, os.environ.get("MASTER_PORT", ""))


def thread_seconds(thread: int | None) -> float | None:
    """Return the CPU seconds of a live thread."""
    return None if thread is None else time.clock_gettime(time.pthread_getcpuclockid(thread))


def jumps_back(thread: int | None) -> bool:
    """Return whether a thread is at a backward jump, the end of a loop's body. A loop without calls always is.

    The interpreter switches threads only at calls and at backward jumps.
    """
    frame = sys._current_frames().get(thread or 0)
    if frame is None or frame.f_lasti < 0:
        return False
    name = opcode.opname[frame.f_code.co_code[frame.f_lasti]]
    return "JUMP_BACKWARD" in name or (sys.version_info < (3, 11) and "JUMP" in name)


def stack_of(thread: int | None) -> list[list[Any]]:
    """Return [file, line, function] of a thread's frames, innermost first. A deep stack omits outer frames of torch."""
    frame: FrameType | None = sys._current_frames().get(thread or 0)
    stack: list[list[Any]] = []
    while frame is not None and len(stack) < DEPTH:
        code = frame.f_code
        stack.append([code.co_filename, frame.f_lineno or 0, code.co_name])
        frame = frame.f_back
    if len(stack) > FRAMES:
        home = torch_home()
        stack[INNERMOST:] = [site for site in stack[INNERMOST:] if not site[0].startswith(home)]
    return stack[:FRAMES]


DEFAULT = "0"
"""Name of the group of all ranks."""
ACTIVE, RECENT, RECENT_SITES, SITES = 16, 64, 8, 12
SIZE_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
RECORDERS = ("nccl", "fr")
"""Kinds of flight recorders, as in torch's functions _dump_KIND_trace: one for NCCL, one for all other backends."""
OF_BACKENDS = ("nccl2", "nccl-lazy")
"""Values for the parameter `backend` of _dump_fr_trace; the default is "gloo"."""


def alone(*steps: Callable[[], Any]) -> list[Any]:
    """Call functions in C and return their results. No other Python code of this interpreter runs in between."""
    return [*map(methodcaller("__call__"), steps)]


def dumped(dump: Callable[..., bytes], sites: bool) -> list[dict[str, Any]]:
    """Return the entries of a flight recorder, with "frames" if `sites`."""
    torch, raw = sys.modules["torch"], partial(dump, True, sites, False)
    if not sites or "_inductor" in vars(torch):
        return unpickled(raw())
    # To name frames, torch reads its attribute _inductor, which imports that package: 800 modules, 70 MB, 1 s, maybe
    # during an import by the script. Therefore it gets an empty module.
    empty = ModuleType("torch._inductor")
    try:
        results = alone(
            partial(setattr, torch, "_inductor", empty), raw, partial(delattr, torch, "_inductor")
        )
    finally:
        if vars(torch).get("_inductor") is empty:
            del torch._inductor
    return unpickled(results[1])


def unpickled(raw: bytes) -> list[dict[str, Any]]:
    """Return the entries of a dump. Disables the garbage collector: so many new objects trigger a run of 0.1 s."""
    load = partial(pickle.loads, raw)
    if not gc.isenabled():
        return load().get("entries", [])  # type: ignore[no-any-return]
    results: list[Any] = []
    try:
        results = alone(gc.disable, load, gc.enable)
    finally:
        if not results:
            gc.enable()
    return results[1].get("entries", [])  # type: ignore[no-any-return]


def places(frames: Iterable[Any]) -> list[list[Any]]:
    """Return [file, line, function] of the frames outside torch, innermost first; else only the innermost frame."""
    home = torch_home()
    sites = [[frame["filename"], frame["line"], frame["name"]] for frame in frames]
    own = [site for site in sites if not site[0].startswith(home)]
    return own[:SITES] or sites[:1]


def inputs(sizes: list[list[int]], dtypes: list[str]) -> str:
    """Return inputs as "Float[2, 3] ×2 Long[1]": counts equal neighbours and names at most 4 groups of them."""
    counted: list[tuple[str, int]] = []
    for number, size in enumerate(sizes):
        dtype = dtypes[min(number, len(dtypes) - 1)] if dtypes else ""
        text = "%s%s" % (dtype, list(size))
        if counted and counted[-1][0] == text:
            counted[-1] = (text, counted[-1][1] + 1)
        else:
            counted.append((text, 1))
    words = [text if count == 1 else "%s ×%d" % (text, count) for text, count in counted[:4]]
    if len(counted) > 4:
        words.append("and %d more" % (len(counted) - 4))
    return " ".join(words)


def completed(entry: dict[str, Any]) -> bool:
    """Return whether an entry's collective is done. Entries of gloo stay "scheduled"; they are done once retired."""
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def members() -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, global ranks and backends of each process group; the recorders have only the ranks of NCCL groups."""
    world: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    groups = []
    for group, name in list(getattr(world, "pg_names", {}).items()):
        ranks = tuple(sorted(world.pg_group_ranks.get(group, ())))
        groups.append((str(name), ranks, str(world.pg_backend_config.get(group, ""))))
    return groups


def backends() -> list[str]:
    """Return the names of torch's backend classes of this process's groups, for example "ProcessGroupNCCL2"."""
    world: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    names: set[str] = set()
    for group in list(getattr(world, "pg_names", {})):
        with contextlib.suppress(*UNREADABLE):
            names.update(type(group._get_backend(device)).__name__ for device in group._device_types)
    return sorted(names)


COUNTED = {"ProcessGroupNCCL2": "nccl2", "ProcessGroupNCCLLazy": "nccl-lazy"}
"""Class → backend of the backends that torch 2.14 does not record; later versions do."""


def counted(kinds: Container[str]) -> list[dict[str, Any]]:
    """Return the process groups that no recorder of these `kinds` has, with only the number of enqueued collectives."""
    world: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    groups: list[dict[str, Any]] = []
    for group, name in list(getattr(world, "pg_names", {}).items()):
        with contextlib.suppress(*UNREADABLE):
            for device in group._device_types:
                backend = group._get_backend(device)
                kind = COUNTED.get(type(backend).__name__, "")
                called = int(backend._get_sequence_number_for_group()) if kind and kind not in kinds else 0
                if called > 0:
                    ranks = (
                        () if str(name) == DEFAULT else tuple(sorted(world.pg_group_ranks.get(group, ())))
                    )
                    groups.append(
                        {
                            "name": str(name),
                            "desc": str(group.group_desc),
                            "ranks": ranks,
                            "enqueued": called,
                            "completed": -1,
                            "backend": kind,
                        }
                    )
    return groups


class _Recorder:
    """One of torch's flight recorders, and its groups in the last sample."""

    def __init__(
        self,
        core: Any,
        kind: str,
        dump: Callable[..., bytes],
        names: dict[str, tuple[int, ...]],
        mixed: list[str],
    ) -> None:
        self._dump = dump
        self._json = getattr(core, "_dump_%s_trace_json" % kind, None)
        self.kind = kind
        self.names, self.mixed = names, mixed
        """Name → ranks of the groups; names of groups with both NCCL and gloo."""
        self._groups: dict[str, dict[str, Any]] = {}
        """torch's id of a group → its last report, and "plain": whether torch's counts are only of collectives."""
        self._counted: dict[str, tuple[int, int]] = {}
        self._settled: dict[str, tuple[int, int]] = {}
        """Counts when every entry was done. gloo's threads may record the lower of two completions last."""
        self.stuck = False
        """True if a group waits and its counts have not changed since the previous sample."""

    def counts(self) -> bool:
        """Read the counts. False if the entries must be read: a group is new, or waits and its counts did not change."""
        if self._json is not None:
            status = json.loads(self._json(False)).get("pg_status", {})
        else:
            status = pickle.loads(self._dump(False, False, False)).get("pg_status", {})
        counted = {
            str(number): (int(pg["last_enqueued_collective"]), int(pg["last_completed_collective"]))
            for number, pg in status.items()
        }
        self.stuck = any(
            now[0] > now[1] and self._counted.get(number) == now != self._settled.get(number)
            for number, now in counted.items()
        )
        self._counted = counted
        if self.stuck or not self._groups.keys() >= counted.keys():
            return False
        for number, (enqueued, completed) in counted.items():
            if self._groups[number]["plain"] and self._settled.get(number) != (enqueued, completed):
                self._groups[number].update(enqueued=max(0, enqueued), completed=max(0, completed))
        return True

    def groups(self) -> list[dict[str, Any]]:
        """Return the groups of the last sample that have a name and still exist."""
        return [
            {key: group[key] for key in group if key != "plain"}
            for group in self._groups.values()
            if group["name"] and (not self.names or self._members(group["name"]) is not None)
        ]

    def _members(self, name: str) -> tuple[int, ...] | None:
        return self.names.get(name.partition("/")[0])

    def entries(self, sites: bool) -> list[dict[str, Any]]:
        """Return all entries of the recorder, oldest first, in torch's form plus "done" and "group"."""
        entries = dumped(self._dump, sites)
        coalesced: dict[tuple[Any, Any, Any], bool] = {}
        for entry in reversed(entries):
            entry["done"] = completed(entry)
            # Entries inside a coalesced call have no events and are never retired; the entry of the call shows its end.
            key = (entry["pg_id"], entry["collective_seq_id"], entry["p2p_seq_id"])
            if entry["profiling_name"].endswith(":coalesced"):
                coalesced[key] = entry["done"]
            elif key in coalesced:
                entry["done"] = True
            entry["group"] = self._name(entry)
        if self.names:
            # Entries of a destroyed group never complete.
            kept = [entry for entry in entries if entry["done"] or entry["process_group"][0] in self.names]
        else:
            kept = entries
        self._learn(kept)
        return kept

    def _name(self, entry: dict[str, Any]) -> str:
        name = str(entry["process_group"][0])
        return name + "/gloo" if self.kind == "fr" and name in self.mixed else name

    def _learn(self, entries: list[dict[str, Any]]) -> None:
        """Count the collectives of each group. torch's counts include sends and receives, depending on the backend."""
        seen: dict[str, dict[str, Any]] = {}
        for entry in entries:
            group = seen.setdefault(
                str(entry["pg_id"]),
                {
                    "name": entry["group"],
                    "desc": str(entry["process_group"][1]),
                    "plain": True,
                    "enqueued": 0,
                    "waits": None,
                    "backend": entry["profiling_name"].rpartition(":")[0],
                },
            )
            if entry["is_p2p"]:
                group["plain"] = False
                continue
            number = int(entry["collective_seq_id"])
            group["enqueued"] = max(group["enqueued"], number)
            if not entry["done"] and group["waits"] is None:
                group["waits"] = number
            if entry["profiling_name"].startswith("gloo:"):
                group["plain"] = entry["op_id"] == number
        for key, group in seen.items():
            waits = group.pop("waits")
            group["completed"] = group["enqueued"] if waits is None else waits - 1
            group["ranks"] = self._members(group["name"]) or ()
            self._groups[key] = group
        self._settled = {
            key: counts
            for key, counts in self._counted.items()
            if key in seen and seen[key]["plain"] and seen[key]["completed"] >= counts[0]
        }
        for key in self._counted.keys() - self._groups.keys():
            self._groups[key] = {"name": "", "plain": False}  # its entries have left the buffer


def as_collective(entry: dict[str, Any], sites: bool) -> dict[str, Any]:
    p2p = bool(entry["is_p2p"])
    backend, _, op = entry["profiling_name"].rpartition(":")
    collective: dict[str, Any] = {
        "group": entry["group"],
        "seq": int(entry["p2p_seq_id" if p2p else "collective_seq_id"]),
        "op": op,
        "what": inputs(entry["input_sizes"], entry["input_dtypes"]),
        "created": entry["time_created_ns"] / 1e9,
        "done": entry["done"],
        "started": None if backend == "gloo" else _started(entry),
        "p2p": p2p,
    }
    if entry.get("duration_ms") is not None:
        collective["duration_ms"] = entry["duration_ms"]
    if sites:
        collective["sites"] = places(entry.get("frames", ()))
    return collective


def _started(entry: dict[str, Any]) -> bool | None:
    """Return whether the kernel has started; None if unknown: only TORCH_NCCL_ENABLE_TIMING creates a start event."""
    if entry["done"] or entry["state"] == "started":
        return True
    return False if os.environ.get("TORCH_NCCL_ENABLE_TIMING", "").lower() in ("1", "true", "yes") else None


class Collectives:
    """Reads the flight recorders of this process once it has a process group."""

    def __init__(self) -> None:
        self._recorders: list[_Recorder] = []
        self._names: dict[str, tuple[int, ...]] = {}
        self._mixed: list[str] = []

    def sample(self, whole: bool, sites: bool) -> dict[str, Any]:
        """Return "recorder", "whole", "groups", "active" and "recent" of a Pulse; {} before torch is imported.

        `whole`: read every entry. `sites`: also its call site. Both are implied if a group waits and its counts have not
        changed since the previous sample.
        """
        distributed = sys.modules.get("torch.distributed")
        core = getattr(getattr(sys.modules.get("torch"), "_C", None), "_distributed_c10d", None)
        if core is None or distributed is None:
            return {}
        if not recorders() or any(os.environ.get(name) == "0" for name in SIZE_VARIABLES):
            return {"recorder": False}
        if not getattr(distributed, "is_initialized", bool)():
            # The first dump fixes the recorder's settings, which the script may still change.
            self._recorders.clear()
            return {"recorder": True}
        if list(recorders()) == ["nccl"] and "ProcessGroupNCCL" not in backends():
            return {"recorder": False}  # torch before 2.8 does not record gloo
        if not self._recorders:
            self._recorders = [
                _Recorder(core, kind, dump, self._names, self._mixed) for kind, dump in recording().items()
            ]
        return self._read(whole, sites)

    def _read(self, whole: bool, sites: bool) -> dict[str, Any]:
        counts = [recorder.counts() for recorder in self._recorders]
        stuck = any(recorder.stuck for recorder in self._recorders)
        entries: list[dict[str, Any]] = []
        if whole or not all(counts):
            whole, sites = True, sites or stuck
            self._learn_names()
            entries = [entry for recorder in self._recorders for entry in recorder.entries(sites)]
            entries.sort(key=lambda entry: entry["time_created_ns"])
        active = [entry for entry in entries if not entry["done"]][:ACTIVE]
        done = [entry for entry in entries if entry["done"]][-RECENT:]
        groups = [group for recorder in self._recorders for group in recorder.groups()]
        return {
            "recorder": True,
            "whole": whole,
            "groups": groups + counted([recorder.kind for recorder in self._recorders]),
            "active": [as_collective(entry, sites) for entry in active],
            "recent": [
                as_collective(entry, sites and number >= len(done) - RECENT_SITES)
                for number, entry in enumerate(done)
            ],
        }

    def _learn_names(self) -> None:
        self._names.clear()
        self._mixed.clear()
        for name, ranks, backends in members():
            # The default group has all ranks. Omit them, because each rank would report all in every pulse.
            self._names[name] = () if name == DEFAULT else ranks
            if "nccl" in backends and "gloo" in backends:
                self._mixed.append(name)


class NotReady(RuntimeError):
    """The requested data is not available now. The text is a sentence for the user."""


def flight(newest: int = 128) -> str:
    """Return torch's flight recorders as JSON: "recorders" in torch's layout, "members" of the groups, and "counted".

    Has the `newest` of 2,000 entries, the last 8 of each group, and all that have not completed. Their stacks have the
    frames outside torch, innermost first. Raises NotReady without a recorder or a process group.
    """
    if not recorders():
        raise NotReady("this torch has no flight recorder, or is not imported yet")
    distributed = sys.modules.get("torch.distributed")
    # a dump would fix the recorder's settings before the script has made its own
    if not getattr(distributed, "is_initialized", bool)():
        raise NotReady("there is no process group yet, and so no flight recorder")
    dumped_recorders: list[dict[str, Any]] = []
    ranks_of = {name: ranks for name, ranks, _ in members()}
    for kind, dump in recording().items():
        header = dict(pickle.loads(dump(False, False, False)), kind=kind)  # safe: from this process
        entries = dumped(dump, True)
        kept = [_brief(entry) for entry in _wanted(entries, newest) if _lives(entry, ranks_of)]
        dumped_recorders.append(dict(header, entries=kept, left_out=len(entries) - len(kept)))
    without = counted([str(each["kind"]) for each in dumped_recorders])
    whole = {"recorders": dumped_recorders, "members": ranks_of, "counted": without}
    return json.dumps(whole, default=str)


def _wanted(entries: list[dict[str, Any]], newest: int) -> list[dict[str, Any]]:
    left: dict[Any, int] = {}
    kept = []
    for place, entry in enumerate(reversed(entries)):
        group = entry.get("pg_id")
        left[group] = left.get(group, 8) - 1
        if place < newest or left[group] >= 0 or not completed(entry):
            kept.append(entry)
    return kept[::-1]


def _lives(entry: dict[str, Any], members: dict[str, tuple[int, ...]]) -> bool:
    """Return False for an incomplete entry of a destroyed group, which never completes."""
    return not members or completed(entry) or str(entry["process_group"][0]) in members


_BRIEF = (
    "record_id",
    "pg_id",
    "process_group",
    "collective_seq_id",
    "p2p_seq_id",
    "op_id",
    "profiling_name",
    "is_p2p",
    "time_created_ns",
    "time_discovered_started_ns",
    "time_discovered_completed_ns",
    "duration_ms",
    "input_sizes",
    "input_dtypes",
    "output_sizes",
    "output_dtypes",
    "state",
    "retired",
)


def _brief(entry: dict[str, Any], most: int = 6) -> dict[str, Any]:
    brief = {name: entry[name] for name in _BRIEF if entry.get(name) is not None}
    frames = entry.get("frames") or []
    home = torch_home()
    outside = [frame for frame in frames if not str(frame.get("filename")).startswith(home)]
    brief["frames"] = (outside or frames)[:most]
    return brief


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
    start = getattr(getattr(cuda, "memory", None), "_record_memory_history", None)
    if start is None:
        raise NotReady(NO_CUDA)
    start(max_entries=entries)
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
    take = getattr(getattr(cuda, "memory", None), "_snapshot", None)
    if take is None:
        return {"snapshot_error": "this torch takes no snapshots"}
    path = "%s.memory-%d.pickle" % (os.environ["DISTUI_RANK_FILES"], time.time_ns() // 1_000_000)
    try:
        with open(path + ".tmp", "xb", opener=private) as file:
            pickle.dump(take(), file)
        os.rename(path + ".tmp", path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(path + ".tmp")
        return {"snapshot_error": "%s could not be written: %s" % (path, error.strerror)}
    return {"snapshot": path}
