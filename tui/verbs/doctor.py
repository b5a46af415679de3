"""doctor: checks whether this node, or the named nodes, can run a job."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from ...presets.finding import Finding, failed
from ...presets.sanitize import clean_text
from ...runners.doctor.examine import DoctorRequest, Examination, examine
from ...runners.doctor.examined_node import ExaminedNode
from ...runners.doctor.pair_checks import Result, state, usual
from ...runners.launch.words import request_of
from ...runners.reports.examination import document
from ...runners.reports.examination_request import doctor_request
from ...runners.run.formatting import NA, size_text
from ..arguments import names_hosts
from ..rows.glyphs import counted, table
from ..terminal import answer

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
    named = None
    if names_hosts(options):
        named = request_of({"hosts": options.hosts, "hostfile": options.hostfile})
    return doctor_request(
        run=options.run,
        named=named,
        ssh_config=options.ssh_config,
        python=options.python,
        port=options.port,
        head=options.head_addr or "",
        try_pairs=not options.no_pairs,
        size_mib=options.size,
    )


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
