"""What torch's flight recorder says of this rank's collectives, in the form of runners/model.py.

Three ways to look, because 2,000 entries cost 10 ms and their stacks half as much again: the counts of the groups
alone (0.03 ms), every entry, or every entry with who called it.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterable
from functools import partial
from operator import methodcaller
from types import ModuleType
from typing import Any

DEFAULT = "0"
"""Name of the group of all ranks."""
ACTIVE, RECENT, RECENT_SITES, SITES = 16, 64, 8, 12
SIZE_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
RECORDERS = ("nccl", "fr")
"""NCCL builds have one for NCCL and one for everything else: names of torch's functions, _dump_NAME_trace."""


def alone(*steps: Callable[[], Any]) -> list[Any]:
    """What each of them returns; none may execute Python. Nothing else of this interpreter runs in between."""
    return [*map(methodcaller("__call__"), steps)]


def dumped(dump: Callable[..., bytes], sites: bool) -> list[dict[str, Any]]:
    """The entries of one of torch's recorders, with "frames" where `sites`."""
    torch, raw = sys.modules["torch"], partial(dump, True, sites, False)
    if not sites or "_inductor" in vars(torch):
        return unpickled(raw())
    # To name frames, torch asks itself for _inductor, which is imported by that: 800 modules, 70 MB, a second, and
    # beside a script that may be importing, too. So it finds an empty one.
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
    """The entries of a dump. So many objects at once would set off a collection of all garbage, of 0.1 s."""
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


def places(frames: Iterable[Any], torch_home: str) -> list[list[Any]]:
    """[file, line, function] of who called, innermost first, without torch's own; its innermost where it is alone."""
    sites = [[frame["filename"], frame["line"], frame["name"]] for frame in frames]
    own = [site for site in sites if not site[0].startswith(torch_home)]
    return own[:SITES] or sites[:1]


def inputs(sizes: list[list[int]], dtypes: list[str]) -> str:
    """ "Float[20]", "Float[2, 3] ×2 Long[1]": equal neighbours are counted, at most 4 different ones are named."""
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
    """Whether an entry of torch's is done. gloo's stay "scheduled" for ever: that they are retired is what tells."""
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def members() -> list[tuple[str, tuple[int, ...], str]]:
    """Name, global ranks and backends of each process group: the recorders know only the ranks of NCCL's."""
    world: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    groups = []
    for group, name in list(getattr(world, "pg_names", {}).items()):
        ranks = tuple(sorted(world.pg_group_ranks.get(group, ())))
        groups.append((str(name), ranks, str(world.pg_backend_config.get(group, ""))))
    return groups


class _Recorder:
    """One of torch's flight recorders, and what is remembered of its groups from one look to the next."""

    def __init__(self, core: Any, kind: str, names: dict[str, tuple[int, ...]], mixed: list[str]) -> None:
        self._dump = getattr(core, "_dump_%s_trace" % kind)
        self._json = getattr(core, "_dump_%s_trace_json" % kind, None)
        self._kind = kind
        self.names, self.mixed = names, mixed
        """Ranks by name of a group; names of groups that have NCCL and gloo."""
        self._groups: dict[str, dict[str, Any]] = {}
        """By torch's number of the group: as told last, and "plain": whether its counts are those of collectives."""
        self._counted: dict[str, tuple[int, int]] = {}
        self.stuck = False
        """Whether a group waits and has not moved from one look to the next."""

    def counts(self) -> bool:
        """Look at the counts; False where every entry has to be seen: a group is new, or waits and did not move."""
        if self._json is not None:
            status = json.loads(self._json(False)).get("pg_status", {})
        else:
            status = pickle.loads(self._dump(False, False, False)).get("pg_status", {})
        counted = {
            str(number): (int(pg["last_enqueued_collective"]), int(pg["last_completed_collective"]))
            for number, pg in status.items()
        }
        self.stuck = any(
            now[0] > now[1] and self._counted.get(number) == now for number, now in counted.items()
        )
        self._counted = counted
        if self.stuck or not self._groups.keys() >= counted.keys():
            return False
        for number, (enqueued, completed) in counted.items():
            if self._groups[number]["plain"]:
                self._groups[number].update(enqueued=max(0, enqueued), completed=max(0, completed))
        return True

    def groups(self) -> list[dict[str, Any]]:
        """As they were at the last look, without those that were destroyed or whose name nothing tells."""
        return [
            {key: group[key] for key in group if key != "plain"}
            for group in self._groups.values()
            if group["name"] and (not self.names or self._members(group["name"]) is not None)
        ]

    def _members(self, name: str) -> tuple[int, ...] | None:
        return self.names.get(name.partition("/")[0])

    def entries(self, sites: bool) -> list[dict[str, Any]]:
        """Every collective that it holds, oldest first, as torch has it, with "done" and "group"."""
        entries = dumped(self._dump, sites)
        coalesced: dict[tuple[Any, Any, Any], bool] = {}
        for entry in reversed(entries):
            entry["done"] = completed(entry)
            # The members of a coalesced call have no events, and are never retired: the call itself tells.
            key = (entry["pg_id"], entry["collective_seq_id"], entry["p2p_seq_id"])
            if entry["profiling_name"].endswith(":coalesced"):
                coalesced[key] = entry["done"]
            elif key in coalesced:
                entry["done"] = True
            entry["group"] = self._name(entry)
        if self.names:
            # What a group left behind that was destroyed waits for nobody.
            kept = [entry for entry in entries if entry["done"] or entry["process_group"][0] in self.names]
        else:
            kept = entries
        self._learn(kept)
        return kept

    def _name(self, entry: dict[str, Any]) -> str:
        name = str(entry["process_group"][0])
        return name + "/gloo" if self._kind == "fr" and name in self.mixed else name

    def _learn(self, entries: list[dict[str, Any]]) -> None:
        """Counts from the entries themselves: torch's own also count sends and receives, each backend in its way."""
        seen: dict[str, dict[str, Any]] = {}
        for entry in entries:
            group = seen.setdefault(
                str(entry["pg_id"]),
                {"name": entry["group"], "desc": str(entry["process_group"][1]), "plain": True,
                 "enqueued": 0, "waits": None},
            )  # fmt: skip
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
        for key in self._counted.keys() - self._groups.keys():
            self._groups[key] = {"name": "", "plain": False}  # its entries have left the buffer


def as_collective(entry: dict[str, Any], torch_home: str, sites: bool) -> dict[str, Any]:
    """One entry as a Collective."""
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
        collective["sites"] = places(entry.get("frames", ()), torch_home)
    return collective


def _started(entry: dict[str, Any]) -> bool | None:
    """Without timing there is no event that tells that a kernel began."""
    if entry["done"] or entry["state"] == "started":
        return True
    return False if os.environ.get("TORCH_NCCL_ENABLE_TIMING", "").lower() in ("1", "true", "yes") else None


class Collectives:
    """Looks at the flight recorders of this process once it has a process group."""

    def __init__(self) -> None:
        self._recorders: list[_Recorder] = []
        self._names: dict[str, tuple[int, ...]] = {}
        self._mixed: list[str] = []

    def sample(self, whole: bool, sites: bool) -> dict[str, Any]:
        """ "recorder", "whole", "groups", "active" and "recent" of a Pulse; {} before torch is imported.

        With `whole` every entry is looked at, with `sites` also who called it. Where a group waits and has not moved
        since the last look, both are done in any case.
        """
        torch, distributed = sys.modules.get("torch"), sys.modules.get("torch.distributed")
        core = getattr(getattr(torch, "_C", None), "_distributed_c10d", None)
        if core is None or distributed is None:
            return {}
        kinds = [kind for kind in RECORDERS if hasattr(core, "_dump_%s_trace" % kind)]
        if not kinds or any(os.environ.get(name) == "0" for name in SIZE_VARIABLES):
            return {"recorder": False}
        if not getattr(distributed, "is_initialized", bool)():
            # The recorder reads its settings when it is first looked at: that is for the script to come first.
            self._recorders.clear()
            return {"recorder": True}
        if not self._recorders:
            self._recorders = [_Recorder(core, kind, self._names, self._mixed) for kind in kinds]
        return self._read(os.path.dirname(str(torch.__file__)) + os.sep, whole, sites)  # type: ignore[union-attr]

    def _read(self, torch_home: str, whole: bool, sites: bool) -> dict[str, Any]:
        counted = [recorder.counts() for recorder in self._recorders]
        stuck = any(recorder.stuck for recorder in self._recorders)
        entries: list[dict[str, Any]] = []
        if whole or not all(counted):
            whole, sites = True, sites or stuck
            self._learn_names()
            entries = [entry for recorder in self._recorders for entry in recorder.entries(sites)]
            entries.sort(key=lambda entry: entry["time_created_ns"])
        active = [entry for entry in entries if not entry["done"]][:ACTIVE]
        done = [entry for entry in entries if entry["done"]][-RECENT:]
        return {
            "recorder": True,
            "whole": whole,
            "groups": [group for recorder in self._recorders for group in recorder.groups()],
            "active": [as_collective(entry, torch_home, sites) for entry in active],
            "recent": [
                as_collective(entry, torch_home, sites and number >= len(done) - RECENT_SITES)
                for number, entry in enumerate(done)
            ],
        }

    def _learn_names(self) -> None:
        self._names.clear()
        self._mixed.clear()
        for name, ranks, backends in members():
            # That the default group has all of them is known, and would be said by each of them every time.
            self._names[name] = () if name == DEFAULT else ranks
            if "nccl" in backends and "gloo" in backends:
                self._mixed.append(name)
