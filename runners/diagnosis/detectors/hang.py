"""Ranks that wait for each other in a collective: who is missing there, and where it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ....presets.finding import Finding
from ...model import Pulse, RunPhase
from . import starting, stuck_collectives, waits
from .arrivals import Activity
from .naming import Kind
from .stuck_collectives import Culprit
from .view import View
from .waits import Ends, Pending, Waits

MOST = 8
"""Findings of one look."""
STOPPED_S, QUIET_S = 8.0, 60.0


def find(view: View) -> Iterable[Finding]:
    """See the module."""
    if view.state.phase not in (RunPhase.STARTING, RunPhase.RUNNING) or not view.history:
        return ()
    waiting = waits.collect(view)
    halted = _stopped(view, waiting)
    if not waiting.pending:
        return halted
    chain = waits.ends(waiting)
    verdicts = _verdicts(view, _candidates(view, waiting, chain), chain)
    alarms = [verdict for verdict in verdicts if verdict.alarm]
    if halted or starting.alarms(view):
        return halted
    if alarms:
        return alarms[:MOST]
    return (_disagree(view, waiting, chain) or verdicts or _open(view, waiting))[:MOST]


def _stopped(view: View, waiting: Waits) -> list[Finding]:
    """Ranks that the kernel has stopped, once others wait or it lasts: nobody else can go on without them for long."""
    halted = [
        rank
        for rank, pulses in view.history.items()
        if not waits.ended(view, rank)
        and pulses
        and pulses[-1].state in ("T", "t")
        and _lasts(pulses, waiting)
    ]
    if not halted:
        return []
    blocked = list(waiting.pending.values())
    chain = Ends({rank: tuple(blocked) for rank in halted}, (), (), (), {})
    cases = [
        (rank, stuck_collectives.stopped(stuck_collectives.doing(view, rank), view.history[rank][-1].pid))
        for rank in halted
    ]
    return [
        stuck_collectives.finding(view, [rank], culprit, chain, blocked) for rank, culprit in cases[:MOST]
    ]


def _lasts(pulses: Sequence[Pulse], waiting: Waits) -> bool:
    trail = [pulse for pulse in pulses if pulse.state in ("T", "t")]
    return bool(waiting.pending) or (len(trail) >= 3 and trail[-1].at - trail[0].at >= STOPPED_S)


def _verdicts(view: View, candidates: Mapping[int, tuple[Pending, ...]], chain: Ends) -> list[Finding]:
    """What is to be said of ranks that others wait for; of stopped ones it has been said."""
    able = {
        rank: blocked
        for rank, blocked in candidates.items()
        if not view.history.get(rank) or view.history[rank][-1].state not in ("T", "t")
    }
    cases = stuck_collectives.together(view, able)
    return [_finding(view, case.ranks, case.culprit, chain, case.nearest) for case in cases]


def _finding(view: View, ranks: list[int], culprit: Culprit, chain: Ends, near: list[Pending]) -> Finding:
    skipped = None
    if culprit.id in ("hang-gone", "hang-not-joined", "hang-mismatch") and len(ranks) == 1 and near:
        skipped = stuck_collectives.left_out(view, ranks[0], near[0])
    return skipped or stuck_collectives.finding(view, ranks, culprit, chain, near)


def _candidates(view: View, waiting: Waits, chain: Ends) -> dict[int, tuple[Pending, ...]]:
    """Ranks at the ends of chains, and those that ended; where peers are not known, those that sit still outside."""
    cases = {rank: list(blocked) for rank, blocked in chain.culprits.items()}
    gone = {rank for rank in view.state.ranks if waits.ended(view, rank)}
    for pending in waiting.pending.values() if gone else ():
        for rank in gone.intersection(pending.members) if pending.numbered else ():
            if pending not in cases.setdefault(rank, []):
                cases[rank].append(pending)
    if not cases:
        for pending in chain.loose:
            for rank in idle(view, waiting, pending):
                cases.setdefault(rank, []).append(pending)
        for circle in chain.circles:
            for rank in _dozing(view, circle):
                cases.setdefault(rank, []).extend(pending for pending in circle if rank in pending.missing)
    return {rank: tuple(blocked) for rank, blocked in cases.items()}


def idle(view: View, waiting: Waits, pending: Pending) -> list[int]:
    """Members that are in no collective and sit still or have ended; none where one of those outside may yet come."""
    inside = {rank for each in waiting.pending.values() for rank in each.waits}
    outside = [rank for rank in pending.members if rank not in inside]
    return outside if all(waits.ended(view, rank) or _still(view, rank) for rank in outside) else []


def _still(view: View, rank: int) -> bool:
    does = stuck_collectives.doing(view, rank)
    return does.mode in (Activity.ASLEEP, Activity.SILENT) and does.place.kind not in (
        Kind.COLLECTIVE,
        Kind.TORCH,
    )


def _dozing(view: View, circle: Sequence[Pending]) -> list[int]:
    """Of ranks that wait for each other those whose main thread sleeps somewhere else: they have the others wait."""
    ranks = sorted({rank for pending in circle for rank in pending.waits})
    dozing = [rank for rank in ranks if _still(view, rank)]
    return dozing if len(dozing) < len(ranks) else []


def _disagree(view: View, waiting: Waits, chain: Ends) -> list[Finding]:
    """Nobody is missing, or all wait for each other: other calls, a circle, the network, call sites, idlers, kernels."""
    certain = [stuck_collectives.mismatch(view, pending, sites=False) for pending in chain.joined]
    other = [
        stuck_collectives.elsewhere(view, each, chain.before.get(each.point, ())) for each in chain.loose
    ]
    findings = [finding for finding in (*certain, *other) if finding is not None]
    findings = findings or [stuck_collectives.circle(view, circle) for circle in chain.circles]
    if findings:
        return findings
    since = min(pending.since for pending in waiting.pending.values())
    findings = stuck_collectives.network(
        view, sorted({rank for pending in waiting.pending.values() for rank in pending.waits}), since
    )
    if findings:
        return findings
    for pending in chain.joined:
        at_sites = stuck_collectives.mismatch(view, pending, sites=True)
        spins = at_sites or stuck_collectives.spinning(view, pending)
        if spins is not None:
            findings.append(spins)
            continue
        near = dict.fromkeys(idle(view, waiting, pending), (pending,))
        findings.extend(_verdicts(view, near, chain))
    return [finding for finding in findings if finding.alarm]


def _open(view: View, waiting: Waits) -> list[Finding]:
    """After a minute without a verdict: which data is missing."""
    long = [pending for pending in waiting.pending.values() if _long(view, pending)]
    return [stuck_collectives.no_verdict(view, long)] if long else []


def _long(view: View, pending: Pending) -> bool:
    """Where only stacks tell, the kept pulses do not reach back so far: then the newest step counts."""
    if pending.age >= QUIET_S or all(wait.recorded for wait in pending.waits.values()):
        return pending.age >= QUIET_S
    steps = [view.history[rank][-1].last_step for rank in pending.waits]
    return all(step is not None and view.now - step >= QUIET_S for step in steps)
