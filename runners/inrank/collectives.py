"""A rank's collectives: its process groups and torch's flight recorders.

There are three ways to read a flight recorder: only the counts of the groups (0.03 ms), every entry (2,000 cost 10 ms),
or every entry with its call site (15 ms).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import sys
from collections.abc import Callable, Container, Iterable
from functools import partial
from itertools import chain
from operator import methodcaller
from types import ModuleType
from typing import Any

from .control import NotReady
from .import_watch import PATCH_ERRORS

UNREADABLE = (*PATCH_ERRORS, pickle.PickleError, EOFError)
"""Exceptions that torch's private attributes may raise in future versions."""


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
        waits: dict[str, int] = {}
        """torch's id of a group → number of its oldest collective that is not done."""
        for entry in entries:
            key = str(entry["pg_id"])
            if key not in seen:
                seen[key] = self._new_group(entry)
            _count(entry, seen[key])
            if not entry["done"] and not entry["is_p2p"]:
                waits.setdefault(key, int(entry["collective_seq_id"]))
        for key, group in seen.items():
            group["completed"] = waits[key] - 1 if key in waits else group["enqueued"]
        self._groups.update(seen)
        self._settled = {key: counts for key, counts in self._counted.items() if self._is_done(key, seen)}
        for key in self._counted.keys() - self._groups.keys():
            self._groups[key] = {"name": "", "plain": False}  # its entries have left the buffer

    def _new_group(self, entry: dict[str, Any]) -> dict[str, Any]:
        return {
            "name": entry["group"],
            "desc": str(entry["process_group"][1]),
            "ranks": self._members(entry["group"]) or (),
            "plain": True,
            "enqueued": 0,
            "backend": entry["profiling_name"].rpartition(":")[0],
        }

    def _is_done(self, key: str, seen: dict[str, dict[str, Any]]) -> bool:
        """Whether all collectives that torch has counted are done according to the entries."""
        group = seen.get(key)
        return group is not None and group["plain"] and group["completed"] >= self._counted[key][0]


def _count(entry: dict[str, Any], group: dict[str, Any]) -> None:
    """Add an entry to the counts of its group."""
    if entry["is_p2p"]:
        group["plain"] = False
        return
    number = int(entry["collective_seq_id"])
    group["enqueued"] = max(group["enqueued"], number)
    if entry["profiling_name"].startswith("gloo:"):
        group["plain"] = entry["op_id"] == number


def as_collectives(entries: Iterable[dict[str, Any]], sites: bool) -> list[dict[str, Any]]:
    """Return entries in the form of a Pulse, with their call sites if `sites`."""
    return [as_collective(entry, sites) for entry in entries]


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


def _records() -> bool:
    """Return whether torch has a flight recorder that is not disabled."""
    return bool(recorders()) and all(os.environ.get(name) != "0" for name in SIZE_VARIABLES)


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
        if not _records():
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
        whole = whole or not all(counts)
        sites = sites or any(recorder.stuck for recorder in self._recorders)
        entries = self._entries(sites) if whole else []
        done = [entry for entry in entries if entry["done"]][-RECENT:]
        active = [entry for entry in entries if not entry["done"]][:ACTIVE]
        older, newest = done[:-RECENT_SITES], done[-RECENT_SITES:]
        return {
            "recorder": True,
            "whole": whole,
            "groups": self._groups(),
            "active": as_collectives(active, sites),
            "recent": as_collectives(older, False) + as_collectives(newest, sites),
        }

    def _groups(self) -> list[dict[str, Any]]:
        recorded = [recorder.groups() for recorder in self._recorders]
        return [*chain(*recorded), *counted([recorder.kind for recorder in self._recorders])]

    def _entries(self, sites: bool) -> list[dict[str, Any]]:
        """Return the entries of all recorders, oldest first."""
        self._learn_names()
        entries = [entry for recorder in self._recorders for entry in recorder.entries(sites)]
        return sorted(entries, key=lambda entry: entry["time_created_ns"])

    def _learn_names(self) -> None:
        self._names.clear()
        self._mixed.clear()
        for name, ranks, backends in members():
            # The default group has all ranks. Omit them, because each rank would report all in every pulse.
            self._names[name] = () if name == DEFAULT else ranks
            if "nccl" in backends and "gloo" in backends:
                self._mixed.append(name)


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


def _brief(entry: dict[str, Any], most: int = 6) -> dict[str, Any]:
    """Return an entry without fields that are None, and with few frames."""
    frames, home = entry.get("frames") or [], torch_home()
    outside = [frame for frame in frames if not str(frame.get("filename")).startswith(home)]
    brief = {name: value for name, value in entry.items() if value is not None}
    return dict(brief, frames=(outside or frames)[:most])
