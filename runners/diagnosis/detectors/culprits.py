"""The rank that the others wait for: what it does, said as a finding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...model import Finding, RankPhase, Site
from . import naming, places, progress, waits
from .places import Kind
from .progress import Doing, Mode
from .view import View
from .waits import Ends, Meeting, Spot

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
class Verdict:
    """What is to be said of one rank; equal ones of several ranks make one finding."""

    id: str
    severity: str
    does: str
    """What it does, without its name: "sleeps at train.py:33 load"."""
    remedy: str
    stack: tuple[Site, ...] = ()
    proof: str = ""
    """What else shows it, of the rank."""


class Case(NamedTuple):
    """One verdict, on whom, and the meetings that they are missing from."""

    said: Verdict
    ranks: list[int]
    nearest: list[Meeting]


def judge(view: View, rank: int, meetings: Sequence[Meeting]) -> Verdict | None:
    """What one rank that others wait for does; None where that is not known or needs no word."""
    if waits.ended(view, rank):
        return _gone(view, rank)
    since = min((one.since for one in meetings), default=0.0)
    age = max((one.age for one in meetings), default=0.0)
    pulses = view.history.get(rank, ())
    if not pulses or pulses[-1].at < since + waits.FRESH_S:
        return None
    does = doing(view, rank)
    if does.mode is Mode.WORKS:
        return _works(does, age, meetings)
    return _stuck(does, age)


def doing(view: View, rank: int) -> Doing:
    """What a rank does, with all that is known of it."""
    known, pulses = view.state.ranks.get(rank), view.history.get(rank, ())
    if known is None or not pulses:
        return Doing(Mode.UNKNOWN)
    sample, gpu = known.sample, None
    if sample is not None and sample.gpu is not None and known.place.node in view.state.nodes:
        cards = view.state.nodes[known.place.node].gpus
        gpu = next((card.util for card in cards if card.index == sample.gpu), None)
    hooked = known.hook is not None or waits.last_answer(pulses) is not None
    return progress.doing(
        pulses, hooked=hooked, tree=None if sample is None else sample.cpu_percent, gpu=gpu
    )


def _gone(view: View, rank: int) -> Verdict:
    known = view.state.ranks[rank]
    if known.phase is RankPhase.SUCCEEDED:
        return Verdict(
            id="hang-gone", severity="error", does="ended with exit code 0", remedy=UNEVEN,
            proof="it was done before the others: uneven data at the end of an epoch, or a branch on the rank",
        )  # fmt: skip
    how = f"was ended by {known.signal}" if known.signal else "ended"
    if known.exit_code is not None and not known.signal:
        how = f"ended with exit code {known.exit_code}"
    return Verdict(id="hang-gone", severity="error", does=how, remedy=_REMEDIES["hang-gone"])


def stopped(does: Doing, pid: int | None) -> Verdict:
    """A rank that the kernel does not let run."""
    return Verdict(
        id="hang-stopped", severity="error", does="is stopped by a signal (SIGSTOP) or a debugger",
        remedy=_REMEDIES["hang-stopped"],
        proof=f"kernel state of pid {'n/a' if pid is None else pid}: T (stopped)", stack=does.stack,
    )  # fmt: skip


def _at(does: Doing) -> str:
    return f" at {naming.site_text(does.place.site)}" if does.place.site is not None else ""


def _stuck(does: Doing, age: float) -> Verdict | None:
    if does.mode is Mode.SILENT or (does.mode is Mode.SILENT_BUSY and age >= LONG_S):
        busy = does.mode is Mode.SILENT_BUSY
        return _verdict(
            "hang-c-call", does, f"sits in a C call that keeps Python's lock{_at(does)}",
            "its hook does not answer, and it "
            + ("computes" if busy else "uses no processor time, though the kernel lets it run"),
            "warn" if busy else "error",
        )  # fmt: skip
    if does.mode is Mode.LOOPS and age >= LONG_S:
        return _verdict(
            "hang-python", does, f"loops{_at(does)}",
            "its processor is busy, but every look finds it in this one function, which calls no other", "warn",
        )  # fmt: skip
    if does.mode is Mode.ASLEEP:
        return _asleep(does, age)
    return None


def _asleep(does: Doing, age: float) -> Verdict | None:
    kind = does.place.kind
    if kind is Kind.COMPILE or (age < LONG_S and (not does.sure or kind is Kind.NETWORK)):
        return None
    still = f"it uses {'no' if does.sure else 'hardly any'} processor time, and every look finds it at the same place"
    if kind in (Kind.STORE, Kind.COLLECTIVE):
        return _verdict("hang-mismatch", does, f"is in {does.place.op}{_at(does)}", still)
    known = {Kind.LOADER: "hang-loader", Kind.CHECKPOINT: "hang-checkpoint"}.get(kind, "hang-not-joined")
    return _verdict(known, does, _AT.get(kind, "sleeps") + _at(does), still)


def _works(does: Doing, age: float, meetings: Sequence[Meeting]) -> Verdict | None:
    if does.place.kind is Kind.LOADER and does.helped and age >= LOADER_S:
        return _verdict(
            "hang-loader", does, _AT[Kind.LOADER] + _at(does), "the workers of its data loader work", "warn"
        )
    if age < WORKS_S:
        return None
    where = f" in {does.place.site.name}()" if does.helped and does.place.site else _within(does, meetings)
    return Verdict(
        id="hang-not-joined", severity="info", does=f"works{where}",
        remedy="nothing, if that is meant to take so long; else look at its stack", proof="it gets on",
    )  # fmt: skip


def _within(does: Doing, meetings: Sequence[Meeting]) -> str:
    """The outermost function of a working rank that those who wait are not in: it stays while the work goes on."""
    theirs = {site.name for one in meetings for site in one.call.sites} | {"<module>", "main"}
    own = [site for site in reversed(places.users(does.stack, 64)) if site.name not in theirs]
    return f" in {own[0].name}()" if own and not own[0].name.startswith("<") else ""


def _verdict(known: str, does: Doing, said: str, proof: str, severity: str = "error") -> Verdict:
    return Verdict(
        id=known, severity=severity, does=said, remedy=_REMEDIES[known], proof=proof, stack=does.stack
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
    view: View, ranks: Sequence[int], said: Verdict, chain: Ends, nearest: Sequence[Meeting]
) -> Finding:
    """The finding about some ranks of which the same is to be said."""
    leading = chain.leading(nearest)
    victims = sorted({rank for one in leading for rank in one.waits} - set(ranks))
    who = naming.who(view.state, ranks)
    does = said.does if len(ranks) == 1 else _plural(said.does)
    waiting = f"{naming.ranks_text(victims)} {naming.verb(victims, 'waits', 'wait')}" if victims else ""
    where = f" in {naming.call_text(nearest[0].call)}" if nearest else ""
    it = naming.verb(ranks, "it", "them")
    return Finding(
        id=said.id,
        severity=said.severity,
        text=f"{who} {does}" + (f"; {waiting} for {it}{where}" if waiting else ""),
        role="cause" if said.severity != "info" else "fact",
        **naming.about(view.state, ranks),
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
    view: View, ranks: Sequence[int], said: Verdict, leading: Sequence[Meeting], nearest: Sequence[Meeting]
) -> Iterable[str]:
    """Who waits where, how far the culprit came, its stack."""
    for one in leading[:MOST]:
        yield waiting_text(view, one)
    if len(leading) > MOST:
        more = leading[MOST:]
        yield f"{sum(len(one.waits) for one in more)} more ranks wait in {len(more)} other collectives behind those"
    for one in nearest[:1]:
        yield from _behind(view, ranks, one)
    stack = places.users(said.stack)
    if stack:
        yield f"stack of rank {ranks[0]}: {naming.stack_text(stack)}"
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
        yield f"{naming.ranks_text(those)} called {count} collectives of {meeting.desc}"


def waiting_text(view: View, meeting: Meeting) -> str:
    """ "ranks 0, 1, 3 wait in all_reduce #42 of default_pg (train.py:50 step) since 20:41:07 UTC"."""
    site = next((wait.call.sites[0] for wait in meeting.waits.values() if wait.call.sites), None)
    where = f" ({naming.site_text(site)})" if site is not None else ""
    ranks = meeting.ranks
    of = f" of {meeting.desc}" if meeting.numbered else ""
    recorded = all(wait.recorded for wait in meeting.waits.values())
    since = f" since {naming.clock(meeting.since)}" if recorded else ""
    what = naming.call_text(meeting.call)
    return (
        f"{naming.who(view.state, ranks)} {naming.verb(ranks, 'waits', 'wait')} in {what}{of}{where}{since}"
    )
