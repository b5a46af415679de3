"""Findings, worst first, and the first cause with what followed from it. Pure."""

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
    """The finding of a rule over all logs; `rank` is that of the first line."""

    layer: str
    confidence: str
    env: Mapping[str, str]
    count: int
    """Lines that match; 0 for a finding that is derived from several statements."""
    host: str = ""
    """Of the first line; "" where unknown."""
    device: int | None = None
    """CUDA device of the process that wrote the first line, as NCCL numbers it; None where unknown."""
    hosts: tuple[str, ...] = ()
    stamp: Stamp | None = None
    """When the first line was written; None where it does not tell."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Groups of the first match: a rank, a device, an interface."""
    seen: str = ""
    """For a derived finding: the statement that shows it."""
    lines: tuple[FactLine, ...] = ()

    @property
    def stops(self) -> bool:
        """Whether a job that says so has failed."""
        return self.role in ("cause", "symptom") and self.severity == "error"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The findings of some logs, and the first cause."""

    findings: tuple[LogFinding, ...]
    """The first cause, then by role and severity."""
    first: LogFinding | None
    """The cause that came first, of a job that has not failed what may become one; where no line shows one the first
    symptom of a job that failed; None where there is neither."""
    order: Order
    """Why it counts as the first: its place in a single file, its time, or unknown."""
    victims: tuple[LogFinding, ...]
    """Symptoms: where there is a first cause they follow from it."""
    behind: tuple[int, ...]
    """Ranks that had come less far than others when collectives timed out."""
    ended: bool = False
    """Whether somebody reported a process that failed."""

    @property
    def failed(self) -> bool:
        """Whether the job failed, also where no line shows why."""
        return self.ended or failed_in(self.findings)

    @property
    def cause(self) -> LogFinding | None:
        """The first cause; None where no line shows one."""
        return self.first if self.first is not None and self.first.role != "symptom" else None


def judge(reading: Reading) -> Verdict:
    """Findings and first cause of everything that was read."""
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
    """What explains a failure that no rule explains, the surest first: who is missing, errors that are facts beside a
    cause, a sentence, an exit, a traceback that was cut off.
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
        # what stands above may tell what was on its way
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
    ):  # beside symptoms in other files it is who failed
        symptoms = _first_symptoms(named)
        chosen += [
            cut for cut in cut_off if cut.rule.id != CUT_OFF.id or cut.firsts[0].file not in symptoms
        ]
    return chosen or ([] if failed else reading.short.entries())


def _exits(reading: Reading, cut_off: Iterable[RuleHits]) -> Iterable[RuleHits]:
    """The first exit that was reported, or the traceback that its launcher prints for it, as far as that is there."""
    exit_ = reading.exceptions.exited
    if exit_ is not None and RAISED in exit_.evidence.text:
        below = [cut for cut in cut_off if cut.firsts[0].file == exit_.file]
        if below and below[0].firsts[0].evidence.line > exit_.evidence.line:
            return below
    return reading.exceptions.exits()


def _reported(hits: Iterable[RuleHits], lengths: Mapping[int, int], failed: bool) -> list[RuleHits]:
    """What torch says of an error of NCCL, where NCCL's own reason and the frames of the exception are not there."""
    reports = [entry for entry in hits if entry.rule.id == REPORT and entry.firsts]
    return [as_cause(entry) for entry in reports if failed or _near_end(entry.firsts, lengths)]


PASSED_ON = {
    "1": "unhandled CUDA error",
    "2": "unhandled system error",
    "4": "invalid argument",
    "5": "invalid usage",
}
"""Codes of NCCL's functions; the others are also of a peer that has ended, as at the end of each job."""


def _traced(hits: Iterable[RuleHits], lengths: Mapping[int, int]) -> Iterator[RuleHits]:
    """An error that NCCL's functions pass on at the end of a log, where no line tells what it was."""
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
"""What torch raises since NCCL failed: of whose process NCCL's reason is."""


def _before_the_kill(reading: Reading) -> Iterator[RuleHits]:
    """A failure that the process wrote, right before a shell or a launcher reports that it was killed: by its parent."""
    sentences = reading.error_lines.entries(reading.lengths, False, reading.exceptions.killed)
    return (each for each in sentences if each.rule.role == "cause" and each.rule.id != UNEXPLAINED)


OF_OTHERS = ("ray-actor-died", "deepspeed-kills", "horovod-shutdown")
"""Symptoms that only say that somebody else failed: any other says more."""
CANCELLED = ("slurm-cancelled", "slurm-step-cancelled", "ray-worker-died")
"""What follows from the exit of a process, where that was reported before."""
LEFT = "rendezvous-left"
"""What the agent of a node says of its end, too: a cause only where a traceback begins below it."""
LATER = ("died-terminated", "died-abort", "deepspeed-kills")
"""Symptoms beside which the exit that somebody reports still says more."""


def _first_symptoms(hits: Iterable[RuleHits]) -> dict[int, int]:
    """By number of a file the line of its first symptom of a failure."""
    lines: dict[int, int] = {}
    for entry in hits:
        for first in entry.firsts if (entry.rule.role, entry.rule.severity) == ("symptom", "error") else ():
            lines[first.file] = min(first.evidence.line, lines.get(first.file, first.evidence.line))
    return lines


OUT_OF_MEMORY = ("died-host-oom", "kernel-oom", "k8s-oom-killed", "ray-memory")
"""Who tells them knows why a process got SIGKILL, of which a shell or a launcher tells no more."""


def _explain_kills(findings: dict[int, LogFinding]) -> None:
    """A kill follows from the want of memory that somebody reports."""
    if any(each.id in OUT_OF_MEMORY for each in findings.values()):
        for place, each in findings.items():
            findings[place] = replace(each, role="symptom") if each.id == KILLED else each


def _explain_cancels(findings: dict[int, LogFinding], reading: Reading) -> None:
    """That a job was cancelled follows from the task that Slurm had reported in the same file to have failed; so Ray."""
    exited = reading.exceptions.exited
    for place, each in findings.items():
        if each.id in CANCELLED and _after(each, exited):
            findings[place] = replace(each, role="symptom")


def failed_in(findings: Iterable[LogFinding]) -> bool:
    """Whether one of these is said by jobs that failed."""
    return any(finding.stops for finding in findings)


def _after(finding: LogFinding, exited: First | None) -> bool:
    """Whether it was written after a process was reported to have been killed, in the same file."""
    if exited is None or not finding.lines:
        return False
    its = finding.lines[0]
    return its.file == exited.evidence.file and its.line > exited.evidence.line


def _placed(finding: LogFinding, others: Iterable[LogFinding], reading: Reading) -> LogFinding:
    """With rank and host, where its own lines do not tell them and whoever reported the failed process does."""
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
    """The one that the logs are of, as far as anything in them names one; "" where none or several are named."""
    named = {host for finding in findings for host in finding.hosts} | reading.hosts
    return named.pop() if len(named) == 1 and not several_nodes(reading.statements) else ""


OF_OTHER_BUILDS = ("boot-mismatch", "boot-truncated", "sock-handshake")
"""What ranks with different builds of NCCL run into; causes only where the versions are alike or unknown."""


def fired(reading: Reading) -> Iterator[tuple[RuleHits, str]]:
    """The rules that hold, each with what a derived one was seen by, else ""; in the order of the rules."""
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
    """The finding of a rule, from the lines that fired it so far."""
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
    """The only value; None where there are none, or several."""
    return values[0] if len(values) == 1 else None


def _identified(head: Head, reading: Reading) -> Head:
    """With what other reports of the same process tell: one may name its rank, another its host."""
    report = reading.exceptions.endings.who.get(head.pid or 0)
    if report is None or (head.host and report.host and head.host != report.host):
        return head
    rank = (report.rank, report.node) if head.rank is None or head.node else (head.rank, "")
    return replace(head, host=head.host or report.host, rank=rank[0], node=rank[1])


def _first_of(causes: list[RuleHits]) -> tuple[RuleHits | None, Order]:
    """The earliest error, else the earliest warning; derived findings only where no line shows a cause."""
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


RDMA_RULES = ("ofi-init-failed", "ofi-no-efa", "ofi-av", "ib-open-device")
"""Where one of these fired there is, or should be, an RDMA device."""


def derived(statements: Statements, tally: Tally) -> dict[str, str]:
    """Id of a rule → what it was seen by, a sentence."""
    texts = {
        "net-socket-fallback": _sockets(statements, tally),
        "gdr-asymmetric": _asymmetric_gdr(statements),
        "version-mismatch": _versions(statements),
        "p2p-hang": _hang(statements, tally),
    }
    return {rule: text for rule, text in texts.items() if text}


def promoted(entries: Iterable[RuleHits]) -> Iterator[RuleHits]:
    """Errors that are facts beside a cause, and the best that is known without one."""
    for entry in entries:
        if entry.rule.role == "fact" and entry.rule.severity == "error" and entry.rule.id != REPORT:
            yield as_cause(entry)


def as_cause(entry: RuleHits) -> RuleHits:
    """The same, which explains a failure for want of a better one."""
    return replace(entry, rule=replace(entry.rule, role="cause", severity="error"))


def several_nodes(statements: Statements) -> bool | None:
    """Whether a communicator spans nodes; None where unknown."""
    sizes = [part.nnodes for part in statements.sessions.communicators if part.nnodes is not None]
    if any(len(part.hosts) > 1 for part in statements.sessions.communicators) or max(sizes, default=0) > 1:
        return True
    whole = [part for part in statements.sessions.communicators if part.nranks is not None]
    alone = bool(whole) and all(part.nnodes == 1 or len(part.ranks) == part.nranks for part in whole)
    return False if alone else None


def _fired(tally: Tally, *ids: str) -> bool:
    return any(entry.count for entry in tally.entries if entry.rule.id in ids)


def _sockets(statements: Statements, tally: Tally) -> str:
    """Traffic between nodes over TCP where an RDMA device exists and no variable requests TCP."""
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
    """Hosts, or ranks of a host, of one communicator with different versions of NCCL."""
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
    """The first collective timed out on one node, all of whose GPUs are connected by P2P and none by NVLink SHARP."""
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
