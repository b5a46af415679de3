"""Explain hangs: ranks that wait for each other in a collective, the missing ranks, and the differences in calls."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ...presets.finding import NO_VERDICT, Finding
from ...presets.plurals import plural
from ..run.formatting import agreeing, spans_text
from ..run.model import RunPhase
from ..run.pulse import Collective, Pulse, Stall
from ..run.samples import Gpu
from ..run.under_way import stopping
from . import activity, culprits, died, leaving, motionless, own_lines, progress, starting, waits
from .activity import Activity, Kind
from .call_differences import Shift, Split, calls, left_out_between, shift, split
from .culprits import Case, waiting_text
from .view import View
from .waits import Ends, Pending, RankWait, Waits

MOST = 8
"""Maximum number of findings at a time."""
WHEN_STOPPED = "hung when it was stopped: "
"""Prefix of the finding after the user has stopped the run."""
STOPPED_S, QUIET_S = 8.0, 60.0


_UNWIND = "mend what raised this exception; call no collective in an `except` or `finally` block that other ranks skip"


def find(view: View) -> Iterable[Finding]:
    """Report the ranks that keep others waiting, or the difference between the ranks' calls."""
    if view.state.phase in (RunPhase.STOPPING, RunPhase.STOPPED):
        return _at_the_stop(view)
    if stopping(view.state, view.now) is not None:
        return _verdicts_of_attempt(view)
    if view.state.phase not in (RunPhase.STARTING, RunPhase.RUNNING) or not view.history:
        return ()
    waiting = waits.collect(view)
    halted = _stopped(view, waiting)
    if not waiting.pending:
        return halted or list(leaving.find(view)) or list(motionless.find(view))
    if halted or starting.alarms(view):
        return halted
    dead = died.reported(view)
    return [each for each in _explained(view, waiting) if each.id != "hang-gone" or each.rank != dead][
        :MOST
    ]


def _explained(view: View, waiting: Waits) -> list[Finding]:
    """Return the reasons for the waits, alarms only if there are any."""
    chain = waits.ends(waiting)
    verdicts = _verdicts(view, _candidates(view, waiting, chain), chain)
    alarms = [verdict for verdict in verdicts if verdict.alarm]
    return alarms or _disagree(view, waiting, chain) or verdicts or _open(view, waiting)


def _at_the_stop(view: View) -> Iterable[Finding]:
    """Repeat the findings that were raised when the user stopped the run, most often because of them."""
    for finding in _verdicts_of_attempt(view):
        text = finding.text.removeprefix(WHEN_STOPPED)
        yield replace(finding, text=WHEN_STOPPED + text)


def _verdicts_of_attempt(view: View) -> list[Finding]:
    """Return the raised alarms, without those of an earlier attempt that a restart has just ended.

    While ranks are being ended, one ends before another, which is no new hang.
    """
    began = view.state.attempt_began
    return [
        finding
        for finding in view.state.findings.values()
        if finding.alarm
        and finding.id.startswith(("hang-", "start-"))
        and (finding.since is None or finding.since >= began)
    ]


def _stopped(view: View, waiting: Waits) -> list[Finding]:
    """Report ranks that a signal has stopped if others wait or the stop lasts. No rank can continue without them."""
    halted = [
        rank
        for rank, pulses in view.history.items()
        if not waits.ended(view, rank)
        and pulses
        and activity.is_halted(pulses[-1])
        and _lasts(pulses, waiting)
    ]
    blocked = list(waiting.pending.values())
    cases = [
        Case(culprits.stopped(culprits.doing(view, rank), view.history[rank][-1]), [rank], blocked)
        for rank in halted[:MOST]
    ]
    return [culprits.finding(view, case) for case in cases]


def _lasts(pulses: Sequence[Pulse], waiting: Waits) -> bool:
    trail = [pulse for pulse in pulses if activity.is_halted(pulse)]
    return bool(waiting.pending) or (len(trail) >= 3 and trail[-1].at - trail[0].at >= STOPPED_S)


def _verdicts(view: View, candidates: Mapping[int, tuple[Pending, ...]], chain: Ends) -> list[Finding]:
    """Report ranks that others wait for, except stopped ones."""
    able = {
        rank: blocked
        for rank, blocked in candidates.items()
        if not view.history.get(rank) or not activity.is_halted(view.history[rank][-1])
    }
    cases = culprits.together(view, able)
    return [_finding(view, case, chain) for case in cases]


def _finding(view: View, case: Case, chain: Ends) -> Finding:
    skipped = None
    left = case.culprit.id in ("hang-gone", "hang-not-joined", "hang-mismatch")
    if left and len(case.ranks) == 1 and case.nearest:
        skipped = left_out(view, case.ranks[0], case.nearest[0])
    return skipped or culprits.finding(view, case, chain)


def _candidates(view: View, waiting: Waits, chain: Ends) -> dict[int, tuple[Pending, ...]]:
    """Return ranks at the ends of chains and exited ranks. If peers are unknown, return idle ranks outside."""
    cases = {rank: list(blocked) for rank, blocked in chain.culprits.items()}
    for rank, pending in _exited(view, waiting):
        if pending not in cases.setdefault(rank, []):
            cases[rank].append(pending)
    if not cases:
        for rank, blocked in _idle_outside(view, waiting, chain):
            cases.setdefault(rank, []).extend(blocked)
    return {rank: tuple(blocked) for rank, blocked in cases.items()}


def _exited(view: View, waiting: Waits) -> Iterator[tuple[int, Pending]]:
    """Yield the exited ranks with each collective that waits for them."""
    gone = {rank for rank in view.state.ranks if waits.ended(view, rank)}
    for pending in waiting.pending.values():
        if pending.numbered:
            yield from ((rank, pending) for rank in gone.intersection(pending.members))


def _idle_outside(view: View, waiting: Waits, chain: Ends) -> Iterator[tuple[int, list[Pending]]]:
    """Yield the idle ranks that may keep others waiting, with these waits."""
    for pending in chain.loose:
        yield from ((rank, [pending]) for rank in idle(view, waiting, pending))
    for circle in chain.circles:
        for rank in _dozing(view, circle):
            yield rank, [pending for pending in circle if rank in pending.missing]


def idle(view: View, waiting: Waits, pending: Pending) -> list[int]:
    """Return members in no collective if all of them are still or have ended; [] if another member may yet join."""
    inside = {rank for each in waiting.pending.values() for rank in each.waits}
    outside = [rank for rank in pending.members if rank not in inside]
    return outside if all(waits.ended(view, rank) or _still(view, rank) for rank in outside) else []


def _still(view: View, rank: int) -> bool:
    does = culprits.doing(view, rank)
    return does.activity in (Activity.ASLEEP, Activity.SILENT) and does.position.kind not in (
        Kind.COLLECTIVE,
        Kind.TORCH,
    )


def _dozing(view: View, circle: Sequence[Pending]) -> list[int]:
    """Return the ranks of a circle whose main thread sleeps elsewhere and so delays the others."""
    ranks = waits.waiting_ranks(circle)
    dozing = [rank for rank in ranks if _still(view, rank)]
    return dozing if len(dozing) < len(ranks) else []


def _disagree(view: View, waiting: Waits, chain: Ends) -> list[Finding]:
    """Explain a wait without missing ranks: calls, circles, network, call sites, idle ranks, spinning kernels."""
    certain = [mismatch(view, pending, sites=False) for pending in chain.joined]
    other = [elsewhere(view, each, chain.before.get(each.point, ())) for each in chain.loose]
    return (
        [finding for finding in (*certain, *other) if finding is not None]
        or [circle(view, blocked) for blocked in chain.circles]
        or network(
            view,
            waits.waiting_ranks(waiting.pending.values()),
            min(pending.since for pending in waiting.pending.values()),
        )
        or _joined(view, waiting, chain)
        or deadlock(view, waiting, chain)
    )


def _joined(view: View, waiting: Waits, chain: Ends) -> list[Finding]:
    """Explain collectives that all ranks have entered: call sites, spinning kernels, idle ranks."""
    findings: list[Finding] = []
    for pending in chain.joined:
        found = mismatch(view, pending, sites=True) or spinning(view, pending)
        if found is not None:
            findings.append(found)
        else:
            near = dict.fromkeys(idle(view, waiting, pending), (pending,))
            findings.extend(_verdicts(view, near, chain))
    return [finding for finding in findings if finding.alarm]


def _open(view: View, waiting: Waits) -> list[Finding]:
    """Name the missing data after a minute without a verdict."""
    long = [pending for pending in waiting.pending.values() if _long(view, pending)]
    return [no_verdict(view, long)] if long else []


def _long(view: View, pending: Pending) -> bool:
    """Whether the wait is at least QUIET_S. For unrecorded waits the last step counts: pulses are kept too briefly."""
    if pending.age >= QUIET_S or all(wait.recorded for wait in pending.waits.values()):
        return pending.age >= QUIET_S
    steps = [view.history[rank][-1].last_step for rank in pending.waits]
    return all(step is not None and view.now - step >= QUIET_S for step in steps)


SITES_S = 15.0
"""Seconds before a different call site counts as the only evidence: it is normal if ranks take branches."""
SPINS_S = 20.0
SPINS_PERCENT, SPINS_POWER = 95.0, 0.5
"""Signs of a kernel that waits for others: minimum GPU utilization, and maximum power as a share of the limit."""
RETRANSMITS = 2
OLD_S = 30.0
"""Seconds after a pulse before its rank sends no data."""
DEADLOCK_S, DEADLOCK_GPU_S = 10.0, 25.0
"""Seconds that every rank must have waited before the wait counts as a deadlock. With GPUs, whose traffic the counters
lack, NCCL may first connect the ranks."""
P2P = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "wait")
ALIGN = (
    "make every rank call the same collectives in the same order and with the same sizes; "
    "with uneven data use drop_last=True or torch's Join"
)


def mismatch(view: View, pending: Pending, *, sites: bool) -> Finding | None:
    """Report ranks with different calls in one collective. `sites`: whether a different call site is enough."""
    parting = split(_calls_of_all(view, pending))
    if parting is None or (parting.of == "site" and (not sites or pending.age < SITES_S)):
        return None
    parting = _settled(view, parting)
    (usual, most), (other, few) = parting.variants[0], parting.variants[1]
    skipped = _skipped(view, pending.point.key.name, few[0], most[0])
    phrase = f"{view.ranks_text(few)} {agreeing(few, 'is', 'are')} in {_call(other, parting)}"
    text = f"{phrase} where {spans_text('rank', most)} {agreeing(most, 'is', 'are')} in {_call(usual, parting)}"
    if skipped is not None:
        text = f"{view.ranks_text(few)} skipped {_located(skipped)}: {text}"
    after = _handles(view, few, most)
    text += after or _steps(view, few, most)
    return Finding(
        "hang-mismatch",
        "error",
        text,
        **view.rank_fields(few),
        waiting=tuple(most),
        remedy=_UNWIND if after else ALIGN,
        since=pending.since,
        evidence=tuple(_parted(view, parting, pending)),
    )


def _calls_of_all(view: View, pending: Pending) -> dict[int, Collective]:
    """Return each member's call with the number of the pending one, also of ranks that have completed it."""
    made = {rank: wait.call for rank, wait in pending.waits.items()}
    for rank in pending.members:
        if rank not in made:
            call = calls(view.history.get(rank, ()), pending.point.key.name).get(pending.point.seq)
            if call is not None:
                made[rank] = call
    return made


def _located(call: Collective) -> str:
    site = f" of {activity.site_text(call.sites[0])}" if call.sites else ""
    return activity.call_text(call) + site


def _settled(view: View, parting: Split) -> Split:
    """If two variants have equally many ranks, blame the one that wrote a possible reason, if only one did."""
    (_, most), (_, few) = first, second = parting.variants[:2]
    reason = len(most) == len(few) and own_lines.quoted(view, most, few)
    if not reason or own_lines.quoted(view, few, most):
        return parting
    return parting._replace(variants=(second, first, *parting.variants[2:]))


def _call(call: Collective, parting: Split) -> str:
    what = f" {call.what}" if parting.of == "size" and call.what else ""
    site = f" ({activity.site_text(call.sites[0])})" if call.sites else ""
    return f"{activity.call_text(call)}{what}{site}"


def _parted(view: View, parting: Split, pending: Pending) -> Iterable[str]:
    for call, ranks in parting.variants[:4]:
        stack = activity.stack_text(call.sites[:4]) or "call site not known"
        what = f" {call.what}" if call.what else ""
        yield f"{view.ranks_text(ranks)}: {activity.call_text(call)}{what} of {pending.desc}: {stack}"
    (_, most), (_, few) = parting.variants[0], parting.variants[1]
    apart = _apart(view, pending.point.key.name, few[0], most[0])
    if apart is not None and apart.mine.seq < pending.point.seq:
        yield (
            f"they part at #{apart.mine.seq}{'' if apart.exact else ' or before'}: rank {few[0]} called "
            f"{_brief(apart.mine)}, rank {most[0]} {_brief(apart.theirs)}"
        )
    yield from own_lines.quoted(view, few, most, pending.since)


def _handles(view: View, few: Sequence[int], most: Sequence[int]) -> str:
    """Return the end of a sentence if one of these ranks handles an exception that the others do not; else ""."""
    theirs = {pulse.handles for rank in most if (pulse := view.newest(rank)) is not None}
    for rank in few:
        pulse = view.newest(rank)
        if pulse is not None and pulse.handles and pulse.handles not in theirs:
            return f"; rank {rank} came there after {pulse.handles}"
    return ""


def _steps(view: View, few: Sequence[int], most: Sequence[int]) -> str:
    """Return the end of a sentence if the ranks have made different numbers of optimizer steps; "" otherwise."""
    mine, theirs = _step_of(view, few), _step_of(view, most)
    if mine is None or theirs is None or mine == theirs:
        return ""
    return f"; {spans_text('rank', few)} made {plural(mine, 'step')}, {spans_text('rank', most)} {theirs}"


def _step_of(view: View, ranks: Sequence[int]) -> int | None:
    """Return the steps that these ranks have made; None if unknown, or not the same."""
    steps = {pulse.step for rank in ranks if (pulse := view.newest(rank)) is not None}
    return next(iter(steps)) if len(steps) == 1 else None


def _brief(call: Collective) -> str:
    return call.op + (f" at {activity.site_text(call.sites[0])}" if call.sites else "")


def _apart(view: View, name: str, rank: int, other: int) -> Shift | None:
    mine = calls(view.history.get(rank, ()), name)
    return shift(mine, calls(view.history.get(other, ()), name))


def _skipped(view: View, name: str, rank: int, other: int) -> Collective | None:
    """Return the collective that a rank skipped, if all later calls confirm it."""
    apart = _apart(view, name, rank, other)
    return apart.theirs if apart is not None and apart.skipped and apart.exact else None


def left_out(view: View, rank: int, pending: Pending) -> Finding | None:
    """Report a missing rank that skipped an earlier collective."""
    other = min(pending.waits)
    if not pending.numbered or rank == other:
        return None
    apart = _apart(view, pending.point.key.name, rank, other)
    if apart is None or not (apart.skipped and apart.exact):
        return None
    ranks = pending.ranks
    return Finding(
        "hang-mismatch",
        "error",
        f"{view.ranks_text([rank])} skipped {_located(apart.theirs)}; "
        f"{spans_text('rank', ranks)} {agreeing(ranks, 'waits', 'wait')} for it in {activity.call_text(pending.call)}",
        **view.rank_fields([rank]),
        waiting=ranks,
        remedy=ALIGN,
        since=pending.since,
        evidence=(
            waiting_text(view, pending),
            f"at #{apart.mine.seq} rank {rank} called {_brief(apart.mine)}, rank {other} {_brief(apart.theirs)}",
            *own_lines.quoted(view, [rank], ranks, pending.since),
        ),
    )


def elsewhere(view: View, pending: Pending, others: Sequence[Pending]) -> Finding | None:
    """Report ranks in a call without a record while others wait in a collective."""
    if not others or pending.point.op in P2P:
        return None
    near, ranks = others[0], pending.ranks
    text = (
        f"{view.ranks_text(ranks)} {agreeing(ranks, 'is', 'are')} in {_brief(pending.call)} where "
        f"{spans_text('rank', near.ranks)} {agreeing(near.ranks, 'is', 'are')} in {activity.call_text(near.call)}"
    )
    return Finding(
        "hang-mismatch",
        "error",
        text,
        **view.rank_fields(ranks),
        waiting=near.ranks,
        remedy=ALIGN,
        since=near.since,
        evidence=(
            *(waiting_text(view, each) for each in (*others[:3], pending)),
            *own_lines.quoted(view, ranks, near.ranks, near.since),
        ),
    )


def deadlock(view: View, waiting: Waits, chain: Ends) -> list[Finding]:
    """Report that every rank waits, some in sends or receives, so that none can make the call that another needs."""
    living = {rank for rank in view.state.ranks if not waits.ended(view, rank)}
    stuck = {rank: wait for rank, wait in waiting.of.items() if _is_stuck(view, wait)}
    loose = [pending for pending in chain.loose if pending.point.op in P2P]
    if not loose or not living or living != stuck.keys():
        return []
    at: dict[str, list[int]] = {}
    for rank, wait in sorted(stuck.items()):
        at.setdefault(_brief(wait.call), []).append(rank)
    parts = [f"{spans_text('rank', ranks)} in {place}" for place, ranks in at.items()]
    more = " …" if len(parts) > 4 else ""
    text = f"every rank waits, and none makes the call that another waits for: {'; '.join(parts[:4])}{more}"
    return [
        Finding(
            "hang-mismatch",
            "error",
            text,
            **view.rank_fields(sorted(living)),
            remedy="let one side send while the other receives, or post both with batch_isend_irecv",
            since=view.raised_since(text) or min(pending.since for pending in loose),
            evidence=(*(waiting_text(view, pending) for pending in loose[:4]), *_stack_lines(stuck)),
        )
    ]


def _stack_lines(stuck: Mapping[int, RankWait]) -> Iterator[str]:
    """Yield the innermost frames of the first four ranks, one line per rank whose stack is known."""
    for rank in sorted(stuck)[:4]:
        sites = stuck[rank].call.sites
        if sites:
            yield f"stack of rank {rank}: {activity.stack_text(sites[:4])}"


def _is_stuck(view: View, wait: RankWait) -> bool:
    """Whether a rank waits and does nothing else. A rank may also post a receive early, and go on."""
    pulses = view.history[wait.rank]
    least = DEADLOCK_S if view.gpu(wait.rank) is None else DEADLOCK_GPU_S
    still_s = pulses[-1].at - activity.still_since(pulses)
    return wait.age >= least and still_s >= DEADLOCK_S and progress.movement(pulses) is None


def circle(view: View, blocked: Sequence[Pending]) -> Finding:
    """Report ranks that wait for each other in different groups."""
    skipped = _skipped_in_circle(view, blocked)
    if skipped is not None:
        return skipped
    parts = [_part_of_circle(each, blocked) for each in blocked]
    ranks = tuple(waits.waiting_ranks(blocked))
    text = f"ranks wait for each other: {'; '.join(parts[:4])}"
    if len(parts) > 4:
        text += " …"
    return Finding(
        "hang-mismatch",
        "error",
        text,
        **view.rank_fields(ranks),
        remedy="let every rank call the collectives of its groups in the same order",
        evidence=tuple(waiting_text(view, pending) for pending in blocked[:4]),
        since=min(pending.since for pending in blocked),
    )


def _part_of_circle(pending: Pending, blocked: Sequence[Pending]) -> str:
    """ "rank 0 in all_reduce #100 of tp, which rank 1 has not called"."""
    inside = waits.waiting_ranks(blocked)
    missing = [rank for rank in pending.missing if rank in inside]
    part = f"{spans_text('rank', pending.ranks)} in {activity.call_text(pending.call)} of {pending.desc}"
    if not missing:
        return part
    return f"{part}, which {spans_text('rank', missing)} {agreeing(missing, 'has', 'have')} not called"


def _skipped_in_circle(view: View, blocked: Sequence[Pending]) -> Finding | None:
    """Report the rank of a circle that left out a call which it has always made before its newest one."""
    found: list[tuple[int, Pending]] = []
    for pending in blocked:
        for rank in pending.missing:
            inside = next((each for each in blocked if rank in each.waits), None)
            pulses = view.history.get(rank, ())
            if inside is not None and left_out_between(
                pulses, inside.waits[rank].call, pending.point.key.name
            ):
                found.append((rank, pending))
    if len(found) != 1:
        return None
    rank, pending = found[0]
    others = tuple(other for other in waits.waiting_ranks(blocked) if other != rank)
    text = (
        f"{view.ranks_text([rank])} skipped {_located(pending.call)} of {pending.desc}; "
        f"{spans_text('rank', pending.ranks)} {agreeing(pending.ranks, 'waits', 'wait')} for it there"
    )
    return Finding(
        "hang-mismatch",
        "error",
        text,
        **view.rank_fields([rank]),
        waiting=others,
        remedy=ALIGN,
        since=min(each.since for each in blocked),
        evidence=(
            *(waiting_text(view, each) for each in blocked[:4]),
            *own_lines.quoted(view, [rank], others, pending.since),
        ),
    )


def network(view: View, ranks: Iterable[int], since: float) -> list[Finding]:
    """Report connections of waiting ranks that the peer does not acknowledge: one finding per two addresses."""
    between: dict[tuple[str, str], dict[int, Stall]] = {}
    nodes: dict[str, int] = {}
    for rank in ranks:
        for stall in _lasting(view.history.get(rank, ())):
            here, there = address(stall.local), address(stall.remote)
            nodes.setdefault(here, view.state.ranks[rank].place.node if rank in view.state.ranks else 0)
            between.setdefault((min(here, there), max(here, there)), {}).setdefault(rank, stall)
    return [_cut(view, stalls, nodes, since) for _, stalls in sorted(between.items())[:4]]


def _lasting(pulses: Sequence[Pulse]) -> list[Stall]:
    """Return the stalls that are in both of the newest two samples."""
    if len(pulses) < 2:
        return []
    before = {(stall.local, stall.remote) for stall in pulses[-2].stalls}
    return [
        stall
        for stall in pulses[-1].stalls
        if (stall.state == "SYN_SENT" and any(stall.remote == remote for _, remote in before))
        or (stall.retransmits >= RETRANSMITS and (stall.local, stall.remote) in before)
    ]


def address(end: str) -> str:
    """Return an endpoint without its port."""
    return end.rpartition(":")[0].strip("[]")


def _cut(view: View, cuts: Mapping[int, Stall], nodes: Mapping[str, int], since: float) -> Finding:
    ranks = tuple(sorted(cuts))
    first = cuts[ranks[0]]
    there = address(first.remote)
    number = nodes.get(there)
    far = f"{view.host(number)} ({there})" if number is not None else there
    place = view.nodes_of(ranks[:1])
    near = f" on {view.host(place[0])}" if place else ""
    answer = "no connection to" if first.state == "SYN_SENT" else "no answer any more from"
    return Finding(
        "hang-network",
        "error",
        f"rank {ranks[0]}{near} ({address(first.local)}) gets {answer} {far}: "
        "the network between them does not carry",
        rank=ranks[0],
        ranks=ranks if len(ranks) > 1 else (),
        node=place[0] if place else None,
        since=since,
        remedy="check link, route, firewall and MTU between these two addresses, and the interface "
        "that NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names",
        evidence=tuple(
            f"rank {rank}: connection {cuts[rank].local} → {cuts[rank].remote} "
            + (
                "gets no answer to its SYN"
                if cuts[rank].state == "SYN_SENT"
                else "retransmits, nothing is acknowledged"
            )
            for rank in ranks[:4]
        ),
    )


def spinning(view: View, pending: Pending) -> Finding | None:
    """Report GPUs that spin in a collective that all ranks have entered."""
    cards = [view.gpu(rank) for rank in pending.ranks]
    present = [card for card in cards if card is not None]
    if pending.age < SPINS_S or len(present) != len(pending.waits) or not all(map(_spins, present)):
        return None
    ranks = pending.ranks
    return Finding(
        "hang-collective",
        "error",
        f"{view.ranks_text(ranks)} have all entered {activity.call_text(pending.call)} but it never completes: "
        "their GPUs are spinning",
        **view.rank_fields(ranks),
        since=pending.since,
        remedy="check NCCL's messages (NCCL screen, NCCL_DEBUG=INFO): a broken transport, "
        "or one slow or broken link; one run with NCCL_P2P_DISABLE=1 or NCCL_IB_DISABLE=1 shows which",
        evidence=(
            waiting_text(view, pending),
            "every GPU of these is in use all the time at less than half of its power limit: a kernel that spins",
        ),
    )


def _spins(card: Gpu) -> bool:
    if card.util is None or not card.power_w or not card.power_limit_w:
        return False
    return card.util >= SPINS_PERCENT and card.power_w < SPINS_POWER * card.power_limit_w


def no_verdict(view: View, blocked: Sequence[Pending]) -> Finding:
    """Report a wait without a known reason, with the missing data."""
    first = min(blocked, key=lambda pending: (not pending.numbered, pending.since))
    ranks = tuple(waits.waiting_ranks(blocked))
    lacking = tuple(_lacking(view, blocked)) or (
        "the data of every rank is complete, and none of it shows the reason",
    )
    waiting = f"{spans_text('rank', ranks)} {agreeing(ranks, 'waits', 'wait')}"
    return Finding(
        NO_VERDICT,
        "note",
        f"{waiting} in {activity.call_text(first.call)}; the reason is unknown: {lacking[0]}",
        role="fact",
        ranks=ranks,
        since=first.since,
        remedy="press w for all stacks (in a shell: `distui dump RUN stacks`); with NCCL, raise NCCL_DEBUG to INFO",
        evidence=(*(waiting_text(view, pending) for pending in blocked[:4]), *lacking),
    )


def _lacking(view: View, blocked: Sequence[Pending]) -> Iterable[str]:
    """Yield the missing data, the most important first."""
    members = set[int]().union(*(pending.members or view.state.ranks for pending in blocked))
    newest = {rank: view.newest(rank) for rank in sorted(members.difference(waits.waiting_ranks(blocked)))}
    for gap in Gap:
        ranks = [rank for rank, pulse in newest.items() if _gap(pulse, view.now) is gap]
        if ranks:
            yield _gap_text(view, gap, ranks)
    for pending in blocked:
        if not pending.numbered:
            yield f"for whom {spans_text('rank', pending.ranks)} wait in {pending.call.op} is recorded nowhere"
            return


class Gap(enum.Enum):
    """Why the data of a rank is incomplete, the most important first."""

    SILENT = "silent"
    HOOKLESS = "hookless"
    UNRECORDED = "unrecorded"
    OLD = "old"


def _gap(pulse: Pulse | None, now: float) -> Gap | None:
    """Return what a rank's newest pulse lacks."""
    if pulse is None:
        return Gap.SILENT
    if not pulse.hook:
        return Gap.HOOKLESS
    if pulse.recorder is False:
        return Gap.UNRECORDED
    return Gap.OLD if now - pulse.at > OLD_S else None


def _gap_text(view: View, gap: Gap, ranks: Sequence[int]) -> str:
    who = view.ranks_text(ranks)
    if gap is Gap.SILENT:
        return f"nothing is received from {who}"
    if gap is Gap.HOOKLESS:
        return f"{who} {agreeing(ranks, 'has', 'have')} no hook that answers"
    if gap is Gap.UNRECORDED:
        torch = f"torch {view.state.torch or ''}".rstrip()
        return f"{torch} has no flight recorder on {spans_text('rank', ranks)}"
    return f"{who} sent no data for a while"
