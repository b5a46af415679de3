"""Sort findings, worst first, and separate the first cause from its consequences. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from ...presets.finding import ROLES, SEVERITIES, Finding
from ..formatting import spans_text
from .error_lines import UNEXPLAINED
from .exceptions import CUT_OFF, LAST
from .exits import RAISED
from .heads import Head, Stamp
from .missing_ranks import absent, rank_of, silent
from .nccl_facts import FactLine, InitStage, requests_sockets
from .reading import REPORT, Reading
from .recorder_dumps import symptoms
from .rules import First, RankProgress, RuleHits, Tally
from .statements import CommunicatorPart, Statements

Order = Literal["lines", "time", "unknown"]
T = TypeVar("T")


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The findings of a set of logs, and the first cause."""

    findings: tuple[LogFinding, ...]
    """The first cause, then by role and severity."""
    first: LogFinding | None
    """The earliest cause, or what may become one in a job that has not failed.

    Without a cause: the first symptom of a failed job, else None.
    """
    order: Order
    """How `first` was chosen: by its line in a single file, by time, or unknown."""
    victims: tuple[LogFinding, ...]
    """Symptoms. If there is a first cause, they follow from it."""
    behind: tuple[int, ...]
    """Ranks that had made less progress than others when collectives timed out."""
    ended: bool = False
    """Whether a log reports a failed process."""

    @property
    def failed(self) -> bool:
        """Whether the job failed, even if no line shows why."""
        return self.ended or failed_in(self.findings)

    @property
    def cause(self) -> LogFinding | None:
        """The first cause; None if no line shows one."""
        return self.first if self.first is not None and self.first.role != "symptom" else None


def judge(reading: Reading) -> Verdict:
    """Return the findings and the first cause of all logs of a reading."""
    hits = [*fired(reading), *((entry, "") for entry in reading.exceptions.entries(reading.lengths))]
    explained = any(entry.rule.role == "cause" and entry.rule.severity == "error" for entry, _ in hits)
    hits += ((entry, "") for entry in symptoms(reading.recorders.hits(), explained))
    findings = {entry.rule.place: finding_of(entry, seen, reading) for entry, seen in hits}
    _explain_kills(findings)
    _explain_cancels(findings, reading)
    for place, file, line in reading.exceptions.of_none():
        entry = reading.error_lines.announced(file, line)
        if entry is not None and findings[place].stops:
            findings[place] = replace(findings[place], role="symptom")
            hits.append((entry, ""))
            findings[entry.rule.place] = finding_of(entry, "", reading)
    causes = {each.id for each in findings.values() if (each.role, each.severity) == ("cause", "error")}
    if causes == {KILLED}:
        for entry in _before_the_kill(reading):
            hits.append((entry, ""))
            findings[entry.rule.place] = finding_of(entry, "", reading)
    if not causes:
        for entry in _for_want_of_a_cause(reading, [entry for entry, _ in hits], findings.values()):
            hits.append((entry, ""))
            findings[entry.rule.place] = finding_of(entry, "", reading)
    ended = reading.exceptions.failed
    first, order = _first_of([entry for entry, _ in hits if findings[entry.rule.place].role == "cause"])
    if first is None:
        stops = [entry for entry, _ in hits if findings[entry.rule.place].stops]
        first, order = _first_of([entry for entry in stops if entry.rule.id not in OF_OTHERS] or stops)
    head = None if first is None else _placed(findings[first.rule.place], findings.values(), reading)
    rest = [finding for place, finding in findings.items() if first is None or place != first.rule.place]
    rest.sort(key=lambda finding: (ROLES.index(finding.role), SEVERITIES.index(finding.severity)))
    return Verdict(
        findings=tuple(([head] if head else []) + rest),
        first=head,
        order=order,
        victims=tuple(finding for finding in rest if finding.role == "symptom"),
        behind=behind(reading.tally.progress),
        ended=ended,
    )


def _for_want_of_a_cause(
    reading: Reading, hits: Sequence[RuleHits], findings: Collection[LogFinding]
) -> list[RuleHits]:
    """Return the best explanation of a failure that no rule explains.

    In this order: missing ranks, errors that otherwise are facts, sentences, exits, truncated tracebacks.
    """
    exceptions, lengths = reading.exceptions, reading.lengths
    failed = exceptions.failed or failed_in(findings)
    follow = {each.id for each in findings if each.id in CANCELLED and _after(each, exceptions.exited)}
    chosen = [*absent(reading), *(entry for entry in promoted(hits) if entry.rule.id not in follow)]
    if not chosen and failed:
        chosen += silent(reading, [entry for entry in hits if entry.rule.role == "symptom"])
    sentences = reading.error_lines.entries(
        lengths, failed, exceptions.killed, not exceptions.raised, _first_symptoms(hits)
    )
    chosen += [entry for entry in sentences if not chosen or entry.rule.id != UNEXPLAINED]
    cut_off = list(exceptions.cut_off(lengths))
    if cut_off and not failed and not any(entry.rule.role == "cause" for entry in chosen):
        # the lines above it may name a problem that was about to end the run
        warned = reading.error_lines.entries(lengths, failed=True)
        chosen += [entry for entry in warned if entry.rule.id != UNEXPLAINED]
        chosen += [as_cause(entry) for entry in hits if entry.rule.id == LEFT and entry.count]
    follow.update(LATER)
    others = [each for each in findings if each.id not in follow and not _after(each, exceptions.killed)]
    explained = any(entry.rule.role == "cause" or entry.rule.id not in LATER for entry in chosen)
    if not explained and not failed_in(others):
        caught = any(each.id == OF_NCCL for each in findings) or exceptions.killed is not None
        chosen += ([] if caught else _reported(hits, lengths, failed)) or _exits(reading, cut_off)
    if not chosen and not failed:
        chosen += _traced(hits, lengths)
    named = [entry for entry in (*chosen, *hits) if entry.rule.role in ("cause", "symptom")]
    if not any(
        entry.rule.role == "cause" for entry in named
    ):  # a truncated traceback next to symptoms in other files is of the rank that failed
        symptoms = _first_symptoms(named)
        chosen += [
            cut for cut in cut_off if cut.rule.id != CUT_OFF.id or cut.firsts[0].file not in symptoms
        ]
    return chosen or ([] if failed else reading.short.entries())


def _exits(reading: Reading, cut_off: Iterable[RuleHits]) -> Iterable[RuleHits]:
    """Return the first reported exit, or the part of the traceback that its launcher prints for it."""
    exit_ = reading.exceptions.exited
    if exit_ is not None and RAISED in exit_.evidence.text:
        below = [cut for cut in cut_off if cut.firsts[0].file == exit_.file]
        if below and below[0].firsts[0].evidence.line > exit_.evidence.line:
            return below
    return reading.exceptions.exits()


def _reported(hits: Iterable[RuleHits], lengths: Mapping[int, int], failed: bool) -> list[RuleHits]:
    """Return torch's report of an NCCL error, used if NCCL's own reason and the exception's frames are missing."""
    reports = [entry for entry in hits if entry.rule.id == REPORT and entry.firsts]
    return [as_cause(entry) for entry in reports if failed or _near_end(entry.firsts, lengths)]


PASSED_ON = {
    "1": "unhandled CUDA error",
    "2": "unhandled system error",
    "4": "invalid argument",
    "5": "invalid usage",
}
"""Result codes of NCCL. Other codes also occur if a peer ends normally."""


def _traced(hits: Iterable[RuleHits], lengths: Mapping[int, int]) -> Iterator[RuleHits]:
    """Yield an error that NCCL's functions pass on at the end of a log without a line about its reason."""
    for entry in hits:
        code = (
            entry.firsts[0].values.get("rc", "") if entry.rule.id == "error-trace" and entry.firsts else ""
        )
        if code in PASSED_ON and entry.count > 1 and _near_end(entry.firsts, lengths):
            text = f"NCCL met an error ({PASSED_ON[code]}), of which only its functions are told that passed it on."
            remedy = "NCCL_DEBUG=WARN writes the reason above them."
            yield as_cause(replace(entry, rule=replace(entry.rule, text=text, remedy=remedy)))


def _near_end(firsts: Iterable[First], lengths: Mapping[int, int]) -> bool:
    return any(lengths.get(each.file, 0) - each.evidence.line <= LAST for each in firsts)


KILLED = "died-killed"
OF_NCCL = "died-nccl"
"""torch's exception after an NCCL error. NCCL's reason applies to the process that raised it."""


def _before_the_kill(reading: Reading) -> Iterator[RuleHits]:
    """Yield a failure that a process wrote before a shell or launcher reported that its parent killed it."""
    sentences = reading.error_lines.entries(reading.lengths, False, reading.exceptions.killed)
    return (each for each in sentences if each.rule.role == "cause" and each.rule.id != UNEXPLAINED)


OF_OTHERS = ("ray-actor-died", "deepspeed-kills", "horovod-shutdown")
"""Symptoms that only report the failure of another process. Any other symptom explains more."""
CANCELLED = ("slurm-cancelled", "slurm-step-cancelled", "ray-worker-died")
"""Symptoms of a process exit if that was reported earlier."""
LEFT = "rendezvous-left"
"""A node's agent also writes this at a normal end. It is a cause only if a traceback begins after it."""
LATER = ("died-terminated", "died-abort", "deepspeed-kills")
"""Symptoms that explain less than a reported exit."""


def _first_symptoms(hits: Iterable[RuleHits]) -> dict[int, int]:
    """Return the line number of the first error symptom in each file."""
    lines: dict[int, int] = {}
    for entry in hits:
        for first in entry.firsts if (entry.rule.role, entry.rule.severity) == ("symptom", "error") else ():
            lines[first.file] = min(first.evidence.line, lines.get(first.file, first.evidence.line))
    return lines


OUT_OF_MEMORY = ("died-host-oom", "kernel-oom", "k8s-oom-killed", "ray-memory")
"""Findings that explain a SIGKILL better than the report of a shell or launcher."""


def _explain_kills(findings: dict[int, LogFinding]) -> None:
    """Make a kill a symptom if a log reports that memory ran out."""
    if any(each.id in OUT_OF_MEMORY for each in findings.values()):
        for place, each in findings.items():
            findings[place] = replace(each, role="symptom") if each.id == KILLED else each


def _explain_cancels(findings: dict[int, LogFinding], reading: Reading) -> None:
    """Make a Slurm or Ray cancellation a symptom if the same file reports a failed task before it."""
    exited = reading.exceptions.exited
    for place, each in findings.items():
        if each.id in CANCELLED and _after(each, exited):
            findings[place] = replace(each, role="symptom")


def failed_in(findings: Iterable[LogFinding]) -> bool:
    """Whether at least one of the findings shows that a job failed."""
    return any(finding.stops for finding in findings)


def _after(finding: LogFinding, exited: First | None) -> bool:
    """Whether the finding's first line follows the line of `exited` in the same file."""
    if exited is None or not finding.lines:
        return False
    its = finding.lines[0]
    return its.file == exited.evidence.file and its.line > exited.evidence.line


def _placed(finding: LogFinding, others: Iterable[LogFinding], reading: Reading) -> LogFinding:
    """Add rank and host from NCCL's and torch's findings and from exit reports if the finding's lines lack them."""
    endings = reading.exceptions.endings
    first = endings.first
    of_nccl = {rank for each in others if each.id == OF_NCCL for rank in each.ranks}
    if finding.rank is None and finding.layer == "nccl" and len(of_nccl) == 1:
        (seen_by,) = of_nccl
        finding = replace(finding, rank=seen_by, ranks=(seen_by,))
    rank = None if first is None else rank_of(first, reading)
    if rank is not None and (not finding.ranks or (endings.rooted and rank in finding.ranks)):
        finding = replace(finding, rank=rank, ranks=finding.ranks or (rank,))
    elif first is not None and rank is not None and endings.rooted and finding.id == "died-exit-silent":
        hosts = (first.host,) if first.host else ()
        finding = replace(finding, rank=rank, ranks=(rank,), host=first.host, hosts=hosts)
    if finding.host or finding.hosts:
        return finding
    host = endings.hosts.get(-1 if finding.rank is None else finding.rank, "")
    if not host and first is not None and rank in (None, finding.rank):
        host = first.host
    host = host or _only_host(others, reading)
    return replace(finding, host=host, hosts=(host,)) if host else finding


def _only_host(findings: Iterable[LogFinding], reading: Reading) -> str:
    """Return the only host that the logs name; "" if they name none or several, or span several nodes."""
    named = {host for finding in findings for host in finding.hosts} | reading.hosts
    return named.pop() if len(named) == 1 and not several_nodes(reading.statements) else ""


OF_OTHER_BUILDS = ("boot-mismatch", "boot-truncated", "sock-handshake")
"""Symptoms of ranks with different NCCL builds. They are causes only if the versions are equal or unknown."""


def fired(reading: Reading) -> Iterator[tuple[RuleHits, str]]:
    """Yield the rules that hold, in their order, each with the statement that shows a derived rule, else ""."""
    seen = derived(reading.statements, reading.tally) if reading.nccl_lines else {}
    mixed = "version-mismatch" in seen
    alone = several_nodes(reading.statements) is False
    for entry in reading.tally.entries:
        name = entry.rule.id
        if mixed and name in OF_OTHER_BUILDS:
            entry = replace(entry, rule=replace(entry.rule, role="symptom"))
        if (entry.count or name in seen) and not (alone and name == "sock-bad-interface-hint"):
            yield entry, seen.get(name, "")


def finding_of(entry: RuleHits, seen: str, reading: Reading) -> LogFinding:
    """Return the finding of a rule from the lines that fired it so far."""
    rule = entry.rule
    soft = bool(entry.firsts) and all(first.softer for first in entry.firsts)
    first = entry.firsts[0] if entry.firsts else None
    whose = _identified(first.head, reading) if first else Head()
    lines = [first.evidence for first in entry.firsts[:3]] + entry.further
    heads = [_identified(head, reading) for head in entry.heads.values()]
    ranks = sorted({rank for head in heads if (rank := rank_of(head, reading)) is not None})
    rank = rank_of(whose, reading) if first else None
    hosts = sorted({head.host for head in heads if head.host})
    return LogFinding(
        id=rule.id,
        severity="note" if soft else rule.severity,
        role="fact" if soft else rule.role,
        layer=rule.layer,
        confidence=rule.confidence,
        text=rule.says({**(first.values if first else {}), **({"seen": seen} if seen else {})}),
        remedy=rule.remedy,
        env=rule.env,
        count=entry.count,
        host=whose.host or _single(hosts) or "",
        rank=_single(ranks) if rank is None else rank,
        device=whose.dev,
        hosts=tuple(hosts),
        ranks=tuple(ranks),
        stamp=first.stamp if first else None,
        values=first.values if first else {},
        seen=seen,
        lines=tuple(lines[:3]),
    )


def _single(values: Sequence[T]) -> T | None:
    """Return the only value; None if there are none or several."""
    return values[0] if len(values) == 1 else None


def _identified(head: Head, reading: Reading) -> Head:
    """Add host and rank from exit reports of the same process."""
    report = reading.exceptions.endings.who.get(head.pid or 0)
    if report is None or (head.host and report.host and head.host != report.host):
        return head
    rank = (report.rank, report.node) if head.rank is None or head.node else (head.rank, "")
    return replace(head, host=head.host or report.host, rank=rank[0], node=rank[1])


def _first_of(causes: list[RuleHits]) -> tuple[RuleHits | None, Order]:
    """Return the earliest error, else the earliest warning. Derived findings count only if no line shows a cause."""
    for severity in SEVERITIES:
        entries = [entry for entry in causes if entry.rule.severity == severity]
        if spoken := [entry for entry in entries if entry.firsts]:
            return _earliest(spoken)
        if entries:
            return entries[0], "unknown"
    return None, "unknown"


def _earliest(entries: list[RuleHits]) -> tuple[RuleHits, Order]:
    """Compare by line within one file, and by time across files if all timestamps are comparable."""
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
    """Return the ranks that completed least or timed out in the earliest collective; () if all are equal."""
    for name in ("completed", "seq"):
        numbers = {
            rank: getattr(last, name) for rank, last in progress.items() if getattr(last, name) is not None
        }
        if len(set(numbers.values())) > 1:
            least = min(numbers.values())
            return tuple(sorted(rank for rank, value in numbers.items() if value == least))
    return ()


RDMA_RULES = ("ofi-init-failed", "ofi-no-efa", "ofi-av", "ib-open-device")
"""Rules that show that an RDMA device exists or should exist."""


def derived(statements: Statements, tally: Tally) -> dict[str, str]:
    """Return a sentence of evidence for each derived rule that holds, by rule id."""
    texts = {
        "net-socket-fallback": _sockets(statements, tally),
        "gdr-asymmetric": _asymmetric_gdr(statements),
        "version-mismatch": _versions(statements),
        "p2p-hang": _hang(statements, tally),
    }
    return {rule: text for rule, text in texts.items() if text}


def promoted(entries: Iterable[RuleHits]) -> Iterator[RuleHits]:
    """Yield errors with the role fact as causes, for a failure without a better explanation."""
    for entry in entries:
        if entry.rule.role == "fact" and entry.rule.severity == "error" and entry.rule.id != REPORT:
            yield as_cause(entry)


def as_cause(entry: RuleHits) -> RuleHits:
    """Return the hits as an error with the role cause."""
    return replace(entry, rule=replace(entry.rule, role="cause", severity="error"))


def several_nodes(statements: Statements) -> bool | None:
    """Whether a communicator spans several nodes; None if unknown."""
    sizes = [part.nnodes for part in statements.sessions.communicators if part.nnodes is not None]
    if any(len(part.hosts) > 1 for part in statements.sessions.communicators) or max(sizes, default=0) > 1:
        return True
    whole = [part for part in statements.sessions.communicators if part.nranks is not None]
    alone = bool(whole) and all(part.nnodes == 1 or len(part.ranks) == part.nranks for part in whole)
    return False if alone else None


def _fired(tally: Tally, *ids: str) -> bool:
    return any(entry.count for entry in tally.entries if entry.rule.id in ids)


def _sockets(statements: Statements, tally: Tally) -> str:
    """Report TCP between nodes although an RDMA device exists and no variable requests TCP."""
    if not several_nodes(statements):
        return ""
    for node in statements.nodes.values():
        expected = node.hcas or "NCCL_IB_HCA" in node.env or _fired(tally, *RDMA_RULES)
        if "Socket" in node.networks and expected and not requests_sockets(node.env):
            why = f"it has {', '.join(sorted(node.hcas)[:4])}" if node.hcas else "RDMA was to be used"
            return f"{node.host} uses network Socket, and {why}"
    return ""


def _asymmetric_gdr(statements: Statements) -> str:
    for communicator in statements.sessions.all():
        for (source, target, channel), (sends, receives) in communicator.ends.items():
            if sends is not None and receives is not None and sends != receives:
                who = "sender" if sends else "receiver"
                return f"channel {channel} from rank {source} to rank {target}: only the {who} uses GPUDirect RDMA"
    return ""


def _versions(statements: Statements) -> str:
    """Report different NCCL versions among the hosts or the ranks of one communicator."""
    for communicator in statements.sessions.communicators:
        versions = {
            next(iter(node.versions)): f"{host} has"
            for host in sorted(communicator.hosts)
            if (node := statements.nodes.get(host)) is not None and len(node.versions) == 1
        }
        if len(versions) < 2:
            ranks: dict[str, list[int]] = {}
            for part in communicator.ranks.values():
                if version := statements.version_of(part):
                    ranks.setdefault(version, []).append(part.rank)
            versions = {
                version: f"{spans_text('rank', sorted(its))} {'has' if len(its) == 1 else 'have'}"
                for version, its in ranks.items()
            }
        if len(versions) > 1:
            return ", ".join(f"{who} {version}" for version, who in sorted(versions.items())[:4])
    return ""


def _hang(statements: Statements, tally: Tally) -> str:
    """Report a timeout of the first collective on one node whose GPUs all use P2P and none NVLink SHARP."""
    causes = any(
        entry.count
        for entry in tally.entries
        if entry.rule.role == "cause" and entry.rule.severity == "error"
    )
    seqs = [progress.seq for progress in tally.progress.values() if progress.seq is not None]
    if causes or not seqs or max(seqs) > 1:
        return ""
    for comm in statements.sessions.communicators:
        if _p2p_alone(comm) and comm.reached(InitStage.COMPLETE):
            return f"{comm.nranks} ranks on one node were ready, and collective {max(seqs)} timed out"
    return ""


def _p2p_alone(communicator: CommunicatorPart) -> bool:
    kinds = {kind for each in communicator.pairs.values() for kind in each}
    single_node = communicator.nnodes == 1 or (communicator.nnodes is None and len(communicator.hosts) == 1)
    nvls = communicator.nvls or communicator.channels.get("nvls", 0) > 0
    return single_node and bool(kinds) and all(kind.startswith("P2P/") for kind in kinds) and not nvls
