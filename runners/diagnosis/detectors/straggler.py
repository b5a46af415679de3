"""The rank that the others wait for, step after step, and why it is slow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ...model import Finding
from . import lags, naming, reasons
from .arrivals import Arrivals
from .lags import Lag, Split
from .places import Kind
from .reasons import Reason
from .view import View

ID = "straggler"
INPUT = "input-bound"
MOST = 3
"""Findings at once."""
LOOKS = 4
"""Stacks of a rank without which nobody can say that it is slow for no reason."""
MOVED = 8
"""Points of a percentage by which it has to move before it is told anew."""
NO_REASON = "no reason is seen in clocks, throttling, CPU or I/O"
LOADING = 0.75
"""Share of the ranks that have to be in their data loaders mostly."""

_PERCENT = re.compile(r"about (\d+) %")


def find(view: View) -> Iterable[Finding]:
    """Slow ranks, the worst first; where there is none, whether all ranks wait for their data."""
    said = {(one.rank, one.node or 0): one for one in view.state.findings.values() if one.id == ID}
    found = lags.lags(_arrivals(view), _nodes(view), view.now, frozenset(said))
    if found:
        told = (_told(view, lag, said.get((lag.rank, lag.node))) for lag in found[:MOST])
        return [one for one in told if one is not None]
    return _input_bound(view)


def splits(view: View) -> dict[int, Split]:
    """Seconds of each rank's step, and how many of them it waits for others; ranks that are not known are left out."""
    return lags.splits(_arrivals(view), _nodes(view), view.now)


def _arrivals(view: View) -> Arrivals:
    if view.arrivals is not None:
        return view.arrivals
    world = view.state.attempts[-1].world_size if view.state.attempts else len(view.history)
    return Arrivals.of(view.history, world)


def _nodes(view: View) -> Mapping[int, int]:
    return {number: rank.place.node for number, rank in view.state.ranks.items()}


def _told(view: View, lag: Lag, before: Finding | None) -> Finding | None:
    """The finding; as it was told before, where what is new is only a little more or less of the same.

    None while no reason is known and the rank was not looked at often enough to say that there is none.
    """
    percent = max(10, 5 * round(20 * lag.share))
    why = [] if lag.rank is None else reasons.reasons(view, lag.rank)
    if before is not None and _same(before, 100 * lag.share, why):
        return before
    if before is None and not why and _looks(view, lag.rank) < LOOKS:
        return None
    return Finding(
        id=ID,
        severity="warn",
        text=_text(view, lag, percent, why[0] if why else None),
        rank=lag.rank,
        node=lag.node,
        remedy=why[0].remedy if why else _where_to_look(lag),
        evidence=_evidence(view, lag, why),
        ranks=() if lag.rank is not None else _of_node(view, lag.node),
        since=lag.since if before is None or before.since is None else before.since,
    )


def _looks(view: View, rank: int | None) -> int:
    """How often a rank's stack is known; where it never is, waiting for it is no use."""
    pulses = () if rank is None else view.history.get(rank, ())
    return sum(bool(pulse.stack) for pulse in pulses) or LOOKS


def _same(before: Finding, percent: float, why: list[Reason]) -> bool:
    told = _PERCENT.search(before.text)
    if told is None or abs(int(told[1]) - percent) >= MOVED:
        return False
    return not why or any(reason.kind in before.text for reason in why)


def _text(view: View, lag: Lag, percent: int, why: Reason | None) -> str:
    who = _who(view, lag)
    part = f"about {percent} % of {'each step' if lag.stepwise else 'the time'}"
    if why is not None:
        return f"{who} holds the others up: {why.text}; costs {part}"
    if lag.rank is None:
        return f"{who} hold the others up: one of them is the last in every step; costs {part}"
    return f"{who} is the one that the others wait for, {part}; {NO_REASON}"


def _who(view: View, lag: Lag) -> str:
    """ "gpu-b gpu2 (rank 26)", "rank 2"."""
    if lag.rank is None:
        return f"the ranks on {naming.host(view.state, lag.node)}"
    rank = view.state.ranks.get(lag.rank)
    gpu = None if rank is None or rank.sample is None else rank.sample.gpu
    if gpu is None:
        return naming.who(view.state, (lag.rank,))
    where = f"{naming.host(view.state, lag.node)} " if naming.several(view.state) else ""
    return f"{where}gpu{gpu} (rank {lag.rank})"


def _of_node(view: View, node: int) -> tuple[int, ...]:
    return tuple(sorted(number for number, rank in view.state.ranks.items() if rank.place.node == node))


def _evidence(view: View, lag: Lag, why: list[Reason]) -> tuple[str, ...]:
    who = f"the ranks of {naming.host(view.state, lag.node)}" if lag.rank is None else f"rank {lag.rank}"
    how = (
        "by the time of NCCL's kernels, which are the shortest on the rank that is last"
        if lag.timed
        else "by the times at which the ranks called the same collectives"
    )
    step = "step" if lag.stepwise else "piece of time"
    lines = [
        f"{how}: {who} of {lag.members} ranks came last in most of them",
        f"the others wait {_seconds(lag.share * lag.step_s)} in each {step} of {_seconds(lag.step_s)}",
        *(reason.evidence for reason in why[:1] if reason.evidence),
        *(f"also: {reason.text}" for reason in why[1:3]),
    ]
    return tuple(lines)


def _seconds(number: float) -> str:
    return f"{1000 * number:.0f} ms" if number < 1 else f"{number:.1f} s"


def _where_to_look(lag: Lag) -> str:
    if lag.rank is None:
        return "compare the node with the others: network, clocks, what else runs there"
    return (
        f"look at what rank {lag.rank} does more than the others: `distui dump stacks`, its data, its node"
    )


def _input_bound(view: View) -> Iterable[Finding]:
    """Whether most ranks are in their data loaders mostly, while steps are made."""
    if not any(
        len(pulses) > 2 and (pulses[0].step or 0) < (pulses[-1].step or 0)
        for pulses in view.history.values()
    ):
        return
    found = reasons.witnesses(view)
    loading = [one for one in found if one is not None and one.kind is Kind.LOADER]
    before = view.state.findings.get((INPUT, None, None))
    if not loading or len(loading) < LOADING * len(found) * (1.0 if before is None else 0.6):
        return
    sites = {one.site for one in loading}
    site = loading[0].site if len(sites) == 1 else None
    where = f" ({naming.site_text(site)})" if site is not None else ""
    yield before or Finding(
        id=INPUT,
        severity="info",
        text=f"all ranks alike wait for their data loaders most of the time{where}",
        role="hint",
        remedy="give the loaders more workers (num_workers, prefetch_factor), or the data faster storage",
        evidence=(
            "in most looks at them the ranks were in their data loaders, and none is slower than the others",
        ),
        since=view.now,
    )
