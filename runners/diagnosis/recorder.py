"""One rank's flight recorder, as torch writes it for NCCL and for gloo, into calls by process group. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..inrank.collectives import completed

SIZED = frozenset(
    {"all_reduce", "allreduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base",
     "all_gather_into_tensor", "reduce_scatter_tensor", "_reduce_oop", "_broadcast_oop"}
)  # fmt: skip
"""Collectives that every rank calls with inputs of one size; of others the sizes may differ rightly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective as one rank called it."""

    seq: int
    """Its number in the group, from 1."""
    op: str
    """Without the backend: "all_reduce"."""
    dtypes: str = ""
    """Of its inputs: "Float"; "" where there are none."""
    sizes: str = ""
    """ "[20]"."""
    site: str = ""
    """ "file:line function" of who called it outside torch; "" where that is not known."""
    created: float = 0.0
    """Unix time, by its node's clock."""
    done: bool = False

    @property
    def what(self) -> str:
        """ "all_reduce Float[20]"."""
        return f"{self.op} {self.dtypes}{self.sizes}".rstrip()


@dataclass(slots=True)
class Member:
    """One rank's part in a group."""

    calls: dict[int, Call] = field(default_factory=dict)
    called: int | None = None
    """Number of its newest call; None where the recorder no longer says. So is `completed`."""
    completed: int | None = None


@dataclass(slots=True)
class Known:
    """What is known of a group so far."""

    desc: str = ""
    members: dict[int, Member] = field(default_factory=dict)


Key = tuple[str, tuple[int, ...]]
"""A group's name and, where they are known, its members: groups that were split off together share a name."""


def read(rank: int, told: Any, known: dict[Key, Known]) -> None:
    """Add what one rank's recorders hold. Raises ValueError for what is none."""
    if not isinstance(told, dict):
        raise ValueError("it is no flight recorder's")
    members = told.get("members")
    names: set[str] = set()
    for one in told.get("recorders") or [told]:
        names |= _read(rank, one, members if isinstance(members, dict) else {}, known, names)


def _read(
    rank: int, told: Any, members: Mapping[str, Any], known: dict[Key, Known], taken: set[str]
) -> set[str]:
    """One recorder: NCCL's, or that of all else, whose groups may have the names of NCCL's (`taken`). Their names."""
    entries = [one for one in told.get("entries") or () if isinstance(one, dict)]
    status: Mapping[str, Any] = told.get("pg_status") or {}
    config: Mapping[str, Any] = told.get("pg_config") or {}
    names = set()
    for number in dict.fromkeys([*map(str, status), *(str(one.get("pg_id")) for one in entries)]):
        mine = [one for one in entries if str(one.get("pg_id")) == number]
        name, desc = _names(mine, config.get(number), number)
        ranks = _listed(members.get(name)) or _ranks(config, number, len(status))
        if not mine and name in taken:
            continue
        names.add(name)
        group = known.setdefault((f"{name}/gloo" if name in taken else name, ranks), Known())
        group.desc = group.desc or desc
        calls = {call.seq: call for entry in _settled(mine) if (call := _call(entry)) is not None}
        group.members[rank] = _member(calls)
    return names


def _member(calls: dict[int, Call]) -> Member:
    """How far the rank is, by its entries: torch's own counts have sends and receives in them."""
    if not calls:
        return Member()
    done = [seq for seq, call in calls.items() if call.done]
    return Member(calls, max(calls), max(done) if done else min(calls) - 1)


def _settled(entries: Iterable[Any]) -> Iterable[Any]:
    """The parts of a coalesced call are never retired: the call itself tells."""
    done: dict[Any, bool] = {}
    told = list(entries)
    for entry in told:
        if str(entry.get("profiling_name")).endswith(":coalesced"):
            done[_numbers(entry)] = completed(entry)
    return [entry | {"retired": True} if done.get(_numbers(entry)) else entry for entry in told]


def _numbers(entry: Any) -> tuple[Any, Any]:
    return entry.get("collective_seq_id"), entry.get("p2p_seq_id")


def _names(entries: list[Any], config: Any, number: str) -> tuple[str, str]:
    for entry in entries[:1]:
        pair = [str(one) for one in entry.get("process_group") or ()]
        if len(pair) == 2:
            return pair[0], "" if pair[1] == "undefined" else pair[1]
    said = config if isinstance(config, dict) else {}
    return str(said.get("name") or number), str(said.get("desc") or "")


def _ranks(config: Mapping[str, Any], number: str, groups: int) -> tuple[int, ...]:
    """gloo keeps one entry without a name, which is that of the only group where there is one."""
    said = config.get(number) or (config.get("") if groups == 1 else None)
    text = said.get("ranks") if isinstance(said, dict) else None
    try:
        return _listed(json.loads(text) if isinstance(text, str) else text)
    except ValueError:
        return ()


def _listed(value: Any) -> tuple[int, ...]:
    return tuple(sorted(one for one in value or () if isinstance(one, int)))


def _number(value: Any) -> int | None:
    try:
        return max(0, int(value))
    except (TypeError, ValueError):
        return None


def _call(entry: Any) -> Call | None:
    """None for what is no collective: a send, a receive, or an entry without a number."""
    seq = _number(entry.get("collective_seq_id"))
    if not seq or entry.get("is_p2p"):
        return None
    op = str(entry.get("profiling_name") or "").partition(":")[2] or str(
        entry.get("profiling_name") or "n/a"
    )
    return Call(
        seq=seq,
        op=op,
        dtypes=",".join(dict.fromkeys(map(str, entry.get("input_dtypes") or ()))),
        sizes=",".join(str(size).replace(" ", "") for size in entry.get("input_sizes") or ()),
        site=_site(entry.get("frames") or ()),
        created=(_number(entry.get("time_created_ns")) or 0) / 1e9,
        done=completed(entry),
    )


def _site(frames: Iterable[Any]) -> str:
    """Of the innermost frame outside torch."""
    for frame in frames:
        if not isinstance(frame, dict):
            continue
        path = str(frame.get("filename"))
        if "/torch/" not in path:
            return f"{path}:{frame.get('line')} {frame.get('name')}"
    return ""


def place(call: Call) -> str:
    """Nodes may keep the same files under different directories."""
    return "/".join(call.site.rsplit("/", 2)[-2:])
