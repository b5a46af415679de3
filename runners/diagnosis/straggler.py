"""Find the straggler: the rank that the others wait for in most steps, and the time lost to it."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...presets.finding import Finding
from ..run.formatting import step_text
from ..run.pulse import Pulse
from . import activity, loader_workers
from .activity import Kind, RankPosition, has_stepped
from .arrivals import Arrivals, GroupArrivals, Step
from .slow_reasons import PULSES, Reason, reasons, some_others, usual, witnesses
from .view import View

ID = "straggler"
INPUT = "input-bound"
MOST = 3
"""Maximum number of findings at a time."""
LEAST_STACKS = 4
"""Minimum number of stacks before a rank counts as slow without a reason."""
MOVED = 8
"""Change of the share in percentage points that updates the finding."""
NO_REASON = "no reason is seen in clocks, throttling, CPU or I/O"
LOADING_ALIKE = "in most samples the ranks were in their data loaders, and none is slower than the others"
FED_ALIKE = (
    "rank {rank} comes last in most steps, its queue of batches is the emptiest; but the workers of the others' loaders "
    "work as much as its own"
)
LOADING = 0.75
"""Minimum share of the ranks that must mostly be in their data loaders."""

_JOIN = "/torch/distributed/algorithms/join.py"
_PERCENT = re.compile(r"about (\d+) %")


def find(view: View) -> Iterable[Finding]:
    """Report slow ranks, the worst first. Without a slow rank, report if all ranks wait for their data."""
    before = _reported(view)
    nodes = {number: rank.place.node for number, rank in view.state.ranks.items()}
    slow = lags(view.arrivals, nodes, view.now, frozenset(before))
    if not slow:
        return _input_bound(view)
    if any(_through(pulses) for pulses in view.history.values()):
        return ()
    alike = [_loaders_alike(view, lag, (lag.rank, lag.node) in before) for lag in slow]
    uneven = [lag for lag, is_alike in zip(slow, alike, strict=True) if is_alike is False]
    if uneven:
        findings = [_lag_finding(view, lag, before.get((lag.rank, lag.node))) for lag in uneven[:MOST]]
        return filter(None, findings)
    return _fed_alike(view, slow[alike.index(True)].rank) if True in alike else ()


def _reported(view: View) -> dict[Who, Finding]:
    """Return the current findings about stragglers."""
    return {(old.rank, old.node or 0): old for old in view.state.findings.values() if old.id == ID}


def _fed_alike(view: View, rank: int | None) -> Iterable[Finding]:
    """Report that a rank is last only because its data queue is the emptiest."""
    own = () if rank is None else view.history.get(rank, ())
    return [_bound(view, usual(own), FED_ALIKE.format(rank=rank))]


def _loaders_alike(view: View, lag: Lag, named: bool) -> bool | None:
    """Whether a rank is last only because its data queue is the emptiest; None with too few samples."""
    if lag.rank is None:
        return False
    lately = _since(view, lag.since, lag.rank)
    own = lately.history.get(lag.rank, ())
    if not loader_workers.waits(own):
        return False
    alike = loader_workers.alike(own, some_others(lately, lag.rank), named)
    return False if alike is None and named else alike


def _through(pulses: Sequence[Pulse]) -> bool:
    """Whether a rank ran out of data and only mirrors the others' collectives under torch's Join."""
    return any(
        site.name == "__exit__" and site.file.endswith(_JOIN) for pulse in pulses for site in pulse.stack
    )


def _lag_finding(view: View, lag: Lag, before: Finding | None) -> Finding | None:
    """Return the finding, unchanged if the share changed little; None with too few samples to exclude a reason."""
    percent = max(10, 5 * round(20 * lag.share))
    why = [] if lag.rank is None else reasons(_since(view, lag.since, lag.rank), lag.rank)
    if before is not None and _same(before, 100 * lag.share, why):
        return before
    if before is None and not why and _stacks_seen(view, lag.rank) < LEAST_STACKS:
        return None
    return Finding(
        id=ID,
        severity="warning",
        text=_text(view, lag, percent, why),
        rank=lag.rank,
        node=lag.node,
        remedy=_remedy(lag, why),
        evidence=_evidence(view, lag, why),
        ranks=() if lag.rank is not None else _ranks_on(view, lag.node),
        since=lag.since if before is None or before.since is None else before.since,
    )


def _since(view: View, since: float, rank: int) -> View:
    """Return a view with only the pulses since `rank` is slow, if there are enough: older positions explain nothing."""
    history = {
        each: [pulse for pulse in pulses if pulse.at >= since] for each, pulses in view.history.items()
    }
    return replace(view, history=history) if len(history.get(rank, ())) >= PULSES else view


def _stacks_seen(view: View, rank: int | None) -> int:
    """Return the number of samples with a stack. Without any, return LEAST_STACKS, so that the finding does not wait."""
    pulses = () if rank is None else view.history.get(rank, ())
    return sum(bool(pulse.stack) for pulse in pulses) or LEAST_STACKS


def _same(before: Finding, percent: float, why: list[Reason]) -> bool:
    percents = _PERCENT.search(before.text)
    if percents is None or abs(int(percents[1]) - percent) >= MOVED:
        return False
    return not why or any(reason.kind in before.text for reason in why)


def _text(view: View, lag: Lag, percent: int, why: list[Reason]) -> str:
    who = _who(view, lag)
    part = f"about {percent} % of {'each step' if lag.stepwise else 'the time'}"
    if why:
        return f"{who} holds the others up: {why[0].text}; costs {part}"
    if lag.rank is None:
        return f"{who} hold the others up: one of them is the last in every step; costs {part}"
    return f"{who} is the one that the others wait for, {part}; {NO_REASON}"


def _who(view: View, lag: Lag) -> str:
    """ "gpu-b gpu2 (rank 26)", "rank 2"."""
    if lag.rank is None:
        return f"the ranks on {view.host(lag.node)}"
    rank = view.state.ranks.get(lag.rank)
    gpu = None if rank is None or rank.sample is None else rank.sample.gpu
    if gpu is None:
        return view.ranks_text((lag.rank,))
    where = f"{view.host(lag.node)} " if view.has_several_nodes() else ""
    return f"{where}gpu{gpu} (rank {lag.rank})"


def _ranks_on(view: View, node: int) -> tuple[int, ...]:
    return tuple(sorted(number for number, rank in view.state.ranks.items() if rank.place.node == node))


def _evidence(view: View, lag: Lag, why: list[Reason]) -> tuple[str, ...]:
    who = f"the ranks of {view.host(lag.node)}" if lag.rank is None else f"rank {lag.rank}"
    how = (
        "by the time of NCCL's kernels, which are the shortest on the rank that is last"
        if lag.timed
        else "by the times at which the ranks called the same collectives"
    )
    unit = "step" if lag.stepwise else "piece of time"
    lines = [
        f"{how}: {who} of {lag.members} ranks came last in most of them",
        f"the others wait {step_text(lag.share * lag.step_s)} in each {unit} of {step_text(lag.step_s)}",
        *(reason.evidence for reason in why[:1] if reason.evidence),
        *(f"also: {reason.text}" for reason in why[1:3]),
    ]
    return tuple(lines)


def _remedy(lag: Lag, why: list[Reason]) -> str:
    if why:
        return why[0].remedy
    if lag.rank is None:
        return "compare the node with the others: network, clocks, what else runs there"
    return f"check what rank {lag.rank} does more than the others: `distui dump stacks`, its data, its node"


def _input_bound(view: View) -> Iterable[Finding]:
    """Report if most ranks are mostly in their data loaders while training makes progress."""
    if not any(map(_makes_steps, view.history.values())):
        return
    positions = witnesses(view)
    loading = [position for position in positions if position is not None and position.kind is Kind.LOADER]
    before = view.state.findings.get((INPUT, None, None))
    if not loading or len(loading) < LOADING * len(positions) * (1.0 if before is None else 0.6):
        return
    sites = {position.site for position in loading}
    yield _bound(view, loading[0] if len(sites) == 1 else None, LOADING_ALIKE)


def _makes_steps(pulses: Sequence[Pulse]) -> bool:
    return len(pulses) > 2 and has_stepped(pulses[0], pulses[-1])


def _bound(view: View, position: RankPosition | None, evidence: str) -> Finding:
    """Return the finding that all ranks wait for their loaders. An earlier finding stays unchanged."""
    site = position.site if position is not None and position.kind is Kind.LOADER else None
    where = f" ({activity.site_text(site)})" if site is not None else ""
    return view.state.findings.get((INPUT, None, None)) or Finding(
        id=INPUT,
        severity="note",
        text=f"all ranks alike wait for their data loaders most of the time{where}",
        role="hint",
        remedy="give the loaders more workers (num_workers, prefetch_factor), or the data faster storage",
        evidence=(evidence,),
        since=view.now,
    )


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


Who = tuple[int | None, int]
"""Rank, or None for a whole node, and the node."""


def lags(
    arrivals: Arrivals, nodes: Mapping[int, int], now: float, before: frozenset[Who] = frozenset()
) -> list[Lag]:
    """Return the lags, the worst first. `nodes`: node by rank; `before`: ranks and nodes with an earlier finding.

    A rank that is late only because it waits in another group is omitted.
    """
    seen = [(group, steps) for group in arrivals.groups if (steps := _usable_steps(group, nodes, now))]
    slow = [lag for group, steps in seen if (lag := _lag(group, steps, nodes, before)) is not None]
    worst: dict[tuple[int | None, int], Lag] = {}
    for lag in sorted(slow, key=lambda lag: -lag.share):
        worst.setdefault((lag.rank, lag.node), lag)
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
    """Return the weighted median."""
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
    """Return the median share of a step that a member waits."""
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
