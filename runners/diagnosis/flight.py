"""Flight recorders of many ranks merged into one table a process group: who is how far, who waits, where they part.

Torch's own `torchfrtrace` needs NCCL's dumps of all ranks; this reads gloo's as well, and of some ranks only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .recorder import SIZED, Call, Key, Known, Member, place, read

DEFAULT = "0"
"""Name of the group of all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one rank's recorder says of one group."""

    rank: int
    called: int | None
    """Number of the collective that it called last; None where the recorder no longer says."""
    completed: int | None
    newest: Call | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first collective that the ranks did not call alike."""

    seq: int
    of: str
    """In what: "operation", "type", "size" or "call site"."""
    variants: tuple[tuple[Call, tuple[int, ...]], ...]
    """What was called, by which ranks; what most called comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Ranks that wait in one collective, and who is not in it."""

    call: Call
    ranks: tuple[int, ...]
    since: float
    """Unix time at which the first of them called it."""
    missing: tuple[int, ...]
    """Ranks of the group that have not called it; () where all have, or those that have not were not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One process group."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    """Its members as the recorder has them; where it does not say, those that know the group."""
    sure: bool
    """Whether the recorder says who its members are."""
    parts: tuple[Part, ...]
    lowest: tuple[int, ...]
    """Ranks that have called fewer collectives than another; () where all are alike."""
    divergences: tuple[Divergence, ...]
    """The first in operation, type or size, and the first in call site, where there are such."""
    waits: tuple[Wait, ...]

    @property
    def unasked(self) -> tuple[int, ...]:
        """Members whose recorders are not here."""
        return tuple(sorted(set(self.ranks) - {part.rank for part in self.parts}))


def merged(texts: Mapping[int, str]) -> list[Group]:
    """Groups in the order of their names, out of each rank's recorder as JSON text. Raises ValueError for other text."""
    known: dict[Key, Known] = {}
    for rank in sorted(texts):
        read(rank, json.loads(texts[rank]), known)
    known = _settled(known)
    for (name, ranks), group in known.items():
        for rank in texts if name == DEFAULT else set(ranks) & set(texts):
            group.members.setdefault(rank, Member(called=0, completed=0))
    return [_group(*key, known[key]) for key in sorted(known, key=lambda key: (len(key[0]), key))]


def _settled(known: Mapping[Key, Known]) -> dict[Key, Known]:
    """gloo names a group's members on some ranks only: where one group fits, it is the same."""
    settled = dict(known)
    for name, ranks in known:
        named = [key for key in known if key[0] == name and key[1]]
        if not ranks and len(named) == 1:
            group = settled.pop((name, ranks))
            settled[named[0]].members.update(group.members)
    return settled


def _group(name: str, ranks: tuple[int, ...], known: Known) -> Group:
    members = known.members
    parts = tuple(
        Part(
            rank=rank,
            called=one.called,
            completed=one.completed,
            newest=one.calls[max(one.calls)] if one.calls else None,
        )
        for rank, one in sorted(members.items())
    )
    called = [part.called for part in parts if part.called is not None]
    return Group(
        name=name,
        desc=known.desc,
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


def _waits(members: Mapping[int, Member]) -> Iterable[Wait]:
    """Of each rank the oldest collective that it has not completed; lowest numbers first."""
    found: dict[int, list[tuple[int, Call]]] = {}
    for rank, member in members.items():
        open_ones = [call for call in member.calls.values() if not call.done]
        if open_ones:
            oldest = min(open_ones, key=lambda call: call.seq)
            found.setdefault(oldest.seq, []).append((rank, oldest))
    for seq, those in sorted(found.items()):
        first = min(those, key=lambda one: one[1].created)
        yield Wait(
            call=first[1],
            ranks=tuple(sorted(rank for rank, _ in those)),
            since=first[1].created,
            missing=tuple(
                sorted(rank for rank, one in members.items() if one.called is not None and one.called < seq)
            ),
        )


def _divergences(members: Mapping[int, Member]) -> tuple[Divergence, ...]:
    """Over the numbers that two ranks or more still hold."""
    found: dict[str, Divergence] = {}
    numbers = sorted({seq for one in members.values() for seq in one.calls})
    for seq in numbers:
        calls = {rank: one.calls[seq] for rank, one in members.items() if seq in one.calls}
        of = _parting(list(calls.values()))
        kind = "site" if of == "call site" else "call"
        if of and kind not in found:
            found[kind] = Divergence(seq=seq, of=of, variants=_variants(calls, of))
        if "call" in found:
            break
    return tuple(sorted(found.values(), key=lambda one: one.seq))


def _parting(calls: list[Call]) -> str:
    """In what they are not alike; "" where they are."""
    if len({call.op for call in calls}) > 1:
        return "operation"
    if calls and calls[0].op in SIZED:
        if len({call.dtypes for call in calls}) > 1:
            return "type"
        if len({call.sizes for call in calls}) > 1:
            return "size"
    return "call site" if len({place(call) for call in calls if call.site}) > 1 else ""


def _variants(calls: Mapping[int, Call], of: str) -> tuple[tuple[Call, tuple[int, ...]], ...]:
    by: dict[tuple[str, ...], list[int]] = {}
    for rank, call in sorted(calls.items()):
        by.setdefault(
            (place(call),) if of == "call site" else (call.op, call.dtypes, call.sizes), []
        ).append(rank)
    ordered = sorted(by.values(), key=lambda ranks: (-len(ranks), ranks[0]))
    return tuple((calls[ranks[0]], tuple(ranks)) for ranks in ordered)
