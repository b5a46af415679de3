"""Collectives that every rank has entered and that never complete: which rank or network is the cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...model import Collective, Finding, Gpu, Pulse, RankPhase, Site, Stall
from . import arrivals, divergence, people, waits
from .arrivals import Activity, Doing
from .divergence import Split
from .people import Kind
from .view import View
from .waits import Ends, Meeting, Spot

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


def mismatch(view: View, meeting: Meeting, *, sites: bool) -> Finding | None:
    """Ranks that called different things as the same collective. `sites`: whether another call site alone is told."""
    name, seq = meeting.spot.key.name, meeting.spot.seq
    made = {rank: wait.call for rank, wait in meeting.waits.items()}
    for rank in meeting.members:
        call = None if rank in made else divergence.called(view.history.get(rank, ()), name, seq)
        if call is not None:
            made[rank] = call
    found = divergence.split(made)
    if found is None or (found.of == "site" and (not sites or meeting.age < SITES_S)):
        return None
    (usual, most), (other, few) = found.variants[0], found.variants[1]
    skipped = _skipped(view, name, few[0], most[0])
    said = f"{people.who(view.state, few)} {people.verb(few, 'is', 'are')} in {_call(other, found)}"
    text = (
        f"{said} where {people.ranks_text(most)} {people.verb(most, 'is', 'are')} in {_call(usual, found)}"
    )
    if skipped is not None:
        site = f" of {people.site_text(skipped.sites[0])}" if skipped.sites else ""
        text = f"{people.who(view.state, few)} skipped {people.call_text(skipped)}{site}: {text}"
    return Finding(
        "hang-mismatch", "error", text, **people.about(view.state, few), remedy=ALIGN, since=meeting.since,
        evidence=tuple(_variants(view, found, meeting)),
    )  # fmt: skip


def _call(call: Collective, found: Split) -> str:
    what = f" {call.what}" if found.of == "size" and call.what else ""
    site = f" ({people.site_text(call.sites[0])})" if call.sites else ""
    return f"{people.call_text(call)}{what}{site}"


def _variants(view: View, found: Split, meeting: Meeting) -> Iterable[str]:
    for call, ranks in found.variants[:4]:
        stack = people.stack_text(call.sites[:4]) or "call site not known"
        what = f" {call.what}" if call.what else ""
        yield f"{people.who(view.state, ranks)}: {people.call_text(call)}{what} of {meeting.desc}: {stack}"
    (_, most), (_, few) = found.variants[0], found.variants[1]
    apart = _apart(view, meeting.spot.key.name, few[0], most[0])
    if apart is not None and apart.mine.seq < meeting.spot.seq:
        yield (
            f"they part at #{apart.mine.seq}{'' if apart.exact else ' or before'}: rank {few[0]} called "
            f"{_brief(apart.mine)}, rank {most[0]} {_brief(apart.theirs)}"
        )


def _brief(call: Collective) -> str:
    return call.op + (f" at {people.site_text(call.sites[0])}" if call.sites else "")


def _apart(view: View, name: str, one: int, other: int) -> divergence.Shift | None:
    mine = divergence.calls(view.history.get(one, ()), name)
    return divergence.shift(mine, divergence.calls(view.history.get(other, ()), name))


def _skipped(view: View, name: str, one: int, other: int) -> Collective | None:
    """The collective that a rank left out, where all that followed says so."""
    apart = _apart(view, name, one, other)
    return apart.theirs if apart is not None and apart.skipped and apart.exact else None


def left_out(view: View, rank: int, meeting: Meeting) -> Finding | None:
    """A rank that is missing now because it left out a collective before."""
    other = min(meeting.waits)
    if not meeting.numbered or rank == other:
        return None
    apart = _apart(view, meeting.spot.key.name, rank, other)
    if apart is None or not (apart.skipped and apart.exact):
        return None
    site = f" of {people.site_text(apart.theirs.sites[0])}" if apart.theirs.sites else ""
    ranks = meeting.ranks
    return Finding(
        "hang-mismatch", "error",
        f"{people.who(view.state, [rank])} skipped {people.call_text(apart.theirs)}{site}; "
        f"{people.ranks_text(ranks)} {people.verb(ranks, 'waits', 'wait')} for it in {people.call_text(meeting.call)}",
        **people.about(view.state, [rank]), remedy=ALIGN, since=meeting.since,
        evidence=(
            waiting_text(view, meeting),
            f"at #{apart.mine.seq} rank {rank} called {_brief(apart.mine)}, rank {other} {_brief(apart.theirs)}",
        ),
    )  # fmt: skip


def elsewhere(view: View, meeting: Meeting, others: Sequence[Meeting]) -> Finding | None:
    """Ranks that the recorder does not know of, in something else than the collective that others wait in."""
    if not others or meeting.spot.op in P2P:
        return None
    near, ranks = others[0], meeting.ranks
    text = (
        f"{people.who(view.state, ranks)} {people.verb(ranks, 'is', 'are')} in {_brief(meeting.call)} where "
        f"{people.ranks_text(near.ranks)} {people.verb(near.ranks, 'is', 'are')} in {people.call_text(near.call)}"
    )
    return Finding(
        "hang-mismatch", "error", text, **people.about(view.state, ranks), remedy=ALIGN, since=near.since,
        evidence=tuple(waiting_text(view, one) for one in (*others[:3], meeting)),
    )  # fmt: skip


def circle(view: View, meetings: Sequence[Meeting]) -> Finding:
    """Ranks that wait for each other in different groups."""
    told = [
        f"{people.ranks_text(one.ranks)} in {people.call_text(one.call)} of {one.desc}" for one in meetings
    ]
    ranks = tuple(sorted({rank for one in meetings for rank in one.waits}))
    return Finding(
        "hang-mismatch", "error", f"ranks wait for each other: {'; '.join(told[:4])}" + " …" * (len(told) > 4),
        **people.about(view.state, ranks),
        remedy="let every rank call the collectives of its groups in the same order",
        evidence=tuple(waiting_text(view, one) for one in meetings[:4]),
        since=min(one.since for one in meetings),
    )  # fmt: skip


def network(view: View, ranks: Iterable[int], since: float) -> list[Finding]:
    """Connections of waiting ranks that the other end does not acknowledge; one finding for all between two ends."""
    found: dict[tuple[str, str], dict[int, Stall]] = {}
    nodes: dict[str, int] = {}
    for rank in ranks:
        for stall in _lasting(view.history.get(rank, ())):
            here, there = address(stall.local), address(stall.remote)
            nodes.setdefault(here, view.state.ranks[rank].place.node if rank in view.state.ranks else 0)
            found.setdefault((min(here, there), max(here, there)), {}).setdefault(rank, stall)
    return [_cut(view, said, nodes, since) for _, said in sorted(found.items())[:4]]


def _lasting(pulses: Sequence[Pulse]) -> list[Stall]:
    """Stalls that the newest two looks both saw."""
    if len(pulses) < 2:
        return []
    before = {(one.local, one.remote) for one in pulses[-2].stalls}
    return [
        one
        for one in pulses[-1].stalls
        if (one.state == "SYN_SENT" and any(one.remote == remote for _, remote in before))
        or (one.retransmits >= RETRANSMITS and (one.local, one.remote) in before)
    ]


def address(end: str) -> str:
    """Without the port."""
    return end.rpartition(":")[0].strip("[]")


def _cut(view: View, said: Mapping[int, Stall], nodes: Mapping[str, int], since: float) -> Finding:
    ranks = tuple(sorted(said))
    first = said[ranks[0]]
    there = address(first.remote)
    known = nodes.get(there)
    far = f"{people.host(view.state, known)} ({there})" if known is not None else there
    place = people.nodes_of(view.state, ranks[:1])
    near = f" on {people.host(view.state, place[0])}" if place else ""
    answer = "no connection to" if first.state == "SYN_SENT" else "no answer any more from"
    return Finding(
        "hang-network", "error", f"rank {ranks[0]}{near} ({address(first.local)}) gets {answer} {far}: "
        "the network between them does not carry", rank=ranks[0], ranks=ranks if len(ranks) > 1 else (),
        node=place[0] if place else None, since=since,
        remedy="look at link, route, firewall and MTU between these two addresses, and at the interface "
        "that NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names",
        evidence=tuple(
            f"rank {rank}: connection {said[rank].local} → {said[rank].remote} "
            + ("gets no answer to its SYN" if said[rank].state == "SYN_SENT" else "retransmits, nothing is acknowledged")
            for rank in ranks[:4]
        ),
    )  # fmt: skip


def spinning(view: View, meeting: Meeting) -> Finding | None:
    """GPUs that are busy with waiting: all have joined and none ends."""
    cards = [_card(view, rank) for rank in meeting.ranks]
    known = [card for card in cards if card is not None]
    if meeting.age < SPINS_S or len(known) != len(meeting.waits) or not all(map(_spins, known)):
        return None
    ranks = meeting.ranks
    return Finding(
        "hang-collective", "error",
        f"{people.who(view.state, ranks)} have all joined {people.call_text(meeting.call)} and it does not end: "
        "their GPUs only wait",
        **people.about(view.state, ranks), since=meeting.since,
        remedy="look at what NCCL says (NCCL screen, NCCL_DEBUG=INFO): a transport that lost its way, "
        "or one slow or broken link; NCCL_P2P_DISABLE=1 or NCCL_IB_DISABLE=1 for one run tells which",
        evidence=(
            waiting_text(view, meeting),
            "every GPU of these is in use all the time at less than half of its power limit: a kernel that spins",
        ),
    )  # fmt: skip


def _card(view: View, rank: int) -> Gpu | None:
    known = view.state.ranks.get(rank)
    if known is None or known.sample is None or known.sample.gpu is None:
        return None
    node = view.state.nodes.get(known.place.node)
    cards = node.gpus if node is not None else ()
    return next((card for card in cards if card.index == known.sample.gpu), None)


def _spins(card: Gpu) -> bool:
    if card.util is None or not card.power_w or not card.power_limit_w:
        return False
    return card.util >= SPINS_PERCENT and card.power_w < SPINS_POWER * card.power_limit_w


def no_verdict(view: View, meetings: Sequence[Meeting]) -> Finding:
    """Ranks wait and nothing tells why: say which data is missing."""
    first = min(meetings, key=lambda one: (not one.numbered, one.since))
    ranks = tuple(sorted({rank for one in meetings for rank in one.waits}))
    lacking = tuple(_lacking(view, meetings)) or ("every rank's data is there, and none of it tells",)
    waiting = f"{people.ranks_text(ranks)} {people.verb(ranks, 'waits', 'wait')}"
    return Finding(
        "hang-no-verdict", "info", f"{waiting} in {people.call_text(first.call)} and nothing tells why: {lacking[0]}",
        role="fact", ranks=ranks, since=first.since,
        remedy="take all stacks: distui dump RUN stacks; with NCCL, raise NCCL_DEBUG to INFO",
        evidence=(*(waiting_text(view, one) for one in meetings[:4]), *lacking),
    )  # fmt: skip


def _lacking(view: View, meetings: Sequence[Meeting]) -> Iterable[str]:
    """Data that would tell, in the order of its worth."""
    members = {rank for one in meetings for rank in one.members or view.state.ranks}
    others = sorted(members - {rank for one in meetings for rank in one.waits})
    newest = {rank: view.history[rank][-1] if view.history.get(rank) else None for rank in others}
    unseen = [rank for rank, pulse in newest.items() if pulse is None]
    if unseen:
        yield f"nothing is heard of {people.who(view.state, unseen)}"
    hookless = [rank for rank, one in newest.items() if one is not None and not one.hook]
    if hookless:
        yield f"{people.who(view.state, hookless)} {people.verb(hookless, 'has', 'have')} no hook that answers"
    blind = [rank for rank, one in newest.items() if one is not None and one.hook and one.recorder is False]
    if blind:
        version = f" {view.state.torch}" if view.state.torch else ""
        yield f"torch{version} has no flight recorder on {people.ranks_text(blind)}"
    old = [rank for rank, one in newest.items() if one is not None and view.now - one.at > 30.0]
    if old:
        yield f"there is no news of {people.who(view.state, old)} for a while"
    peers = [one for one in meetings if not one.numbered]
    if peers:
        yield f"for whom {people.ranks_text(peers[0].ranks)} wait in {peers[0].call.op} is recorded nowhere"


# -----------------------------------------------------------------------------------------------------------
# The rank that the others wait for: what it does, said as a finding.


LONG_S, WORKS_S, LOADER_S = 20.0, 30.0, 120.0
"""How long others must wait before less certain signs count: a loop or slow I/O, work, a loader whose workers work."""
MOST = 3
"""Meetings that the evidence names one by one."""

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
    "hang-c-call": "look at what that line calls; a library that keeps Python's lock needs a time-out of its own",
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
    """One verdict, on whom, and the meetings that they are missing from."""

    said: Culprit
    ranks: list[int]
    nearest: list[Meeting]


def judge(view: View, rank: int, meetings: Sequence[Meeting]) -> Culprit | None:
    """What one rank that others wait for does; None where that is not known or needs no word."""
    if waits.ended(view, rank):
        return _gone(view, rank)
    since = min((one.since for one in meetings), default=0.0)
    age = max((one.age for one in meetings), default=0.0)
    pulses = view.history.get(rank, ())
    if not pulses or pulses[-1].at < since + waits.FRESH_S:
        return None
    does = doing(view, rank)
    if does.mode is Activity.WORKS:
        return _works(does, age, meetings)
    return _stuck(does, age)


def doing(view: View, rank: int) -> Doing:
    """What a rank does, with all that is known of it."""
    known, pulses = view.state.ranks.get(rank), view.history.get(rank, ())
    if known is None or not pulses:
        return Doing(Activity.UNKNOWN)
    sample, gpu = known.sample, None
    if sample is not None and sample.gpu is not None and known.place.node in view.state.nodes:
        cards = view.state.nodes[known.place.node].gpus
        gpu = next((card.util for card in cards if card.index == sample.gpu), None)
    hooked = known.hook is not None or waits.last_answer(pulses) is not None
    return arrivals.doing(
        pulses, hooked=hooked, tree=None if sample is None else sample.cpu_percent, gpu=gpu
    )


def _gone(view: View, rank: int) -> Culprit:
    known = view.state.ranks[rank]
    if known.phase is RankPhase.SUCCEEDED:
        return Culprit(
            id="hang-gone", severity="error", does="ended with exit code 0", remedy=UNEVEN,
            proof="it was done before the others: uneven data at the end of an epoch, or a branch on the rank",
        )  # fmt: skip
    how = f"was ended by {known.signal}" if known.signal else "ended"
    if known.exit_code is not None and not known.signal:
        how = f"ended with exit code {known.exit_code}"
    return Culprit(id="hang-gone", severity="error", does=how, remedy=_REMEDIES["hang-gone"])


def stopped(does: Doing, pid: int | None) -> Culprit:
    """A rank that the kernel does not let run."""
    return Culprit(
        id="hang-stopped", severity="error", does="is stopped by a signal (SIGSTOP) or a debugger",
        remedy=_REMEDIES["hang-stopped"],
        proof=f"kernel state of pid {'n/a' if pid is None else pid}: T (stopped)", stack=does.stack,
    )  # fmt: skip


def _at(does: Doing) -> str:
    return f" at {people.site_text(does.place.site)}" if does.place.site is not None else ""


def _stuck(does: Doing, age: float) -> Culprit | None:
    if does.mode is Activity.SILENT or (does.mode is Activity.SILENT_BUSY and age >= LONG_S):
        busy = does.mode is Activity.SILENT_BUSY
        return _verdict(
            "hang-c-call", does, f"sits in a C call that keeps Python's lock{', last seen' * does.stale}{_at(does)}",
            "its hook does not answer, and it "
            + ("computes" if busy else "uses no processor time, though the kernel lets it run"),
            "warn" if busy else "error",
        )  # fmt: skip
    if does.mode is Activity.LOOPS and age >= LONG_S:
        return _verdict(
            "hang-python", does, f"loops{_at(does)}",
            "its processor is busy, but every look finds it in this one function, which calls no other", "warn",
        )  # fmt: skip
    if does.mode is Activity.ASLEEP:
        return _asleep(does, age)
    return None


def _asleep(does: Doing, age: float) -> Culprit | None:
    kind = does.place.kind
    if kind is Kind.COMPILE or (age < LONG_S and (not does.sure or kind is Kind.NETWORK)):
        return None
    still = f"it uses {'no' if does.sure else 'hardly any'} processor time, and every look finds it at the same place"
    if kind in (Kind.STORE, Kind.COLLECTIVE):
        return _verdict("hang-mismatch", does, f"is in {does.place.op}{_at(does)}", still)
    known = {Kind.LOADER: "hang-loader", Kind.CHECKPOINT: "hang-checkpoint"}.get(kind, "hang-not-joined")
    return _verdict(known, does, _AT.get(kind, "sleeps") + _at(does), still)


def _works(does: Doing, age: float, meetings: Sequence[Meeting]) -> Culprit | None:
    if does.place.kind is Kind.LOADER and does.helped and age >= LOADER_S:
        return _verdict(
            "hang-loader", does, _AT[Kind.LOADER] + _at(does), "the workers of its data loader work", "warn"
        )
    if age < WORKS_S:
        return None
    where = f" in {does.place.site.name}()" if does.helped and does.place.site else _within(does, meetings)
    return Culprit(
        id="hang-not-joined", severity="info", does=f"works{where}",
        remedy="nothing, if that is meant to take so long; else look at its stack", proof="it gets on",
    )  # fmt: skip


def _within(does: Doing, meetings: Sequence[Meeting]) -> str:
    """The outermost function of a working rank that those who wait are not in: it stays while the work goes on."""
    theirs = {site.name for one in meetings for site in one.call.sites} | {"<module>", "main"}
    own = [site for site in reversed(people.users(does.stack, 64)) if site.name not in theirs]
    return f" in {own[0].name}()" if own and not own[0].name.startswith("<") else ""


def _verdict(known: str, does: Doing, said: str, proof: str, severity: str = "error") -> Culprit:
    return Culprit(
        id=known,
        severity=severity,
        does=said,
        remedy=_REMEDIES[known],
        proof=proof,
        stack=does.stack,
        source=does.source,
    )


def together(view: View, candidates: Mapping[int, Sequence[Meeting]]) -> list[Case]:
    """Verdicts on ranks that others wait for, equal ones of several ranks together; the worst first."""
    found: dict[tuple[str, str, str], Case] = {}
    near: dict[tuple[str, str, str], dict[Spot, Meeting]] = {}
    for rank, meetings in sorted(candidates.items()):
        said = judge(view, rank, meetings)
        if said is not None:
            key = (said.id, said.does, said.severity)
            found.setdefault(key, Case(said, [], [])).ranks.append(rank)
            near.setdefault(key, {}).update({one.spot: one for one in meetings})
    for key, case in found.items():
        case.nearest.extend(near[key].values())
    return sorted(found.values(), key=lambda case: (case.said.severity != "error", case.ranks))


def finding(
    view: View, ranks: Sequence[int], said: Culprit, chain: Ends, nearest: Sequence[Meeting]
) -> Finding:
    """The finding about some ranks of which the same is to be said."""
    leading = chain.leading(nearest)
    victims = sorted({rank for one in leading for rank in one.waits} - set(ranks))
    who = people.who(view.state, ranks)
    does = said.does if len(ranks) == 1 else _plural(said.does)
    waiting = f"{people.ranks_text(victims)} {people.verb(victims, 'waits', 'wait')}" if victims else ""
    where = f" in {people.call_text(nearest[0].call)}" if nearest else ""
    it = people.verb(ranks, "it", "them")
    return Finding(
        id=said.id,
        severity=said.severity,
        text=f"{who} {does}" + (f"; {waiting} for {it}{where}" if waiting else ""),
        role="cause" if said.severity != "info" else "fact",
        **people.about(view.state, ranks),
        remedy=said.remedy.format(rank=ranks[0]),
        evidence=tuple(evidence(view, ranks, said, leading, nearest)),
        since=min((one.since for one in leading), default=None),
    )


def _plural(does: str) -> str:
    first, _, rest = does.partition(" ")
    word = {"is": "are", "was": "were", "ended": "ended", "loops": "loop"}.get(
        first, first.removesuffix("s")
    )
    rest = rest.replace("its ", "their ").replace(" it ", " they ")
    return f"{word} {rest}".rstrip()


def evidence(
    view: View, ranks: Sequence[int], said: Culprit, leading: Sequence[Meeting], nearest: Sequence[Meeting]
) -> Iterable[str]:
    """Who waits where, how far the culprit came, its stack."""
    for one in leading[:MOST]:
        yield waiting_text(view, one)
    if len(leading) > MOST:
        more = leading[MOST:]
        yield f"{sum(len(one.waits) for one in more)} more ranks wait in {len(more)} other collectives behind those"
    for one in nearest[:1]:
        yield from _behind(view, ranks, one)
    stack = people.users(said.stack)
    if stack:
        yield f"stack of rank {ranks[0]}: {people.stack_text(stack)}"
    if said.source:
        yield said.source
    if said.proof:
        yield said.proof


def _behind(view: View, ranks: Sequence[int], meeting: Meeting) -> Iterable[str]:
    """How many collectives the culprits have called, where they have told."""
    if not meeting.numbered:
        return
    name = meeting.spot.key.name
    counts: dict[int, list[int]] = {}
    for rank in ranks:
        told = waits.last_answer(view.history.get(rank, ()))
        group = next((one for one in told.groups if one.name == name), None) if told is not None else None
        if group is not None and told is not None and view.history[rank][-1].hook:
            counts.setdefault(group.enqueued, []).append(rank)
    for count, those in sorted(counts.items())[:MOST]:
        yield f"{people.ranks_text(those)} called {count} collectives of {meeting.desc}"


def waiting_text(view: View, meeting: Meeting) -> str:
    """ "ranks 0, 1, 3 wait in all_reduce #42 of default_pg (train.py:50 step) since 20:41:07 UTC"."""
    site = next((wait.call.sites[0] for wait in meeting.waits.values() if wait.call.sites), None)
    where = f" ({people.site_text(site)})" if site is not None else ""
    ranks = meeting.ranks
    of = f" of {meeting.desc}" if meeting.numbered else ""
    recorded = all(wait.recorded for wait in meeting.waits.values())
    since = f" since {people.clock(meeting.since)}" if recorded else ""
    what = people.call_text(meeting.call)
    return (
        f"{people.who(view.state, ranks)} {people.verb(ranks, 'waits', 'wait')} in {what}{of}{where}{since}"
    )
