"""Findings, worst first, and the first cause with what followed from it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...presets.finding import ROLES, SEVERITIES, Finding
from .judging import derived, several_nodes
from .lines import Head
from .reading import Reading
from .rules import Evidence, RankProgress, RuleHits

Order = Literal["lines", "time", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFinding(Finding):
    """What a rule says of all logs together; `rank` is that of the first line."""

    layer: str
    confidence: str
    env: Mapping[str, str]
    count: int
    """Lines that say so; 0 for one that is derived from many."""
    host: str = ""
    """Of the first line; "" where it is not known."""
    hosts: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    """What the first line names: a rank, a device, an interface."""
    seen: str = ""
    """By what a derived one is seen."""
    lines: tuple[Evidence, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What is to be said of some logs."""

    findings: tuple[LogFinding, ...]
    """The first cause, then by role and severity."""
    first: LogFinding | None
    """The cause that came first; None where no line says one."""
    order: Order
    """How it is known to be the first: by its place in the one file, by time, or not at all."""
    victims: tuple[LogFinding, ...]
    """Symptoms: where there is a first cause they follow from it."""
    behind: tuple[int, ...]
    """Ranks that had come less far than others when collectives timed out."""

    @property
    def failed(self) -> bool:
        """Whether there is a cause that stops a job."""
        return any(finding.role == "cause" and finding.severity == "error" for finding in self.findings)


def judge(reading: Reading) -> Verdict:
    """Everything that was read, weighed."""
    hits = [*fired(reading), *((entry, "") for entry in reading.exceptions.entries(reading.at))]
    findings = {entry.rule.place: finding_of(entry, seen, reading) for entry, seen in hits}
    causes = [entry for entry, _ in hits if findings[entry.rule.place].role == "cause"]
    first, order = _first_of(causes)
    head = None if first is None else findings[first.rule.place]
    rest = sorted((finding for finding in findings.values() if finding is not head), key=_weight)
    return Verdict(
        findings=tuple(([head] if head else []) + rest),
        first=head,
        order=order,
        victims=tuple(finding for finding in rest if finding.role == "symptom"),
        behind=behind(reading.tally.progress),
    )


def fired(reading: Reading) -> Iterator[tuple[RuleHits, str]]:
    """The rules that hold, each with what a derived one was seen by, else ""; in the order of the rules."""
    seen = derived(reading.statements, reading.tally) if reading.nccl_lines else {}
    alone = several_nodes(reading.statements) is False
    for entry in reading.tally.entries:
        name = entry.rule.id
        if (entry.count or name in seen) and not (alone and name == "sock-bad-interface-hint"):
            yield entry, seen.get(name, "")


def _weight(finding: LogFinding) -> tuple[int, int]:
    return ROLES.index(finding.role), SEVERITIES.index(finding.severity)


def finding_of(entry: RuleHits, seen: str, reading: Reading) -> LogFinding:
    """What a rule says, from the lines that fired it so far."""
    rule = entry.rule
    soft = bool(entry.firsts) and all(first.softer for first in entry.firsts)
    first = entry.firsts[0] if entry.firsts else None
    lines = [first.evidence for first in entry.firsts[:3]] + entry.further
    heads = list(entry.heads.values())
    ranks = {_rank(head, reading) for head in heads} - {None}
    return LogFinding(
        id=rule.id,
        severity="note" if soft else rule.severity,
        role="fact" if soft else rule.role,
        layer=rule.layer,
        confidence=rule.confidence,
        text=rule.text,
        remedy=rule.remedy,
        env=rule.env,
        count=entry.count,
        host=first.head.host if first else "",
        rank=_rank(first.head, reading) if first else None,
        hosts=tuple(sorted({head.host for head in heads if head.host})),
        ranks=tuple(sorted(rank for rank in ranks if rank is not None)),
        values=first.values if first else {},
        seen=seen,
        lines=tuple(lines[:3]),
    )


def _rank(head: Head, reading: Reading) -> int | None:
    """As a launcher says, else as the process's largest communicator does."""
    return head.rank if head.rank is not None else reading.statements.sessions.rank_of(head)


def _first_of(causes: list[RuleHits]) -> tuple[RuleHits | None, Order]:
    """The earliest error; where there is none the earliest warning; derived ones only where no line says a cause."""
    for severity in SEVERITIES:
        entries = [entry for entry in causes if entry.rule.severity == severity]
        if spoken := [entry for entry in entries if entry.firsts]:
            return _earliest(spoken)
        if entries:
            return entries[0], "unknown"
    return None, "unknown"


def _earliest(entries: list[RuleHits]) -> tuple[RuleHits, Order]:
    """By place within a file, by time across files where every file's lines carry the same kind of it."""
    firsts = [(first, entry) for entry in entries for first in entry.firsts]
    if len({first.file for first, _ in firsts}) == 1:
        return min(firsts, key=lambda hit: (hit[0].evidence.line, hit[1].rule.place))[1], "lines"
    stamps = [first.stamp for first, _ in firsts if first.stamp is not None]
    if len(stamps) == len(firsts):
        if len({stamp.kind for stamp in stamps}) == 1:
            return firsts[min(range(len(firsts)), key=lambda at: stamps[at].text)][1], "time"
        if all(stamp.local for stamp in stamps):
            return firsts[min(range(len(firsts)), key=lambda at: stamps[at].local or "")][1], "time"
    return min(firsts, key=lambda hit: (hit[0].file, hit[0].evidence.line, hit[1].rule.place))[1], "unknown"


def behind(progress: Mapping[int, RankProgress]) -> tuple[int, ...]:
    """Ranks that completed least, or timed out in the earliest collective; () where all are alike."""
    for name in ("completed", "seq"):
        numbers = {
            rank: getattr(last, name) for rank, last in progress.items() if getattr(last, name) is not None
        }
        if len(set(numbers.values())) > 1:
            least = min(numbers.values())
            return tuple(sorted(rank for rank, value in numbers.items() if value == least))
    return ()
