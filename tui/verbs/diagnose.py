"""diagnose: the first cause of problems, in logs and by the detectors of a run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from ...presets.finding import Finding, worst_first
from ...presets.plurals import plural
from ...runners.diagnosis.diagnosis_document import document
from ...runners.diagnosis.first_cause import Verdict
from ...runners.diagnosis.heads import Stamp
from ...runners.diagnosis.log_findings import LogFinding
from ...runners.diagnosis.missing_ranks import ABSENT
from ...runners.diagnosis.nccl_facts import NcclFacts
from ...runners.diagnosis.reading import Reading
from ...runners.reports.bundle_reader import is_bundle, opened
from ...runners.reports.run_diagnosis import judge_files, judge_run, with_role
from ...runners.run import run_directories
from ...runners.run.errors import NoSuchRunError
from ...runners.run.formatting import spans_text, time_of_day
from ...runners.run.model import RunPhase
from ...runners.run.state import RunState
from ...runners.watch.foreign_jobs import pids_of, scan
from ..rows.communicators import by_size, communicator_card
from ..rows.glyphs import plain
from ..rows.nccl_nodes import node_rows
from ..rows.remedy import remedy_text
from ..terminal import answer

SHOWN = 8
"""Maximum number of communicators in text; --json has all."""
UNCUT = 1 << 20
"""Columns of a line without a screen."""
ORDERS = {"time": ", by time", "lines": "", "unknown": ""}
UNORDERED = "Which cause came first is unknown: the lines of these files have no common clock."


def diagnose(options: argparse.Namespace) -> int:
    """Print the findings; return 1 if a cause is an error. Raises RunError."""
    names = options.names
    if len(names) == 1 and is_bundle(Path(names[0])):
        with opened(Path(names[0])) as manifest:
            return _of_run(run_directories.resolve(manifest.run), options.json)
    if _are_files(names):
        return _of_files(names, options.json)
    try:
        entry = run_directories.resolve(names[0] if names else None)
    except NoSuchRunError as error:
        if not names:
            raise
        raise NoSuchRunError(_foreign(names[0]) or f"there is no file {names[0]}, and {error}") from None
    return _of_run(entry, options.json)


def _are_files(names: Sequence[str]) -> bool:
    return len(names) > 1 or any(name == "-" or os.path.exists(name) for name in names)


def _of_files(names: Sequence[str], as_json: bool) -> int:
    reading, verdict = judge_files(names)
    answer(as_json, document(reading, verdict), text(reading, verdict))
    return 1 if verdict.failed else 0


def _foreign(name: str) -> str:
    """Return why a process of a foreign job has no diagnosis; "" for every other name."""
    if not name.isdecimal() or not any(int(name) in pids_of(job) for job in scan().jobs.values()):
        return ""
    return (
        f"process {name} is of a job that distui did not start: it has no hook, no journal and no log here to judge; "
        f"`distui watch {name}` shows its processes"
    )


def _of_run(entry: run_directories.Entry, as_json: bool) -> int:
    """Print the findings of the run's detectors, then those in its local logs."""
    judged, name = judge_run(entry), entry.record.name
    lines = [f"{name} is {judged.state.end_text}.", ""] if judged.state.phase is RunPhase.LOST else []
    lines += against(name, judged.state, judged.live["missing"])
    if judged.logs:
        lines += ["", "The logs of the newest attempt:", *text(judged.reading, judged.verdict)]
    if judged.outlived:
        lines += ["", SURVIVED]
    answer(as_json, judged.document(), lines)
    return 1 if judged.failed else 0


SURVIVED = "No rank ended because of the failures in the logs: the script went on after them."


def against(name: str, state: RunState, missing: Sequence[str]) -> list[str]:
    """Return the findings of a run's own detectors as lines."""
    findings = worst_first(state.findings.values())
    if state.phase is RunPhase.LOST:
        when = "when it last reported"
    elif state.phase.ended:
        when = "at its end"
    else:
        when = "now"
    lines = [f"Findings of {name} {when}:" if findings else f"No findings of {name} {when}."]
    for finding in findings:
        lines += _of_detector(finding, state)
    return lines + [f"  Missing: {sentence}." for sentence in missing]


def _of_detector(finding: Finding, state: RunState) -> list[str]:
    """Return the lines of one finding: sentence, time, evidence, remedy."""
    ranks = finding.ranks
    if not ranks and finding.rank is not None:
        ranks = (finding.rank,)
    where = [spans_text("rank", ranks)] if ranks else []
    if finding.node in state.nodes:
        where.append(state.nodes[finding.node].host)
    place = "; ".join(filter(None, where))
    lines = [
        f"  {finding.severity} {finding.role} {finding.id}{f' ({place})' if place else ''}: {finding.text}"
    ]
    if finding.since is not None:
        lines.append(f"      since {time_of_day(finding.since, utc=True)}")
    lines += [f"      {line}" for line in finding.evidence]
    return [*lines, f"      Fix: {remedy_text(finding)}"] if finding.remedy else lines


def text(reading: Reading, verdict: Verdict) -> list[str]:
    """Return the whole diagnosis as lines."""
    lines = _first(verdict) or [_no_cause(reading, verdict)]
    for finding in verdict.findings:
        if _has_paragraph(finding, verdict):
            lines += ["", *_finding(finding)]
    minor = with_role(verdict.findings, "fact", "trace", "noise")
    if minor:
        counts = ", ".join(f"{finding.id} {finding.count} ×" for finding in minor)
        lines += ["", f"Also in the logs: {counts}"]
    unread = list(reading.unread)
    if unread:
        lines += ["", *(f"Not read: {sentence}." for sentence in unread)]
    facts = reading.facts()
    of_nodes = set[str]().union(*(node.versions for node in facts.nodes))
    unplaced = ", ".join(sorted(reading.statements.versions - of_nodes))
    lines += ["", f"NCCL {unplaced}"] if unplaced else []
    return lines + statements(facts)


def _has_paragraph(finding: LogFinding, verdict: Verdict) -> bool:
    """Whether a finding is shown in full: not the first cause, which is on top and lists the symptoms."""
    if verdict.first is None:
        return finding.role in ("cause", "hint", "symptom")
    return finding is not verdict.first and finding.role in ("cause", "hint")


def statements(facts: NcclFacts) -> list[str]:
    """Return the cards of the NCCL screen with uncut rows."""
    cards = [node_rows(facts, UNCUT)] if facts.nodes else []
    cards += [communicator_card(facts, comm, UNCUT) for comm in by_size(facts)[:SHOWN]]
    lines = [line for card in cards for line in ("", *plain(row for row, _ in card))]
    more = len(facts.communicators) - SHOWN
    return [*lines, f"… {plural(more, 'communicator')} more: --json has them"] if more > 0 else lines


def _first(verdict: Verdict) -> list[str]:
    first = verdict.first
    if first is None:
        return []
    unsure = verdict.order == "unknown" and verdict.has_rivals
    label = _label(first, unsure, verdict.order)
    ordered = verdict.order != "unknown" and first.id != ABSENT.id
    lines = _finding(first, label, first.stamp, ordered)
    if verdict.victims:
        lines.append(f"    Symptoms that go with it: {', '.join(map(_counted, verdict.victims))}")
    lines += [f"    {_behind(verdict)}"] if verdict.behind else []
    return [*lines, f"    {UNORDERED}"] if unsure else lines


def _label(first: LogFinding, unsure: bool, order: str) -> str:
    if first.severity != "error":
        return "Not failed, but worth checking: "
    if first.role == "symptom":
        return "First symptom (its cause was not found in these lines): "
    return "A cause: " if unsure else f"First cause{ORDERS[order]}: "


def _counted(victim: LogFinding) -> str:
    ranks = f" ({spans_text('rank', victim.ranks)})" if victim.ranks else ""
    return f"{victim.id} {victim.count} ×{ranks}"


def _no_cause(reading: Reading, verdict: Verdict) -> str:
    if not reading.lines and not reading.recorders.names:
        return "The logs are empty."
    if verdict.failed:
        late = f" {_behind(verdict)}" if verdict.behind else ""
        return f"The job failed, and its cause was not found in these lines: what is below followed from it.{late}"
    if any(finding.role == "hint" for finding in verdict.findings):
        return "No certain cause was found."
    return f"No findings in {plural(reading.lines, 'line')}, {reading.nccl_lines:,} of them from NCCL."


def _behind(verdict: Verdict) -> str:
    return f"Fewer collectives than the others: {spans_text('rank', verdict.behind)}."


def _finding(
    finding: LogFinding, before: str = "", since: Stamp | None = None, first: bool = False
) -> list[str]:
    """Return the lines of one finding: sentence, place, remedy.

    `since` is its time; `first` means that its rank came before the others.
    """
    where = _place(finding, first)
    where += [since.clock] if since is not None else []
    label = f"{before}{finding.id}" if before else f"{finding.severity} {finding.role} {finding.id}"
    lines = [f"{label}{' (' + '; '.join(where) + ')' if where else ''}: {finding.text}"]
    lines += [f"    {finding.seen}"] if finding.seen and finding.seen not in finding.text else []
    lines += [f"    {its.file}:{its.line}: {its.text}" for its in finding.lines[:1]]
    variables = " ".join(f"{name}={value}" for name, value in finding.env.items())
    lines += [f"    {finding.remedy}"] if finding.remedy else []
    lines += [f"    {variables}"] if variables else []
    return lines


def _place(finding: LogFinding, first: bool) -> list[str]:
    """Return count, ranks and hosts; the GPU of a single line that names no rank."""
    where = [f"{finding.count} ×"] if finding.count > 1 else []
    where += [spans_text("rank", finding.ranks)] if finding.ranks else []
    gpu = [f"GPU {finding.device}"] if finding.device is not None and not where else []
    if first and len(finding.ranks) > 1 and finding.rank is not None:
        where.append(f"rank {finding.rank} first")
    if finding.hosts:
        more = " …" if len(finding.hosts) > 4 else ""
        where.append(f"{', '.join(finding.hosts[:4])}{more}")
    return where + gpu
