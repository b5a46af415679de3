"""Rank the candidates for the first cause of a failure, best first, and list the other findings after it. Pure.

Every source of explanations (rules, exceptions, messages, exit reports) yields its candidates independently of the
others. `standing` and then time decide between them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Literal

from ...presets.finding import ROLES, SEVERITIES
from .derived_rules import fired
from .error_lines import OF_OTHERS, UNEXPLAINED, Message, Sureness
from .exceptions import CUT_OFF, LAST, PLACE, UNCAUGHT
from .exits import RAISED
from .heads import Stamp
from .log_findings import OF_JOB, OF_NCCL, LogFinding, failed_in, finding_of, placed
from .missing_ranks import absent, silent
from .reading import REPORT, Reading
from .recorder_dumps import symptoms
from .rules import DONE, FINISHED, RESTARTED, First, RankProgress, RuleHits

Order = Literal["lines", "time", "unknown"]
CONFIDENCES = ("high", "medium", "low")


class Specificity(IntEnum):
    """How much a candidate explains. The smallest number explains most."""

    CAUSE = 1
    """A rule or an exception names the cause."""
    INFERRED = 2
    """A kill, a message in the table of known causes, ranks that did not join, an error that NCCL only mentions."""
    LAST_WORDS = 3
    """An error message that no rule knows, in a form that only errors have, before any report of the failure."""
    RELAYED = 4
    """A launcher's or scheduler's report that another process has failed."""
    MESSAGE = 5
    """Any other error message that no rule knows."""
    TRACE = 6
    """The functions of NCCL that pass on an error."""
    TRUNCATED = 7
    """A traceback whose exception is missing."""
    REPORT = 8
    """The report of a failure without its reason: torch's of an NCCL error, a launcher's of an exit."""
    WORD = 9
    """An everyday word of trouble in a short log."""
    SYMPTOM = 10
    """An error that follows from another one."""
    CONSEQUENCE = 11
    """What launchers and schedulers do after a process has exited."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible first cause."""

    hits: RuleHits = field(compare=False)
    finding: LogFinding
    specificity: Specificity

    @property
    def standing(self) -> tuple[bool, int, int, bool]:
        """Sort key before time: role, severity, specificity, and whether no line shows it."""
        severity = SEVERITIES.index(self.finding.severity)
        return self.finding.role == "symptom", severity, self.specificity, not self.hits.firsts


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The findings of a set of logs, and the first cause."""

    findings: tuple[LogFinding, ...]
    """The first cause, then by role and severity."""
    first: LogFinding | None
    """The best candidate: the earliest cause, or what may become one in a job that has not failed.

    Without a cause: the first symptom of a failed job, else None.
    """
    order: Order
    """How `first` was chosen: by its line in a single file, by time, or unknown."""
    victims: tuple[LogFinding, ...]
    """Symptoms. If there is a first cause, they follow from it."""
    behind: tuple[int, ...]
    """Ranks that had made less progress than others when collectives timed out."""
    candidates: tuple[Candidate, ...] = ()
    """All candidates for the first cause, the best first."""
    ended: bool = False
    """Whether a log reports a failed process."""

    @property
    def has_rivals(self) -> bool:
        """Whether only time decided between the first cause and another candidate."""
        return len(self.candidates) > 1 and self.candidates[0].standing == self.candidates[1].standing

    @property
    def failed(self) -> bool:
        """Whether the job failed, even if its cause was not found."""
        return self.ended or failed_in(self.findings)


def judge(reading: Reading) -> Verdict:
    """Return the findings and the first cause of all logs of a reading."""
    case = _Case(reading)
    ranked, order = _ranked(case.candidates())
    head = placed(ranked[0].finding, case.findings, reading) if ranked else None
    chosen = ranked[0].hits.rule.place if ranked else None
    rest = [each for hits, each in case.found if hits.rule.place != chosen]
    rest.sort(key=lambda each: (ROLES.index(each.role), SEVERITIES.index(each.severity)))
    return Verdict(
        findings=tuple([head, *rest] if head else rest),
        first=head,
        order=order,
        victims=tuple(finding for finding in rest if finding.role == "symptom"),
        behind=behind(reading.tally.progress),
        candidates=tuple(ranked),
        ended=case.exited,
    )


KILLED, TERMINATED = "died-killed", "died-terminated"
OUT_OF_MEMORY = ("died-host-oom", "died-ray-oom", "kernel-oom", "k8s-oom-killed", "ray-memory")
"""Findings that explain a SIGKILL better than the report of a shell or launcher."""
CANCELLED = ("slurm-cancelled", "slurm-step-cancelled", "ray-worker-died")
"""Consequences of a process exit if that was reported earlier."""
LATER = ("died-terminated", "died-abort", "ray-actor-died", "deepspeed-kills", "horovod-shutdown")
"""Symptoms that explain less than a reported exit, or only report the failure of another process."""
LEFT = "rendezvous-left"
"""A node's agent also writes this at a normal end. It is a cause only if a traceback begins after it."""
LOOPBACK, UNREACHED = "gloo-loopback", ("died-peer-gone", "died-connect-timeout")
"""An address that leads nowhere from another node explains these symptoms; on a single node it is normal."""
FAREWELL = 200
"""Lines that may follow the report of a good end: warnings of all ranks, uploads, the end of the script."""
TRACED = "error-trace"
PASSED_ON = {
    "1": "unhandled CUDA error",
    "2": "unhandled system error",
    "4": "invalid argument",
    "5": "invalid usage",
}
"""Result codes of NCCL. Other codes also occur if a peer ends normally."""


class _Case:
    """What a reading shows: the rules and exceptions with their findings, and the candidates for the first cause."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self.exceptions = reading, reading.exceptions
        hits = [*fired(reading), *((entry, "") for entry in self.exceptions.entries(reading.lengths))]
        explained = any(entry.rule.explains for entry, _ in hits)
        hits += [(entry, "") for entry in symptoms(reading.recorders.hits(), explained)]
        found = [finding_of(entry, seen, reading) for entry, seen in hits]
        roles = [self._role(each, found) for each in found]
        self.found = [
            (entry, replace(each, role=role))
            for (entry, _), each, role in zip(hits, found, roles, strict=True)
        ]
        """The rules and exceptions, and their findings. Known consequences are symptoms."""
        self.is_reported = self.exceptions.failed or any(
            (each.role, each.severity) == ("symptom", "error") and not self._is_before_training(entry)
            for entry, each in self.found
        )
        """Whether a process failed, or ranks suffer from a failure."""
        self.well_until = self._well_until()
        self.found = [(entry, self._survived(entry, each)) for entry, each in self.found]
        exit_ = self.exceptions.first_exit
        is_taken_back = exit_ is not None and (self._is_survived([exit_]) or self._is_dismissed([exit_]))
        self.exited = self.exceptions.failed and not is_taken_back
        """Whether a log reports a failed process, and not a good end of the job after it."""
        self.failed = self.exited or failed_in(self.findings)
        self.cut_off = list(self.exceptions.cut_off(reading.lengths))
        self.message = self._message(self.failed)
        """The best error message."""
        if self.message is not None and self._is_survived(self.message.hits.firsts):
            self.message = None
        if self.message is not None and self.message.hits.rule.role == "hint":
            self.found.append((self.message.hits, finding_of(self.message.hits, "", reading)))

    def _well_until(self) -> dict[int, int]:
        """Return the line of the report that the job ended well, or has restarted and trains, by file number."""
        restarts = [entry for entry in self._fired(RESTARTED) if self._trained_after(entry)]
        reports = [first for entry in restarts for first in entry.firsts] + self._ends(FINISHED)
        exits = self.exceptions.newest_exits
        well = {} if self.exceptions.first_exit is not None else self.reading.well_at()
        for first in reports:
            line = first.evidence.line
            if exits.get(first.file, 0) < line:
                well[first.file] = max(line, well.get(first.file, 0))
        return well

    def _ends(self, rule: str) -> list[First]:
        """Return the reports of a good end by this rule that are near the end of their file."""
        lengths = self.reading.lengths
        firsts = [first for entry in self._fired(rule) for first in entry.firsts]
        return [first for first in firsts if first.lines_left(lengths) <= FAREWELL]

    def _is_dismissed(self, firsts: Collection[First]) -> bool:
        """Whether a script reports that it is done after these lines, and its processes have only been asked to end."""
        done = {first.file: first.evidence.line for first in self._ends(DONE)}
        return bool(firsts) and all(
            first.file not in self.exceptions.crashed and first.evidence.line < done.get(first.file, 0)
            for first in firsts
        )

    def _is_survived(self, firsts: Collection[First]) -> bool:
        """Whether all lines are before the report that the job of their file ended well."""
        return bool(firsts) and all(self._is_before_good_end(first) for first in firsts)

    def _is_before_good_end(self, first: First) -> bool:
        """Whether the job ended well after a line. An uncaught exception needs a report of its process, too."""
        if UNCAUGHT.search(first.evidence.text, 0, 200) and first.file not in self.exceptions.newest_exits:
            return False
        return first.evidence.line < self.well_until.get(first.file, 0)

    def _is_disproved(self, entry: RuleHits) -> bool:
        """Whether training steps after a failure show that the job survived it, or that a retry succeeded."""
        rule = entry.rule
        is_survivable = (rule.explains or rule.reports) and rule.layer != OF_JOB and not self.is_reported
        return (is_survivable and self._trained_after(entry)) or self._is_before_training(entry)

    def _is_before_training(self, entry: RuleHits) -> bool:
        """Whether training went on after a failure that a process may go on after."""
        return entry.rule.retried and self._trained_after(entry)

    def _trained_after(self, entry: RuleHits) -> bool:
        """Whether training steps follow all lines of a rule."""
        trained = self.reading.trained
        return bool(entry.firsts) and all(
            first.evidence.line < trained.get(first.file, 0) for first in entry.firsts
        )

    def _survived(self, entry: RuleHits, finding: LogFinding) -> LogFinding:
        """Return a finding that the job survived as a fact."""
        if finding.severity == "note" or not (self._is_outdated(entry) or self._is_disproved(entry)):
            return finding
        return replace(finding, role="fact", severity="note")

    @property
    def findings(self) -> list[LogFinding]:
        return [finding for _, finding in self.found]

    def _role(self, each: LogFinding, found: Collection[LogFinding]) -> str:
        """Return the role of a finding next to the others: a known consequence is a symptom."""
        if each.id == KILLED and any(other.id in OUT_OF_MEMORY for other in found):
            return "symptom"
        if each.id in CANCELLED and _follows(each, self.exceptions.exited):
            return "symptom"
        return each.role

    def candidates(self) -> list[Candidate]:
        """Return all candidates, in any order, without those that the job survived."""
        return [each for each in self._candidates() if not self._is_outdated(each.hits)]

    def _is_outdated(self, entry: RuleHits) -> bool:
        """Whether the job ended well after all lines of a rule, or has restarted and trains."""
        is_dismissed = entry.rule.id == TERMINATED and self._is_dismissed(entry.firsts)
        return is_dismissed or self._is_survived(entry.firsts)

    def _candidates(self) -> list[Candidate]:
        """Return all candidates. A report is none next to a symptom, which says more."""
        candidates = self._made(Specificity.INFERRED, self._inferred())
        candidates += self._made(Specificity.INFERRED, self._before_timeouts())
        for cut in self._truncated():
            is_symptom = cut.rule.role == "symptom"
            candidates += self._made(Specificity.SYMPTOM if is_symptom else Specificity.TRUNCATED, [cut])
        if self.message is not None and self.message.hits.rule.role != "hint":
            candidates += self._made(self._specificity_of(self.message), [self.message.hits])
        candidates += self._made(Specificity.RELAYED, map(_as_cause, self._relayed()))
        for entry, finding in self.found:
            specificity = self._specificity(finding)
            if specificity is not None:
                candidates.append(Candidate(entry, finding, specificity))
        if not any(each.specificity is Specificity.SYMPTOM for each in candidates):
            candidates += self._made(Specificity.REPORT, self._reports())
            if not self.failed:
                candidates += self._made(Specificity.TRACE, self._traces())
                candidates += self._made(Specificity.WORD, self.reading.short.entries())
        return candidates

    def _made(self, specificity: Specificity, entries: Iterable[RuleHits]) -> list[Candidate]:
        return [Candidate(entry, finding_of(entry, "", self.reading), specificity) for entry in entries]

    def _specificity(self, finding: LogFinding) -> Specificity | None:
        """Return the specificity of a rule's or an exception's finding; None if it explains no failure."""
        if finding.role == "cause":
            is_caused = finding.id.removeprefix("died-") in OF_OTHERS
            return Specificity.INFERRED if is_caused else Specificity.CAUSE
        if not finding.stops:
            return None
        cancelled = finding.id in CANCELLED and _follows(finding, self.exceptions.exited)
        if finding.id in LATER or cancelled or _follows(finding, self.exceptions.killed):
            return Specificity.CONSEQUENCE
        return Specificity.SYMPTOM

    def _inferred(self) -> Iterator[RuleHits]:
        """Yield ranks that did not join, errors that NCCL mentions, and what a truncated traceback may follow from."""
        yield from absent(self.reading)
        for entry, finding in self.found:
            if _mentions_error(finding) and finding.id != REPORT and not entry.rule.reports:
                yield _as_cause(entry)
        if self.failed:
            if any(finding.id in UNREACHED for finding in self.findings):
                yield from map(_as_cause, self._fired(LOOPBACK))
            reporting = [entry for entry, _ in self.found if entry.rule.role == "symptom"]
            yield from silent(self.reading, reporting)
        elif self.cut_off:
            yield from self._above_truncated()

    def _before_timeouts(self) -> Iterator[RuleHits]:
        """Yield the error that a rank that did not come, or an unknown one, logged before collectives timed out."""
        for entry in absent(self.reading):
            ranks = {head.rank for head in entry.heads.values() if head.rank is not None}
            message = self.reading.error_lines.before(self._first_symptoms(), ranks)
            if message is not None:
                yield message.hits

    def _above_truncated(self) -> Iterator[RuleHits]:
        """Yield what a truncated traceback may follow from."""
        yield from map(_as_cause, self._fired(LEFT))
        message = self._message(failed=True)
        if message is not None and self._specificity_of(message) is Specificity.INFERRED:
            yield message.hits

    def _relayed(self) -> list[RuleHits]:
        """Return the rules that only report the failure of another process."""
        return [entry for entry, finding in self.found if entry.rule.reports and _mentions_error(finding)]

    def _fired(self, rule: str) -> Iterator[RuleHits]:
        return (entry for entry, _ in self.found if entry.rule.id == rule)

    def _message(self, failed: bool) -> Message | None:
        """Return the best error message. `failed`: it may be far from the end of its file."""
        exceptions = self.exceptions
        return self.reading.error_lines.best(
            self.reading.lengths, failed, exceptions.killed, not exceptions.raised, self._first_symptoms()
        )

    def _specificity_of(self, message: Message) -> Specificity:
        rule = message.hits.rule
        if rule.id == UNEXPLAINED and message.is_reason and not self._has_error_of_nccl():
            return Specificity.CAUSE
        if rule.id == UNEXPLAINED:
            return Specificity.LAST_WORDS if self._is_before_reports(message) else Specificity.MESSAGE
        if rule.role != "symptom":
            return Specificity.INFERRED
        return Specificity.CONSEQUENCE if rule.id in LATER else Specificity.SYMPTOM

    def _has_error_of_nccl(self) -> bool:
        """Whether a rule knows an error that NCCL mentions."""
        return any(_mentions_error(finding) and finding.layer == "nccl" for finding in self.findings)

    def _is_before_reports(self, message: Message) -> bool:
        """Whether the message has a form that only errors have, and no earlier line reports the failure."""
        if message.sureness < Sureness.LEVEL or message.follows(self.exceptions.exited):
            return False
        return not any(message.follows(report) for entry in self._relayed() for report in entry.firsts)

    def _first_symptoms(self, *more: RuleHits | None) -> dict[int, int]:
        """Return the line number of the first error symptom in each file. `more`: hits that are no findings."""
        entries = [*(entry for entry, _ in self.found), *(entry for entry in more if entry is not None)]
        lines: dict[int, int] = {}
        for entry in entries:
            if (entry.rule.role, entry.rule.severity) == ("symptom", "error"):
                for first in entry.firsts:
                    lines[first.file] = min(first.evidence.line, lines.get(first.file, first.evidence.line))
        return lines

    def _truncated(self) -> Iterator[RuleHits]:
        """Yield truncated tracebacks. A file that reports a failure before has only what a launcher raises after it."""
        files = set(self._first_symptoms(None if self.message is None else self.message.hits))
        for report in self._fired(REPORT):
            files.update(first.file for first in report.firsts)
        exit_ = self.exceptions.exited
        if exit_ is not None and RAISED not in exit_.evidence.text:
            files.add(exit_.file)
        for cut in self.cut_off:
            if cut.rule.id != CUT_OFF.id or cut.firsts[0].file not in files:
                yield cut

    def _reports(self) -> Iterator[RuleHits]:
        """Yield torch's report of an NCCL error without NCCL's reason, and the first exit that a launcher reports."""
        if not any(self._fired(OF_NCCL)) and self.exceptions.killed is None:
            for report in self._fired(REPORT):
                if self.failed or self._is_near_end(report):
                    yield _as_cause(report)
        yield from self.exceptions.exits()

    def _traces(self) -> Iterator[RuleHits]:
        """Yield an error that NCCL's functions pass on at the end of a log without a line about its reason."""
        for entry in self._fired(TRACED):
            error = PASSED_ON.get(entry.firsts[0].values.get("rc", "")) if entry.firsts else None
            if error and entry.count > 1 and self._is_near_end(entry):
                text = f"NCCL met an error ({error}), of which the log only has the functions that passed it on."
                remedy = "NCCL_DEBUG=WARN writes the reason above them."
                yield _as_cause(replace(entry, rule=replace(entry.rule, text=text, remedy=remedy)))

    def _is_near_end(self, entry: RuleHits) -> bool:
        lengths = self.reading.lengths
        return any(first.lines_left(lengths) <= LAST for first in entry.firsts)


def _mentions_error(finding: LogFinding) -> bool:
    """Whether a line mentions an error that is no rule's cause."""
    return (finding.role, finding.severity) == ("fact", "error")


def _as_cause(entry: RuleHits) -> RuleHits:
    """Return the hits as an error with the role cause."""
    return replace(entry, rule=replace(entry.rule, role="cause", severity="error"))


def _follows(finding: LogFinding, exited: First | None) -> bool:
    """Whether the finding's first line follows the line of `exited` in the same file."""
    if exited is None or not finding.lines:
        return False
    its = finding.lines[0]
    return its.file == exited.evidence.file and its.line > exited.evidence.line


def _ranked(candidates: list[Candidate]) -> tuple[list[Candidate], Order]:
    """Sort the candidates, best first: by standing, and of the best ones by time."""
    if not candidates:
        return [], "unknown"
    candidates.sort(key=lambda each: each.standing)
    best = [each for each in candidates if each.standing == candidates[0].standing]
    first, order = _earliest(best) if best[0].hits.firsts else (best[0], "unknown")
    return [first, *(each for each in candidates if each is not first)], order


def _earliest(candidates: Sequence[Candidate]) -> tuple[Candidate, Order]:
    """Compare by line within one file, and by time across files if all timestamps are comparable."""
    lines = [(first, each) for each in candidates for first in each.hits.firsts]
    if len({first.file for first, _ in lines}) == 1:
        return min(lines, key=_place)[1], "lines"
    times = _comparable([first.stamp for first, _ in lines])
    if times:
        return lines[times.index(min(times))][1], "time"
    return min(lines, key=_place)[1], "unknown"


def _place(line: tuple[First, Candidate]) -> tuple[tuple[int, int], bool, int, int]:
    """Sort key of a candidate's line. In one line a rule comes before an exception, and then the surer candidate."""
    first, candidate = line
    place, confidence = candidate.hits.rule.place, CONFIDENCES.index(candidate.finding.confidence)
    return first.position, place >= PLACE, confidence, place


def _comparable(stamps: Collection[Stamp | None]) -> list[str]:
    """Return the times as texts whose string order is their order; [] if they cannot be compared."""
    known = [stamp for stamp in stamps if stamp is not None]
    if len(known) < len(stamps):
        return []
    if len({stamp.kind for stamp in known}) == 1:
        return [stamp.text for stamp in known]
    local = [stamp.local or "" for stamp in known]
    return local if all(local) else []


def behind(progress: Mapping[int, RankProgress]) -> tuple[int, ...]:
    """Return the ranks that completed least or timed out in the earliest collective; () if all are equal."""
    for name in ("completed", "seq"):
        numbers = {
            rank: getattr(last, name) for rank, last in progress.items() if getattr(last, name) is not None
        }
        if len(set(numbers.values())) > 1:
            least = min(numbers.values())
            return tuple(sorted(rank for rank, value in numbers.items() if value == least))
    return ()
