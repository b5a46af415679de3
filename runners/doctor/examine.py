"""One examination: facts of every node, connections between nodes, all-reduces of pairs, and the findings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...presets.finding import Finding, worst_first
from ...presets.sanitize import sentence
from ..run import machine
from ..run.parts import ONCE, Parts, Report, failure, printed
from ..run.wire.ssh import HostError, Way, each
from . import difference_checks, network_checks
from .examined_node import ExaminedNode
from .node_checks import check_node
from .pair_checks import Result, check_pairs
from .pair_trials import PAIR_SECONDS, PairMember, two_rounds
from .session import NodeSession

FACTS_SECONDS = 300.0
PORTS = (29400, 29401, 29402, 29500, 21001)
"""Ports below the kernels' ephemeral range, like those of launches. The first ones are torchrun's own."""
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 40.0
MOST_EVIDENCE = 12
"""Maximum lines of a failed check's traceback."""
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class NodeToCheck:
    """A node to examine. `way` None: this machine."""

    name: str
    way: Way | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRequest:
    places: Sequence[NodeToCheck]
    python: str = ""
    """The training environment's interpreter; "": a launch's default."""
    cwd: str = ""
    """Directory where ranks would start."""
    port: int | None = None
    """Port of the rendezvous on the first node; None: a launch chooses one."""
    head: str = ""
    """Address of the first node for the others; "": its SSH address."""
    try_pairs: bool = True
    size: int = 16 << 20
    """Bytes per all-reduce."""
    pair_seconds: float = PAIR_SECONDS


@dataclass(kw_only=True)
class Examination:
    nodes: list[ExaminedNode] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    """Names of the members of pairs."""
    backend: str = ""
    rounds: tuple[list[Result], list[Result]] = field(default_factory=lambda: ([], []))

    def report_of(self, where: str) -> Report:
        """Return the function that reports a failed check of this node, or between nodes for ""."""
        return partial(self._part_failed, where)

    def _part_failed(self, where: str, name: str, error: BaseException, follows: str) -> None:
        """Add a check that could not be made as a finding."""
        finding = failure(name, error, follows, None, "please report it")
        severity = "error" if follows == ONCE else finding.severity
        evidence = tuple(printed(error).splitlines()[-MOST_EVIDENCE:])
        finding = replace(finding, where=where, severity=severity, evidence=evidence)
        if finding not in self.findings:
            self.findings.append(finding)


@dataclass(frozen=True, slots=True)
class _Node:
    session: NodeSession
    facts: ExaminedNode


async def examine(request: DoctorRequest, progress: Progress) -> Examination:
    """Examine everything. All processes on the nodes have ended when this returns or is cancelled."""
    outcome = Examination()
    parts = Parts(outcome.report_of(""))
    shown = partial(parts.call, "doctor-progress", progress)
    sessions: list[NodeSession] = []
    try:
        nodes = await _nodes(request, sessions, outcome, shown)
        outcome.nodes = [node.facts for node in nodes]
        await parts.guard("doctor-checks", _check(outcome))
        headed = bool(nodes) and nodes[0].facts.name == request.places[0].name
        if len(nodes) > 1 and headed and not _addressless(outcome):
            await parts.guard("doctor-reach", _reach(request, nodes[0], nodes[1:], outcome))
        if request.try_pairs:
            await parts.guard("doctor-pairs", _pairs(request, nodes, outcome, shown))
    finally:
        await asyncio.gather(*(session.close() for session in sessions))
    outcome.findings = worst_first(outcome.findings)
    return outcome


async def _check(outcome: Examination) -> None:
    outcome.findings += check(outcome.nodes)
    outcome.findings += network_checks.addresses(outcome.nodes)


def _addressless(outcome: Examination) -> bool:
    return any(finding.id == "D-ADDRESS" for finding in outcome.findings)


def check(nodes: Sequence[ExaminedNode]) -> list[Finding]:
    """Return the findings of each node, and of the differences between nodes."""
    findings = [
        finding for node in nodes for finding in (*check_node(node), *network_checks.check_network(node))
    ]
    return findings + difference_checks.check_differences(nodes)


async def _nodes(
    request: DoctorRequest, open_sessions: list[NodeSession], outcome: Examination, progress: Progress
) -> list[_Node]:
    """Return the nodes that answer. The others become findings."""
    through, nodes = 0, dict[NodeToCheck, _Node]()
    progress("nodes", 0, len(request.places))

    async def login(place: NodeToCheck) -> NodeSession:
        session = await NodeSession.open(place.name, place.way, outcome.report_of(place.name))
        open_sessions.append(session)
        return session

    async def facts(place: NodeToCheck, session: NodeSession | HostError) -> None:
        nonlocal through
        try:
            if isinstance(session, HostError):
                outcome.findings.append(_unreached(place.name, str(session)))
            else:
                nodes[place] = await _examined(request, place, session)
        except HostError as error:
            outcome.findings.append(_silent(place.name, str(error)))
        finally:
            through += 1
            progress("nodes", through, len(request.places))

    sessions = await each(request.places, login)
    works = [
        Parts(outcome.report_of(place.name)).guard("doctor-facts", facts(place, session))
        for place, session in zip(request.places, sessions, strict=True)
    ]
    await asyncio.gather(*works)
    return [nodes[place] for place in request.places if place in nodes]


async def _examined(request: DoctorRequest, place: NodeToCheck, session: NodeSession) -> _Node:
    """Read the facts of a node. Raises HostError."""
    ahead, doubt = await session.clock()
    python = request.python or (machine.default_python() if place.way is None else "")
    spec = {
        "python": python,
        "cwd": request.cwd or str(Path.cwd()),
        "port": request.port if place is request.places[0] else None,
    }
    facts = await session.ask("facts", FACTS_SECONDS, **spec)
    facts.pop("id")
    several = len(request.places) > 1
    examined = ExaminedNode(
        name=place.name, facts=facts, ahead_s=round(ahead, 6), doubt_s=round(doubt, 6), several=several
    )
    if request.head and place is request.places[0]:
        examined = replace(examined, facts={**facts, "ssh_address": request.head})
    return _Node(session, examined)


def _unreached(name: str, why: str) -> Finding:
    return Finding(
        id="D-SSH",
        severity="error",
        where=name,
        value=why,
        text=sentence(f"It cannot be reached: {why}"),
        remedy="Make `ssh` there work without a password, with a Python 3.8 or newer on its PATH.",
    )


def _silent(name: str, why: str) -> Finding:
    return Finding(
        id="D-FACTS",
        severity="error",
        where=name,
        value=why,
        text=sentence(f"It was reached, and then stopped answering: {why}"),
        remedy="Run `distui doctor` on the node itself.",
    )


async def _reach(
    request: DoctorRequest, head: _Node, others: Sequence[_Node], outcome: Examination
) -> None:
    """Let each other node connect to the rendezvous port of the head."""
    address = head.facts.address
    try:
        port = await _listen(request, head)
    except HostError as error:
        outcome.findings.append(_silent(head.facts.name, str(error)))
        return
    if port is None or address is None:
        return  # check_network reports a port in use

    async def connect(node: _Node) -> None:
        same = node.facts.get("boot") == head.facts.get("boot")
        fields = {
            "host": address,
            "port": port,
            "within": CONNECT_SECONDS,
            "name": None if same else head.facts.get("hostname"),
        }
        try:
            answer = await node.session.ask("connect", ANSWER_SECONDS, **fields)
        except HostError as error:
            outcome.findings.append(_silent(node.facts.name, str(error)))
            return
        outcome.findings += network_checks.reach(node.facts, head.facts.name, address, port, answer)

    await asyncio.gather(*(connect(node) for node in others))


async def _listen(request: DoctorRequest, head: _Node) -> int | None:
    """Return the listening port of the head: the requested port, else the first free one of PORTS; None without one."""
    for port in PORTS if request.port is None else (request.port,):
        if (await head.session.ask("listen", ANSWER_SECONDS, port=port))["ok"]:
            return port
    return None


# --- pairs: the members of all-reduces ---


async def _pairs(
    request: DoctorRequest, nodes: Sequence[_Node], outcome: Examination, progress: Progress
) -> None:
    able = [node for node in nodes if _able(node.facts)]
    members = _between(able) if len(request.places) > 1 else _within(able)
    if len(members) < 2 or _addressless(outcome):
        outcome.findings.append(_skipped(request, able))
        return
    outcome.members = [member.name for member in members]
    outcome.backend = "gloo" if members[0].device is None else "nccl"

    def done(number: int, through: int, total: int) -> None:
        progress(f"pairs, round {number} of 2", through, total)

    outcome.rounds = await two_rounds(members, request.size, done, request.pair_seconds)
    outcome.findings += check_pairs(outcome.members, *outcome.rounds)


def _able(node: ExaminedNode) -> bool:
    training: dict[str, Any] = node.get("training") or {}
    return bool(training.get("torch") and not training.get("problem") and training.get("distributed"))


def _between(nodes: Sequence[_Node]) -> list[PairMember]:
    """Return one member per node, on its first GPU if all nodes have one."""
    gpus = all(_usable(node.facts) for node in nodes)
    return [
        PairMember(
            node.facts.name,
            node.session,
            node.facts.get("training", "executable"),
            node.facts.address or "",
            0 if gpus else None,
        )
        for node in nodes
    ]


def _within(nodes: Sequence[_Node]) -> list[PairMember]:
    """Return one member per GPU of the only node, or two on its processor if it has fewer than two GPUs."""
    members = []
    for node in nodes:
        python, gpus = node.facts.get("training", "executable"), _usable(node.facts)
        ranks: list[tuple[str, int | None]] = [(f"GPU {index}", index) for index in range(gpus)]
        for name, device in ranks if gpus > 1 else [("rank 0", None), ("rank 1", None)]:
            members.append(PairMember(name, node.session, python, "127.0.0.1", device))
    return members


def _usable(node: ExaminedNode) -> int:
    """Return the number of GPUs that NCCL can use."""
    return len(node.get("training", "gpus") or ()) if node.get("training", "nccl") else 0


def _skipped(request: DoctorRequest, able: Sequence[_Node]) -> Finding:
    missing = [
        place.name for place in request.places if place.name not in {node.facts.name for node in able}
    ]
    why = (
        f"{', '.join(missing)} cannot take part"
        if missing
        else "not every node can be reached by the others"
    )
    return Finding(
        id="D-PAIRS-SKIPPED",
        severity="note",
        where="",
        value="n/a",
        text=f"No all-reduce was tried: {why}.",
        remedy="Repair what is reported above, and run it again.",
    )
