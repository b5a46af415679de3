"""diagnose: what logs say is wrong, the first cause on top, and what they say of nodes and communicators."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...presets.sanitize import clean_text
from ...runners import bundle_file, run_directories
from ...runners.bundle_file import opened
from ...runners.diagnosis import judging, report
from ...runners.diagnosis.nccl_facts import CommunicatorPart, NodePart
from ...runners.diagnosis.reading import Reading
from ...runners.diagnosis.report import behind, document
from ...runners.diagnosis.verdict import LogFinding, Verdict, judge
from ...runners.errors import NoSuchRunError
from ...runners.formatting import NA, plural, spans_text
from ...runners.model import RunEnded, RunPhase, Stamped
from ...runners.state import RunState
from ...runners.watch.discover import pids_of, scan

STDIN = ("(standard input)", Path("/dev/stdin"))
SHOWN = 8
"""Communicators and nodes that are shown; --json has all."""
ORDERS = {"time": ", by time", "lines": "", "unknown": ""}
UNORDERED = "Which cause came first is not known: the files' lines carry no common time."


def diagnose(options: argparse.Namespace) -> int:
    """Print what was found; 1 where a cause is an error. Raises RunError."""
    names = options.names
    if len(names) == 1 and bundle_file.is_bundle(Path(names[0])):
        with opened(Path(names[0])) as manifest:
            return _of_run(run_directories.resolve(manifest.run), options.json)
    if len(names) > 1 or (names and (names[0] == "-" or os.path.exists(names[0]))):
        reading = report.read_all(STDIN if name == "-" else (name, Path(name)) for name in names)
        verdict = judge(reading)
        _print(options.json, document(reading, verdict), text(reading, verdict))
        return 1 if verdict.failed else 0
    try:
        entry = run_directories.resolve(names[0] if names else None)
    except NoSuchRunError as error:
        if not names:
            raise
        raise NoSuchRunError(_foreign(names[0]) or f"there is no file {names[0]}, and {error}") from None
    return _of_run(entry, options.json)


def _foreign(name: str) -> str:
    """Why a process of a job that distui did not start has no diagnosis; "" for every other name."""
    if not name.isdecimal() or not any(int(name) in pids_of(job) for job in scan().jobs.values()):
        return ""
    return (
        f"process {name} is of a job that distui did not start: it has no hook, no journal and no log here to judge; "
        f"`distui watch {name}` shows its processes"
    )


def _of_run(entry: run_directories.Entry, as_json: bool) -> int:
    """What its detectors say, and then what its logs say, as far as they are here."""
    files, history = report.of_run(entry), entry.history()
    state, lost = history.state, run_directories.phase(entry, history) is RunPhase.LOST
    if lost:
        why = state.end_text or run_directories.why_lost(entry, run_directories.orphans(entry))
        state.apply(Stamped(time.time(), RunEnded(RunPhase.LOST, None, why)))
    reading, unread = report.read_run(files)
    verdict, live = judge(reading), judging.document(state, len(files))
    live["missing"] += [*history.problems, *unread]
    lines = [f"{entry.record.name} is {state.end_text}.", ""] if lost else []
    lines += against(entry.record.name, state, live["missing"])
    if files:
        lines += ["", "The logs of the newest attempt:", *text(reading, verdict)]
    _print(as_json, document(reading, verdict) | {"live": live}, lines)
    failed = any(
        finding.severity == "error" and finding.role == "cause" for finding in state.findings.values()
    )
    return 1 if verdict.failed or failed or lost else 0


def _print(as_json: bool, value: dict[str, Any], lines: Sequence[str]) -> None:
    if as_json:
        sys.stdout.write(json.dumps(value) + "\n")
    else:
        sys.stdout.write("\n".join(clean_text(line) for line in lines) + "\n")


def against(name: str, state: RunState, missing: Sequence[str]) -> list[str]:
    """What stands against a run by its own detectors, as lines."""
    findings = judging.standing(state)
    lost = state.phase is RunPhase.LOST
    when = "when it was last heard of" if lost else "at its end" if state.phase.ended else "now"
    lines = [f"Findings of {name} {when}:" if findings else f"No findings of {name} {when}."]
    for finding in findings:
        host = state.nodes[finding.node].host if finding.node in state.nodes else ""
        concerned = finding.ranks or (() if finding.rank is None else (finding.rank,))
        where = "; ".join(
            part for part in (spans_text("rank", concerned) if concerned else "", host) if part
        )
        lines.append(
            f"  {finding.severity} {finding.role} {finding.id}{f' ({where})' if where else ''}: {finding.text}"
        )
        if finding.since is not None:
            lines.append(f"      since {time.strftime('%H:%M:%S', time.gmtime(finding.since))} UTC")
        lines += [f"      {line}" for line in finding.evidence]
        lines += [f"      Do: {finding.remedy}"] if finding.remedy else []
    return lines + [f"  Missing: {sentence}." for sentence in missing]


def text(reading: Reading, verdict: Verdict) -> list[str]:
    """Everything, as lines."""
    lines = _first(verdict) or [_no_cause(reading, verdict)]
    shown = [
        finding
        for finding in verdict.findings
        if finding is not verdict.first
        and finding.role in ("cause", "hint", "symptom")
        and not _folded(finding, verdict)
    ]
    for finding in shown:
        lines += ["", *_finding(finding)]
    minor = (finding for finding in verdict.findings if finding.role in ("fact", "trace", "noise"))
    counts = ", ".join(f"{finding.id} {finding.count} ×" for finding in minor)
    lines += ["", f"Also said: {counts}"] if counts else []
    communicators = reading.statements.sessions.all()
    versions = ", ".join(sorted(reading.statements.versions))
    lines += ["", f"NCCL {versions}"] if versions else []
    for communicator in communicators[:SHOWN]:
        lines += ["", *_communicator(communicator)]
    nodes = list(reading.statements.nodes.values())
    lines += [""] if nodes else []
    for node in nodes[:SHOWN]:
        lines.append(_node(node, reading.statements.sessions.ranks_on(node.host)))
    more = max(0, len(communicators) - SHOWN), max(0, len(nodes) - SHOWN)
    if any(more):
        lines.append(
            f"… {plural(more[0], 'communicator')} and {plural(more[1], 'node')} more: --json has them"
        )
    return lines


def _folded(finding: LogFinding, verdict: Verdict) -> bool:
    return verdict.first is not None and finding.role == "symptom"


def _first(verdict: Verdict) -> list[str]:
    if verdict.first is None:
        return []
    causes = (finding for finding in verdict.findings if finding.role == "cause")
    others = [finding for finding in causes if finding is not verdict.first]
    unsure = verdict.order == "unknown" and bool(others)
    label = "A cause: " if unsure else f"First cause{ORDERS[verdict.order]}: "
    lines = _finding(verdict.first, label)
    if verdict.victims:
        followed = ", ".join(
            f"{victim.id} {victim.count} ×" + f" ({spans_text('rank', victim.ranks)})" * bool(victim.ranks)
            for victim in verdict.victims
        )
        lines.append(f"    Symptoms that go with it: {followed}")
    lines += [f"    {_behind(verdict)}"] if verdict.behind else []
    return [*lines, f"    {UNORDERED}"] if unsure else lines


def _no_cause(reading: Reading, verdict: Verdict) -> str:
    if not reading.lines:
        return "Nothing is written there."
    if verdict.victims:
        late = f" {_behind(verdict)}" if verdict.behind else ""
        return (
            "No line says a cause: what follows is said because of something else. "
            f"Look at the ranks whose logs are not here.{late}"
        )
    if any(finding.role == "hint" for finding in verdict.findings):
        return "No line says a cause for certain."
    return (
        f"Nothing wrong is said in {plural(reading.lines, 'line')}, {reading.nccl_lines:,} of them of NCCL."
    )


def _behind(verdict: Verdict) -> str:
    return f"Behind the others: {spans_text('rank', verdict.behind)}."


def _finding(finding: LogFinding, before: str = "") -> list[str]:
    """A sentence, where it stands, what to do."""
    where = [f"{finding.count} ×"] if finding.count > 1 else []
    where += [spans_text("rank", finding.ranks)] if finding.ranks else []
    where += [", ".join(finding.hosts[:4]) + " …" * (len(finding.hosts) > 4)] if finding.hosts else []
    label = f"{before}{finding.id}" if before else f"{finding.severity} {finding.role} {finding.id}"
    lines = [f"{label}{' (' + '; '.join(where) + ')' if where else ''}: {finding.text}"]
    lines += [f"    {finding.seen}"] if finding.seen else []
    lines += [f"    {its.file}:{its.line}: {its.text}" for its in finding.lines[:1]]
    variables = " ".join(f"{name}={value}" for name, value in finding.env.items())
    lines += [f"    {finding.remedy}"] if finding.remedy else []
    lines += [f"    {variables}"] if variables else []
    return lines


def _head(comm: CommunicatorPart) -> str:
    """ "Communicator 0x673b: 16 ranks, 2 nodes: 15 complete, 1 started"."""
    if comm.nranks is None:
        return "Of communicators that no line names:"
    nodes = (
        plural(comm.nnodes, "node")
        if comm.nnodes is not None
        else f"seen on {plural(len(comm.hosts), 'host')}"
    )
    stages = [f"{number} {stage}" for stage, number in comm.stages().items()]
    silent = comm.nranks - len(comm.ranks)
    stages += [f"{silent} not in these logs"] if silent > 0 else []
    return f"Communicator{' ' * bool(comm.id)}{comm.id}: {plural(comm.nranks, 'rank')}, {nodes}: {', '.join(stages)}"


def _communicator(comm: CommunicatorPart) -> list[str]:
    """A card of some lines; what is not said is left out, but for the numbers of ranks and nodes."""
    lines = [_head(comm)]
    late = behind(comm)
    lines += [f"    behind: {spans_text('rank', late)}"] if late else []
    slowest = comm.slowest()
    if slowest is not None:
        phases = ", ".join(f"{name} {value:g} s" for name, value in slowest.phases.items())
        lines.append(f"    init {slowest.seconds:g} s (rank {slowest.rank}, the slowest: {phases})")
    shape = [f"{number} {kind}" for kind, number in comm.channels.items()]
    shape += [f"{len(comm.rings)} rings"] if comm.rings else []
    shape += [f"{comm.trees} trees"] if comm.trees else []
    for label, parts in (
        ("channels", shape),
        ("pairs", [f"{number} over {kind}" for kind, number in comm.transports().items()]),
        ("tuned", [f"{choice} {number} ×" for choice, number in comm.tuning.most_common(6)]),
        ("called", [f"{called} {number} ×" for called, number in comm.collectives.most_common(6)]),
    ):
        lines += [f"    {label}: {', '.join(parts)}"] if parts else []
    return lines


def _node(node: NodePart, ranks: list[int]) -> str:
    hcas = [f"{name} {kind}" for name, kind in node.hcas.items()]
    parts = [
        f"NCCL {', '.join(sorted(node.versions)) or NA}",
        spans_text("rank", ranks) if ranks else f"ranks {NA}",
        f"network {node.network() or NA}",
        f"bootstrap {node.bootstrap}" if node.bootstrap else "",
        f"interfaces {', '.join(list(node.interfaces)[:6])}" if node.interfaces else "",
        f"HCAs {', '.join(hcas[:8])}" if hcas else "",
        f"plugins {', '.join(sorted(node.plugins)[:4])}" if node.plugins else "",
        f"{plural(len(node.env), 'variable')} read" if node.env else "",
    ]
    name = node.host or f"{NA} ({node.file})"
    return f"Node {name}: {'; '.join(part for part in parts if part)}"
