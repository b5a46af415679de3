"""Find the rank that kept the others waiting, from torch's timeouts, else from NCCL's own lines. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from ..run.formatting import agreeing, spans_text
from .error_lines import PLACE
from .heads import Head, heads_of
from .nccl_facts import RankStage
from .reading import Reading
from .rules import First, RankProgress, Rule, RuleHits
from .statements import CommunicatorPart

MOST_RANKS = 1 << 17
"""A larger world size is a misread number, so no rank counts as missing."""
ABSENT = Rule(
    id="rank-absent",
    severity="error",
    role="cause",
    layer="torch",
    confidence="medium",
    text="",
    place=PLACE + 1,
    remedy="Find out what it did instead: its own log; `py-spy dump --pid PID` while it waits; a phase that only some "
    "ranks enter (saving, validation), a crash, a node that is gone. With `export TORCH_NCCL_DUMP_ON_TIMEOUT=1 "
    "TORCH_FR_BUFFER_SIZE=2000` torch writes what each rank called, which `distui diagnose` reads.",
)


class TimedOut(NamedTuple):
    """Ranks of a job whose collectives timed out."""

    calls: Mapping[int, str]
    """Operation and sequence number of each rank that timed out."""
    last: Sequence[int]
    """Ranks that timed out in the latest collective."""
    late: Sequence[int]
    """Ranks that timed out in an earlier collective."""
    missing: Sequence[int]
    """Ranks that the logs name but that report no timeout."""

    @property
    def culprits(self) -> Sequence[int]:
        """The late ranks, else the missing ranks."""
        return self.late or self.missing


def absent(reading: Reading) -> Iterator[RuleHits]:
    """Yield the ranks that kept the others waiting when collectives timed out; nothing without a timeout."""
    timed = {rank: each for rank, each in reading.tally.progress.items() if each.timed_out}
    size = _largest(reading)
    if not timed or _timed_out_together(timed, size):
        return
    heard = {*reading.tally.progress, *reading.ranks}
    ranks = _timed_out(timed, max(size, max(heard) + 1))
    called = _called(reading.tally.progress, timed)
    ranks = ranks._replace(missing=[rank for rank in ranks.missing if rank not in called])
    is_part = not size and len(ranks.missing) >= len(timed)
    in_group = any(each.in_group for each in timed.values())
    if in_group or is_part:
        # These logs cover only some ranks: the others may also have waited. A smaller group has none of them.
        ranks = ranks._replace(missing=() if in_group else sorted(heard.intersection(ranks.missing)))
    hits, named = reading.tally.hits("pt-watchdog"), Head(rank=next(iter(ranks.culprits), None))
    yield replace(
        hits,
        rule=replace(ABSENT, text=_kept_waiting(ranks, in_group)),
        heads=heads_of(ranks.culprits),
        further=[],
        firsts=[replace(first, head=named) for first in hits.firsts],
    )


def _largest(reading: Reading) -> int:
    """Return the number of ranks of the largest communicator; 0 if unknown."""
    return max((part.nranks or 0 for part in reading.statements.sessions.communicators), default=0)


def _timed_out_together(timed: Mapping[int, RankProgress], size: int) -> bool:
    """Whether all ranks timed out in the same collective."""
    return len(timed) == size and len({each.seq for each in timed.values()}) == 1


def _called(progress: Mapping[int, RankProgress], timed: Mapping[int, RankProgress]) -> Set[int]:
    """Return the ranks that had called the latest collective that timed out, whether or not they report a timeout."""
    latest = max((each.seq for each in timed.values() if each.seq is not None), default=None)
    if latest is None:
        return set()
    return {
        rank for rank, each in progress.items() if each.enqueued is not None and each.enqueued >= latest
    }


def _timed_out(timed: Mapping[int, RankProgress], world: int) -> TimedOut:
    """Group the ranks. `world`: minimum number of ranks by the logs; above MOST_RANKS no rank is missing."""
    latest = max((each.seq for each in timed.values() if each.seq is not None), default=None)
    return TimedOut(
        calls={
            rank: "a collective" if each.seq is None else f"{each.op} {each.seq}"
            for rank, each in timed.items()
        },
        last=sorted(rank for rank, each in timed.items() if each.seq in (None, latest)),
        late=sorted(rank for rank, each in timed.items() if each.seq not in (None, latest)),
        missing=sorted(set(range(world)) - set(timed)) if world <= MOST_RANKS else (),
    )


def silent(reading: Reading, symptoms: Sequence[RuleHits]) -> Iterator[RuleHits]:
    """Yield the ranks that kept the others waiting by NCCL's lines, without torch's watchdog; nothing if unknown."""
    heads = {rank_of(head, reading) for entry in symptoms for head in entry.heads.values()}
    reporting = {rank for rank in heads if rank is not None}
    largest = sorted(reading.statements.sessions.communicators, key=lambda part: -(part.nranks or 0))
    for communicator in largest:
        found = (
            _never_came(communicator)
            or _called_less(communicator, reporting)
            or _without_word(communicator, reporting)
        )
        if found is not None:
            ranks, text = found
            yield RuleHits(
                replace(ABSENT, layer="nccl", text=text),
                firsts=_first_line(symptoms, ranks[0]),
                heads=heads_of(ranks),
            )
            return


def _first_line(symptoms: Sequence[RuleHits], rank: int) -> list[First]:
    """Return the first line of the symptoms as a line about a missing rank; [] without one."""
    firsts = [entry.firsts for entry in symptoms if entry.firsts]
    if not firsts:
        return []
    first = min(firsts, key=lambda each: each[0].file)[0]
    return [replace(first, head=Head(rank=rank))]


Silent = tuple[Sequence[int], str]
"""The missing ranks, and a sentence about them."""


def _never_came(communicator: CommunicatorPart) -> Silent | None:
    """Find ranks missing at a communicator's init. If more than half are missing, their logs were not given."""
    size, seen = communicator.nranks or 0, communicator.ranks
    begun = seen and all(part.stage is RankStage.STARTED for part in seen.values())
    if not begun or not 0 < size - len(seen) <= size // 2 or size > MOST_RANKS:
        return None
    ranks = sorted(set(range(size)) - set(seen))
    others = spans_text("rank", sorted(seen))
    verb, it = agreeing(seen, "was", "were"), agreeing(ranks, "it", "them")
    text = f"{_ranks(ranks)} did not join a communicator that {others} {verb} waiting to initialise"
    return ranks, f"{text}; no line of {it} from NCCL was read."


def _called_less(communicator: CommunicatorPart, reporting: Set[int]) -> Silent | None:
    """Find ranks that called fewer collectives than the ranks that waited, if all ranks log their calls."""
    calls = {rank: part.calls for rank, part in communicator.ranks.items()}
    waited = sorted(reporting & set(calls))
    most = min((calls[rank] for rank in waited), default=0)
    ranks = sorted(rank for rank, count in calls.items() if rank not in reporting and 0 < count < most)
    if not ranks or len(calls) != communicator.nranks:
        return None
    least, others = min(calls[rank] for rank in ranks), spans_text("rank", waited)
    text = f"{_ranks(ranks)} {agreeing(ranks, 'is', 'are')} behind, with {least} collectives called"
    return ranks, f"{text}, while {others} wait in number {most}."


def _without_word(communicator: CommunicatorPart, reporting: Set[int]) -> Silent | None:
    """Find ranks without a report if most ranks of a complete communicator report that they waited or lost a peer."""
    seen = set(communicator.ranks)
    ranks = sorted(seen - reporting)
    if len(seen) != communicator.nranks or not 0 < len(ranks) <= len(seen) // 2:
        return None
    others = spans_text("rank", sorted(seen & reporting))
    did = f"{_ranks(ranks)} did not come, or ended"
    them = agreeing(ranks, "it", "them")
    return ranks, f"{did}: {others} waited or lost a peer, and no error of {them} was understood."


def _kept_waiting(ranks: TimedOut, in_group: bool) -> str:
    calls, last, late, missing = ranks
    if late:
        text = f"{_ranks(late)} {agreeing(late, 'is', 'are')} behind, in {calls[late[0]]}"
        return f"{text}, while {spans_text('rank', last)} timed out in {calls[last[0]]}."
    timed_out = f"timed out in {' and '.join(sorted(set(calls.values()))[:4])}"
    if missing:
        others, them = spans_text("rank", sorted(calls)), agreeing(missing, "it", "them")
        return f"{_ranks(missing)} did not come: {others} {timed_out}, and no timeout of {them} was read."
    if in_group:
        groups = "in a group of fewer ranks: a peer of that group did not join, or the network failed."
        return f"{_ranks(sorted(calls))} {timed_out}, {groups}"
    return f"{_ranks(sorted(calls))} {timed_out}: another rank did not join, or the network failed."


def _ranks(ranks: Sequence[int]) -> str:
    text = spans_text("rank", ranks)
    return text[:1].upper() + text[1:]


def rank_of(head: Head, reading: Reading) -> int | None:
    """Return the rank by the launcher's prefix, else by the largest communicator of the process."""
    if head.node and head.rank is not None:
        return reading.locals.rank(head.node, head.rank)
    return head.rank if head.rank is not None else reading.statements.sessions.rank_of(head)
