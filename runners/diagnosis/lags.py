"""Find the ranks that the others wait for in most steps, from the arrivals at the same collectives. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .arrivals import Arrivals, GroupArrivals, Step

CLOCKS_S = 0.02
"""Maximum clock difference between two nodes in seconds."""
COLLECTIVES = 20
"""Minimum number of collectives for a finding."""
STEPS = 6
"""Minimum number of steps for a finding: a single pause may be validation or a checkpoint."""
SPAN_S, SHORT_S = 10.0, 5.0
"""Minimum seconds for a finding. SHORT_S applies if the share is at least HIGH."""
HIGH = 0.20
WINDOW_S = 30.0
"""Window in seconds. Older samples count only if newer ones are too few."""
HEAVIEST_S = 2.0
"""Maximum weight of a step in seconds. Steps are weighted by length, so that many short earlier steps do not outvote
slow recent ones; a pause counts only up to this limit."""
AGREE = 0.8
"""Minimum share of the steps with the same rank as the last."""
LEAST = 0.10
"""Minimum lost share of the step for a finding."""
LEAST_S = 0.005
"""Minimum lost seconds per step for a finding."""
INTERRUPTED = 3
"""Consecutive steps with another rank as the last that separate earlier steps from the finding."""
SURE, FEW = 3.5, 4
"""Required distance of the mean wait from 0 in standard errors. The factor 1 + FEW / n raises it for few steps n."""
KEEPS = 0.7
"""Factor on these limits for an earlier finding, so that it does not flicker."""
OLD_S = 60.0
"""Maximum age of the newest collective in seconds, or five steps if that is longer."""
SAMPLED = 64
"""Number of members that represent a large group, in addition to those that were last."""


Who = tuple[int | None, int]
"""Rank, or None for a whole node, and the node."""


class Lag(NamedTuple):
    """A rank or a node that the others wait for."""

    rank: int | None
    """None if several ranks of `node` are last in turn."""
    node: int
    share: float
    """Lost share of each step, from 0 to 1."""
    step_s: float
    stepwise: bool
    """Whether `step_s` is an optimizer step instead of a piece of time."""
    since: float
    """Unix time since which this rank is the last, within the known collectives."""
    members: int
    """Number of ranks in the group."""
    timed: bool
    """Whether the times are of kernels."""

    @property
    def who(self) -> Who:
        """The rank, or None, and the node."""
        return self.rank, self.node


def lags(
    arrivals: Arrivals, nodes: Mapping[int, int], now: float, before: frozenset[Who] = frozenset()
) -> list[Lag]:
    """Return the lags, the worst first. `nodes`: node by rank; `before`: ranks and nodes with an earlier finding.

    A rank that is late only because it waits in another group is omitted.
    """
    seen = [(group, steps) for group in arrivals.groups if (steps := _usable_steps(group, nodes, now))]
    slow = [lag for group, steps in seen if (lag := _lag(group, steps, nodes, before)) is not None]
    worst: dict[Who, Lag] = {}
    for lag in sorted(slow, key=lambda lag: -lag.share):
        worst.setdefault(lag.who, lag)
    return [lag for lag in worst.values() if not _victim(lag, seen, nodes)]


def _usable_steps(group: GroupArrivals, nodes: Mapping[int, int], now: float) -> list[Step]:
    """Return the steps of a group; [] if they are too few or too old."""
    if len(group.completed) < COLLECTIVES:
        return []
    newest = _newest(group.steps(_margin(group, nodes)))
    if sum(step.calls for step in newest) < COLLECTIVES or len(newest) < STEPS:
        return []
    if newest[0].ends - newest[-1].ends + newest[-1].seconds < SHORT_S:
        return []
    usual = statistics.median(step.seconds for step in newest)
    return newest[::-1] if now - newest[0].ends <= max(OLD_S, 5 * usual) else []


def _newest(steps: Sequence[Step]) -> list[Step]:
    """Return the steps of the last WINDOW_S, the newest first; more if they are too few."""
    newest: list[Step] = []
    calls = 0
    for step in reversed(steps):
        enough = calls >= COLLECTIVES and len(newest) >= STEPS
        if enough and newest[0].ends - step.ends + step.seconds > WINDOW_S:
            break
        newest.append(step)
        calls += step.calls
    return newest


def _margin(group: GroupArrivals, nodes: Mapping[int, int]) -> float:
    """Return the maximum clock difference in a group. Kernel times need no common clock."""
    places = {nodes.get(rank) for rank in group.members}
    return 0.0 if group.kernel_times or len(places) == 1 else CLOCKS_S


def _lag(
    group: GroupArrivals, steps: list[Step], nodes: Mapping[int, int], before: frozenset[Who]
) -> Lag | None:
    asked = _asked(steps, len(group.members))
    margin = _margin(group, nodes)
    blamed = [_blame(step, asked, margin) for step in steps]
    weights = [min(step.seconds, HEAVIEST_S) for step in steps]
    share = _middle([price for _, price in blamed], weights)
    step_s = _middle([step.seconds for step in steps], weights)
    last = [group.members[at] if price > LEAST / 2 else None for at, price in blamed]
    who = _culprit(group, _most(last, weights, nodes, before), nodes)
    if who is None:
        return None
    keeps = _keeps(who, before)
    begin = _onset(steps, last, who, nodes)
    member = None if who[0] is None else group.index[who[0]]
    if _is_small(steps, share, step_s, keeps):
        return None
    if not _beyond_chance(_leads(steps[begin:], asked, member, margin), keeps):
        return None
    return Lag(
        *who,
        share=share,
        step_s=step_s,
        stepwise=group.collectives_per_step is not None,
        since=steps[begin].ends - steps[begin].seconds,
        members=len(group.members),
        timed=group.kernel_times,
    )


def _culprit(group: GroupArrivals, who: Who | None, nodes: Mapping[int, int]) -> Who | None:
    """Return `who`, unless it is a node with all members: then no other rank waits for it."""
    if who is None or (who[0] is None and all(nodes.get(rank) == who[1] for rank in group.members)):
        return None
    return who


def _is_small(steps: Sequence[Step], share: float, step_s: float, keeps: float) -> bool:
    """Whether the lost share or time is too small, or too small for so few seconds."""
    if share < LEAST * keeps or share * step_s < LEAST_S * keeps:
        return True
    return share < HIGH and steps[-1].ends - steps[0].ends + steps[0].seconds < SPAN_S


def _keeps(who: Who, before: frozenset[Who]) -> float:
    """Return the factor on the limits."""
    return KEEPS if who in before else 1.0


def _is(rank: int | None, who: Who, nodes: Mapping[int, int]) -> bool:
    if rank is None:
        return False
    return rank == who[0] if who[0] is not None else nodes.get(rank, 0) == who[1]


def _onset(steps: Sequence[Step], last: Sequence[int | None], who: Who, nodes: Mapping[int, int]) -> int:
    """Return the index of the step since which the rank is last. `last`: the costly last rank of each step."""
    others = 0
    begin = len(steps) - 1
    for at in range(len(steps) - 1, -1, -1):
        if _is(last[at], who, nodes):
            begin, others = at, 0
            continue
        others += 1
        if others >= INTERRUPTED:
            break
    return begin


def _leads(steps: Iterable[Step], asked: Sequence[int], member: int | None, margin: float) -> list[float]:
    """Return the median extra wait of the others per step, in seconds. `member` None: compared with the last member."""
    leads = []
    for step in steps:
        waits = _waits(step, asked, margin)
        own = waits.pop(asked.index(member) if member in asked else waits.index(min(waits)))
        leads.append(statistics.median(waits) - own)
    return leads


def _beyond_chance(leads: Sequence[float], keeps: float) -> bool:
    """Whether the mean is too far above 0, given the spread of the steps, to be chance.

    A few steps do not show their spread well, so their mean must be larger.
    """
    mean = statistics.fmean(leads)
    doubt = statistics.pstdev(leads) / len(leads) ** 0.5
    return mean > 0 and mean >= SURE * keeps * (1 + FEW / len(leads)) * doubt


def _most(
    last: Sequence[int | None],
    seconds: Sequence[float],
    nodes: Mapping[int, int],
    before: frozenset[Who],
) -> Who | None:
    """Return the rank, else the node, that is last in most steps. `last`: the costly last rank of each step."""
    named = [(rank, weight) for rank, weight in zip(last, seconds, strict=True) if rank is not None]
    for of in (lambda rank: (rank, nodes.get(rank, 0)), lambda rank: (None, nodes.get(rank, 0))):
        weights: dict[Who, float] = {}
        times: Counter[Who] = Counter()
        for rank, weight in named:
            who = of(rank)
            weights[who] = weights.get(who, 0.0) + weight
            times[who] += 1
        for who in weights:
            least = AGREE * sum(seconds) * _keeps(who, before)
            if weights[who] >= least and times[who] >= STEPS:
                return who
    return None


def _middle(values: Sequence[float], weights: Sequence[float]) -> float:
    left = sum(weights) / 2
    for value, weight in sorted(zip(values, weights, strict=True)):
        left -= weight
        if left <= 0:
            return value
    return 0.0


def _asked(steps: Iterable[Step], size: int) -> Sequence[int]:
    """Return the members to compare: all of a small group, else those that were last and a sample."""
    if size <= SAMPLED:
        return range(size)
    last = {collective.last_member for step in steps for collective in step.waits}
    return sorted(last.union(range(0, size, size // SAMPLED)))


def _blame(step: Step, asked: Sequence[int], margin: float) -> tuple[int, float]:
    """Return the member with the shortest wait in a step, and the cost for the others as a share of the step."""
    waits = _waits(step, asked, margin)
    least = min(waits)
    victim = sorted(waits)[len(waits) // 2]
    return asked[waits.index(least)], (victim - least) / step.seconds


def _waits(step: Step, asked: Sequence[int], margin: float) -> list[float]:
    """Return each member's wait in a step, in seconds."""
    totals = [0.0] * len(asked)
    for collective in step.waits:
        arrivals, latest = collective.arrivals, collective.latest - margin
        totals = [
            total + (latest - arrivals[member] if arrivals[member] < latest else 0.0)
            for total, member in zip(totals, asked, strict=True)
        ]
    return totals


def _share(steps: list[Step], member: int, margin: float) -> float:
    return statistics.median(_waits(step, (member,), margin)[0] / step.seconds for step in steps)


def _victim(lag: Lag, seen: list[tuple[GroupArrivals, list[Step]]], nodes: Mapping[int, int]) -> bool:
    """Whether the rank waits in another group for at least half of the share that it costs."""
    if lag.rank is None:
        return False
    for group, steps in seen:
        member = group.index.get(lag.rank)
        if member is None:
            continue
        if _share(steps, member, _margin(group, nodes)) >= lag.share / 2:
            return True
    return False
