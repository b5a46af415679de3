"""Findings in logs: a rule, an exception or a message together with the ranks and hosts that its lines name. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ...presets.finding import Finding
from .derived_rules import several_nodes
from .heads import Head, Stamp
from .missing_ranks import rank_of
from .nccl_facts import FactLine
from .reading import Reading
from .rules import First, RuleHits

T = TypeVar("T")
OF_NCCL = "died-nccl"
"""torch's exception after an NCCL error. NCCL's reason applies to the process that raised it."""
OF_JOB = "job"
"""Layer of the scheduler's reports on the whole job: no rank is to blame, and ranks may print steps after them."""
NO_LINE = First(0, FactLine("", 0, ""), Head(), None)
"""Used for a derived rule, which no line fired."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFinding(Finding):
    """The finding of a rule over all logs. `rank` is that of the first matching line."""

    layer: str
    confidence: str
    env: Mapping[str, str]
    count: int
    """Number of matching lines; 0 for a finding derived from several statements."""
    host: str = ""
    """Host of the first line; "" if unknown."""
    device: int | None = None
    """CUDA device of the first line's process, in NCCL's numbering; None if unknown."""
    hosts: tuple[str, ...] = ()
    stamp: Stamp | None = None
    """Time of the first line; None if it has no timestamp."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Named groups of the first match: a rank, a device, an interface."""
    seen: str = ""
    """The statement that shows a derived finding."""
    lines: tuple[FactLine, ...] = ()

    @property
    def stops(self) -> bool:
        """Whether a job with this finding has failed."""
        return self.role in ("cause", "symptom") and self.severity == "error"


def finding_of(entry: RuleHits, seen: str, reading: Reading) -> LogFinding:
    """Return the finding of a rule from the lines that fired it so far."""
    rule = entry.rule
    if entry.is_soft:
        rule = replace(rule, severity="note", role="fact")
    first = entry.firsts[0] if entry.firsts else NO_LINE
    writer = _identified(first.head, reading)
    heads = [_identified(head, reading) for head in entry.heads.values()]
    hosts = tuple(sorted({head.host for head in heads} - {""}))
    ranks = () if rule.layer == OF_JOB else _ranks_of(heads, reading)
    rank = None if rule.layer == OF_JOB else rank_of(writer, reading)
    lines = [each.evidence for each in entry.firsts[:3]] + entry.further
    return LogFinding(
        id=rule.id,
        severity=rule.severity,
        role=rule.role,
        layer=rule.layer,
        confidence=rule.confidence,
        text=rule.says({**first.values, "seen": seen} if seen else first.values),
        remedy=rule.advises(first.values),
        env=rule.env,
        count=entry.count,
        host=writer.host or _single(hosts) or "",
        rank=_single(ranks) if rank is None else rank,
        device=writer.dev,
        hosts=hosts,
        ranks=ranks,
        stamp=first.stamp,
        values=first.values,
        seen=seen,
        lines=tuple(lines[:3]),
    )


def _ranks_of(heads: Iterable[Head], reading: Reading) -> tuple[int, ...]:
    ranks = {rank_of(head, reading) for head in heads}
    return tuple(sorted(rank for rank in ranks if rank is not None))


def _single(values: Sequence[T]) -> T | None:
    """Return the only value; None if there are none or several."""
    return values[0] if len(values) == 1 else None


def _identified(head: Head, reading: Reading) -> Head:
    """Add host and rank from exit reports of the same process."""
    report = reading.exceptions.endings.who.get(head.pid or 0)
    if report is None or (head.host and report.host and head.host != report.host):
        return head
    own = reading.statements.sessions.rank_of(head) if report.node and head.rank is None else None
    if own is not None:  # the report only has a rank on its node
        return replace(head, host=head.host or report.host, rank=own)
    if head.rank is None or head.node:
        return replace(head, host=head.host or report.host, rank=report.rank, node=report.node)
    return replace(head, host=head.host or report.host)


def failed_in(findings: Iterable[LogFinding]) -> bool:
    """Whether at least one of the findings shows that a job failed."""
    return any(finding.stops for finding in findings)


def placed(finding: LogFinding, others: Collection[LogFinding], reading: Reading) -> LogFinding:
    """Add rank and host from NCCL's and torch's findings and from exit reports if the finding's lines lack them."""
    if finding.layer != OF_JOB:
        finding = _with_first_exit(_with_raising_rank(finding, others), reading)
    if finding.host or finding.hosts:
        return finding
    endings = reading.exceptions.endings
    host = endings.hosts.get(-1 if finding.rank is None else finding.rank, "")
    if not host and endings.first is not None and rank_of(endings.first, reading) in (None, finding.rank):
        host = endings.first.host
    host = host or _only_host(others, reading)
    return replace(finding, host=host, hosts=(host,)) if host else finding


def _with_raising_rank(finding: LogFinding, others: Iterable[LogFinding]) -> LogFinding:
    """Add the rank that raised an exception after an NCCL error."""
    if finding.rank is not None or finding.layer != "nccl":
        return finding
    ranks = set[int]().union(*(each.ranks for each in others if each.id == OF_NCCL))
    return replace(finding, rank=min(ranks), ranks=tuple(ranks)) if len(ranks) == 1 else finding


def _with_first_exit(finding: LogFinding, reading: Reading) -> LogFinding:
    """Add the rank that exited first, or torchrun's root cause."""
    first, is_root = reading.exceptions.endings.first, reading.exceptions.endings.rooted
    rank = None if first is None else rank_of(first, reading)
    if first is None or rank is None:
        return finding
    if not finding.ranks:
        return replace(finding, rank=rank, ranks=(rank,))
    if is_root and rank in finding.ranks:
        return replace(finding, rank=rank)
    if is_root and finding.id == "died-exit-silent":  # the finding is only about that exit
        hosts = (first.host,) if first.host else ()
        return replace(finding, rank=rank, ranks=(rank,), host=first.host, hosts=hosts)
    return finding


def _only_host(findings: Iterable[LogFinding], reading: Reading) -> str:
    """Return the only host that the logs name; "" if they name none or several, or span several nodes."""
    named = {host for finding in findings for host in finding.hosts} | reading.hosts
    return named.pop() if len(named) == 1 and not several_nodes(reading.statements) else ""
