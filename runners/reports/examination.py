"""The result of an examination of nodes, as `distui doctor --json` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from msgspec import Struct

from ...presets.finding import LaunchFinding
from ..doctor.examine import Examination
from ..doctor.examined_node import ExaminedNode
from ..doctor.pair_checks import state, usual


class NodeExamination(TypedDict):
    """A node, with all facts if it was reached."""

    name: str
    reached: bool


class PairResult(Struct, frozen=True):
    round: int
    members: list[str]
    bytes: int
    seconds: float | None
    bytes_per_s: float | None
    right: bool | None
    state: str
    problem: str | None


class ExaminationDocument(Struct, frozen=True):
    """`doctor`."""

    nodes: list[NodeExamination]
    findings: list[LaunchFinding]
    backend: str | None
    pairs: list[PairResult]


def document(outcome: Examination, names: Sequence[str]) -> ExaminationDocument:
    """Return the result of an examination of the named nodes."""
    nodes = {node.name: node for node in outcome.nodes}
    first, second = outcome.rounds
    reference = usual(first) or usual(second)
    pairs: list[PairResult] = []
    for number, some in ((1, first), (2, second)):
        for result in some:
            members = [outcome.members[member] for member in result.members]
            measured = result.size, result.seconds, result.bandwidth, result.right
            verdict = state(result, reference), result.problem or None
            pairs.append(PairResult(number, members, *measured, *verdict))
    findings = [finding.as_dict() for finding in outcome.findings]
    examined = [_node(name, nodes.get(name)) for name in names]
    return ExaminationDocument(examined, findings, outcome.backend or None, pairs)


def _node(name: str, node: ExaminedNode | None) -> Any:
    if node is None:
        return {"name": name, "reached": False}
    return {"name": name, "reached": True, "ahead_s": node.ahead_s, "doubt_s": node.doubt_s, **node.facts}
