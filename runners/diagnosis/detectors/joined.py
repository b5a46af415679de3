"""Collectives that every rank has called and that do not end: ranks that disagree, a network that does not carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...model import Collective, Finding, Gpu, Pulse, Stall
from . import culprits, divergence, naming
from .divergence import Split
from .view import View
from .waits import Meeting

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
    said = f"{naming.who(view.state, few)} {naming.verb(few, 'is', 'are')} in {_call(other, found)}"
    text = (
        f"{said} where {naming.ranks_text(most)} {naming.verb(most, 'is', 'are')} in {_call(usual, found)}"
    )
    if skipped is not None:
        site = f" of {naming.site_text(skipped.sites[0])}" if skipped.sites else ""
        text = f"{naming.who(view.state, few)} skipped {naming.call_text(skipped)}{site}: {text}"
    return Finding(
        "hang-mismatch", "error", text, **naming.about(view.state, few), remedy=ALIGN, since=meeting.since,
        evidence=tuple(_variants(view, found, meeting)),
    )  # fmt: skip


def _call(call: Collective, found: Split) -> str:
    what = f" {call.what}" if found.of == "size" and call.what else ""
    site = f" ({naming.site_text(call.sites[0])})" if call.sites else ""
    return f"{naming.call_text(call)}{what}{site}"


def _variants(view: View, found: Split, meeting: Meeting) -> Iterable[str]:
    for call, ranks in found.variants[:4]:
        stack = naming.stack_text(call.sites[:4]) or "call site not known"
        what = f" {call.what}" if call.what else ""
        yield f"{naming.who(view.state, ranks)}: {naming.call_text(call)}{what} of {meeting.desc}: {stack}"
    (_, most), (_, few) = found.variants[0], found.variants[1]
    apart = _apart(view, meeting.spot.key.name, few[0], most[0])
    if apart is not None and apart.mine.seq < meeting.spot.seq:
        yield (
            f"they part at #{apart.mine.seq}{'' if apart.exact else ' or before'}: rank {few[0]} called "
            f"{_brief(apart.mine)}, rank {most[0]} {_brief(apart.theirs)}"
        )


def _brief(call: Collective) -> str:
    return call.op + (f" at {naming.site_text(call.sites[0])}" if call.sites else "")


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
    site = f" of {naming.site_text(apart.theirs.sites[0])}" if apart.theirs.sites else ""
    ranks = meeting.ranks
    return Finding(
        "hang-mismatch", "error",
        f"{naming.who(view.state, [rank])} skipped {naming.call_text(apart.theirs)}{site}; "
        f"{naming.ranks_text(ranks)} {naming.verb(ranks, 'waits', 'wait')} for it in {naming.call_text(meeting.call)}",
        **naming.about(view.state, [rank]), remedy=ALIGN, since=meeting.since,
        evidence=(
            culprits.waiting_text(view, meeting),
            f"at #{apart.mine.seq} rank {rank} called {_brief(apart.mine)}, rank {other} {_brief(apart.theirs)}",
        ),
    )  # fmt: skip


def elsewhere(view: View, meeting: Meeting, others: Sequence[Meeting]) -> Finding | None:
    """Ranks that the recorder does not know of, in something else than the collective that others wait in."""
    if not others or meeting.spot.op in P2P:
        return None
    near, ranks = others[0], meeting.ranks
    text = (
        f"{naming.who(view.state, ranks)} {naming.verb(ranks, 'is', 'are')} in {_brief(meeting.call)} where "
        f"{naming.ranks_text(near.ranks)} {naming.verb(near.ranks, 'is', 'are')} in {naming.call_text(near.call)}"
    )
    return Finding(
        "hang-mismatch", "error", text, **naming.about(view.state, ranks), remedy=ALIGN, since=near.since,
        evidence=tuple(culprits.waiting_text(view, one) for one in (*others[:3], meeting)),
    )  # fmt: skip


def circle(view: View, meetings: Sequence[Meeting]) -> Finding:
    """Ranks that wait for each other in different groups."""
    told = [
        f"{naming.ranks_text(one.ranks)} in {naming.call_text(one.call)} of {one.desc}" for one in meetings
    ]
    ranks = tuple(sorted({rank for one in meetings for rank in one.waits}))
    return Finding(
        "hang-mismatch", "error", f"ranks wait for each other: {'; '.join(told[:4])}" + " …" * (len(told) > 4),
        **naming.about(view.state, ranks),
        remedy="let every rank call the collectives of its groups in the same order",
        evidence=tuple(culprits.waiting_text(view, one) for one in meetings[:4]),
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
    far = f"{naming.host(view.state, known)} ({there})" if known is not None else there
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
        f"{naming.who(view.state, ranks)} have all joined {naming.call_text(meeting.call)} and it does not end: "
        "their GPUs only wait",
        **naming.about(view.state, ranks), since=meeting.since,
        remedy="look at what NCCL says (NCCL screen, NCCL_DEBUG=INFO): a transport that lost its way, "
        "or one slow or broken link; NCCL_P2P_DISABLE=1 or NCCL_IB_DISABLE=1 for one run tells which",
        evidence=(
            culprits.waiting_text(view, meeting),
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
    waiting = f"{naming.ranks_text(ranks)} {naming.verb(ranks, 'waits', 'wait')}"
    return Finding(
        "hang-no-verdict", "info", f"{waiting} in {naming.call_text(first.call)} and nothing tells why: {lacking[0]}",
        role="fact", ranks=ranks, since=first.since,
        remedy="take all stacks: distui dump RUN stacks; with NCCL, raise NCCL_DEBUG to INFO",
        evidence=(*(culprits.waiting_text(view, one) for one in meetings[:4]), *lacking),
    )  # fmt: skip


def _lacking(view: View, meetings: Sequence[Meeting]) -> Iterable[str]:
    """Data that would tell, in the order of its worth."""
    members = {rank for one in meetings for rank in one.members or view.state.ranks}
    others = sorted(members - {rank for one in meetings for rank in one.waits})
    newest = {rank: view.history[rank][-1] if view.history.get(rank) else None for rank in others}
    unseen = [rank for rank, pulse in newest.items() if pulse is None]
    if unseen:
        yield f"nothing is heard of {naming.who(view.state, unseen)}"
    hookless = [rank for rank, one in newest.items() if one is not None and not one.hook]
    if hookless:
        yield f"{naming.who(view.state, hookless)} {naming.verb(hookless, 'has', 'have')} no hook that answers"
    blind = [rank for rank, one in newest.items() if one is not None and one.hook and one.recorder is False]
    if blind:
        version = f" {view.state.torch}" if view.state.torch else ""
        yield f"torch{version} has no flight recorder on {naming.ranks_text(blind)}"
    old = [rank for rank, one in newest.items() if one is not None and view.now - one.at > 30.0]
    if old:
        yield f"there is no news of {naming.who(view.state, old)} for a while"
    peers = [one for one in meetings if not one.numbered]
    if peers:
        yield f"for whom {naming.ranks_text(peers[0].ranks)} wait in {peers[0].call.op} is recorded nowhere"
