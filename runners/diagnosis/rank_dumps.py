"""Merge the flight recorders of many ranks into one table per process group."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..inrank.collectives import completed
from .call_differences import SIZED, Properties, Variants, parted

# torch's `torchfrtrace` needs the NCCL dumps of all ranks. This module also reads gloo's, and those of a few ranks.

DEFAULT = "0"
"""Name of the group of all ranks."""


def by_rank(data: Mapping[str, str]) -> dict[int, str]:
    """Return the ranks' answers by rank number; other names are left out."""
    return {int(rank): text for rank, text in data.items() if rank.isdecimal()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderPart:
    """One rank's progress in one group, from its recorder."""

    rank: int
    called: int | None
    """Number of its last call; None if the recorder no longer holds it."""
    completed: int | None
    newest: CollectiveCall | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first collective that the ranks called differently."""

    seq: int
    of: str
    """The difference: "operation", "type", "size" or "call site"."""
    variants: Variants[CollectiveCall]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveWait:
    """Ranks that wait in one collective, and the missing ranks."""

    call: CollectiveCall
    ranks: tuple[int, ...]
    since: float
    """Unix time of the first rank's call."""
    missing: tuple[int, ...]
    """Ranks of the group that have not called it; () if all have, or the others' dumps are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderGroup:
    name: str
    desc: str
    ranks: tuple[int, ...]
    """Its members from the recorder, else the ranks that know the group."""
    sure: bool
    """Whether the recorder lists its members."""
    parts: tuple[RecorderPart, ...]
    lowest: tuple[int, ...]
    """Ranks that have called fewer collectives than another; () if all counts are equal."""
    divergences: tuple[Divergence, ...]
    """The first difference in operation, type or size, and the first in call site, if any."""
    waits: tuple[CollectiveWait, ...]

    @property
    def unasked(self) -> tuple[int, ...]:
        """Members whose dumps are missing."""
        return tuple(sorted(set(self.ranks) - {part.rank for part in self.parts}))


def merged_recorders(texts: Mapping[int, str]) -> list[RecorderGroup]:
    """Merge each rank's recorder (JSON text) into groups, sorted by name. Raises ValueError for other text."""
    groups: dict[Key, GroupRecord] = {}
    for rank in sorted(texts):
        read(rank, json.loads(texts[rank]), groups)
    return merged(groups, texts)


def merged(groups: Mapping[Key, GroupRecord], those: Collection[int]) -> list[RecorderGroup]:
    """Return the groups from the recorders that `read` has parsed. `those`: their ranks."""
    groups = _settled(groups)
    for (name, ranks), group in groups.items():
        for rank in those if name == DEFAULT else set(ranks) & set(those):
            group.members.setdefault(rank, GroupMember(called=0, completed=0))
    return [_group(*key, groups[key]) for key in sorted(groups, key=lambda key: (len(key[0]), key))]


def _settled(groups: Mapping[Key, GroupRecord]) -> dict[Key, GroupRecord]:
    """Merge groups of one name if gloo lists the members only on some ranks and only one list fits."""
    settled = dict(groups)
    for name, ranks in groups:
        named = [key for key in groups if key[0] == name and key[1]]
        if not ranks and len(named) == 1:
            group = settled.pop((name, ranks))
            settled[named[0]].members.update(group.members)
    return settled


def _group(name: str, ranks: tuple[int, ...], record: GroupRecord) -> RecorderGroup:
    members = record.members
    parts = tuple(
        RecorderPart(
            rank=rank,
            called=member.called,
            completed=member.completed,
            newest=member.calls[max(member.calls)] if member.calls else None,
        )
        for rank, member in sorted(members.items())
    )
    called = [part.called for part in parts if part.called is not None]
    return RecorderGroup(
        name=name,
        desc=record.desc,
        ranks=ranks or tuple(sorted(members)),
        sure=bool(ranks),
        parts=parts,
        lowest=tuple(
            part.rank
            for part in parts
            if part.called is not None and min(called) == part.called < max(called)
        ),
        divergences=_divergences(members),
        waits=tuple(_waits(members)),
    )


def _waits(members: Mapping[int, GroupMember]) -> Iterable[CollectiveWait]:
    """Yield each rank's oldest incomplete collective, lowest numbers first."""
    pending: dict[int, list[tuple[int, CollectiveCall]]] = {}
    for rank, member in members.items():
        open_ones = [call for call in member.calls.values() if not call.done]
        if open_ones:
            oldest = min(open_ones, key=lambda call: call.seq)
            pending.setdefault(oldest.seq, []).append((rank, oldest))
    for seq, those in sorted(pending.items()):
        first = min(those, key=lambda pair: pair[1].created)
        yield CollectiveWait(
            call=first[1],
            ranks=tuple(sorted(rank for rank, _ in those)),
            since=first[1].created,
            missing=tuple(
                sorted(rank for rank, it in members.items() if it.called is not None and it.called < seq)
            ),
        )


def _divergences(members: Mapping[int, GroupMember]) -> tuple[Divergence, ...]:
    """Compare the collectives that at least two ranks still hold."""
    first_of: dict[str, Divergence] = {}
    numbers = sorted({seq for member in members.values() for seq in member.calls})
    for seq in numbers:
        calls = {rank: member.calls[seq] for rank, member in members.items() if seq in member.calls}
        parting = parted(calls, _PROPERTIES)
        if parting is not None:
            of, variants = parting
            kind = "site" if of == "call site" else "call"
            first_of.setdefault(kind, Divergence(seq=seq, of=of, variants=variants))
        if "call" in first_of:
            break
    return tuple(sorted(first_of.values(), key=lambda divergence: divergence.seq))


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCall:
    seq: int
    """Sequence number in the group, from 1."""
    op: str
    """Operation without the backend: "all_reduce"."""
    dtypes: str = ""
    """Types of its inputs: "Float"; "" without inputs."""
    sizes: str = ""
    """ "[20]"."""
    site: str = ""
    """ "file:line function" of the caller outside torch; "" if unknown."""
    created: float = 0.0
    """Unix time of the call on its node's clock."""
    done: bool = False

    @property
    def what(self) -> str:
        """ "all_reduce Float[20]"."""
        return f"{self.op} {self.dtypes}{self.sizes}".rstrip()


_PROPERTIES: Properties[CollectiveCall] = {
    "operation": lambda call: call.op,
    "type": lambda call: call.dtypes if call.op in SIZED else "",
    "size": lambda call: call.sizes if call.op in SIZED else "",
    "call site": lambda call: short_site(call.site) or None,
}


@dataclass(slots=True)
class GroupMember:
    calls: dict[int, CollectiveCall] = field(default_factory=dict)
    called: int | None = None
    """Number of its newest call; None if the recorder no longer holds it. `completed` works in the same way."""
    completed: int | None = None


@dataclass(slots=True)
class GroupRecord:
    """A group during the merge."""

    desc: str = ""
    members: dict[int, GroupMember] = field(default_factory=dict)


Key = tuple[str, tuple[int, ...]]
"""A group's name and its members, if known: groups from one split share a name."""


def read(rank: int, dump: Any, groups: dict[Key, GroupRecord]) -> None:
    """Add one rank's recorders to `groups`. Raises ValueError if the dump is invalid."""
    if not isinstance(dump, dict):
        raise ValueError("it is not from the flight recorder")
    members = dump.get("members")
    names: set[str] = set()
    for recorder in dump.get("recorders") or [dump]:
        names |= _read(rank, recorder, members if isinstance(members, dict) else {}, groups, names)


def _read(
    rank: int, dump: Any, members: Mapping[str, Any], groups: dict[Key, GroupRecord], taken: set[str]
) -> set[str]:
    """Read one recorder and return its groups' names. `taken`: names of NCCL groups, which gloo groups may repeat."""
    status: Mapping[str, Any] = dump.get("pg_status") or {}
    config: Mapping[str, Any] = dump.get("pg_config") or {}
    names = set()
    for number, entries in _by_group(dump.get("entries") or (), status).items():
        name, desc = _names(entries, config.get(number), number)
        if not entries and name in taken:
            continue
        names.add(name)
        ranks = _listed(members.get(name)) or _ranks(config, number, len(status))
        group = groups.setdefault((f"{name}/gloo" if name in taken else name, ranks), GroupRecord())
        group.desc = group.desc or desc
        group.members[rank] = _member(entries)
    return names


def _by_group(entries: Iterable[Any], status: Iterable[Any]) -> dict[str, list[Any]]:
    """Return the entries of each group by its number, also of groups without entries."""
    by_group: dict[str, list[Any]] = {str(number): [] for number in status}
    for entry in entries:
        if isinstance(entry, dict):
            by_group.setdefault(str(entry.get("pg_id")), []).append(entry)
    return by_group


def _member(entries: Iterable[Any]) -> GroupMember:
    """Return the rank's progress by its entries: torch's own counts include sends and receives."""
    calls: dict[int, CollectiveCall] = {}
    for entry in _without_coalesced(entries):
        call = _call(entry)
        if call is not None:
            calls[call.seq] = call
    if not calls:
        return GroupMember()
    done = [seq for seq, call in calls.items() if call.done]
    return GroupMember(calls, max(calls), max(done) if done else min(calls) - 1)


def _without_coalesced(entries: Iterable[Any]) -> Iterable[Any]:
    """Mark the parts of a coalesced call as retired if the call is: torch never retires the parts."""
    done: dict[Any, bool] = {}
    kept = list(entries)
    for entry in kept:
        if str(entry.get("profiling_name")).endswith(":coalesced"):
            done[_numbers(entry)] = completed(entry)
    return [entry | {"retired": True} if done.get(_numbers(entry)) else entry for entry in kept]


def _numbers(entry: Any) -> tuple[Any, Any]:
    return entry.get("collective_seq_id"), entry.get("p2p_seq_id")


def _names(entries: list[Any], config: Any, number: str) -> tuple[str, str]:
    for entry in entries[:1]:
        pair = [str(part) for part in entry.get("process_group") or ()]
        if len(pair) == 2:
            return pair[0], "" if pair[1] == "undefined" else pair[1]
    settings = config if isinstance(config, dict) else {}
    return str(settings.get("name") or number), str(settings.get("desc") or "")


def _ranks(config: Mapping[str, Any], number: str, groups: int) -> tuple[int, ...]:
    """Return a group's ranks. gloo has one entry without a name, which belongs to the only group."""
    settings = config.get(number) or (config.get("") if groups == 1 else None)
    text = settings.get("ranks") if isinstance(settings, dict) else None
    try:
        return _listed(json.loads(text) if isinstance(text, str) else text)
    except ValueError:
        return ()


def _listed(value: Any) -> tuple[int, ...]:
    return tuple(sorted(rank for rank in value or () if isinstance(rank, int)))


def _number(value: Any) -> int | None:
    try:
        return max(0, int(value))
    except (TypeError, ValueError):
        return None


def _call(entry: Any) -> CollectiveCall | None:
    """Return the call; None for a send, a receive, or an entry without a number."""
    seq = _number(entry.get("collective_seq_id"))
    if not seq or entry.get("is_p2p"):
        return None
    name = str(entry.get("profiling_name") or "n/a")
    return CollectiveCall(
        seq=seq,
        op=name.partition(":")[2] or name,
        dtypes=",".join(dict.fromkeys(map(str, entry.get("input_dtypes") or ()))),
        sizes=",".join(str(size).replace(" ", "") for size in entry.get("input_sizes") or ()),
        site=_site(entry.get("frames") or ()),
        created=(_number(entry.get("time_created_ns")) or 0) / 1e9,
        done=completed(entry),
    )


def _site(frames: Iterable[Any]) -> str:
    """Return the innermost frame outside torch."""
    for frame in frames:
        if not isinstance(frame, dict):
            continue
        path = str(frame.get("filename"))
        if "/torch/" not in path:
            return f"{path}:{frame.get('line')} {frame.get('name')}"
    return ""


def short_site(site: str) -> str:
    """Return a site with the last two parts of its path: nodes may keep the same files in different directories."""
    return "/".join(site.rsplit("/", 2)[-2:])
