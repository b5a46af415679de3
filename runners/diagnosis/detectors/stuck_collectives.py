"""Collectives that every rank has entered and that never complete: which rank or network is the cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ....presets.finding import NO_VERDICT, Finding
from ...formatting import agreeing, spans_text, time_of_day
from ...model import Collective, Gpu, Pulse, RankPhase, Site, Stall
from . import arrivals, divergence, naming, waits
from .arrivals import Activity, Doing
from .divergence import Split
from .naming import Kind
from .view import View
from .waits import Ends, Pending, WaitPoint

# -----------------------------------------------------------------------------------------------------------
# Collectives that every rank has called and that do not end: ranks that disagree, a network that does not carry.


SITES_S = 15.0
"""Other call sites alone are told after so long: they are usual where ranks take branches."""
SPINS_S = 20.0
SPINS_PERCENT, SPINS_POWER = 95.0, 0.5
"""A kernel that waits for others: the GPU is in use all the time, and takes less than this part of its limit."""
RETRANSMITS = 2
P2P = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "wait")
ALIGN = (
    "make every rank call the same collectives in the same order and with the same sizes; "
    "with uneven data use drop_last=True or torch's Join"
)


def mismatch(view: View, pending: Pending, *, sites: bool) -> Finding | None:
    """Ranks that called different things as the same collective. `sites`: whether another call site alone is told."""
    name, seq = pending.point.key.name, pending.point.seq
    made = {rank: wait.call for rank, wait in pending.waits.items()}
    for rank in pending.members:
        call = None if rank in made else divergence.called(view.history.get(rank, ()), name, seq)
        if call is not None:
            made[rank] = call
    parting = divergence.split(made)
    if parting is None or (parting.of == "site" and (not sites or pending.age < SITES_S)):
        return None
    (usual, most), (other, few) = parting.variants[0], parting.variants[1]
    skipped = _skipped(view, name, few[0], most[0])
    phrase = f"{naming.who(view.state, few)} {agreeing(few, 'is', 'are')} in {_call(other, parting)}"
    text = f"{phrase} where {spans_text('rank', most)} {agreeing(most, 'is', 'are')} in {_call(usual, parting)}"
    if skipped is not None:
        site = f" of {naming.site_text(skipped.sites[0])}" if skipped.sites else ""
        text = f"{naming.who(view.state, few)} skipped {naming.call_text(skipped)}{site}: {text}"
    return Finding(
        "hang-mismatch", "error", text, **naming.about(view.state, few), remedy=ALIGN, since=pending.since,
        evidence=tuple(_variants(view, parting, pending)),
    )  # fmt: skip


def _call(call: Collective, parting: Split) -> str:
    what = f" {call.what}" if parting.of == "size" and call.what else ""
    site = f" ({naming.site_text(call.sites[0])})" if call.sites else ""
    return f"{naming.call_text(call)}{what}{site}"


def _variants(view: View, parting: Split, pending: Pending) -> Iterable[str]:
    for call, ranks in parting.variants[:4]:
        stack = naming.stack_text(call.sites[:4]) or "call site not known"
        what = f" {call.what}" if call.what else ""
        yield f"{naming.who(view.state, ranks)}: {naming.call_text(call)}{what} of {pending.desc}: {stack}"
    (_, most), (_, few) = parting.variants[0], parting.variants[1]
    apart = _apart(view, pending.point.key.name, few[0], most[0])
    if apart is not None and apart.mine.seq < pending.point.seq:
        yield (
            f"they part at #{apart.mine.seq}{'' if apart.exact else ' or before'}: rank {few[0]} called "
            f"{_brief(apart.mine)}, rank {most[0]} {_brief(apart.theirs)}"
        )


def _brief(call: Collective) -> str:
    return call.op + (f" at {naming.site_text(call.sites[0])}" if call.sites else "")


def _apart(view: View, name: str, rank: int, other: int) -> divergence.Shift | None:
    mine = divergence.calls(view.history.get(rank, ()), name)
    return divergence.shift(mine, divergence.calls(view.history.get(other, ()), name))


def _skipped(view: View, name: str, rank: int, other: int) -> Collective | None:
    """The collective that a rank left out, where all that followed says so."""
    apart = _apart(view, name, rank, other)
    return apart.theirs if apart is not None and apart.skipped and apart.exact else None


def left_out(view: View, rank: int, pending: Pending) -> Finding | None:
    """A rank that is missing now because it left out a collective before."""
    other = min(pending.waits)
    if not pending.numbered or rank == other:
        return None
    apart = _apart(view, pending.point.key.name, rank, other)
    if apart is None or not (apart.skipped and apart.exact):
        return None
    site = f" of {naming.site_text(apart.theirs.sites[0])}" if apart.theirs.sites else ""
    ranks = pending.ranks
    return Finding(
        "hang-mismatch", "error",
        f"{naming.who(view.state, [rank])} skipped {naming.call_text(apart.theirs)}{site}; "
        f"{spans_text('rank', ranks)} {agreeing(ranks, 'waits', 'wait')} for it in {naming.call_text(pending.call)}",
        **naming.about(view.state, [rank]), remedy=ALIGN, since=pending.since,
        evidence=(
            waiting_text(view, pending),
            f"at #{apart.mine.seq} rank {rank} called {_brief(apart.mine)}, rank {other} {_brief(apart.theirs)}",
        ),
    )  # fmt: skip


def elsewhere(view: View, pending: Pending, others: Sequence[Pending]) -> Finding | None:
    """Ranks that the recorder does not know of, in something else than the collective that others wait in."""
    if not others or pending.point.op in P2P:
        return None
    near, ranks = others[0], pending.ranks
    text = (
        f"{naming.who(view.state, ranks)} {agreeing(ranks, 'is', 'are')} in {_brief(pending.call)} where "
        f"{spans_text('rank', near.ranks)} {agreeing(near.ranks, 'is', 'are')} in {naming.call_text(near.call)}"
    )
    return Finding(
        "hang-mismatch", "error", text, **naming.about(view.state, ranks), remedy=ALIGN, since=near.since,
        evidence=tuple(waiting_text(view, each) for each in (*others[:3], pending)),
    )  # fmt: skip


def circle(view: View, blocked: Sequence[Pending]) -> Finding:
    """Ranks that wait for each other in different groups."""
    parts = [
        f"{spans_text('rank', each.ranks)} in {naming.call_text(each.call)} of {each.desc}"
        for each in blocked
    ]
    ranks = tuple(sorted({rank for pending in blocked for rank in pending.waits}))
    return Finding(
        "hang-mismatch", "error", f"ranks wait for each other: {'; '.join(parts[:4])}" + " …" * (len(parts) > 4),
        **naming.about(view.state, ranks),
        remedy="let every rank call the collectives of its groups in the same order",
        evidence=tuple(waiting_text(view, pending) for pending in blocked[:4]),
        since=min(pending.since for pending in blocked),
    )  # fmt: skip


def network(view: View, ranks: Iterable[int], since: float) -> list[Finding]:
    """Connections of waiting ranks that the other end does not acknowledge; one finding for all between two ends."""
    between: dict[tuple[str, str], dict[int, Stall]] = {}
    nodes: dict[str, int] = {}
    for rank in ranks:
        for stall in _lasting(view.history.get(rank, ())):
            here, there = address(stall.local), address(stall.remote)
            nodes.setdefault(here, view.state.ranks[rank].place.node if rank in view.state.ranks else 0)
            between.setdefault((min(here, there), max(here, there)), {}).setdefault(rank, stall)
    return [_cut(view, stalls, nodes, since) for _, stalls in sorted(between.items())[:4]]


def _lasting(pulses: Sequence[Pulse]) -> list[Stall]:
    """Stalls that the newest two looks both saw."""
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
    """Without the port."""
    return end.rpartition(":")[0].strip("[]")


def _cut(view: View, cuts: Mapping[int, Stall], nodes: Mapping[str, int], since: float) -> Finding:
    ranks = tuple(sorted(cuts))
    first = cuts[ranks[0]]
    there = address(first.remote)
    number = nodes.get(there)
    far = f"{naming.host(view.state, number)} ({there})" if number is not None else there
    place = naming.nodes_of(view.state, ranks[:1])
    near = f" on {naming.host(view.state, place[0])}" if place else ""
    answer = "no connection to" if first.state == "SYN_SENT" else "no answer any more from"
    return Finding(
        "hang-network", "error", f"rank {ranks[0]}{near} ({address(first.local)}) gets {answer} {far}: "
        "the network between them does not carry", rank=ranks[0], ranks=ranks if len(ranks) > 1 else (),
        node=place[0] if place else None, since=since,
        remedy="look at link, route, firewall and MTU between these two addresses, and at the interface "
        "that NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names",
        evidence=tuple(
            f"rank {rank}: connection {cuts[rank].local} → {cuts[rank].remote} "
            + ("gets no answer to its SYN" if cuts[rank].state == "SYN_SENT" else "retransmits, nothing is acknowledged")
            for rank in ranks[:4]
        ),
    )  # fmt: skip


def spinning(view: View, pending: Pending) -> Finding | None:
    """GPUs that are busy with waiting: all have joined and none ends."""
    cards = [_card(view, rank) for rank in pending.ranks]
    present = [card for card in cards if card is not None]
    if pending.age < SPINS_S or len(present) != len(pending.waits) or not all(map(_spins, present)):
        return None
    ranks = pending.ranks
    return Finding(
        "hang-collective", "error",
        f"{naming.who(view.state, ranks)} have all entered {naming.call_text(pending.call)} but it never completes: "
        "their GPUs are spinning",
        **naming.about(view.state, ranks), since=pending.since,
        remedy="look at what NCCL says (NCCL screen, NCCL_DEBUG=INFO): a transport that lost its way, "
        "or one slow or broken link; NCCL_P2P_DISABLE=1 or NCCL_IB_DISABLE=1 for one run tells which",
        evidence=(
            waiting_text(view, pending),
            "every GPU of these is in use all the time at less than half of its power limit: a kernel that spins",
        ),
    )  # fmt: skip


def _card(view: View, rank: int) -> Gpu | None:
    state = view.state.ranks.get(rank)
    if state is None or state.sample is None or state.sample.gpu is None:
        return None
    node = view.state.nodes.get(state.place.node)
    cards = node.gpus if node is not None else ()
    return next((card for card in cards if card.index == state.sample.gpu), None)


def _spins(card: Gpu) -> bool:
    if card.util is None or not card.power_w or not card.power_limit_w:
        return False
    return card.util >= SPINS_PERCENT and card.power_w < SPINS_POWER * card.power_limit_w


def no_verdict(view: View, blocked: Sequence[Pending]) -> Finding:
    """Ranks wait and nothing tells why: say which data is missing."""
    first = min(blocked, key=lambda pending: (not pending.numbered, pending.since))
    ranks = tuple(sorted({rank for pending in blocked for rank in pending.waits}))
    lacking = tuple(_lacking(view, blocked)) or ("every rank's data is there, and none of it tells",)
    waiting = f"{spans_text('rank', ranks)} {agreeing(ranks, 'waits', 'wait')}"
    return Finding(
        NO_VERDICT, "note", f"{waiting} in {naming.call_text(first.call)} and nothing tells why: {lacking[0]}",
        role="fact", ranks=ranks, since=first.since,
        remedy="take all stacks: distui dump RUN stacks; with NCCL, raise NCCL_DEBUG to INFO",
        evidence=(*(waiting_text(view, pending) for pending in blocked[:4]), *lacking),
    )  # fmt: skip


def _lacking(view: View, blocked: Sequence[Pending]) -> Iterable[str]:
    """Data that would tell, in the order of its worth."""
    members = {rank for pending in blocked for rank in pending.members or view.state.ranks}
    others = sorted(members - {rank for pending in blocked for rank in pending.waits})
    newest = {rank: view.history[rank][-1] if view.history.get(rank) else None for rank in others}
    unseen = [rank for rank, pulse in newest.items() if pulse is None]
    if unseen:
        yield f"nothing is heard of {naming.who(view.state, unseen)}"
    hookless = [rank for rank, pulse in newest.items() if pulse is not None and not pulse.hook]
    if hookless:
        yield f"{naming.who(view.state, hookless)} {agreeing(hookless, 'has', 'have')} no hook that answers"
    blind = [rank for rank, pulse in newest.items() if pulse and pulse.hook and pulse.recorder is False]
    if blind:
        version = f" {view.state.torch}" if view.state.torch else ""
        yield f"torch{version} has no flight recorder on {spans_text('rank', blind)}"
    old = [rank for rank, pulse in newest.items() if pulse is not None and view.now - pulse.at > 30.0]
    if old:
        yield f"there is no news of {naming.who(view.state, old)} for a while"
    peers = [pending for pending in blocked if not pending.numbered]
    if peers:
        yield f"for whom {spans_text('rank', peers[0].ranks)} wait in {peers[0].call.op} is recorded nowhere"


# -----------------------------------------------------------------------------------------------------------
# The rank that the others wait for: what it does, said as a finding.


LONG_S, WORKS_S, LOADER_S = 20.0, 30.0, 120.0
"""How long others must wait before less certain signs count: a loop or slow I/O, work, a loader whose workers work."""
MOST = 3
"""Collectives that the evidence names one by one."""

_AT = {
    Kind.LOADER: "waits for its data loader",
    Kind.CHECKPOINT: "sits in checkpoint I/O",
    Kind.DEBUGGER: "sits in the debugger",
    Kind.SUBPROCESS: "waits for a process that it started",
    Kind.LOCK: "waits for a lock, a queue or a thread",
    Kind.NETWORK: "waits for the network",
    Kind.IMPORT: "sits in an import",
    Kind.COMPILE: "waits for the compiler",
}
_REMEDIES = {
    "hang-loader": "look at its dataset and its workers (their stacks: py-spy dump --subprocesses); "
    "try num_workers=0, and give DataLoader a timeout",
    "hang-checkpoint": "look at the file system that the checkpoint is written to: space, quota, a server that is gone",
    "hang-stopped": "let it go on with SIGCONT: distui signal RUN CONT --rank {rank}",
    "hang-c-call": "look at what that line calls; a library that holds the GIL needs a time-out of its own",
    "hang-python": "look at the condition that this loop waits for",
    "hang-not-joined": "look at what that line waits for; every rank has to call the same collectives",
    "hang-gone": "restart the group; its log says why the rank ended",
    "hang-mismatch": "make every rank call the same collectives in the same order, with no rank left out",
}
UNEVEN = (
    "give every rank the same number of batches: drop_last=True with a DistributedSampler, or torch's Join; "
    "or let every rank take part in the last collectives"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """What is to be said of one rank; equal ones of several ranks make one finding."""

    id: str
    severity: str
    does: str
    """What it does, without its name: "sleeps at train.py:33 load"."""
    remedy: str
    stack: tuple[Site, ...] = ()
    proof: str = ""
    """What else shows it, of the rank."""
    source: str = ""
    """Whence the stack is, where the hook did not give it."""


class Case(NamedTuple):
    """One verdict, on whom, and the collectives that they are missing from."""

    culprit: Culprit
    ranks: list[int]
    nearest: list[Pending]


def judge(view: View, rank: int, blocked: Sequence[Pending]) -> Culprit | None:
    """What one rank that others wait for does; None where that is not known or needs no word."""
    if waits.ended(view, rank):
        return _gone(view, rank)
    since = min((pending.since for pending in blocked), default=0.0)
    age = max((pending.age for pending in blocked), default=0.0)
    pulses = view.history.get(rank, ())
    if not pulses or pulses[-1].at < since + waits.FRESH_S:
        return None
    does = doing(view, rank)
    if does.mode is Activity.WORKS:
        return _works(does, age, blocked)
    return _stuck(does, age)


def doing(view: View, rank: int) -> Doing:
    """What a rank does, with all that is known of it."""
    state, pulses = view.state.ranks.get(rank), view.history.get(rank, ())
    if state is None or not pulses:
        return Doing(Activity.UNKNOWN)
    sample, gpu = state.sample, None
    if sample is not None and sample.gpu is not None and state.place.node in view.state.nodes:
        cards = view.state.nodes[state.place.node].gpus
        gpu = next((card.util for card in cards if card.index == sample.gpu), None)
    hooked = state.hook is not None or waits.last_answer(pulses) is not None
    return arrivals.doing(
        pulses, hooked=hooked, tree=None if sample is None else sample.cpu_percent, gpu=gpu
    )


def _gone(view: View, rank: int) -> Culprit:
    state = view.state.ranks[rank]
    if state.phase is RankPhase.SUCCEEDED:
        return Culprit(
            id="hang-gone", severity="error", does="ended with exit code 0", remedy=UNEVEN,
            proof="it was done before the others: uneven data at the end of an epoch, or a branch on the rank",
        )  # fmt: skip
    how = f"was killed by {state.signal}" if state.signal else "ended"
    if state.exit_code is not None and not state.signal:
        how = f"ended with exit code {state.exit_code}"
    return Culprit(id="hang-gone", severity="error", does=how, remedy=_REMEDIES["hang-gone"])


def stopped(does: Doing, pid: int | None) -> Culprit:
    """A rank that the kernel does not let run."""
    return Culprit(
        id="hang-stopped", severity="error", does="is stopped by a signal (SIGSTOP) or a debugger",
        remedy=_REMEDIES["hang-stopped"],
        proof=f"kernel state of pid {'n/a' if pid is None else pid}: T (stopped)", stack=does.stack,
    )  # fmt: skip


def _at(does: Doing) -> str:
    return f" at {naming.site_text(does.place.site)}" if does.place.site is not None else ""


def _stuck(does: Doing, age: float) -> Culprit | None:
    if does.mode is Activity.SILENT or (does.mode is Activity.SILENT_BUSY and age >= LONG_S):
        busy = does.mode is Activity.SILENT_BUSY
        return _verdict(
            "hang-c-call", does, f"sits in a C call that holds the GIL{', last seen' * does.stale}{_at(does)}",
            "its hook does not answer; "
            + ("it uses CPU time" if busy else "it uses no CPU time, though it is runnable"),
            "warning" if busy else "error",
        )  # fmt: skip
    if does.mode is Activity.LOOPS and age >= LONG_S:
        return _verdict(
            "hang-python", does, f"loops{_at(does)}",
            "it uses CPU time, but every sample shows this one function, which calls no other", "warning",
        )  # fmt: skip
    if does.mode is Activity.ASLEEP:
        return _asleep(does, age)
    return None


def _asleep(does: Doing, age: float) -> Culprit | None:
    kind = does.place.kind
    if kind is Kind.COMPILE or (age < LONG_S and (not does.sure or kind is Kind.NETWORK)):
        return None
    still = f"it uses {'no' if does.sure else 'hardly any'} CPU time; every sample shows the same frame"
    if kind in (Kind.STORE, Kind.COLLECTIVE):
        return _verdict("hang-mismatch", does, f"is in {does.place.op}{_at(does)}", still)
    name = {Kind.LOADER: "hang-loader", Kind.CHECKPOINT: "hang-checkpoint"}.get(kind, "hang-not-joined")
    return _verdict(name, does, _AT.get(kind, "sleeps") + _at(does), still)


def _works(does: Doing, age: float, blocked: Sequence[Pending]) -> Culprit | None:
    if does.place.kind is Kind.LOADER and does.helped and age >= LOADER_S:
        return _verdict(
            "hang-loader",
            does,
            _AT[Kind.LOADER] + _at(does),
            "the workers of its data loader work",
            "warning",
        )
    if age < WORKS_S:
        return None
    where = f" in {does.place.site.name}()" if does.helped and does.place.site else _within(does, blocked)
    return Culprit(
        id="hang-not-joined", severity="note", does=f"works{where}",
        remedy="nothing, if that is meant to take so long; else look at its stack", proof="it gets on",
    )  # fmt: skip


def _within(does: Doing, blocked: Sequence[Pending]) -> str:
    """The outermost function of a working rank that those who wait are not in: it stays while the work goes on."""
    theirs = {site.name for pending in blocked for site in pending.call.sites} | {"<module>", "main"}
    own = [site for site in reversed(naming.users(does.stack, 64)) if site.name not in theirs]
    return f" in {own[0].name}()" if own and not own[0].name.startswith("<") else ""


def _verdict(name: str, does: Doing, action: str, proof: str, severity: str = "error") -> Culprit:
    return Culprit(
        id=name,
        severity=severity,
        does=action,
        remedy=_REMEDIES[name],
        proof=proof,
        stack=does.stack,
        source=does.source,
    )


def together(view: View, candidates: Mapping[int, Sequence[Pending]]) -> list[Case]:
    """Verdicts on ranks that others wait for, equal ones of several ranks together; the worst first."""
    cases: dict[tuple[str, str, str], Case] = {}
    near: dict[tuple[str, str, str], dict[WaitPoint, Pending]] = {}
    for rank, blocked in sorted(candidates.items()):
        culprit = judge(view, rank, blocked)
        if culprit is not None:
            key = (culprit.id, culprit.does, culprit.severity)
            cases.setdefault(key, Case(culprit, [], [])).ranks.append(rank)
            near.setdefault(key, {}).update({pending.point: pending for pending in blocked})
    for key, case in cases.items():
        case.nearest.extend(near[key].values())
    return sorted(cases.values(), key=lambda case: (case.culprit.severity != "error", case.ranks))


def finding(
    view: View, ranks: Sequence[int], fault: Culprit, chain: Ends, nearest: Sequence[Pending]
) -> Finding:
    """The finding about some ranks of which the same is to be said."""
    leading = chain.leading(nearest)
    victims = sorted({rank for pending in leading for rank in pending.waits} - set(ranks))
    who = naming.who(view.state, ranks)
    does = fault.does if len(ranks) == 1 else _plural(fault.does)
    waiting = f"{spans_text('rank', victims)} {agreeing(victims, 'waits', 'wait')}" if victims else ""
    where = f" in {naming.call_text(nearest[0].call)}" if nearest else ""
    it = agreeing(ranks, "it", "them")
    return Finding(
        id=fault.id,
        severity=fault.severity,
        text=f"{who} {does}" + (f"; {waiting} for {it}{where}" if waiting else ""),
        role="cause" if fault.severity != "note" else "fact",
        **naming.about(view.state, ranks),
        remedy=fault.remedy.format(rank=ranks[0]),
        evidence=tuple(evidence(view, ranks, fault, leading, nearest)),
        since=min((pending.since for pending in leading), default=None),
    )


def _plural(does: str) -> str:
    first, _, rest = does.partition(" ")
    word = {"is": "are", "was": "were", "ended": "ended", "loops": "loop"}.get(
        first, first.removesuffix("s")
    )
    rest = rest.replace("its ", "their ").replace(" it ", " they ")
    return f"{word} {rest}".rstrip()


def evidence(
    view: View, ranks: Sequence[int], fault: Culprit, leading: Sequence[Pending], nearest: Sequence[Pending]
) -> Iterable[str]:
    """Who waits where, how far the culprit came, its stack."""
    for pending in leading[:MOST]:
        yield waiting_text(view, pending)
    if len(leading) > MOST:
        more = leading[MOST:]
        yield f"{sum(len(each.waits) for each in more)} more ranks wait in {len(more)} other collectives behind those"
    for pending in nearest[:1]:
        yield from _behind(view, ranks, pending)
    stack = naming.users(fault.stack)
    if stack:
        yield f"stack of rank {ranks[0]}: {naming.stack_text(stack)}"
    if fault.source:
        yield fault.source
    if fault.proof:
        yield fault.proof


def _behind(view: View, ranks: Sequence[int], pending: Pending) -> Iterable[str]:
    """How many collectives the culprits have called, where they have told."""
    if not pending.numbered:
        return
    name = pending.point.key.name
    counts: dict[int, list[int]] = {}
    for rank in ranks:
        pulse = waits.last_answer(view.history.get(rank, ()))
        group = next((group for group in pulse.groups if group.name == name), None) if pulse else None
        if group is not None and pulse is not None and view.history[rank][-1].hook:
            counts.setdefault(group.enqueued, []).append(rank)
    for count, those in sorted(counts.items())[:MOST]:
        yield f"{spans_text('rank', those)} called {count} collectives of {pending.desc}"


def waiting_text(view: View, pending: Pending) -> str:
    """ "ranks 0, 1, 3 wait in all_reduce #42 of default_pg (train.py:50 step) since 20:41:07 UTC"."""
    site = next((wait.call.sites[0] for wait in pending.waits.values() if wait.call.sites), None)
    where = f" ({naming.site_text(site)})" if site is not None else ""
    ranks = pending.ranks
    of = f" of {pending.desc}" if pending.numbered else ""
    recorded = all(wait.recorded for wait in pending.waits.values())
    since = f" since {time_of_day(pending.since, utc=True)}" if recorded else ""
    what = naming.call_text(pending.call)
    return f"{naming.who(view.state, ranks)} {agreeing(ranks, 'waits', 'wait')} in {what}{of}{where}{since}"
