"""Explain runs that do not start: ranks that are missing or late, or that wait for ranks outside the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...presets.finding import Finding
from ...presets.plurals import plural
from ..run.formatting import agreeing, spans_text, time_of_day
from ..run.model import RankPhase, RunPhase
from ..run.pulse import Collective, Pulse, Site, Stall
from ..run.under_way import stopping
from . import activity, culprits, waits
from .activity import Activity, Kind
from .call_differences import alike
from .rank_dumps import DEFAULT
from .view import View
from .waits import Pending, RankWait, WaitPoint

ALONE_S = 12.0
"""Minimum seconds without CPU time."""
START = (
    "start the others with the same MASTER_ADDR and MASTER_PORT, or give WORLD_SIZE the number of ranks that there are; "
    "`distui launch` sets them all"
)


def find_alone(view: View) -> list[Finding]:
    """Report idle ranks without a hook whose WORLD_SIZE exceeds this run: they may wait for ranks outside it."""
    attempt = view.attempt
    if attempt is None:
        return []
    return [
        _lone_finding(view, rank, pulses[-1], attempt.world_size, attempt.began)
        for rank, pulses in view.history.items()
        if _waits(view, rank, pulses, attempt.world_size)
    ]


def _waits(view: View, rank: int, pulses: Sequence[Pulse], there: int) -> bool:
    state = view.state.ranks.get(rank)
    if state is None or state.hook is not None or waits.ended(view, rank):
        return False
    size = pulses[-1].world_size or ""
    more = size.isdecimal() and int(size) > there
    return more and not any(pulse.hook for pulse in pulses) and _idles(pulses[0], pulses[-1])


def _idles(first: Pulse, newest: Pulse) -> bool:
    """Whether a rank has done nothing for ALONE_S."""
    if newest.at - first.at < ALONE_S or first.process_s is None or newest.process_s is None:
        return False
    if activity.works(first, newest):
        return False
    return newest.process_s - first.process_s <= activity.DOZES_SHARE * (newest.at - first.at)


def _lone_finding(view: View, rank: int, pulse: Pulse, there: int, began: float) -> Finding:
    who = view.ranks_text((rank,))
    return Finding(
        id="start-waiting",
        severity="note",
        text=f"{who} has WORLD_SIZE {pulse.world_size}, this run has {plural(there, 'rank')}: "
        "it may wait for the others",
        role="fact",
        rank=rank,
        node=view.state.ranks[rank].place.node,
        remedy=START,
        evidence=(
            f"its environment: WORLD_SIZE={pulse.world_size}, MASTER_ADDR:MASTER_PORT {pulse.master or 'n/a'}",
            f"pid {pulse.pid} uses no CPU time",
            "missing: its stack. Without a hook py-spy names the line, if it is installed",
        ),
        since=began,
    )


INIT = "init_process_group"
_KEY = waits.Key(DEFAULT)
_SLOW = (Kind.NETWORK, Kind.SUBPROCESS, Kind.IMPORT, Kind.CHECKPOINT)
"""Places where a start may take long."""


def find_latecomers(view: View, came: Mapping[int, float]) -> list[Finding]:
    """Report ranks that sit elsewhere while others are in init_process_group. `came`: seconds that those have waited."""
    pending = Pending(WaitPoint(_KEY, 0, INIT), age=max(came.values()))
    for rank, waited in came.items():
        call = Collective(DEFAULT, 0, INIT, created=view.history[rank][-1].at - waited, p2p=True)
        pending.waits[rank] = RankWait(rank, _KEY, call, waited, recorded=False)
    absent = [rank for rank in view.history if rank not in came and _sits(view, rank)]
    cases = culprits.together(view, dict.fromkeys(absent, (pending,)))
    return [
        replace(culprits.finding(view, case), since=None)
        for case in cases
        if case.culprit.severity != "note"
    ]


def _sits(view: View, rank: int) -> bool:
    """Whether a rank sits at a place that no slow start explains."""
    does = culprits.doing(view, rank)
    return (
        does.activity in (Activity.ASLEEP, Activity.SILENT)
        and does.sure
        and does.position.kind not in _SLOW
    )


WAIT_S, LONG_S = 8.0, 12.0
"""Minimum seconds of a rank's wait: to count at all, and if time is the only evidence. The kept pulses of a waiting
rank reach 14 s back."""
SYN_PULSES = 2


class Comer(NamedTuple):
    """A rank in init_process_group or in the creation of another group."""

    rank: int
    pulse: Pulse
    since: float
    """Unix time of its first sample there."""
    op: str
    inner: Site

    @property
    def waited(self) -> float:
        return self.pulse.at - self.since


def find(view: View) -> Iterable[Finding]:
    """Report the obstacles to the creation of the process group."""
    if view.state.phase not in (RunPhase.STARTING, RunPhase.RUNNING) or not view.history:
        return ()
    if stopping(view.state, view.now) is not None:
        return ()  # hang.py keeps the raised findings
    there = [comer for rank, pulses in view.history.items() if (comer := _comer(view, rank, pulses))]
    if not any(comer.waited >= WAIT_S for comer in there):
        return find_alone(view)
    return _alarms(view, there) or _waiting(view, there)


def alarms(view: View) -> list[Finding]:
    """Return the findings about the start that are alarms."""
    return [finding for finding in find(view) if finding.alarm]


def _comer(view: View, rank: int, pulses: Sequence[Pulse]) -> Comer | None:
    if not pulses or waits.ended(view, rank):
        return None
    newest = pulses[-1]
    if newest.step or newest.active or not activity.may_wait_in_distributed(newest.stack):
        return None
    where = activity.position_of(newest.stack)
    if where.kind is not Kind.STORE:
        return None
    since = activity.still_since(pulses)
    inner = next(site for site in newest.stack if "/torch/distributed/" in site.file)
    return Comer(rank, newest, since, where.op, inner)


def _alarms(view: View, there: Sequence[Comer]) -> list[Finding]:
    long = [comer for comer in there if comer.waited >= WAIT_S]
    cut = unanswered(view, long)
    if cut:
        return cut
    for obstacle in (_sizes, _masters, _unmet, _ended):
        found = obstacle(view, there)
        if found is not None:
            return [found]
    came = {comer.rank: comer.waited for comer in there}
    in_init = all(comer.op == INIT for comer in there)
    return find_latecomers(view, came) if in_init and max(came.values()) >= LONG_S else []


def unanswered(view: View, comers: Sequence[Comer]) -> list[Finding]:
    """Report connections without an answer: one finding per address."""
    peers: dict[str, dict[int, Stall]] = {}
    for comer in comers:
        pulses = view.history[comer.rank]
        for stall in comer.pulse.stalls:
            same = stall.state, stall.remote
            times = sum(
                any((other.state, other.remote) == same for other in pulse.stalls) for pulse in pulses
            )
            if stall.state == "SYN_SENT" and times >= SYN_PULSES:
                peers.setdefault(stall.remote, {}).setdefault(comer.rank, stall)
    return [_unreachable(view, remote, comers, tuple(sorted(by))) for remote, by in list(peers.items())[:4]]


def _unreachable(view: View, remote: str, comers: Sequence[Comer], ranks: tuple[int, ...]) -> Finding:
    first = next(comer for comer in comers if comer.rank == ranks[0])
    master = first.pulse.master or ""
    to_master = bool(master) and remote.rpartition(":")[2] == master.rpartition(":")[2]
    who, get = view.ranks_text(ranks), agreeing(ranks, "gets", "get")
    if to_master:
        named = master if master == remote else f"{master} ({remote})"
        text = f"{who} {get} no answer from MASTER_ADDR:MASTER_PORT {named}"
        remedy = (
            "set MASTER_ADDR to an address of rank 0's node that the others can reach, and check firewall and route "
            "to that port"
        )
    else:
        text = f"{who} {get} no answer from {remote}, the address that another rank announced"
        remedy = (
            "name an interface that all nodes reach each other by: NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME; "
            "check firewall and route"
        )
    return _finding(
        view,
        "start-unreachable",
        ranks,
        text,
        remedy,
        comers,
        [f"{spans_text('rank', ranks)}: connections to {remote} get no answer to their SYN"],
    )


def _sizes(view: View, there: Sequence[Comer]) -> Finding | None:
    """Report different world sizes, or a rank beyond its world size."""
    seen = {rank: size for rank, pulses in view.history.items() if (size := pulses[-1].world_size)}
    groups = alike(seen)
    if len(groups) > 1:
        (most, usual), (few, other) = groups[0], groups[1]
        text = (
            f"{view.ranks_text(other)} {agreeing(other, 'has', 'have')} WORLD_SIZE {few}, "
            f"{spans_text('rank', usual)} {agreeing(usual, 'has', 'have')} {most}"
        )
        facts = [f"{view.ranks_text(ranks)}: WORLD_SIZE={size}" for size, ranks in groups[:4]]
    else:
        other = tuple(rank for rank, size in sorted(seen.items()) if size.isdecimal() and rank >= int(size))
        if not other:
            return None
        text = f"{view.ranks_text(other)} cannot be in a world of WORLD_SIZE {seen[other[0]]}"
        facts = [f"RANK={other[0]}, WORLD_SIZE={seen[other[0]]}"]
    return _finding(
        view,
        "start-world-size",
        other,
        text,
        "give every rank the same WORLD_SIZE: nodes × ranks per node",
        there,
        facts,
    )


def _masters(view: View, there: Sequence[Comer]) -> Finding | None:
    """Report ranks that connect to rank 0 at different addresses."""
    groups = alike({comer.rank: _plain(comer.pulse.master) for comer in there if comer.pulse.master})
    ports = {address.rpartition(":")[2] for address, _ in groups}
    if len(groups) < 2 or not any(comer.waited >= LONG_S for comer in there):
        return None
    is_late = len(there) < _expected(view)
    if len(ports) == 1 and is_late:  # the addresses may be names of one machine
        return None
    (most, usual), (few, other) = groups[0], groups[1]
    text = (
        f"{view.ranks_text(other)} {agreeing(other, 'connects', 'connect')} to rank 0 at {few}, "
        f"{spans_text('rank', usual)} at {most}"
    )
    return _finding(
        view,
        "start-unreachable",
        other,
        text,
        "give every rank the same MASTER_ADDR and MASTER_PORT: an address of rank 0's node that all can reach",
        there,
        [f"{view.ranks_text(ranks)}: MASTER_ADDR:MASTER_PORT {address}" for address, ranks in groups[:4]],
    )


def _plain(master: str | None) -> str:
    host, _, port = (master or "").rpartition(":")
    return f"{'127.0.0.1' if host in ('localhost', '::1', '[::1]') else host}:{port}"


def _unmet(view: View, there: Sequence[Comer]) -> Finding | None:
    """Report that all ranks try to connect to rank 0's store and none succeeds."""
    expected = _expected(view)
    seeking = [
        comer for comer in there if comer.inner.file.endswith("/rendezvous.py") and comer.waited >= LONG_S
    ]
    if not expected or len(seeking) < expected or not seeking[0].pulse.master:
        return None
    ranks = tuple(sorted(comer.rank for comer in seeking))
    text = f"all {len(ranks)} ranks wait, but no process answers at MASTER_ADDR:MASTER_PORT {seeking[0].pulse.master}"
    return _finding(
        view,
        "start-unreachable",
        ranks,
        text,
        "set MASTER_ADDR to an address of rank 0's node and MASTER_PORT to a free port there",
        there,
        [f"every rank waits in {activity.site_text(seeking[0].inner)} for the store of rank 0"],
    )


def _ended(view: View, there: Sequence[Comer]) -> Finding | None:
    """Report a rank that ended before it joined."""
    gone = tuple(rank for rank in sorted(view.state.ranks) if waits.ended(view, rank))
    starts = any(comer.op == INIT and comer.waited >= WAIT_S for comer in there)
    if not gone or not starts:
        return None
    ranks = sorted(comer.rank for comer in there)
    text = (
        f"{view.ranks_text(gone)} ended before the process group was there; {spans_text('rank', ranks)} "
        f"{agreeing(ranks, 'waits', 'wait')} in {there[0].op}"
    )
    return _finding(
        view,
        "hang-gone",
        gone,
        text,
        "let every rank of the group call init_process_group",
        there,
        [f"rank {rank}: exit code {view.state.ranks[rank].exit_code}" for rank in gone[:4]],
    )


def _expected(view: View) -> int:
    """Return the expected number of ranks; 0 if unknown."""
    sizes = {pulses[-1].world_size for pulses in view.history.values()} - {None}
    size = next(iter(sizes)) if len(sizes) == 1 else None
    if size is not None and size.isdecimal():
        return int(size)
    return view.attempt.world_size if view.attempt is not None else 0


def _started(view: View, expected: int) -> int:
    """Return the number of ranks in the run. A rank that joined it chooses its WORLD_SIZE, so that does not count."""
    state = view.state
    if state.plan is not None and state.plan.launcher != "torchrun":
        return len(state.ranks)
    return view.attempt.world_size if view.attempt is not None else expected


def _waiting(view: View, there: Sequence[Comer]) -> list[Finding]:
    """Report the ranks that have not joined, and what they do instead."""
    ranks = tuple(sorted(comer.rank for comer in there if comer.waited >= LONG_S))
    if not ranks:
        return []
    op = next(comer.op for comer in there if comer.rank == ranks[0])
    expected = _expected(view)
    absent = sorted(set(range(expected)) - {comer.rank for comer in there})
    started = _started(view, expected)
    text = f"{view.ranks_text(ranks)} {agreeing(ranks, 'waits', 'wait')} in {op}"
    if not absent or op != INIT:
        text += " for the others"
    elif started < expected:
        there_are = plural(started, "rank")
        text += f" for {spans_text('rank', absent)}: WORLD_SIZE is {expected}, this run has {there_are}"
    else:
        text += f"; {view.ranks_text(absent)} {agreeing(absent, 'is', 'are')} not there yet"
    remedy = START if started < expected else _NOTHING
    facts = list(_reasons(view, absent))
    return [_finding(view, "start-waiting", ranks, text, remedy, there, facts, severity="note")]


_NOTHING = "nothing, if they still import or load; else check the logs of the ranks that are not there"


def _reasons(view: View, absent: Sequence[int]) -> Iterable[str]:
    """Yield what absent ranks do, with equal reasons merged."""
    by_reason: dict[str, list[int]] = {}
    for rank in absent:
        by_reason.setdefault(_reason(view, rank), []).append(rank)
    for reason, ranks in list(by_reason.items())[:6]:
        yield f"{view.ranks_text(ranks)}: {reason}"


def _reason(view: View, rank: int) -> str:
    state, pulses = view.state.ranks.get(rank), view.history.get(rank, ())
    if state is None:
        return "no such rank was started here"
    if state.phase is RankPhase.STARTING and state.pid is None:
        return "no process yet"
    if waits.ended(view, rank):
        return f"ended ({state.phase})"
    if not pulses:
        return "nothing is received from it"
    return _place_text(pulses)


def _place_text(pulses: Sequence[Pulse]) -> str:
    newest = pulses[-1]
    if not newest.hook:
        return "its hook does not answer"
    does = activity.doing(pulses, hooked=True)
    own = activity.telling_frames(does.stack, 1)
    if does.until is not None and own:
        return f"sleeps until {time_of_day(does.until, utc=True)} at {activity.site_text(own[0])}"
    if newest.torch is False:
        return "torch.distributed is not imported yet"
    if does.activity is Activity.ASLEEP and own:
        return f"sleeps at {activity.site_text(own[0])}"
    return "has a process group already" if newest.groups else "has not called init_process_group"


def _finding(
    view: View,
    name: str,
    ranks: Sequence[int],
    text: str,
    remedy: str,
    there: Sequence[Comer],
    facts: Iterable[str],
    severity: str = "error",
) -> Finding:
    wait = sorted(comer.rank for comer in there)
    return Finding(
        name,
        severity,
        text,
        role="cause" if severity != "note" else "fact",
        **view.rank_fields(ranks),
        remedy=remedy,
        evidence=(*facts, f"{view.ranks_text(wait)} {agreeing(wait, 'is', 'are')} in {there[0].op}"),
    )
