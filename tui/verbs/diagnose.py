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

from ...presets.clean import clean_text
from ...runners import bundle, living, registry
from ...runners.bundle import opened
from ...runners.diagnosis import judging, report
from ...runners.diagnosis.nccl_facts import CommunicatorPart, NodePart
from ...runners.diagnosis.reading import Reading
from ...runners.diagnosis.report import behind, document
from ...runners.diagnosis.verdict import LogFinding, Verdict, judge
from ...runners.errors import NoSuchRunError
from ...runners.model import RunEnded, RunPhase, Stamped
from ...runners.state import RunState
from ...runners.watch.discover import pids_of, scan
from ...runners.words import spans
from ..text import NA

STDIN = ("(standard input)", Path("/dev/stdin"))
MOST = 12
"""Runs of ranks that a line names."""
SHOWN = 8
"""Communicators and nodes that are shown; --json has all."""
ORDERS = {"time": ", by time", "lines": "", "unknown": ""}
UNORDERED = "Which cause came first is not known: the files' lines carry no common time."


def diagnose(options: argparse.Namespace) -> int:
    """Print what was found; 1 where a cause is an error. Raises RunError."""
    names = options.names
    if len(names) == 1 and bundle.is_bundle(Path(names[0])):
        with opened(Path(names[0])) as manifest:
            return _of_run(registry.resolve(manifest.run), options.json)
    if len(names) > 1 or (names and (names[0] == "-" or os.path.exists(names[0]))):
        reading = report.read_all(STDIN if name == "-" else (name, Path(name)) for name in names)
        verdict = judge(reading)
        _print(options.json, document(reading, verdict), text(reading, verdict))
        return 1 if verdict.failed else 0
    try:
        entry = registry.resolve(names[0] if names else None)
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


def _of_run(entry: registry.Entry, as_json: bool) -> int:
    """What its detectors say, and then what its logs say, as far as they are here."""
    files, history = report.of_run(entry), entry.history()
    state, lost = history.state, registry.phase(entry, history) is RunPhase.LOST
    if lost:
        why = state.end_text or living.describe(entry, living.left(entry))
        state.apply(Stamped(time.time(), RunEnded(RunPhase.LOST, None, why)))
    reading, unread = report.read_run(files)
    verdict, live = judge(reading), judging.document(state, len(files))
    live["missing"] += [*history.problems, *unread]
    lines = [f"{entry.record.name} is {state.end_text}.", ""] if lost else []
    lines += against(entry.record.name, state, live["missing"])
    if files:
        lines += ["", "The logs of the newest attempt:", *text(reading, verdict)]
    _print(as_json, document(reading, verdict) | {"live": live}, lines)
    failed = any(one.severity == "error" and one.role == "cause" for one in state.findings.values())
    return 1 if verdict.failed or failed or lost else 0


def _print(as_json: bool, value: dict[str, Any], lines: Sequence[str]) -> None:
    if as_json:
        sys.stdout.write(json.dumps(value) + "\n")
    else:
        sys.stdout.write("\n".join(clean_text(line) for line in lines) + "\n")


def against(name: str, state: RunState, missing: Sequence[str]) -> list[str]:
    """What stands against a run by its own detectors, as lines."""
    found = judging.standing(state)
    lost = state.phase is RunPhase.LOST
    when = "when it was last heard of" if lost else "at its end" if state.phase.ended else "now"
    lines = [f"Findings of {name} {when}:" if found else f"No findings of {name} {when}."]
    for one in found:
        host = state.nodes[one.node].host if one.node in state.nodes else ""
        concerned = one.ranks or (() if one.rank is None else (one.rank,))
        where = "; ".join(part for part in (_named(concerned) if concerned else "", host) if part)
        lines.append(f"  {one.severity} {one.role} {one.id}{f' ({where})' if where else ''}: {one.text}")
        if one.since is not None:
            lines.append(f"      since {time.strftime('%H:%M:%S', time.gmtime(one.since))} UTC")
        lines += [f"      {line}" for line in one.evidence]
        lines += [f"      Do: {one.remedy}"] if one.remedy else []
    return lines + [f"  Missing: {sentence}." for sentence in missing]


def text(reading: Reading, verdict: Verdict) -> list[str]:
    """Everything, as lines."""
    lines = _first(verdict) or [_no_cause(reading, verdict)]
    shown = [
        one
        for one in verdict.findings
        if one is not verdict.first
        and one.role in ("cause", "hint", "symptom")
        and not _folded(one, verdict)
    ]
    for one in shown:
        lines += ["", *_finding(one)]
    said = [f"{one.id} {one.count} ×" for one in verdict.findings if one.role in ("fact", "trace", "noise")]
    lines += ["", f"Also said: {', '.join(said)}"] if said else []
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
            f"… {_many(more[0], 'communicator')} and {_many(more[1], 'node')} more: --json has them"
        )
    return lines


def _folded(one: LogFinding, verdict: Verdict) -> bool:
    return verdict.first is not None and one.role == "symptom"


def _first(verdict: Verdict) -> list[str]:
    if verdict.first is None:
        return []
    others = [one for one in verdict.findings if one.role == "cause" and one is not verdict.first]
    unsure = verdict.order == "unknown" and bool(others)
    label = "A cause: " if unsure else f"First cause{ORDERS[verdict.order]}: "
    lines = _finding(verdict.first, label)
    if verdict.victims:
        followed = ", ".join(
            f"{one.id} {one.count} ×" + f" ({_named(one.ranks)})" * bool(one.ranks)
            for one in verdict.victims
        )
        lines.append(f"    Symptoms that go with it: {followed}")
    lines += [f"    {_behind(verdict)}"] if verdict.behind else []
    return [*lines, f"    {UNORDERED}"] if unsure else lines


def _no_cause(reading: Reading, verdict: Verdict) -> str:
    if not reading.lines:
        return "Nothing is written there."
    if verdict.victims:
        told = f" {_behind(verdict)}" if verdict.behind else ""
        return (
            "No line says a cause: what follows is said because of something else. "
            f"Look at the ranks whose logs are not here.{told}"
        )
    if any(one.role == "hint" for one in verdict.findings):
        return "No line says a cause for certain."
    return (
        f"Nothing wrong is said in {_many(reading.lines, 'line')}, {reading.nccl_lines:,} of them of NCCL."
    )


def _behind(verdict: Verdict) -> str:
    return f"Behind the others: {_named(verdict.behind)}."


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {spans(ranks, MOST)}"


def _finding(one: LogFinding, before: str = "") -> list[str]:
    """A sentence, where it stands, what to do."""
    where = [f"{one.count} ×"] if one.count > 1 else []
    where += [_named(one.ranks)] if one.ranks else []
    where += [", ".join(one.hosts[:4]) + " …" * (len(one.hosts) > 4)] if one.hosts else []
    label = f"{before}{one.id}" if before else f"{one.severity} {one.role} {one.id}"
    lines = [f"{label}{' (' + '; '.join(where) + ')' if where else ''}: {one.text}"]
    lines += [f"    {one.seen}"] if one.seen else []
    lines += [f"    {its.file}:{its.line}: {its.text}" for its in one.evidence[:1]]
    variables = " ".join(f"{name}={value}" for name, value in one.env.items())
    lines += [f"    {one.remedy}"] if one.remedy else []
    lines += [f"    {variables}"] if variables else []
    return lines


def _head(one: CommunicatorPart) -> str:
    """ "Communicator 0x673b: 16 ranks, 2 nodes: 15 complete, 1 started"."""
    if one.nranks is None:
        return "Of communicators that no line names:"
    nodes = (
        _many(one.nnodes, "node") if one.nnodes is not None else f"seen on {_many(len(one.hosts), 'host')}"
    )
    stages = [f"{number} {stage}" for stage, number in one.stages().items()]
    silent = one.nranks - len(one.ranks)
    stages += [f"{silent} not in these logs"] if silent > 0 else []
    return f"Communicator{' ' * bool(one.id)}{one.id}: {_many(one.nranks, 'rank')}, {nodes}: {', '.join(stages)}"


def _many(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _communicator(one: CommunicatorPart) -> list[str]:
    """A card of some lines; what is not said is left out, but for the numbers of ranks and nodes."""
    lines = [_head(one)]
    late = behind(one)
    lines += [f"    behind: {_named(late)}"] if late else []
    slowest = one.slowest()
    if slowest is not None:
        phases = ", ".join(f"{name} {value:g} s" for name, value in slowest.phases.items())
        lines.append(f"    init {slowest.seconds:g} s (rank {slowest.rank}, the slowest: {phases})")
    shape = [f"{number} {kind}" for kind, number in one.channels.items()]
    shape += [f"{len(one.rings)} rings"] if one.rings else []
    shape += [f"{one.trees} trees"] if one.trees else []
    for label, parts in (
        ("channels", shape),
        ("pairs", [f"{number} over {kind}" for kind, number in one.transports().items()]),
        ("tuned", [f"{choice} {number} ×" for choice, number in one.tuning.most_common(6)]),
        ("called", [f"{called} {number} ×" for called, number in one.collectives.most_common(6)]),
    ):
        lines += [f"    {label}: {', '.join(parts)}"] if parts else []
    return lines


def _node(node: NodePart, ranks: list[int]) -> str:
    hcas = [f"{name} {kind}" for name, kind in node.hcas.items()]
    parts = [
        f"NCCL {', '.join(sorted(node.versions)) or NA}",
        _named(ranks) if ranks else f"ranks {NA}",
        f"network {node.network() or NA}",
        f"bootstrap {node.bootstrap}" if node.bootstrap else "",
        f"interfaces {', '.join(list(node.interfaces)[:6])}" if node.interfaces else "",
        f"HCAs {', '.join(hcas[:8])}" if hcas else "",
        f"plugins {', '.join(sorted(node.plugins)[:4])}" if node.plugins else "",
        f"{_many(len(node.env), 'variable')} read" if node.env else "",
    ]
    name = node.host or f"{NA} ({node.file})"
    return f"Node {name}: {'; '.join(part for part in parts if part)}"
