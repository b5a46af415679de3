"""The JSON of `distui diagnose`: its types, and its conversion from a reading. Pure."""

from __future__ import annotations

from typing import Any, TypedDict

from ..run.log_files import parse_file_id
from .first_cause import Candidate, Order, Verdict
from .log_findings import LogFinding
from .reading import Reading
from .statements import CommunicatorPart, NodePart

RANKS_NAMED = 64
"""Maximum number of ranks listed as late per communicator."""


class FoundLine(TypedDict):
    file: str
    line: int
    text: str


class FoundInLogs(TypedDict):
    """A finding in logs."""

    id: str
    severity: str
    role: str
    layer: str
    confidence: str
    rank: int | None
    node: int | None
    host: str | None
    device: int | None
    ranks: list[int]
    hosts: list[str]
    time: str | None
    count: int
    text: str
    remedy: str
    env: dict[str, str]
    values: dict[str, Any]
    seen: str
    evidence: list[FoundLine]


class FoundFirst(FoundInLogs):
    """The first cause."""

    order: Order


class Score(TypedDict):
    """What ranks a candidate: severity, then specificity (1 explains most), then time, then confidence."""

    severity: str
    specificity: int
    time: str | None
    confidence: str


class CandidateInLogs(TypedDict):
    """A possible first cause."""

    id: str
    role: str
    explains: str
    """The name of its specificity: cause, inferred, message, trace, truncated, report, word, …."""
    score: Score
    file: str | None
    line: int | None
    """Its first line; None if it is derived from several."""


class Victim(TypedDict):
    id: str
    count: int
    ranks: list[int]


class NodeInLogs(TypedDict):
    """The facts of NCCL's lines about a host."""

    host: str | None
    file: str | None
    """The file whose lines name no host; None if the host is known."""
    nccl: list[str]
    ranks: list[int]
    bootstrap: str | None
    interfaces: dict[str, str]
    hcas: dict[str, str]
    networks: list[str]
    plugins: list[str]
    env: dict[str, str]


class SlowestInit(TypedDict):
    seconds: float
    rank: int
    phases_s: dict[str, float]


class CommunicatorInLogs(TypedDict):
    id: str | None
    nranks: int | None
    nnodes: int | None
    hosts: list[str]
    ranks_seen: int
    stages: dict[str, int]
    """Number of ranks by init stage."""
    behind: list[int]
    """The first RANKS_NAMED ranks that have not reached the stage of the others."""
    init: SlowestInit | None
    rings: dict[str, str]
    trees: int | None
    channels: dict[str, int]
    transports: dict[str, int]
    """Number of pairs by transport."""
    nvls: bool | None
    tuning: dict[str, int]
    collectives: dict[str, int]


class Diagnosis(TypedDict):
    """The output of `diagnose`. None means unknown."""

    files: list[str]
    unread: list[str]
    lines: int
    nccl_lines: int
    nccl: list[str]
    failed: bool
    first_cause: FoundFirst | None
    candidates: list[CandidateInLogs]
    """Candidates for the first cause, the best first."""
    victims: list[Victim]
    behind: list[int]
    findings: list[FoundInLogs]
    nodes: list[NodeInLogs]
    communicators: list[CommunicatorInLogs]
    communicators_left_out: int


def document(reading: Reading, verdict: Verdict) -> Diagnosis:
    """Return the document of a reading and its verdict."""
    first = verdict.first
    statements = reading.statements
    return {
        "files": reading.files,
        "unread": list(reading.unread),
        "lines": reading.lines,
        "nccl_lines": reading.nccl_lines,
        "nccl": sorted(statements.versions),
        "failed": verdict.failed,
        "first_cause": None
        if first is None or first.severity != "error"
        else {**_finding(first), "order": verdict.order},
        "candidates": [_candidate(each) for each in verdict.candidates],
        "victims": [
            {"id": victim.id, "count": victim.count, "ranks": list(victim.ranks)}
            for victim in verdict.victims
        ],
        "behind": list(verdict.behind),
        "findings": [_finding(finding) for finding in verdict.findings],
        "nodes": [
            _node(node, statements.sessions.ranks_on(node.host)) for node in statements.nodes.values()
        ],
        "communicators": [_communicator(part) for part in statements.sessions.all()],
        "communicators_left_out": statements.sessions.left_out,
    }


def _finding(finding: LogFinding) -> FoundInLogs:
    return {
        "id": finding.id,
        "severity": finding.severity,
        "role": finding.role,
        "layer": finding.layer,
        "confidence": finding.confidence,
        "rank": finding.rank,
        "node": _node_of(finding),
        "host": finding.host or None,
        "device": finding.device,
        "ranks": list(finding.ranks),
        "hosts": list(finding.hosts),
        "time": None if finding.stamp is None else finding.stamp.text,
        "count": finding.count,
        "text": finding.text,
        "remedy": finding.remedy,
        "env": dict(finding.env),
        "values": dict(finding.values),
        "seen": finding.seen,
        "evidence": [{"file": its.file, "line": its.line, "text": its.text} for its in finding.lines],
    }


def _candidate(candidate: Candidate) -> CandidateInLogs:
    finding = candidate.finding
    first = finding.lines[0] if finding.lines else None
    return {
        "id": finding.id,
        "role": finding.role,
        "explains": candidate.specificity.name.lower(),
        "score": {
            "severity": finding.severity,
            "specificity": int(candidate.specificity),
            "time": None if finding.stamp is None else finding.stamp.text,
            "confidence": finding.confidence,
        },
        "file": None if first is None else first.file,
        "line": None if first is None else first.line,
    }


def _node_of(finding: LogFinding) -> int | None:
    """Return the run's node whose log has the first line; None if the log is not of a run."""
    log = parse_file_id(finding.lines[0].file) if finding.lines else None
    return None if log is None else log.node


def _node(node: NodePart, ranks: list[int]) -> NodeInLogs:
    return {
        "host": node.host or None,
        "file": node.file or None,
        "nccl": sorted(node.versions),
        "ranks": ranks,
        "bootstrap": node.bootstrap or None,
        "interfaces": dict(node.interfaces),
        "hcas": dict(node.hcas),
        "networks": sorted(node.networks),
        "plugins": sorted(node.plugins),
        "env": dict(node.env),
    }


def _communicator(communicator: CommunicatorPart) -> CommunicatorInLogs:
    slowest = communicator.slowest()
    return {
        "id": communicator.id or None,
        "nranks": communicator.nranks,
        "nnodes": communicator.nnodes,
        "hosts": sorted(communicator.hosts),
        "ranks_seen": len(communicator.ranks),
        "stages": communicator.stages(),
        "behind": _late(communicator)[:RANKS_NAMED],
        "init": None
        if slowest is None
        else {"seconds": slowest.seconds, "rank": slowest.rank, "phases_s": dict(slowest.phases)},
        "rings": {str(channel): ring for channel, ring in sorted(communicator.rings.items())},
        "trees": communicator.trees or None,
        "channels": dict(communicator.channels),
        "transports": communicator.transports(),
        "nvls": communicator.uses_nvls,
        "tuning": dict(communicator.tuning),
        "collectives": dict(communicator.collectives),
    }


def _late(communicator: CommunicatorPart) -> list[int]:
    """Return the ranks that have not reached the furthest stage of their communicator."""
    parts = communicator.ranks.values()
    furthest = max((part.stage for part in parts), default=None)
    return sorted(part.rank for part in parts if part.stage != furthest)
