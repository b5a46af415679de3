"""diagnose, dump, export: problems in logs, the current state of ranks, and a run as one file for another person."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec

from ...presets.finding import Finding
from ...presets.plurals import plural
from ...presets.sanitize import clean_text, escaped_json
from ...presets.trusted_files import private_folder
from ...runners.diagnosis.diagnosis_document import Diagnosis, document
from ...runners.diagnosis.first_cause import LogFinding, Verdict, judge
from ...runners.diagnosis.heads import Stamp
from ...runners.diagnosis.missing_ranks import ABSENT
from ...runners.diagnosis.nccl_facts import NcclFacts
from ...runners.diagnosis.rank_dumps import merged_recorders, merged_stacks
from ...runners.diagnosis.reading import Reading, logs_of_run, read_all, read_run
from ...runners.diagnosis.status import judged_attempt, standing
from ...runners.node.local_agent import check_ranks, history, snapshot, with_link
from ...runners.reports.bundle import BundleWriter, Gathering, Manifest, is_bundle, opened
from ...runners.reports.status_document import LiveDiagnosis, standing_json
from ...runners.run import clock, file_io, run_directories
from ...runners.run.errors import NoSuchRunError, RunError
from ...runners.run.formatting import size_text, spans_text, time_of_day
from ...runners.run.model import CommandDone, Dump, RankPhase, RunEnded, RunPhase, Stamped
from ...runners.run.state import RunState
from ...runners.run.wire.client import Link, new_id
from ...runners.watch.foreign_jobs import pids_of, scan
from ..rows.dumps import Source, by_rank, memory_values, merged_rows, no_source, source_of
from ..rows.glyphs import plain
from ..rows.nccl import by_size, communicator_card, node_rows
from ..terminal import answer, complain, typeable
from .status import complete

STDIN = ("(standard input)", Path("/dev/stdin"))
SHOWN = 8
"""Maximum number of communicators in text; --json has all."""
UNCUT = 1 << 20
"""Columns of a line without a screen."""
ORDERS = {"time": ", by time", "lines": "", "unknown": ""}
UNORDERED = "Which cause came first is not known: the files' lines carry no common time."


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
    reading = read_all((STDIN if name == "-" else (name, Path(name)) for name in names), _wait_for)
    verdict = judge(reading)
    answer(as_json, document(reading, verdict), text(reading, verdict))
    return 1 if verdict.failed else 0


def _wait_for(name: str) -> None:
    complain(f"{name} is a pipe to which nothing has been written yet: waiting, Ctrl-C ends that")


def _foreign(name: str) -> str:
    """Return why a process of a foreign job has no diagnosis; "" for every other name."""
    if not name.isdecimal() or not any(int(name) in pids_of(job) for job in scan().jobs.values()):
        return ""
    return (
        f"process {name} is of a job that distui did not start: it has no hook, no journal and no log here to judge; "
        f"`distui watch {name}` shows its processes"
    )


class RunDiagnosis(Diagnosis):
    """`diagnose RUN`."""

    live: LiveDiagnosis


def _of_run(entry: run_directories.Entry, as_json: bool) -> int:
    """Print the findings of the run's detectors, then those in its local logs."""
    history = entry.history()
    files = logs_of_run(entry, judged_attempt(entry, history.state))
    state, lost = history.state, run_directories.phase(entry, history) is RunPhase.LOST
    if lost:
        why = state.end_text or run_directories.why_lost(entry, run_directories.orphans(entry))
        state.apply(Stamped(clock.now(), RunEnded(RunPhase.LOST, None, why)))
    reading, unread = read_run(files)
    judged, live = judge(reading), standing_json(state, [name for name, _ in files])
    verdict = survived(judged, state)
    live["missing"] += [*history.problems, *unread]
    lines = [f"{entry.record.name} is {state.end_text}.", ""] if lost else []
    lines += against(entry.record.name, state, live["missing"])
    if files:
        lines += ["", "The logs of the newest attempt:", *text(reading, verdict)]
        lines += ["", SURVIVED] if verdict is not judged else []
    about: RunDiagnosis = {**document(reading, verdict), "live": live}
    answer(as_json, about, lines)
    return 1 if verdict.failed or _has_error(state) or lost else 0


def _has_error(state: RunState) -> bool:
    return any(each.severity == "error" and each.role == "cause" for each in state.findings.values())


SURVIVED = "No rank ended because of the failures in the logs: the script went on after them."


def survived(verdict: Verdict, state: RunState) -> Verdict:
    """Return the verdict with failures that the run survived turned into facts.

    Without such failures the verdict itself is returned.
    """
    ends = _survived_ends(state)
    outlived = [finding for finding in verdict.findings if finding.stops and finding.id.startswith(ends)]
    if not outlived:
        return verdict
    facts = tuple(replace(finding, role="fact", severity="note") for finding in outlived)
    kept = tuple(finding for finding in verdict.findings if finding not in outlived)
    cause = next(iter(_with_role(kept, "cause")), None)
    victims = tuple(_with_role(kept, "symptom"))
    return replace(verdict, findings=kept + facts, first=cause, victims=victims, ended=False)


def _survived_ends(state: RunState) -> tuple[str, ...]:
    """Return prefixes of failures that the run survived: all if it succeeded, deaths if every rank runs."""
    if state.phase is RunPhase.SUCCEEDED:
        return ("",)
    runs = [rank.phase is RankPhase.RUNNING for rank in state.ranks.values()]
    return ("died-", "oom-") if runs and all(runs) else ()


def _with_role(findings: Iterable[LogFinding], *roles: str) -> list[LogFinding]:
    return [finding for finding in findings if finding.role in roles]


def against(name: str, state: RunState, missing: Sequence[str]) -> list[str]:
    """Return the findings of a run's own detectors as lines."""
    findings = standing(state)
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
    return [*lines, f"      Do: {finding.remedy}"] if finding.remedy else lines


def text(reading: Reading, verdict: Verdict) -> list[str]:
    """Return the whole diagnosis as lines."""
    lines = _first(verdict) or [_no_cause(reading, verdict)]
    for finding in verdict.findings:
        if _has_paragraph(finding, verdict):
            lines += ["", *_finding(finding)]
    minor = _with_role(verdict.findings, "fact", "trace", "noise")
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
    others = [finding for finding in _with_role(verdict.findings, "cause") if finding is not first]
    unsure = verdict.order == "unknown" and bool(others)
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
        return "First symptom, no line shows what it followed from: "
    return "A cause: " if unsure else f"First cause{ORDERS[order]}: "


def _counted(victim: LogFinding) -> str:
    ranks = f" ({spans_text('rank', victim.ranks)})" if victim.ranks else ""
    return f"{victim.id} {victim.count} ×{ranks}"


def _no_cause(reading: Reading, verdict: Verdict) -> str:
    if not reading.lines and not reading.recorders.names:
        return "The logs are empty."
    if verdict.failed:
        late = f" {_behind(verdict)}" if verdict.behind else ""
        return f"The job failed, and no line shows the cause: what is below followed from it.{late}"
    if any(finding.role == "hint" for finding in verdict.findings):
        return "No log line shows a certain cause."
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


# -----------------------------------------------------------------------------------------------------------
# dump: stacks, memory and flight recorders of all ranks.


BATCH = 32
"""Maximum ranks per request, since their answers must fit into one line of the link."""
NAMES = {"stacks": "stacks-rank-{}.txt", "flight": "flight-rank-{}.json", "memory": "memory-rank-{}.json"}
"""Names of the files that --out writes."""


def dump(options: argparse.Namespace) -> int:
    """Request a dump; print it merged, raw (--raw) or as JSON, or write it into files. Raises RunError."""
    if options.record and options.what != "memory":
        raise RunError("--record is for memory: `distui dump RUN memory --record`")
    done, source = asyncio.run(with_link(options.run, lambda entry, link: _ask(link, options)))
    texts = by_rank(done.data)
    if options.json:
        sys.stdout.write(json.dumps(_document(options.what, done, texts)) + "\n")
    elif done.ok:
        sys.stdout.write("\n".join(_answers(options, done, texts, source)) + "\n")
    if done.ok and options.out is not None and not options.record:
        _write(Path(options.out), options.what, texts)
    if not done.ok:
        complain(done.text)
    return 0 if done.ok else 1


def _answers(
    options: argparse.Namespace, done: CommandDone, texts: Mapping[int, str], source: Source
) -> list[str]:
    """Return the dump as lines, with the reason if a rank has not answered."""
    if options.record:
        return [f"rank {rank}: {texts[rank]}" for rank in sorted(texts)]
    lines = _raw(texts) if options.raw else shown(options.what, done.data, source)
    lines += ["", f"Not all have answered: {done.text}"] if "; " in done.text else []
    return [clean_text(line) for line in lines]


async def _ask(link: Link, options: argparse.Namespace) -> tuple[CommandDone, Source]:
    """Send the request in batches of ranks, all at the same time; also return the source of frames."""
    what = "record" if options.record else options.what
    state = await history(link)
    if not state.phase.ended:
        check_ranks(state, options.rank)
    ranks = sorted(set(options.rank)) or _running(state)
    batches = [tuple(ranks[at : at + BATCH]) for at in range(0, len(ranks), BATCH)] or [()]
    if len(batches) == 1 and not options.rank:
        batches = [()]
    asked = [link.send(Dump(new_id(), what, batch)) for batch in batches]
    return together(await asyncio.gather(*asked)), source_of(state)


def _running(state: RunState) -> list[int]:
    """Return the ranks of the newest attempt with a process: a rank without one cannot answer."""
    return sorted(number for number, rank in state.ranks.items() if rank.phase is RankPhase.RUNNING)


def together(answers: Sequence[CommandDone]) -> CommandDone:
    """Merge several answers into one, which is ok if any rank has answered."""
    if len(answers) == 1:
        return answers[0]
    data = {rank: text for answer in answers for rank, text in answer.data.items()}
    problems = [answer.text.partition("; ")[2] if answer.ok else answer.text for answer in answers]
    reasons = list(dict.fromkeys(text for text in problems if text))
    if not data:
        return CommandDone(answers[0].id, False, "; ".join(reasons))
    return CommandDone(
        answers[0].id, True, "; ".join([f"{plural(len(data), 'rank')} answered", *reasons]), data
    )


def shown(what: str, data: Mapping[str, str], source: Source = no_source) -> list[str]:
    """Return the merged answers of the ranks. Raises RunError if they cannot be parsed."""
    try:
        return plain(merged_rows(what, data, source))
    except ValueError as error:
        raise RunError(
            f"what a rank reported of its {what} cannot be read ({error}): --raw prints it"
        ) from None


def values(what: str, texts: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return the merged answers for --json. Raises ValueError."""
    if what == "stacks":
        return [
            {"ranks": list(group.ranks), "frames": list(group.frames)} for group in merged_stacks(texts)
        ]
    return (
        memory_values(texts) if what == "memory" else [asdict(group) for group in merged_recorders(texts)]
    )


class Dumped(TypedDict):
    """`dump`."""

    ok: bool
    text: str
    data: Mapping[str, str]
    merged: NotRequired[list[dict[str, Any]] | None]


def _document(what: str, done: CommandDone, texts: Mapping[int, str]) -> Dumped:
    document = Dumped(ok=done.ok, text=done.text, data=done.data)
    if texts:
        try:
            document["merged"] = values(what, texts)
        except ValueError:
            document["merged"] = None  # --record answers with a sentence
    return document


def _raw(texts: Mapping[int, str]) -> list[str]:
    return [
        line for rank in sorted(texts) for line in (f"--- rank {rank}", *texts[rank].rstrip().splitlines())
    ]


def _write(folder: Path, what: str, texts: Mapping[int, str]) -> None:
    """Write one file per rank, replacing none. Raises RunError."""
    paths = {rank: folder / NAMES[what].format(rank) for rank in sorted(texts)}
    there = next((path for path in paths.values() if path.exists()), None)
    if there is not None:
        raise RunError(f"{there} exists already: name another directory with --out")
    try:
        private_folder(folder)
        for rank, path in paths.items():
            file_io.write_atomically(path, texts[rank].encode())
    except OSError as error:
        raise RunError(
            f"{folder} cannot be written ({error.strerror}): name another directory with --out"
        ) from None
    complain(f"{plural(len(paths), 'file')} written in {folder}")


# -----------------------------------------------------------------------------------------------------------
# export: a run as one file for another person.


def export(options: argparse.Namespace) -> int:
    """Write the bundle, and print what it contains and lacks. Raises RunError."""
    path = Path(options.file)

    async def use(entry: run_directories.Entry, link: Link) -> Manifest:
        state = await snapshot(link)
        if entry.record.kind == "node":  # the link leads to the hub of the whole run
            entry = run_directories.resolve(entry.record.whole)
        complete(state, entry, link)
        with BundleWriter(path, entry.record.run, options.force) as writer:
            return await Gathering(
                entry, link, state, writer, options.logs << 20, options.with_traces
            ).run()

    manifest = asyncio.run(with_link(options.run, use))
    if options.json:
        sys.stdout.write(escaped_json(msgspec.json.encode(manifest).decode()) + "\n")
    else:
        for line in sentences(manifest, path):
            sys.stdout.write(f"{clean_text(typeable(line, sys.stdout))}\n")
    return 0


def sentences(manifest: Manifest, path: Path) -> Iterator[str]:
    """Yield sentences about the written bundle."""
    cut = sum(file.of is not None for file in manifest.files)
    whole = size_text(sum(file.bytes for file in manifest.files))
    parts = [plural(len(manifest.files), "file"), whole, f"packed {size_text(path.stat().st_size)}"]
    parts += [f"{plural(cut, 'log')} cut"] if cut else []
    traces = [file.bytes for file in manifest.files if file.name.endswith(".json.gz")]
    parts += [f"{plural(len(traces), 'trace')} of {size_text(sum(traces))}"] if traces else []
    parts += [f"{plural(manifest.masked, 'secret')} masked"] if manifest.masked else []
    state = "is now" if manifest.live else "ended"
    yield f"{path} holds {manifest.name} as it {state}: {', '.join(parts)}"
    for text in manifest.missing:
        yield f"not in it: {text}"
    yield f"`distui replay {path}` opens it"
