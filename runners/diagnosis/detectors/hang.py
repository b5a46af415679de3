"""Ranks that wait for each other in a collective: who is missing there, and where it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...model import Finding, Pulse, RunPhase
from . import culprits, starting, waits
from .arrivals import Activity
from .culprits import Culprit
from .people import Kind
from .view import View
from .waits import Ends, Meeting, Waits

MOST = 8
"""Findings of one look."""
STOPPED_S, QUIET_S = 8.0, 60.0


def find(view: View) -> Iterable[Finding]:
    """See the module."""
    if view.state.phase not in (RunPhase.STARTING, RunPhase.RUNNING) or not view.history:
        return ()
    found = waits.look(view)
    halted = _stopped(view, found)
    if not found.meetings:
        return halted
    chain = waits.ends(found)
    said = _verdicts(view, _candidates(view, found, chain), chain)
    alarms = [one for one in said if one.severity != "info"]
    if halted or starting.alarms(view):
        return halted
    if alarms:
        return alarms[:MOST]
    return (_disagree(view, found, chain) or said or _open(view, found))[:MOST]


def _stopped(view: View, found: Waits) -> list[Finding]:
    """Ranks that the kernel has stopped, once others wait or it lasts: nobody else can go on without them for long."""
    halted = [
        rank
        for rank, pulses in view.history.items()
        if not waits.ended(view, rank)
        and pulses
        and pulses[-1].state in ("T", "t")
        and _lasts(pulses, found)
    ]
    if not halted:
        return []
    meetings = list(found.meetings.values())
    chain = Ends({rank: tuple(meetings) for rank in halted}, (), (), (), {})
    cases = [
        (rank, culprits.stopped(culprits.doing(view, rank), view.history[rank][-1].pid)) for rank in halted
    ]
    return [culprits.finding(view, [rank], said, chain, meetings) for rank, said in cases[:MOST]]


def _lasts(pulses: Sequence[Pulse], found: Waits) -> bool:
    trail = [one for one in pulses if one.state in ("T", "t")]
    return bool(found.meetings) or (len(trail) >= 3 and trail[-1].at - trail[0].at >= STOPPED_S)


def _verdicts(view: View, candidates: Mapping[int, tuple[Meeting, ...]], chain: Ends) -> list[Finding]:
    """What is to be said of ranks that others wait for; of stopped ones it has been said."""
    able = {
        rank: meetings
        for rank, meetings in candidates.items()
        if not view.history.get(rank) or view.history[rank][-1].state not in ("T", "t")
    }
    cases = culprits.together(view, able)
    return [_told(view, case.ranks, case.said, chain, case.nearest) for case in cases]


def _told(view: View, ranks: list[int], said: Culprit, chain: Ends, near: list[Meeting]) -> Finding:
    skipped = None
    if said.id in ("hang-gone", "hang-not-joined", "hang-mismatch") and len(ranks) == 1 and near:
        skipped = culprits.left_out(view, ranks[0], near[0])
    return skipped or culprits.finding(view, ranks, said, chain, near)


def _candidates(view: View, found: Waits, chain: Ends) -> dict[int, tuple[Meeting, ...]]:
    """Ranks at the ends of chains, and those that ended; where peers are not known, those that sit still outside."""
    cases = {rank: list(meetings) for rank, meetings in chain.culprits.items()}
    gone = {rank for rank in view.state.ranks if waits.ended(view, rank)}
    for meeting in found.meetings.values() if gone else ():
        for rank in gone.intersection(meeting.members) if meeting.numbered else ():
            if meeting not in cases.setdefault(rank, []):
                cases[rank].append(meeting)
    if not cases:
        for meeting in chain.loose:
            for rank in idle(view, found, meeting):
                cases.setdefault(rank, []).append(meeting)
        for circle in chain.circles:
            for rank in _dozing(view, circle):
                cases.setdefault(rank, []).extend(one for one in circle if rank in one.missing)
    return {rank: tuple(meetings) for rank, meetings in cases.items()}


def idle(view: View, found: Waits, meeting: Meeting) -> list[int]:
    """Members that are in no collective and sit still or have ended; none where one of those outside may yet come."""
    inside = {rank for one in found.meetings.values() for rank in one.waits}
    outside = [rank for rank in meeting.members if rank not in inside]
    return outside if all(waits.ended(view, rank) or _still(view, rank) for rank in outside) else []


def _still(view: View, rank: int) -> bool:
    does = culprits.doing(view, rank)
    return does.mode in (Activity.ASLEEP, Activity.SILENT) and does.place.kind not in (
        Kind.COLLECTIVE,
        Kind.TORCH,
    )


def _dozing(view: View, circle: Sequence[Meeting]) -> list[int]:
    """Of ranks that wait for each other those whose main thread sleeps somewhere else: they have the others wait."""
    ranks = sorted({rank for one in circle for rank in one.waits})
    found = [rank for rank in ranks if _still(view, rank)]
    return found if len(found) < len(ranks) else []


def _disagree(view: View, found: Waits, chain: Ends) -> list[Finding]:
    """Nobody is missing, or all wait for each other: other calls, a circle, the network, call sites, idlers, kernels."""
    certain = [culprits.mismatch(view, one, sites=False) for one in chain.joined]
    other = [culprits.elsewhere(view, one, chain.before.get(one.spot, ())) for one in chain.loose]
    said = [one for one in (*certain, *other) if one is not None]
    said = said or [culprits.circle(view, one) for one in chain.circles]
    if said:
        return said
    since = min(one.since for one in found.meetings.values())
    said = culprits.network(
        view, sorted({rank for one in found.meetings.values() for rank in one.waits}), since
    )
    if said:
        return said
    for one in chain.joined:
        at_sites = culprits.mismatch(view, one, sites=True)
        spins = at_sites or culprits.spinning(view, one)
        if spins is not None:
            said.append(spins)
            continue
        near = dict.fromkeys(idle(view, found, one), (one,))
        said.extend(_verdicts(view, near, chain))
    return [one for one in said if one.severity != "info"]


def _open(view: View, found: Waits) -> list[Finding]:
    """After a minute without a verdict: which data is missing."""
    long = [one for one in found.meetings.values() if _long(view, one)]
    return [culprits.no_verdict(view, long)] if long else []


def _long(view: View, meeting: Meeting) -> bool:
    """Where only stacks tell, the kept pulses do not reach back so far: then the newest step counts."""
    if meeting.age >= QUIET_S or all(wait.recorded for wait in meeting.waits.values()):
        return meeting.age >= QUIET_S
    steps = [view.history[rank][-1].last_step for rank in meeting.waits]
    return all(step is not None and view.now - step >= QUIET_S for step in steps)
