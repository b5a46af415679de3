"""Find the straggler: the rank that the others wait for in most steps, and the time lost to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...presets.finding import Finding
from ..run.formatting import step_text
from ..run.pulse import Pulse
from . import activity, loader_workers
from .activity import Kind, RankPosition, has_stepped
from .lags import Lag, Who, lags
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
    uneven: list[Lag] = []
    fed_alike: list[Lag] = []
    for lag in slow:
        alike = _loaders_alike(view, lag, lag.who in before)
        if alike is not None:
            (fed_alike if alike else uneven).append(lag)
    if uneven:
        return filter(None, (_lag_finding(view, lag, before.get(lag.who)) for lag in uneven[:MOST]))
    return _fed_alike(view, fed_alike[0].rank) if fed_alike else ()


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
    since = lag.since
    if before is not None and before.since is not None:
        since = before.since
    return Finding(
        id=ID,
        severity="warning",
        text=_text(view, lag, percent, why),
        rank=lag.rank,
        node=lag.node,
        remedy=_remedy(lag, why),
        evidence=_evidence(view, lag, why),
        ranks=_ranks_on(view, lag.node) if lag.rank is None else (),
        since=since,
    )


def _since(view: View, since: float, rank: int) -> View:
    """Return a view with only the pulses since `rank` is slow, if there are enough: older positions explain nothing."""
    history: dict[int, list[Pulse]] = {}
    for each, pulses in view.history.items():
        history[each] = [pulse for pulse in pulses if pulse.at >= since]
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
    how = "by the times at which the ranks called the same collectives"
    if lag.timed:
        how = "by the time of NCCL's kernels, which are the shortest on the rank that is last"
    unit = "step" if lag.stepwise else "piece of time"
    lines = [
        f"{how}: {who} of {lag.members} ranks came last in most of them",
        f"the others wait {step_text(lag.share * lag.step_s)} in each {unit} of {step_text(lag.step_s)}",
    ]
    if why and why[0].evidence:
        lines.append(why[0].evidence)
    return (*lines, *(f"also: {reason.text}" for reason in why[1:3]))


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
        text=f"all ranks alike wait for their data loaders{where}",
        role="hint",
        remedy="give the loaders more workers (num_workers, prefetch_factor), or the data faster storage",
        evidence=(evidence,),
        since=view.now,
    )
