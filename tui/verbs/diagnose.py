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
from ...runners import export, run_directories
from ...runners.diagnosis.nccl_facts import NcclFacts
from ...runners.diagnosis.reading import Reading, logs_of_run, read_all, read_run
from ...runners.diagnosis.verdict import LogFinding, Verdict, document, judge
from ...runners.errors import NoSuchRunError
from ...runners.export import opened
from ...runners.formatting import plural, spans_text
from ...runners.model import RunEnded, RunPhase, Stamped
from ...runners.state import RunState
from ...runners.status import standing, standing_json
from ...runners.watch.discover import pids_of, scan
from ..rows.glyphs import plain
from ..rows.nccl import by_size, communicator_card, node_rows

STDIN = ("(standard input)", Path("/dev/stdin"))
SHOWN = 8
"""Communicators that are shown; --json has all."""
UNCUT = 1 << 20
"""Columns of a line that no screen bounds."""
ORDERS = {"time": ", by time", "lines": "", "unknown": ""}
UNORDERED = "Which cause came first is not known: the files' lines carry no common time."


def diagnose(options: argparse.Namespace) -> int:
    """Print what was found; 1 where a cause is an error. Raises RunError."""
    names = options.names
    if len(names) == 1 and export.is_bundle(Path(names[0])):
        with opened(Path(names[0])) as manifest:
            return _of_run(run_directories.resolve(manifest.run), options.json)
    if len(names) > 1 or (names and (names[0] == "-" or os.path.exists(names[0]))):
        reading = read_all(STDIN if name == "-" else (name, Path(name)) for name in names)
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
    files, history = logs_of_run(entry), entry.history()
    state, lost = history.state, run_directories.phase(entry, history) is RunPhase.LOST
    if lost:
        why = state.end_text or run_directories.why_lost(entry, run_directories.orphans(entry))
        state.apply(Stamped(time.time(), RunEnded(RunPhase.LOST, None, why)))
    reading, unread = read_run(files)
    verdict, live = judge(reading), standing_json(state, len(files))
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
    findings = standing(state)
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
    facts = reading.facts()
    of_nodes = {version for node in facts.nodes for version in node.versions}
    unplaced = ", ".join(sorted(reading.statements.versions - of_nodes))
    lines += ["", f"NCCL {unplaced}"] if unplaced else []
    return lines + statements(facts)


def statements(facts: NcclFacts) -> list[str]:
    """The cards of the NCCL screen, none of their rows cut."""
    cards = [node_rows(facts, UNCUT)] if facts.nodes else []
    cards += [communicator_card(facts, comm, UNCUT) for comm in by_size(facts)[:SHOWN]]
    lines = [line for card in cards for line in ("", *plain(row for row, _ in card))]
    more = len(facts.communicators) - SHOWN
    return [*lines, f"… {plural(more, 'communicator')} more: --json has them"] if more > 0 else lines


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
