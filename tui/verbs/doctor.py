"""doctor: checks whether this node, or the named nodes, can run a job."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from msgspec import Struct

from ...presets.finding import Finding, LaunchFinding, failed
from ...presets.sanitize import clean_text
from ...runners.doctor.examine import DoctorRequest, Examination, NodeToCheck, examine
from ...runners.doctor.node_checks import MIB, ExaminedNode
from ...runners.doctor.pair_checks import Result, state, usual
from ...runners.hub import on_hosts
from ...runners.launch.hosts import settled, ssh_options
from ...runners.launch.prepared import check_port
from ...runners.launch.words import request_of
from ...runners.run import own_runs, run_directories
from ...runners.run.errors import RunError
from ...runners.run.formatting import NA, size_text
from ...runners.run.wire.ssh import Way
from ..arguments import names_hosts
from ..rows.glyphs import counted, table
from ..terminal import answer

MOST_MIB = 4096
BAR_CELLS = 24
BETWEEN = "between the nodes"
HEAD = (
    "node",
    "torch",
    "CUDA",
    "NCCL",
    "Python",
    "driver",
    "GPUs",
    "InfiniBand",
    "interface",
    "/dev/shm",
    "clock",
)
MOST_PAIRS = 16


def doctor(options: argparse.Namespace) -> int:
    """Print the findings; return 1 if one is an error. Raises RunError."""
    request = _request(options)
    bar = _Bar()
    try:
        outcome = asyncio.run(_examined(request, bar))
    finally:
        bar.clear()
    names = [place.name for place in request.places]
    answer(options.json, document(outcome, names), text(outcome, names))
    return 1 if failed(outcome.findings) else 0


async def _examined(request: DoctorRequest, bar: _Bar) -> Examination:
    """Examine the nodes. On interruption, clear the progress bar while processes on the nodes end."""
    work = asyncio.create_task(examine(request, bar.show))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        bar.clear()
        work.cancel()
        await asyncio.wait({work})
        raise


def _request(options: argparse.Namespace) -> DoctorRequest:
    """Build the request from the options. Raises RunError."""
    check_port(options.port)
    if not 0 < options.size <= MOST_MIB:
        raise RunError(f"--size {options.size}: write MiB from 1 to {MOST_MIB}")
    if options.run is not None and names_hosts(options):
        raise RunError("a run has its own hosts: leave out --hosts and --hostfile, or the run")
    cwd = ""
    if options.run is not None:
        places, cwd = _of_run(options.run)
    elif names_hosts(options):
        ssh = ssh_options(options.ssh_config)
        named = request_of({"hosts": options.hosts, "hostfile": options.hostfile})
        places = [
            NodeToCheck(host.destination, Way(host.destination, ssh)) for host in settled(named).hosts
        ]
    else:
        places = [NodeToCheck("this node")]
    return DoctorRequest(
        places=places,
        python=_python(options.python),
        cwd=cwd,
        port=options.port,
        head=options.head_addr or "",
        try_pairs=not options.no_pairs,
        size=options.size * MIB,
    )


def _of_run(name: str) -> tuple[list[NodeToCheck], str]:
    """Return the nodes of a run, and the start directory of its ranks. Raises RunError."""
    entry = run_directories.resolve(name)
    if entry.record.kind != "hub":
        return [NodeToCheck("this node")], ""
    own_runs.check(entry.path)
    order = on_hosts.read(entry.path)
    if order is None:
        raise RunError(
            f"the nodes of {entry.record.name} are SkyPilot's: name those you can ssh to with --hosts"
        )
    places = [NodeToCheck(host, Way(host, order.options)) for host in order.hosts]
    return places, f"~/.distui/{order.work}" if order.work else ""


def _python(text: str | None) -> str:
    """Return an interpreter's absolute path; a bare name is looked up on each node's PATH."""
    if text and "/" in text and not text.startswith("~"):
        return str(Path.cwd() / text)
    return text or ""


class _Bar:
    """A progress bar, on a terminal only."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def show(self, label: str, done: int, total: int) -> None:
        """Draw one line over the previous one."""
        if self._shown and total:
            cells = BAR_CELLS * done // total
            bar, count = "#" * cells + "." * (BAR_CELLS - cells), f"{done} of {total}"
            line, room = f"{label} [{bar}] {count}", os.get_terminal_size(sys.stderr.fileno()).columns or 80
            if len(line) >= room:  # a wrapped line cannot be overwritten
                line = f"{label}: {count}"[: room - 1]
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Erase the bar, and draw no more."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        self._shown = False


# --- output -----------------------------------------------------------------------------------------------------


def text(outcome: Examination, names: Sequence[str]) -> list[str]:
    """Return findings by node, one line of facts per node, and pairs."""
    lines = _findings(outcome.findings, names)
    if outcome.nodes:
        lines += [*table([HEAD, *(_row(node) for node in outcome.nodes)]), ""]
    lines += _pairs(outcome)
    lines.append(counted(outcome.findings) or "No findings.")
    return list(map(clean_text, lines))


def _findings(findings: Sequence[Finding], names: Sequence[str]) -> list[str]:
    """Group findings by node, in the order of nodes; those between nodes come last."""
    groups: dict[str, list[Finding]] = {name: [] for name in names}
    for finding in findings:
        groups.setdefault(finding.where or BETWEEN, []).append(finding)
    lines = []
    for where, some in groups.items():
        if some:
            shown = (line for finding in some for line in replace(finding, where="").as_lines())
            lines += [where, *(f"  {line}" for line in shown), ""]
    return lines


def _row(node: ExaminedNode) -> tuple[str, ...]:
    training = node.get("training") or {}
    face = node.interface
    shm = node.get("shm")
    return (
        node.name,
        *(str(training.get(name) or NA) for name in ("torch", "cuda", "nccl", "python")),
        *(text or NA for text in (node.driver, node.models, node.ports)),
        NA if face is None else f"{face['name']} MTU {face['mtu'] or NA}",
        NA if shm is None else size_text(shm["total"]),
        NA if node.ahead_s is None else f"{round(node.ahead_s, 3) + 0.0:+.3f} s",
    )


def _pairs(outcome: Examination) -> list[str]:
    """Return the results of each pair; if there are many, only those that differ from the others."""
    first, second = outcome.rounds
    if not first:
        return []
    reference = usual(first) or usual(second)
    rows = [("round", "pair", "ms", "GB/s", "")]
    results = [(number, result) for number, some in ((1, first), (2, second)) for result in some]
    for number, result in results:
        if len(results) <= MOST_PAIRS or state(result, reference) != "good":
            rows.append((str(number), *_pair(result, outcome.members), state(result, reference)))
    what = f"All-reduce of {size_text(first[0].size)} with {outcome.backend}"
    rest = len(results) + 1 - len(rows)
    more = [f"{rest} more are good"] if rest else []
    return [f"{what}:", *table(rows, frozenset({0, 2, 3})), *more, ""]


def _pair(result: Result, members: Sequence[str]) -> tuple[str, str, str]:
    names = ", ".join(members[member] for member in result.members)
    if result.seconds is None or result.bandwidth is None:
        return names, NA, NA
    return names, f"{result.seconds * 1000:.1f}", f"{result.bandwidth / 1e9:.2f}"


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
