"""Keep error messages that no rule and no traceback covers, so that a failure always has an explanation.

If nothing else explains a failure, the best message is quoted: first those in the table of causes, then by the
certainty of the line's form, then the earliest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from ...presets.finding import Role
from ..inrank.failure_causes import Failure, advice_of, of_line
from ..inrank.known_causes import NAN_REMEDY, WAITS
from ..inrank.printed_traceback import NEXT, OF_RAY
from ..inrank.tracebacks import of_tool, untangled
from .exceptions import LAST, sentence, text_of
from .exits import of_rank
from .line_formats import ERRORS, LEVELS, LINES, PHRASES
from .rules import First, LogLine, Rule, RuleHits, shown

MOST, MOST_WORDS, MOST_IN_ALL = 64, 16, 8192
"""Maximum number of messages per file, of those the least certain, and of all files. A file with many messages leaves
room for the others.
"""
LAST_WORDS = 1
"""A message of the kind WORDS counts as the reason for a file's end within this many lines of it."""
PLACE = 1 << 21
"""Sorts messages after exceptions if both match one line."""
QUOTED = 300
"""Maximum number of quoted characters of a message."""

OF_NCCL = (
    "`export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,NET` on every node prints what NCCL tried before; compare "
    "the lines above it on the ranks, and try the newest NCCL of that release of torch."
)
"""Remedy of a reason of NCCL that no rule has."""
REASON = "Last error:"
"""torch writes this above NCCL's own reason. Without that reason it explains nothing."""
OF_OTHERS = ("killed", "signal", "server-start", "server-unreached", "server-error")
"""Kinds of failures that another process caused, a loader's worker or a server: what it printed explains more."""
UNEXPLAINED = "unexplained"
"""Rule id of a message that the table of causes does not contain."""


class Sureness(IntEnum):
    """How certainly the form of a line shows a failure."""

    WORDS = 1
    """It contains words such as "not found", "denied", "failed"."""
    LEVEL = 2
    """Its log level is error."""
    ENDED = 3
    """An exception's line, or the last message of a process that aborts."""


ERROR_WORDS = (*ERRORS["sure"], *ERRORS["words"])
ALIVE_WORDS = ERRORS["alive"]
ENOUGH = 3
"""Consecutive lines with an infinite value that count as much as one NaN."""


@dataclass(slots=True)
class _Sentence:
    """A line that reports an error."""

    sureness: Sureness
    failure: Failure | None
    """Its class if the table of causes contains it."""
    text: str
    first: First
    stream: str = ""
    """Its writer."""
    outlived: bool = False
    """Whether training went on after the line."""
    title: bool = False
    """Whether a traceback begins directly below it, or it is Ray's line with the type of the exception that follows."""
    warned: bool = False
    """Whether its log level is below error."""
    lasts: bool = False
    """Whether it holds until training recovers, however far away the end of the file is."""
    is_reason: bool = False
    """Whether it is NCCL's own reason, below torch's report of NCCL's error."""
    times: int = 1
    """Number of consecutive occurrences, counted only if `lasts`."""

    def take(self, text: str, first: First) -> bool:
        """Add the next line if it continues the message. Return True if it is no separate message."""
        if self.text.startswith("terminate called") and PHRASES["cpp_message"].match(text):
            self.text, self.failure, self.sureness, self.first = text, of_line(text), Sureness.ENDED, first
            return True
        if not self._goes_on_with(text):
            return False
        is_ended = self.sureness is Sureness.ENDED
        self.failure = of_line(f"{self.text}\n{text.strip()}") or self.failure
        if self.text.strip() == REASON:
            self.text, self.first, self.is_reason = text.strip(), first, True
        elif self.failure is None and is_ended:
            self.text = f"{self.text.rstrip()} {text.strip()}"
        return is_ended or self.failure is not None

    def _goes_on_with(self, text: str) -> bool:
        """Whether the next line is a part of the message: after a colon, or indented below an exception."""
        is_detail = text[:1].isspace() and self.sureness is Sureness.ENDED
        return is_detail or self.text.rstrip().endswith(":")

    @property
    def may_matter(self) -> bool:
        """Whether it is worth a hint in a job that has not failed."""
        return self.failure is not None or not self.outlived

    def may_explain(self, titles: bool, killed: First | None, symptoms: Mapping[int, int]) -> bool:
        """Whether it may be the reason of a failure. See `ErrorLines.best`."""
        is_empty = (self.title and not titles) or self.text.strip() == REASON
        return not (is_empty or self.first.follows(killed) or self._follows_symptom(symptoms))

    def led_to(self, symptoms: Mapping[int, int], ranks: Collection[int]) -> bool:
        """Whether it may be the reason of timeouts. See `ErrorLines.before`."""
        line, rank = symptoms.get(self.first.file), self.first.head.rank
        is_known_symptom = self.failure is not None and self.failure.symptom
        if (
            line is None
            or self.first.evidence.line >= line
            or self.sureness < Sureness.LEVEL
            or is_known_symptom
        ):
            return False
        return not self.warned and (rank in ranks or (rank is None and not self.outlived))

    def _follows_symptom(self, symptoms: Mapping[int, int]) -> bool:
        """Whether the table of causes does not contain it, and it follows a symptom in the same file."""
        if self.sureness is Sureness.ENDED or self.failure is not None:
            return False
        line = symptoms.get(self.first.file)
        return line is not None and self.first.evidence.line > line

    @property
    def is_abort(self) -> bool:
        """Whether it is Python's report that native code aborted the process."""
        return PHRASES["aborted"].match(self.text) is not None

    @property
    def order(self) -> tuple[bool, bool, bool, bool, bool, int, tuple[int, int]]:
        """Sort key, the message that explains most first."""
        failure = self.failure
        return (
            self.outlived,
            failure is not None and failure.symptom,
            failure is None,
            failure is not None and failure.kind in OF_OTHERS,
            PHRASES["launch_failed"].match(self.text) is not None,
            -self.sureness,
            self.first.position,
        )


class Message(NamedTuple):
    """The message that explains most."""

    hits: RuleHits
    sureness: Sureness
    is_reason: bool = False

    def follows(self, other: First | None) -> bool:
        """Whether it is after the other line in the same file."""
        return self.hits.firsts[0].follows(other)


class ErrorLines:
    """Collect error messages while logs are read."""

    def __init__(self) -> None:
        self._kept: list[_Sentence] = []
        self._counts: Counter[int] = Counter()
        self._words: Counter[int] = Counter()
        """Number of kept messages per file number, and of those with the sureness WORDS."""
        self.full = False
        """Whether this file's quota is used up."""
        self._file = 0
        self.open_here = False
        """Whether a message of this file could still be outlived by training."""
        self.awaited = 0
        """Number of the line that continues the newest message after its colon; 0 for none."""

    @property
    def count(self) -> int:
        """Number of messages of this file."""
        return self._counts[self._file]

    @property
    def ends_process(self) -> bool:
        """Whether the newest message has a form in which processes end, and no logger wrote it."""
        last = self._newest()
        return last is not None and last.sureness is Sureness.ENDED

    def open(self, file: int) -> None:
        """Start a file with this number (from 1)."""
        self._file, self.open_here, self.awaited = file, False, 0
        self.full = self._counts[file] >= MOST or len(self._kept) >= MOST_IN_ALL

    def line(self, line: LogLine, has_rule: bool) -> None:
        """Read a line that may report an error. `has_rule`: a rule also matches it."""
        if self._joins(line) or self.full or _is_minor(line):
            return
        if _reports_nothing(line.text):
            self._warning(line)
        else:
            self._report(line, has_rule)

    def _report(self, line: LogLine, has_rule: bool) -> None:
        before = line.raw.partition(line.text)[0]
        sureness = _sureness(line, before)
        if sureness is None or not self._has_room(sureness):
            return
        failure = of_line(line.text)
        if has_rule and not _is_cause(failure):
            return
        if sureness is Sureness.WORDS and failure is not None:
            sureness, failure = (Sureness.LEVEL, failure) if _is_cause(failure) else (sureness, None)
        minor, title = LEVELS["minor"].search(before) is not None, OF_RAY.match(line.text) is not None
        first = _with_named_rank(line)
        text = untangled(line.text)
        self._keep(_Sentence(sureness, failure, text, first, line.stream, warned=minor, title=title))
        self.open_here = True

    def _has_room(self, sureness: Sureness) -> bool:
        """Whether this file's quota of the least certain messages has room."""
        return sureness is not Sureness.WORDS or self._words[self._file] < MOST_WORDS

    def _newest(self) -> _Sentence | None:
        """Return the newest message if it is of this file."""
        last = self._kept[-1] if self._kept else None
        return last if last is not None and last.first.file == self._file else None

    def _joins(self, line: LogLine) -> bool:
        """Whether a line continues the message of the line before it."""
        last = self._newest()
        if last is None or last.first.evidence.line != line.number - 1:
            return False
        if not line.text[:1].isspace() and (line.number != self.awaited or NEXT.match(line.text)):
            return False
        return last.take(line.text, line.first)

    def _keep(self, sentence: _Sentence) -> None:
        self._kept.append(sentence)
        goes_on = sentence.sureness is Sureness.ENDED and sentence.text.rstrip().endswith(":")
        self.awaited = sentence.first.evidence.line + 1 if goes_on else 0
        self._counts[self._file] += 1
        self._words[self._file] += sentence.sureness is Sureness.WORDS
        self.full = self._counts[self._file] >= MOST or len(self._kept) >= MOST_IN_ALL

    def _warning(self, line: LogLine) -> None:
        """Keep a Python warning if the table of causes contains it: it may explain an unexplained failure."""
        match = PHRASES["warning"].search(line.text)
        failure = None if match is None else of_line(line.text[match.end() :])
        if failure is not None and not failure.symptom and self._has_room(Sureness.WORDS):
            sureness = Sureness.LEVEL if failure.kind in WAITS else Sureness.WORDS
            self._keep(_Sentence(sureness, failure, line.text, line.first, line.stream, warned=True))
            self.open_here = True

    def diverged(self, line: LogLine) -> bool:
        """Whether a training line has a non-finite loss or gradient. Only the first of consecutive lines is kept."""
        match = PHRASES["not_finite"].search(line.text)
        if match is None or not is_alive(line.text):
            return False
        is_nan = bool(match["sure"])
        if not is_nan and PHRASES["skipped_step"].search(line.text):
            return False
        last, times = self._newest(), ENOUGH if is_nan else 1
        if last is not None and last.lasts and not last.outlived:
            last.times += times
        elif not self.full:
            around = _around(line.text, match.start())
            says = f"rank 0 trains on with a loss or gradient that is not a number: {around}"
            failure = Failure(0, "nan", says, NAN_REMEDY, "maybe")
            first, stream = line.first, line.stream
            self._keep(
                _Sentence(Sureness.LEVEL, failure, line.text, first, stream, lasts=True, times=times)
            )
            self.open_here = True
        return True

    def explain(self, line: LogLine) -> None:
        """Drop C++'s report that an exception ends the process if a rule knows the message on the next line."""
        last = self._newest()
        if last is None or not last.text.startswith("terminate called"):
            return
        if last.first.evidence.line == line.number - 1 and PHRASES["cpp_message"].match(line.text):
            self._kept.pop()

    def introduces(self, line: LogLine) -> bool:
        """Mark the writer's message directly above a traceback as its title. The exception explains more.

        Return True if there is such a message.
        """
        last = self._newest()
        if last is None or line.number - last.first.evidence.line > 1 or last.stream != line.stream:
            return False
        last.title = last.title or (last.failure is None and last.sureness is not Sureness.ENDED)
        return True

    def outlive(self) -> None:
        """Mark all messages of this file as outlived, because training goes on."""
        for each in self._kept:
            if each.first.file == self._file:
                each.outlived = True
        self.open_here = False

    def before(self, symptoms: Mapping[int, int], ranks: Collection[int]) -> Message | None:
        """Return the best message before the first symptom of its file: the cause of timeouts may be logged long before.

        It is of one of these ranks, or of an unknown one if training did not go on after it.
        """
        kept = [each for each in self._kept if each.led_to(symptoms, ranks)]
        best = min(kept, key=lambda each: each.order, default=None)
        return None if best is None else Message(RuleHits.of(_rule(best, True), best.first), best.sureness)

    def best(
        self,
        lengths: Mapping[int, int],
        failed: bool,
        killed: First | None = None,
        titles: bool = True,
        symptoms: Mapping[int, int] = MappingProxyType({}),
    ) -> Message | None:
        """Return the best message as a rule that fired: a cause if the job failed or the file ends with it.

        `lengths`: lines of each file so far. `failed`: other evidence shows that the job failed. `killed`: the report of
        a killed process, whose file has only consequences after it. `titles`: include titles of tracebacks without an
        exception. `symptoms`: line of the first symptom by file number; an unknown message after it is a symptom too.
        """
        kept = [each for each in self._kept if each.may_explain(titles, killed, symptoms)]
        kept = _without_explained_aborts(kept)
        ended = kept if failed else [each for each in kept if _ends(each, lengths)]
        surer = [each for each in kept if each.sureness > Sureness.WORDS and each.may_matter]
        best = min(ended or surer, key=lambda each: each.order, default=None)
        return (
            None
            if best is None
            else Message(RuleHits.of(_rule(best, bool(ended)), best.first), best.sureness, best.is_reason)
        )


def _without_explained_aborts(kept: list[_Sentence]) -> list[_Sentence]:
    """Leave out Python's report of an abort after an error message of its file, which says why native code aborts."""
    reasons: dict[int, int] = {}
    for each in kept:
        if each.sureness > Sureness.WORDS and not (each.outlived or each.warned or each.is_abort):
            reasons.setdefault(each.first.file, each.first.evidence.line)
    return [
        each
        for each in kept
        if not each.is_abort
        or each.first.evidence.line < reasons.get(each.first.file, each.first.evidence.line + 1)
    ]


def _with_named_rank(line: LogLine) -> First:
    """Return the line as evidence, with the rank that its text names if its prefix has none."""
    if line.head.rank is not None:
        return line.first
    ranks = {int(match["rank"]) for match in PHRASES["own_rank"].finditer(line.text, 0, 400)}
    return line._replace(head=of_rank(ranks.pop(), line.head)).first if len(ranks) == 1 else line.first


def _is_cause(failure: Failure | None) -> bool:
    return failure is not None and not failure.symptom


def _around(text: str, at: int) -> str:
    """Return the part of a line around a position, without the beginning of a long line."""
    text = shown(text.strip())
    begin = max(0, min(at, len(text)) - QUOTED // 2) if len(text) > QUOTED else 0
    part = text[begin : begin + QUOTED]
    return f"…{part}" if begin else part


def _ends(each: _Sentence, lengths: Mapping[int, int]) -> bool:
    """Whether its file ends with it and no training went on after it."""
    if each.lasts:
        return not each.outlived and each.times >= ENOUGH
    left = each.first.lines_left(lengths)
    if each.outlived or (each.warned and each.sureness is Sureness.WORDS):
        return False
    return left <= (LAST if each.sureness > Sureness.WORDS else LAST_WORDS)


def is_alive(line: str) -> bool:
    """Whether a line shows that training makes progress."""
    for word in ALIVE_WORDS:
        if word in line:
            return LINES["alive"].search(line) is not None
    return False


def may_diverge(line: str) -> bool:
    """Whether a line has a non-finite loss or gradient. Runs for every line, so it searches plain words first."""
    maybe = "nan" in line or "NaN" in line or " inf " in line or ": inf" in line or "=inf" in line
    return (maybe or line.endswith(" inf")) and PHRASES["not_finite"].search(line) is not None


def may_report(line: str) -> bool:
    """Whether a line has an error word, or an error level or torch's tag but no training step.

    A plain loop, because it runs for every line.
    """
    for word in ERROR_WORDS:
        if word in line:
            return True
    return line.startswith(("[rank", "E ")) and not is_alive(line)


def sureness_of(text: str) -> Sureness | None:
    """Return how certainly a line reports a failure; None if it reports none."""
    if LINES["ended"].search(text):
        return Sureness.ENDED
    if LINES["level"].search(text):
        return Sureness.LEVEL
    return Sureness.WORDS if LINES["words"].search(text) else None


def _sureness(line: LogLine, before: str) -> Sureness | None:
    """Return `sureness_of`, also by an error level or torch's tag in the prefix `before`."""
    sureness = sureness_of(line.text)
    if LEVELS["error"].search(before) and not line.text[:1].isspace():
        return max(sureness or Sureness.LEVEL, Sureness.LEVEL)
    if sureness is None and PHRASES["tagged"].match(line.raw) and not is_alive(line.text):
        return Sureness.WORDS
    return sureness


def is_glog_warning(line: str) -> bool:
    """Whether a line is torch's warning or less."""
    return LEVELS["glog_minor"].search(line, 0, 80) is not None


def _reports_nothing(text: str) -> bool:
    """Whether a line has an error word without reporting an error, or only reports the failure of a launcher's ranks."""
    if text.strip() == REASON or ("CalledProcessError: Command " in text and of_tool(text)):
        return False
    return LINES["nothing"].search(text) is not None


def _is_minor(line: LogLine) -> bool:
    """Whether a line is torch's warning or less, and does not name a port or a peer."""
    return is_glog_warning(line.raw) and PHRASES["socket"].search(line.text) is None


def _quoted(best: _Sentence) -> tuple[str, str]:
    """Return text and remedy of a message that the table of causes does not contain."""
    quote = shown(best.text)[:QUOTED]
    advice = advice_of(best.text) if best.sureness > Sureness.WORDS else ""
    if advice:
        return f"The log has this error: {quote}", sentence(advice)
    if best.is_reason or best.text.startswith("NCCL WARN"):
        return f"NCCL gives this reason: {quote}", OF_NCCL
    return (
        f"No rule knows this: {quote}",
        "Read the lines around it: it is the earliest report of an error that was read.",
    )


def _rule(best: _Sentence, ended: bool) -> Rule:
    failure = best.failure
    if failure is None:
        name, (text, remedy) = UNEXPLAINED, _quoted(best)
    else:
        name, text, remedy = f"died-{failure.kind}", text_of(failure), sentence(failure.remedy)
    role: Role
    if failure is not None and failure.symptom:
        role = "symptom"
    elif ended:
        role = "cause"
    else:
        role = "hint"
    return Rule(
        id=name,
        severity="error" if ended else "warning",
        layer="unknown",
        role=role,
        confidence="low",
        text=text,
        remedy=remedy,
        place=PLACE,
    )
