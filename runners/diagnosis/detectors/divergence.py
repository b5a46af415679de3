"""Where the collectives of ranks part: at the one that they are in, or at one before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...model import Collective, Pulse
from .. import recorder

SIZED = recorder.SIZED | {"all_gather", "reduce_scatter"}
"""Where ranks wait for each other, other sizes in the lists of these are a sign as well."""


class Split(NamedTuple):
    """One collective that ranks called differently."""

    of: str
    """In what: "operation", "size" (or type), "site"."""
    variants: tuple[tuple[Collective, tuple[int, ...]], ...]
    """What was called, by which ranks; what most called comes first."""


class Shift(NamedTuple):
    """The first collective that one rank did not call like another."""

    mine: Collective
    theirs: Collective
    skipped: bool
    """Whether all that follows fits when the rank left out `theirs`."""
    exact: bool
    """Whether the collective before it is known to be the same on both."""


def calls(pulses: Sequence[Pulse], group: str) -> dict[int, Collective]:
    """What a rank called in a group, by number, as far as its newest pulses tell."""
    found: dict[int, Collective] = {}
    for one in pulses:
        for call in (*one.recent, *one.active):
            if call.group == group and not call.p2p and (call.sites or call.seq not in found):
                found[call.seq] = call
    return found


def called(pulses: Sequence[Pulse], group: str, seq: int) -> Collective | None:
    """One of them."""
    for one in reversed(pulses):
        for call in (*one.active, *reversed(one.recent)):
            if call.seq == seq and call.group == group and not call.p2p:
                return call
    return None


def same(one: Collective, other: Collective) -> bool:
    """Whether two ranks may have called these together, as far as is known."""
    return difference(one, other) is None


def difference(one: Collective, other: Collective) -> str | None:
    """In what two calls differ; None where nothing is known to."""
    if one.op != other.op:
        return "operation"
    if one.what != other.what and one.op in SIZED:
        return "size"
    return "site" if one.sites[:1] != other.sites[:1] and one.sites and other.sites else None


def split(made: Mapping[int, Collective]) -> Split | None:
    """How ranks differ in one collective; the calls by rank."""
    kinds: dict[object, list[int]] = {}
    for rank in sorted(made):
        call = made[rank]
        kinds.setdefault((call.op, call.what if call.op in SIZED else "", call.sites[:1]), []).append(rank)
    groups = sorted(kinds.values(), key=lambda ranks: (-len(ranks), ranks))
    first = made[groups[0][0]] if groups else None
    if first is None:
        return None
    found = [difference(first, made[ranks[0]]) for ranks in groups[1:]]
    for of in ("operation", "size", "site"):
        if of in found:
            return Split(of, _variants(made, groups, of))
    return None


def _variants(
    made: Mapping[int, Collective], groups: Iterable[Sequence[int]], of: str
) -> tuple[tuple[Collective, tuple[int, ...]], ...]:
    """Groups of ranks that differ in this; what differs only in less stays together."""
    found: list[tuple[Collective, list[int]]] = []
    levels = {"operation": ("operation",), "size": ("operation", "size")}.get(
        of, ("operation", "size", "site")
    )
    for ranks in groups:
        call = made[ranks[0]]
        alike = next((one for one in found if difference(one[0], call) not in levels), None)
        if alike is None:
            found.append((call, list(ranks)))
        else:
            alike[1].extend(ranks)
    found.sort(key=lambda one: -len(one[1]))
    return tuple((call, tuple(sorted(ranks))) for call, ranks in found)


def shift(mine: Mapping[int, Collective], theirs: Mapping[int, Collective]) -> Shift | None:
    """The first collective of both in which they part; None where nothing that is known does."""
    common = sorted(mine.keys() & theirs.keys())
    first = next((seq for seq in common if not same(mine[seq], theirs[seq])), None)
    if first is None:
        return None
    later = [seq for seq in common if seq >= first and seq + 1 in theirs]
    fitting = [seq for seq in later if same(mine[seq], theirs[seq + 1])]
    told = all(mine[seq].sites and theirs[seq + 1].sites for seq in fitting)
    skipped = len(fitting) >= (1 if told else 2) and fitting == later
    before = first - 1
    exact = before in common and bool(mine[before].sites and theirs[before].sites)
    return Shift(mine[first], theirs[first], skipped, exact)
