"""Everything that was found and read, as one JSON object. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..logs.files import parse_file_id
from .parts import Communicator, Node, RankPart
from .reading import Reading
from .verdict import Finding, Verdict

RANKS_NAMED = 64
"""Most ranks of a communicator that are listed as behind the others."""


def document(reading: Reading, verdict: Verdict) -> dict[str, Any]:
    """For `--json`; docs/diagnosis.md says what each key holds. None is unknown."""
    first = verdict.first
    statements = reading.statements
    return {
        "files": reading.files,
        "lines": reading.lines,
        "nccl_lines": reading.nccl_lines,
        "nccl": sorted(statements.versions),
        "first_cause": None if first is None else {"id": first.id, "order": verdict.order},
        "victims": [
            {"id": one.id, "count": one.count, "ranks": list(one.ranks)} for one in verdict.victims
        ],
        "behind": list(verdict.behind),
        "findings": [_finding(one) for one in verdict.findings],
        "nodes": [_node(one, statements.sessions.ranks_on(one.host)) for one in statements.nodes.values()],
        "communicators": [_communicator(one) for one in statements.sessions.all()],
        "communicators_left_out": statements.sessions.left_out,
    }


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "id": one.id,
        "severity": one.severity,
        "role": one.role,
        "layer": one.layer,
        "confidence": one.confidence,
        "rank": one.rank,
        "node": node_of(one),
        "host": one.host or None,
        "ranks": list(one.ranks),
        "hosts": list(one.hosts),
        "count": one.count,
        "text": one.text,
        "remedy": one.remedy,
        "env": dict(one.env),
        "values": dict(one.values),
        "seen": one.seen,
        "evidence": [{"file": its.file, "line": its.line, "text": its.text} for its in one.evidence],
    }


def node_of(one: Finding) -> int | None:
    """The node's number, where the first line stands in a log of a run."""
    known = parse_file_id(one.evidence[0].file) if one.evidence else None
    return None if known is None else known.node


def _node(node: Node, ranks: list[int]) -> dict[str, Any]:
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


def _communicator(one: Communicator) -> dict[str, Any]:
    slowest = one.slowest()
    return {
        "id": one.id or None,
        "nranks": one.nranks,
        "nnodes": one.nnodes,
        "hosts": sorted(one.hosts),
        "ranks_seen": len(one.ranks),
        "stages": one.stages(),
        "behind": behind(one)[:RANKS_NAMED],
        "init": None
        if slowest is None
        else {"seconds": slowest.seconds, "rank": slowest.rank, "phases_s": dict(slowest.phases)},
        "rings": {str(channel): ring for channel, ring in sorted(one.rings.items())},
        "trees": one.trees or None,
        "channels": dict(one.channels),
        "transports": one.transports(),
        "nvls": one.nvls or None,
        "tuning": dict(one.tuning),
        "collectives": dict(one.collectives),
    }


def behind(one: Communicator) -> list[int]:
    """Ranks that have come less far in a communicator than the furthest; [] where all are alike."""
    parts: Iterable[RankPart] = one.ranks.values()
    furthest = max((part.stage for part in parts), default=None)
    return sorted(part.rank for part in parts if part.stage != furthest)
