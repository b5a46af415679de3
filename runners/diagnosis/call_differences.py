"""Compare the calls that ranks made as one collective, and the calls of two ranks in sequence. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, TypeVar

from ..run.pulse import Collective, Pulse

C = TypeVar("C")
K = TypeVar("K")
Properties = Mapping[str, Callable[[C], object]]
"""Properties that the calls of one collective share, the most important first. None is unknown and differs from none."""
Variants = tuple[tuple[C, tuple[int, ...]], ...]
"""The different calls with their ranks, the most common first."""

_SIZED = """
    all_reduce allreduce broadcast reduce _all_gather_base _reduce_scatter_base all_gather_into_tensor
    reduce_scatter_tensor _reduce_oop _broadcast_oop
"""
SIZED = frozenset(_SIZED.split())
"""Collectives whose inputs must have one size on all ranks. In other collectives sizes may differ."""
_SIZED_LIVE = SIZED | {"all_gather", "reduce_scatter"}
"""Includes the list variants: while ranks wait for each other, a difference in their sizes also counts."""


def alike(values: Mapping[int, K]) -> list[tuple[K, tuple[int, ...]]]:
    """Return equal values with their ranks: the most common first, then by lowest rank."""
    owners: dict[K, list[int]] = {}
    for rank in sorted(values):
        owners.setdefault(values[rank], []).append(rank)
    return [(value, tuple(ranks)) for value, ranks in sorted(owners.items(), key=lambda it: -len(it[1]))]


def parted(made: Mapping[int, C], properties: Properties[C]) -> tuple[str, Variants[C]] | None:
    """Return the most important property that differs, and the variants; None without a difference. `made`: by rank."""
    for of, value in properties.items():
        groups = alike({rank: value(call) for rank, call in made.items()})
        known = [ranks for each, ranks in groups if each is not None]
        if len(known) < 2 or groups[0][0] is None:
            continue
        unknown = chain(*(ranks for each, ranks in groups if each is None))
        usual = made[known[0][0]], tuple(sorted((*known[0], *unknown)))
        return of, (usual, *((made[ranks[0]], ranks) for ranks in known[1:]))
    return None


_PROPERTIES: Properties[Collective] = {
    "operation": lambda call: call.op,
    "size": lambda call: call.what if call.op in _SIZED_LIVE else "",
    "site": lambda call: call.sites[0] if call.sites else None,
}


class Split(NamedTuple):
    """One collective with different calls."""

    of: str
    """The difference: "operation", "size" (or type), "site"."""
    variants: Variants[Collective]


def split(made: Mapping[int, Collective]) -> Split | None:
    """Compare the ranks' calls in one collective. `made`: call by rank."""
    parting = parted(made, _PROPERTIES)
    return None if parting is None else Split(*parting)


def difference(mine: Collective, theirs: Collective) -> str | None:
    """Return the most important property that differs between two calls; None without a visible difference."""
    for of, value in _PROPERTIES.items():
        one, other = value(mine), value(theirs)
        if one != other and one is not None and other is not None:
            return of
    return None


class Shift(NamedTuple):
    """The first collective that two ranks called differently."""

    mine: Collective
    theirs: Collective
    skipped: bool
    """Whether all later calls fit if this rank skipped `theirs`."""
    exact: bool
    """Whether both ranks' previous collective is known, with call sites."""


def shift(mine: Mapping[int, Collective], theirs: Mapping[int, Collective]) -> Shift | None:
    """Return the first collective that two ranks called differently; None without a visible difference."""
    common = sorted(mine.keys() & theirs.keys())
    first = next((seq for seq in common if difference(mine[seq], theirs[seq])), None)
    if first is None:
        return None
    before = first - 1
    exact = before in common and bool(mine[before].sites and theirs[before].sites)
    return Shift(mine[first], theirs[first], _has_skipped(mine, theirs, first), exact)


def _has_skipped(mine: Mapping[int, Collective], theirs: Mapping[int, Collective], first: int) -> bool:
    """Whether all calls from `first` on fit the other rank's next one."""
    later = [seq for seq in mine.keys() & theirs.keys() if seq >= first and seq + 1 in theirs]
    if any(difference(mine[seq], theirs[seq + 1]) for seq in later):
        return False
    located = all(mine[seq].sites and theirs[seq + 1].sites for seq in later)
    return len(later) >= (1 if located else 2)


USUAL_TIMES = 3
"""Minimum number of times that a rank has made a call in its usual order."""


def left_out_between(pulses: Sequence[Pulse], call: Collective, group: str) -> bool:
    """Whether a rank made this call without a call of another group that it always made since the one before.

    All its calls of both groups are compared by time.
    """
    own = sorted(calls(pulses, call.group).values(), key=lambda it: it.seq)
    times = [each.created for each in own if each.seq <= call.seq]
    others = [each.created for each in calls(pulses, group).values()]
    between = [sum(before < at <= after for at in others) for before, after in pairwise(times)]
    if len(between) <= USUAL_TIMES or not others:
        return False
    first = next(
        (number for number, count in enumerate(between) if count), None
    )  # older calls are not kept
    usual = between[first:-1] if first is not None else []
    return len(usual) >= USUAL_TIMES and len(set(usual)) == 1 and between[-1] < usual[0]


def calls(pulses: Sequence[Pulse], group: str) -> dict[int, Collective]:
    """Return a rank's calls in a group by number, from its newest pulses."""
    by_seq: dict[int, Collective] = {}
    for pulse in pulses:
        for call in (*pulse.recent, *pulse.active):
            if call.group == group and not call.p2p and (call.sites or call.seq not in by_seq):
                by_seq[call.seq] = call
    return by_seq
