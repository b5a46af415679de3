"""The diagnosis of a run: the findings of its detectors, and the first cause in the logs of its newest attempt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ..diagnosis.diagnosis_document import Diagnosis, document
from ..diagnosis.first_cause import Verdict, judge
from ..diagnosis.log_findings import LogFinding
from ..diagnosis.log_sources import Named
from ..diagnosis.read_logs import judged_attempt, logs_of_run, read_all, read_run
from ..diagnosis.reading import Reading
from ..run import clock, run_directories
from ..run.model import RankPhase, RunEnded, RunPhase, Stamped
from ..run.state import RunState
from .status_document import LiveDiagnosis, standing_json

STDIN = ("(standard input)", Path("/dev/stdin"))


class RunDiagnosis(Diagnosis):
    """`diagnose RUN`."""

    live: LiveDiagnosis


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRun:
    """A run with all that was found about it."""

    state: RunState
    live: LiveDiagnosis
    logs: list[Named]
    reading: Reading
    verdict: Verdict
    outlived: bool
    """Whether failures in the logs were turned into facts, because the script went on after them."""

    @property
    def failed(self) -> bool:
        """Whether a cause is an error, or the run is lost."""
        errors = (each for each in self.state.findings.values() if each.severity == "error")
        has_error = any(finding.role == "cause" for finding in errors)
        return self.verdict.failed or has_error or self.state.phase is RunPhase.LOST

    def document(self) -> RunDiagnosis:
        """Return the JSON of `diagnose RUN`."""
        return {**document(self.reading, self.verdict), "live": self.live}


def judge_run(entry: run_directories.Entry) -> JudgedRun:
    """Judge a run by its journal and by its logs on this machine. It reads files only."""
    history = entry.history()
    state = history.state
    logs = logs_of_run(entry, judged_attempt(entry, state))
    if run_directories.phase(entry, history) is RunPhase.LOST:
        why = state.end_text or run_directories.why_lost(entry, run_directories.orphans(entry))
        state.apply(Stamped(clock.now(), RunEnded(RunPhase.LOST, None, why)))
    reading, unread = read_run(logs)
    judged, live = judge(reading), standing_json(state, [name for name, _ in logs])
    verdict = survived(judged, state)
    live["missing"] += [*history.problems, *unread]
    return JudgedRun(
        state=state,
        live=live,
        logs=logs,
        reading=reading,
        verdict=verdict,
        outlived=verdict is not judged,
    )


def judge_files(names: Iterable[str]) -> tuple[Reading, Verdict]:
    """Judge log files, archives and directories; "-" is standard input. Raises RunError."""
    reading = read_all(STDIN if name == "-" else (name, Path(name)) for name in names)
    return reading, judge(reading)


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
    return replace(
        verdict,
        findings=kept + facts,
        first=next(iter(with_role(kept, "cause")), None),
        victims=tuple(with_role(kept, "symptom")),
        candidates=tuple(each for each in verdict.candidates if not each.finding.id.startswith(ends)),
        ended=False,
    )


def _survived_ends(state: RunState) -> tuple[str, ...]:
    """Return prefixes of failures that the run survived: all if it succeeded, deaths if every rank runs."""
    if state.phase is RunPhase.SUCCEEDED:
        return ("",)
    runs = [rank.phase is RankPhase.RUNNING for rank in state.ranks.values()]
    return ("died-", "oom-") if runs and all(runs) else ()


def with_role(findings: Iterable[LogFinding], *roles: str) -> list[LogFinding]:
    """Return the findings with one of the roles."""
    return [finding for finding in findings if finding.role in roles]
