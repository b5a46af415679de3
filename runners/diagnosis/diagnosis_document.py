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
    """A log line as evidence."""

    file: str
    line: int
    """Number of the line, from 1."""
    text: str


class FoundInLogs(TypedDict):
    """A finding in logs. "The first line" is the first line that matches its rule."""

    id: str
    severity: str
    """One of SEVERITIES in presets/finding.py: "error", "warning", "note"."""
    role: str
    """One of ROLES in presets/finding.py: "cause", "hint", "symptom", "fact", "trace", "noise"."""
    layer: str
    """The software with the problem: "nccl", "cuda", "libfabric", "torch", "python", "launcher", "slurm", "ray",
    "kubernetes", "cloud", "kernel", "unknown"."""
    confidence: str
    """How sure the rule is: "high", "medium", "low"."""
    rank: int | None
    """Rank of the first line."""
    node: int | None
    """Number of the run's node that has the first line; None if the log is not of a run."""
    host: str | None
    """Host of the first line."""
    device: int | None
    """CUDA device of the first line, if NCCL prints it."""
    ranks: list[int]
    """All ranks with such lines."""
    hosts: list[str]
    """All hosts with such lines."""
    time: str | None
    """Timestamp of the first line, as the log has it."""
    count: int
    """Number of matching lines; 0 for a derived finding."""
    text: str
    remedy: str
    env: dict[str, str]
    """Variables that the remedy sets."""
    values: dict[str, Any]
    """What the first line names: a rank, a device, an interface, by the name of the group in the rule."""
    seen: str
    """For a derived finding, which no single line shows: the statement that shows it. Otherwise ""."""
    evidence: list[FoundLine]
    """At most three lines."""


class FoundFirst(FoundInLogs):
    """The first cause."""

    order: Order
    """How it was found to be the first: by "lines" of a single file, by "time", or "unknown"."""


class Score(TypedDict):
    """The sort key of a candidate, in this order. Symptoms come after all other roles."""

    severity: str
    specificity: int
    """How much it explains: 1 most, 9 least. `explains` is its name."""
    time: str | None
    confidence: str


class CandidateInLogs(TypedDict):
    """A possible first cause."""

    id: str
    role: str
    explains: str
    """The name of its specificity: "cause", "inferred", "last_words", "relayed", "message", "trace", "truncated",
    "report", "word", "symptom", "consequence". See `Specificity`."""
    score: Score
    file: str | None
    line: int | None
    """Its first line; None if it is derived from several."""


class Victim(TypedDict):
    """A symptom: it follows from the first cause."""

    id: str
    count: int
    """Number of matching lines."""
    ranks: list[int]


class NodeInLogs(TypedDict):
    """The facts of NCCL's lines about a host."""

    host: str | None
    file: str | None
    """The file whose lines name no host; None if the host is known."""
    nccl: list[str]
    """Versions, such as "2.27.5+cuda12.9"."""
    ranks: list[int]
    """Its ranks in the largest communicator."""
    bootstrap: str | None
    """Interface of the bootstrap network."""
    interfaces: dict[str, str]
    """Address by name of a socket interface."""
    hcas: dict[str, str]
    """Kind by HCA: "mlx5_0:1" → "IB" or "RoCE", with "/SHARP" if supported."""
    networks: list[str]
    """Networks between nodes: "IB", "Socket", or the name of a plugin."""
    plugins: list[str]
    env: dict[str, str]
    """Variables that NCCL logs as read."""


class SlowestInit(TypedDict):
    """The rank whose init took longest."""

    seconds: float
    rank: int
    phases_s: dict[str, float]
    """Seconds by phase, as NCCL names them: "kernels", "bootstrap", "topo", …."""


class CommunicatorInLogs(TypedDict):
    id: str | None
    """NCCL's commId, logged since 2.18."""
    nranks: int | None
    nnodes: int | None
    hosts: list[str]
    ranks_seen: int
    """Number of its ranks whose lines were read."""
    stages: dict[str, int]
    """Number of ranks by stage: "started", "bootstrapped", "complete", "connected", "running", "destroyed", "aborted".
    """
    behind: list[int]
    """The first RANKS_NAMED ranks that have not reached the furthest stage of its ranks."""
    init: SlowestInit | None
    rings: dict[str, str]
    """Order of the ranks, such as "0 1 3 2", by number of the channel."""
    trees: int | None
    """Number of channels with a tree."""
    channels: dict[str, int]
    """Number of channels by kind: "coll", "collnet", "nvls", "p2p", "p2p per peer"."""
    transports: dict[str, int]
    """Number of pairs of ranks by transport, such as "P2P/IPC", "SHM", "NET/IB/GDRDMA"."""
    nvls: bool | None
    """Whether it uses NVLink SHARP."""
    tuning: dict[str, int]
    """Number of choices by operation, algorithm and protocol, such as "AllReduce RING LL"."""
    collectives: dict[str, int]
    """Number of calls by operation, such as "AllReduce", over all ranks. Logged only with COLL in NCCL_DEBUG_SUBSYS."""


class Diagnosis(TypedDict):
    """The output of `diagnose`. None means unknown."""

    files: list[str]
    unread: list[str]
    """A sentence per file or part of a file that was not read."""
    lines: int
    nccl_lines: int
    nccl: list[str]
    """All NCCL versions in the logs."""
    failed: bool
    """Whether the job failed, even if its cause was not found."""
    first_cause: FoundFirst | None
    """The best candidate if it is an error. None if there is none, or if the best one is only a warning."""
    candidates: list[CandidateInLogs]
    """Candidates for the first cause, the best first."""
    victims: list[Victim]
    behind: list[int]
    """Ranks that had completed fewer collectives than others when collectives timed out. `behind` of a communicator is
    about its init."""
    findings: list[FoundInLogs]
    """The first cause, then by role and severity."""
    nodes: list[NodeInLogs]
    communicators: list[CommunicatorInLogs]
    communicators_left_out: int
    """Number of communicators that were not kept, because there were more than COMMUNICATORS (statements.py)."""


def document(reading: Reading, verdict: Verdict) -> Diagnosis:
    """Return the document of a reading and its verdict."""
    first_cause: FoundFirst | None = None
    if verdict.first is not None and verdict.first.severity == "error":
        first_cause = {**_finding(verdict.first), "order": verdict.order}
    statements = reading.statements
    return {
        "files": reading.files,
        "unread": list(reading.unread),
        "lines": reading.lines,
        "nccl_lines": reading.nccl_lines,
        "nccl": sorted(statements.versions),
        "failed": verdict.failed,
        "first_cause": first_cause,
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
        "evidence": [{"file": line.file, "line": line.line, "text": line.text} for line in finding.lines],
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
    init: SlowestInit | None = None
    if slowest is not None:
        init = {"seconds": slowest.seconds, "rank": slowest.rank, "phases_s": dict(slowest.phases)}
    return {
        "id": communicator.id or None,
        "nranks": communicator.nranks,
        "nnodes": communicator.nnodes,
        "hosts": sorted(communicator.hosts),
        "ranks_seen": len(communicator.ranks),
        "stages": communicator.stages(),
        "behind": _behind(communicator)[:RANKS_NAMED],
        "init": init,
        "rings": {str(channel): ring for channel, ring in sorted(communicator.rings.items())},
        "trees": communicator.trees or None,
        "channels": dict(communicator.channels),
        "transports": communicator.transports(),
        "nvls": communicator.uses_nvls,
        "tuning": dict(communicator.tuning),
        "collectives": dict(communicator.collectives),
    }


def _behind(communicator: CommunicatorPart) -> list[int]:
    """Return the ranks that have not reached the furthest stage of their communicator."""
    parts = communicator.ranks.values()
    furthest = max((part.stage for part in parts), default=None)
    return sorted(part.rank for part in parts if part.stage != furthest)
