"""Sort findings, worst first, and separate the first cause from its consequences. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from ...presets.finding import ROLES, SEVERITIES, Finding
from ..run.formatting import agreeing, spans_text
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
    case = _Case(reading)
    causes = {
        each.id for each in case.findings.values() if (each.role, each.severity) == ("cause", "error")
    }
    if causes == {KILLED}:
        case.add(_before_the_kill(reading))
    elif not causes:
        case.add(_Unexplained(reading, case.hits, case.findings.values()).explanations())
    first, order = case.first()
    head = None
    rest = dict(case.findings)
    if first is not None:
        head = _placed(rest.pop(first.rule.place), case.findings.values(), reading)
    consequences = sorted(
        rest.values(), key=lambda each: (ROLES.index(each.role), SEVERITIES.index(each.severity))
    )
    return Verdict(
        findings=tuple(([head] if head else []) + consequences),
        first=head,
        order=order,
        victims=tuple(finding for finding in consequences if finding.role == "symptom"),
        behind=behind(reading.tally.progress),
        ended=reading.exceptions.failed,
    )


class _Case:
    """The rules that fired in a reading, and their findings. Known consequences are symptoms."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.hits: list[RuleHits] = []
        self.findings: dict[int, LogFinding] = {}
        """Findings by the place of their rule."""
        for entry, seen in fired(reading):
            self.add([entry], seen)
        self.add(reading.exceptions.entries(reading.lengths))
        explained = any(entry.rule.explains for entry in self.hits)
        self.add(symptoms(reading.recorders.hits(), explained))
        _explain_kills(self.findings)
        _explain_cancels(self.findings, reading)
        self._explain_nones()

    def add(self, entries: Iterable[RuleHits], seen: str = "") -> None:
        """Add rules that fired. `seen`: the statement that shows a derived rule."""
        for entry in entries:
            self.hits.append(entry)
            self.findings[entry.rule.place] = finding_of(entry, seen, self.reading)

    def _explain_nones(self) -> None:
        """Make an exception about a None a symptom of the missing file or object that a line above it names."""
        for place, file, line in self.reading.exceptions.of_none():
            entry = self.reading.error_lines.announced(file, line)
            if entry is not None and self.findings[place].stops:
                self.findings[place] = replace(self.findings[place], role="symptom")
                self.add([entry])

    def first(self) -> tuple[RuleHits | None, Order]:
        """Return the first cause, else the first symptom of a failed job."""
        first, order = _first_of([entry for entry in self.hits if self._finding(entry).role == "cause"])
        if first is not None:
            return first, order
        stops = [entry for entry in self.hits if self._finding(entry).stops]
        return _first_of([entry for entry in stops if entry.rule.id not in OF_OTHERS] or stops)

    def _finding(self, entry: RuleHits) -> LogFinding:
        return self.findings[entry.rule.place]


class _Unexplained:
    """The search for the best explanation of a failure that no rule explains."""

    def __init__(
        self, reading: Reading, hits: Sequence[RuleHits], findings: Collection[LogFinding]
    ) -> None:
        exceptions = reading.exceptions
        self.reading, self.hits, self.findings = reading, hits, findings
        self.failed = exceptions.failed or failed_in(findings)
        self.cut_off = list(exceptions.cut_off(reading.lengths))
        self.cancelled = {
            each.id for each in findings if each.id in CANCELLED and _after(each, exceptions.exited)
        }
        """Rules that only report what a launcher did after a process exit."""
        self.chosen: list[RuleHits] = []

    def explanations(self) -> list[RuleHits]:
        """Ask the sources in their order. Each decides by the explanations before it whether it has a better one."""
        for source in (
            self._missing_ranks,
            self._promoted_facts,
            self._silent_ranks,
            self._error_lines,
            self._warnings,
            self._nccl_report,
            self._exits,
            self._nccl_trace,
            self._truncated_tracebacks,
            self._short_logs,
        ):
            self.chosen += tuple(source())
        return self.chosen

    def _missing_ranks(self) -> Iterable[RuleHits]:
        return absent(self.reading)

    def _promoted_facts(self) -> Iterable[RuleHits]:
        return (entry for entry in promoted(self.hits) if entry.rule.id not in self.cancelled)

    def _silent_ranks(self) -> Iterable[RuleHits]:
        if self.chosen or not self.failed:
            return ()
        return silent(self.reading, [entry for entry in self.hits if entry.rule.role == "symptom"])

    def _error_lines(self) -> Iterable[RuleHits]:
        exceptions = self.reading.exceptions
        entries = self.reading.error_lines.entries(
            self.reading.lengths,
            self.failed,
            exceptions.killed,
            not exceptions.raised,
            _first_symptoms(self.hits),
        )
        return _known(entries) if self.chosen else entries

    def _warnings(self) -> Iterator[RuleHits]:
        """Yield lines above a truncated traceback: they may name a problem that was about to end the run."""
        if not self.cut_off or self.failed or _has_cause(self.chosen):
            return
        yield from _known(self.reading.error_lines.entries(self.reading.lengths, failed=True))
        yield from (as_cause(entry) for entry in self.hits if entry.rule.id == LEFT and entry.count)

    def _nccl_report(self) -> Iterable[RuleHits]:
        """Return torch's report of an NCCL error if NCCL's own reason and the exception's frames are missing."""
        caught = any(each.id == OF_NCCL for each in self.findings)
        if caught or self.reading.exceptions.killed is not None or self._is_explained():
            return ()
        return [
            as_cause(entry)
            for entry in self.hits
            if entry.rule.id == REPORT and entry.firsts and (self.failed or self._is_near_end(entry))
        ]

    def _exits(self) -> Iterable[RuleHits]:
        """Return the first reported exit, or the part of the traceback that its launcher prints for it."""
        if self._is_explained():
            return ()
        exit_ = self.reading.exceptions.exited
        if exit_ is not None and RAISED in exit_.evidence.text:
            below = [cut for cut in self.cut_off if cut.firsts[0].file == exit_.file]
            if below and below[0].firsts[0].evidence.line > exit_.evidence.line:
                return below
        return self.reading.exceptions.exits()

    def _is_explained(self) -> bool:
        """Whether an explanation or a finding explains more than a reported exit."""
        if any(entry.rule.role == "cause" or entry.rule.id not in LATER for entry in self.chosen):
            return True
        less, killed = self.cancelled.union(LATER), self.reading.exceptions.killed
        return failed_in(each for each in self.findings if each.id not in less and not _after(each, killed))

    def _nccl_trace(self) -> Iterator[RuleHits]:
        """Yield an error that NCCL's functions pass on at the end of a log without a line about its reason."""
        traces = [entry for entry in self.hits if entry.rule.id == "error-trace" and entry.count > 1]
        if self.chosen or self.failed:
            return
        for entry in traces:
            error = PASSED_ON.get(entry.firsts[0].values.get("rc", "")) if entry.firsts else None
            if error is not None and self._is_near_end(entry):
                text = f"NCCL met an error ({error}), of which the log only has the functions that passed it on."
                remedy = "NCCL_DEBUG=WARN writes the reason above them."
                yield as_cause(replace(entry, rule=replace(entry.rule, text=text, remedy=remedy)))

    def _is_near_end(self, entry: RuleHits) -> bool:
        lengths = self.reading.lengths
        return any(lengths.get(each.file, 0) - each.evidence.line <= LAST for each in entry.firsts)

    def _truncated_tracebacks(self) -> Iterable[RuleHits]:
        """Return truncated tracebacks. Next to symptoms in other files, they are of the rank that failed."""
        if _has_cause((*self.chosen, *self.hits)):
            return ()
        reporting = _first_symptoms((*self.chosen, *self.hits))
        return [
            cut for cut in self.cut_off if cut.rule.id != CUT_OFF.id or cut.firsts[0].file not in reporting
        ]

    def _short_logs(self) -> Iterable[RuleHits]:
        return () if self.chosen or self.failed else self.reading.short.entries()


def _has_cause(entries: Iterable[RuleHits]) -> bool:
    return any(entry.rule.role == "cause" for entry in entries)


def _known(entries: Iterable[RuleHits]) -> Iterator[RuleHits]:
    """Yield the error lines that the table of causes contains."""
    return (entry for entry in entries if entry.rule.id != UNEXPLAINED)


PASSED_ON = {
    "1": "unhandled CUDA error",
    "2": "unhandled system error",
    "4": "invalid argument",
    "5": "invalid usage",
}
"""Result codes of NCCL. Other codes also occur if a peer ends normally."""


KILLED = "died-killed"
OF_NCCL = "died-nccl"
"""torch's exception after an NCCL error. NCCL's reason applies to the process that raised it."""


def _before_the_kill(reading: Reading) -> Iterator[RuleHits]:
    """Yield a failure that a process wrote before a shell or launcher reported that its parent killed it."""
    sentences = reading.error_lines.entries(reading.lengths, False, reading.exceptions.killed)
    return (each for each in _known(sentences) if each.rule.role == "cause")


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
        if (entry.rule.role, entry.rule.severity) != ("symptom", "error"):
            continue
        for first in entry.firsts:
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


def _placed(finding: LogFinding, others: Collection[LogFinding], reading: Reading) -> LogFinding:
    """Add rank and host from NCCL's and torch's findings and from exit reports if the finding's lines lack them."""
    finding = _ranked(finding, others, reading)
    if finding.host or finding.hosts:
        return finding
    endings = reading.exceptions.endings
    host = endings.hosts.get(-1 if finding.rank is None else finding.rank, "")
    if not host and endings.first is not None and rank_of(endings.first, reading) in (None, finding.rank):
        host = endings.first.host
    host = host or _only_host(others, reading)
    return replace(finding, host=host, hosts=(host,)) if host else finding


def _ranked(finding: LogFinding, others: Iterable[LogFinding], reading: Reading) -> LogFinding:
    """Add the rank from an exception after an NCCL error, or from the first exit."""
    raised_in = set[int]().union(*(each.ranks for each in others if each.id == OF_NCCL))
    if finding.rank is None and finding.layer == "nccl" and len(raised_in) == 1:
        finding = replace(finding, rank=min(raised_in), ranks=tuple(raised_in))
    return _placed_at_exit(finding, reading)


def _placed_at_exit(finding: LogFinding, reading: Reading) -> LogFinding:
    """Add the rank that exited first, and the host if the finding is only about that exit."""
    endings = reading.exceptions.endings
    rank = None if endings.first is None else rank_of(endings.first, reading)
    if endings.first is None or rank is None:
        return finding
    if not finding.ranks:
        return replace(finding, rank=rank, ranks=(rank,))
    if endings.rooted and rank in finding.ranks:
        return replace(finding, rank=rank)
    if endings.rooted and finding.id == "died-exit-silent":
        host = endings.first.host
        return replace(finding, rank=rank, ranks=(rank,), host=host, hosts=(host,) if host else ())
    return finding


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


NO_LINE = First(0, FactLine("", 0, ""), Head(), None)
"""Used for a derived rule, which no line fired."""


def finding_of(entry: RuleHits, seen: str, reading: Reading) -> LogFinding:
    """Return the finding of a rule from the lines that fired it so far."""
    rule = entry.rule
    if entry.is_soft:
        rule = replace(rule, severity="note", role="fact")
    first = entry.firsts[0] if entry.firsts else NO_LINE
    writer = _identified(first.head, reading)
    heads = [_identified(head, reading) for head in entry.heads.values()]
    hosts = tuple(sorted({head.host for head in heads} - {""}))
    ranks = _ranks_of(heads, reading)
    rank = rank_of(writer, reading)
    lines = [each.evidence for each in entry.firsts[:3]] + entry.further
    return LogFinding(
        id=rule.id,
        severity=rule.severity,
        role=rule.role,
        layer=rule.layer,
        confidence=rule.confidence,
        text=rule.says({**first.values, "seen": seen} if seen else first.values),
        remedy=rule.remedy,
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
    hits = [(first, entry) for entry in entries for first in entry.firsts]
    if len({first.file for first, _ in hits}) == 1:
        return min(hits, key=lambda hit: (hit[0].evidence.line, hit[1].rule.place))[1], "lines"
    times = _comparable([first.stamp for first, _ in hits])
    if times:
        return hits[times.index(min(times))][1], "time"
    return min(hits, key=lambda hit: (hit[0].file, hit[0].evidence.line, hit[1].rule.place))[1], "unknown"


def _comparable(stamps: Collection[Stamp | None]) -> list[str]:
    """Return the times as texts whose string order is their order; [] if they cannot be compared."""
    known = [stamp for stamp in stamps if stamp is not None]
    if len(known) < len(stamps):
        return []
    if len({stamp.kind for stamp in known}) == 1:
        return [stamp.text for stamp in known]
    local = [stamp.local or "" for stamp in known]
    return local if all(local) else []


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
    communicators = statements.sessions.communicators
    if any(part.spans_nodes for part in communicators):
        return True
    whole = [part for part in communicators if part.nranks is not None]
    if whole and all(part.nnodes == 1 or len(part.ranks) == part.nranks for part in whole):
        return False
    return None


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
        for versions in (_of_hosts(communicator, statements), _of_ranks(communicator, statements)):
            if len(versions) > 1:
                return ", ".join(f"{who} {version}" for version, who in sorted(versions.items())[:4])
    return ""


def _of_hosts(communicator: CommunicatorPart, statements: Statements) -> dict[str, str]:
    """Return the last host with each NCCL version, with a verb."""
    versions: dict[str, str] = {}
    for host in sorted(communicator.hosts):
        node = statements.nodes.get(host)
        if node is not None and len(node.versions) == 1:
            versions[next(iter(node.versions))] = f"{host} has"
    return versions


def _of_ranks(communicator: CommunicatorPart, statements: Statements) -> dict[str, str]:
    """Return the ranks with each NCCL version, with a verb."""
    ranks: dict[str, list[int]] = {}
    for part in communicator.ranks.values():
        if version := statements.version_of(part):
            ranks.setdefault(version, []).append(part.rank)
    return {
        version: f"{spans_text('rank', sorted(its))} {agreeing(its, 'has', 'have')}"
        for version, its in ranks.items()
    }


def _hang(statements: Statements, tally: Tally) -> str:
    """Report a timeout of the first collective on one node whose GPUs all use P2P and none NVLink SHARP."""
    seqs = [progress.seq for progress in tally.progress.values() if progress.seq is not None]
    if max(seqs, default=2) > 1 or any(entry.count for entry in tally.entries if entry.rule.explains):
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
