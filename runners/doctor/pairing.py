"""Which pairs try an all-reduce, and what follows: two rounds, as DLRover's node check has them. Pure.

In the first round each node is in one pair; an odd one joins a pair. In the second, each that was in a bad pair tries
with one of a good pair: who is bad in both is the culprit; where both are good with others, it is what lies between.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

SLOW = 2.0
"""A pair is slow when the median one is more than so many times quicker."""
State = Literal["good", "slow", "wrong", "dead"]
STATES: tuple[State, ...] = ("good", "slow", "wrong", "dead")
"""From the best."""
Members = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one group."""

    members: Members
    size: int
    """Bytes that were reduced."""
    seconds: float | None = None
    """Of one all-reduce, of its slowest member; None when it did not come about."""
    right: bool = True
    """Whether the sums were right."""
    problem: str = ""
    """Why it did not come about: who said what."""

    @property
    def bandwidth(self) -> float | None:
        """Bytes a second on each member's link (nccl-tests' bus bandwidth): comparable between two and three members."""
        if self.seconds is None:
            return None
        count = len(self.members)
        return 2 * (count - 1) / count * self.size / max(self.seconds, 1e-9)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is to blame, by the members' numbers."""

    nodes: dict[int, State]
    links: dict[Members, State]
    """Groups that are bad although each of them works with others, or of which nothing more can be said."""
    nothing_works: bool = False
    """More than two tried, and nobody with success: nobody can be singled out."""


def first_round(count: int) -> list[Members]:
    """Pairs (0,1), (2,3)…; the last of an odd number makes a pair a triple."""
    if count < 2:
        return []
    pairs: list[Members] = [(at, at + 1) for at in range(0, count - 1, 2)]
    if count % 2:
        pairs[-1] = (*pairs[-1], count - 1)
    return pairs


def usual(results: Iterable[Result]) -> float | None:
    """Median bandwidth of what worked; of two the better. None where nothing did."""
    found = [one.bandwidth for one in results if one.bandwidth is not None and one.right]
    return statistics.median_high(found) if found else None


def state(result: Result, reference: float | None) -> State:
    """How a group did; `reference`: the usual bandwidth."""
    if result.bandwidth is None:
        return "dead"
    if not result.right:
        return "wrong"
    return "slow" if reference is not None and result.bandwidth * SLOW < reference else "good"


def second_round(first: Sequence[Result]) -> list[list[Members]]:
    """Groups that clear up what the first round left open; those of one list have nobody in common."""
    reference = usual(first)
    bad = [one.members for one in first if state(one, reference) != "good"]
    suspects = [member for group in bad for member in group]
    good = [
        member for one in first if state(one, reference) == "good" for member in one.members
    ]  # fmt: skip
    if good:
        pairs = [(suspect, good[at % len(good)]) for at, suspect in enumerate(suspects)]
    elif len(suspects) == 3:
        pairs = [(suspects[0], suspects[1]), (suspects[0], suspects[2]), (suspects[1], suspects[2])]
    elif len(suspects) > 3:
        half = len(suspects) // 2
        pairs = [(suspects[at], suspects[at + half]) for at in range(half)]
        pairs += [(suspects[-1], suspects[0])] if len(suspects) % 2 else []
    else:
        pairs = []
    return _waves(pairs)


def _waves(pairs: Sequence[tuple[int, int]]) -> list[list[Members]]:
    """The same pairs, so that nobody is in two of one wave."""
    waves: list[list[Members]] = []
    for pair in pairs:
        for wave in waves:
            if not any(member in group for group in wave for member in pair):
                wave.append(pair)
                break
        else:
            waves.append([pair])
    return waves


def verdict(first: Sequence[Result], second: Sequence[Result]) -> Verdict:
    """What both rounds say together."""
    reference = usual(first) or usual(second)
    states = [(one.members, state(one, reference)) for one in (*first, *second)]
    cleared = {member for members, how in states if how == "good" for member in members}
    bad = [(members, how) for members, how in states if how != "good"]
    everyone = {member for members, _ in states for member in members}
    if not cleared and len(everyone) > 2:
        return Verdict({}, {}, nothing_works=True)
    nodes: dict[int, State] = {}
    for member in sorted(everyone - cleared):
        found = [how for members, how in bad if member in members]
        if len(found) > 1:
            # Who did reduce with somebody is not dead: where it did not, the other may be.
            nodes[member] = _worst([how for how in found if how != "dead"] or found)
    links = {members: how for members, how in bad if not _explained(members, how, nodes)}
    return Verdict(
        nodes,
        {
            members: how
            for members, how in links.items()
            if not any(set(other) < set(members) for other in links)  # a pair says more than its triple
        },
    )


def _explained(members: Members, how: State, nodes: Mapping[int, State]) -> bool:
    """Whether one of a group is known to be as bad as the group was."""
    return any(STATES.index(nodes.get(member, "good")) >= STATES.index(how) for member in members)


def _worst(states: Iterable[State]) -> State:
    return max(states, key=STATES.index)
