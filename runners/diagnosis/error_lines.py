"""Sentences of errors that no rule knows and no traceback carries, so that a failure is never told as nothing.

The best of them is quoted where nothing else explains a failure: what the table of causes knows comes first, then by
how sure the form of the line makes that something failed, then the earliest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from ...presets.finding import Role
from ..inrank.failure_causes import Failure, of_line
from ..inrank.known_causes import NAN_REMEDY
from .exceptions import LAST, sentence, text_of
from .heads import Head, stamp_of
from .nccl_facts import FactLine
from .prefixes import Writer
from .printed_traceback import NEXT, OF_RAY
from .rules import First, Rule, RuleHits, shown

MOST, MOST_WORDS, MOST_IN_ALL = 64, 16, 8192
"""Sentences that are kept of a file, the least sure of them, and those of all files: one that reports much leaves room
for the others.
"""
LAST_WORDS = 1
"""Lines of a file before its end within which words alone are taken for what ended it."""
PLACE = 1 << 21
"""Behind exceptions, where two stand in one line."""
QUOTED = 300
"""Characters of a sentence that are quoted."""

REASON = "Last error:"
"""What torch writes above NCCL's own reason: it says nothing where that is not there."""
UNEXPLAINED = "unexplained"
"""The rule of a sentence that the table of causes does not know."""


class Sureness(IntEnum):
    """How sure the form of a line is that something failed."""

    WORDS = 1
    """It says so in words: not found, denied, failed."""
    LEVEL = 2
    """It is logged as an error."""
    ENDED = 3
    """An exception's line, or the last words of a process that ends itself."""


_ENDED = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Timeout|Expired|NotFound|Exceeded)(?:\(\w+\))?(?::\s|:?$)"
    r"|^\s*what\(\): +\S|Fatal Python error|^(?i:fatal)[: ]|\bFATAL\b"
    r"|^\S+: error: |^nvcc (?:fatal|error) *: |^Cuda failure \d|^Memory access fault by|^[\w.]+\.OutOfResources:"
    r"|\b(?:hip|cuda)Error[A-Z]\w+: "
    r"|^Last error:\s*$|\bTHCudaCheck FAIL\b|\bCheck failed: "
    r"|\bAssertion [`'].{1,400}?['`] failed\b"
)
_LEVEL = re.compile(
    r"\b(?:ERROR|CRITICAL)\b|\|CCL_ERROR\||^Error executing job\b|^terminate called after throwing"
    r"|(?i:loss is (?:nan|inf)\b.{0,40}stopp)|\*\*\* An error occurred in MPI_"
    r"|\[E\d{3,4} |^E\d{4} |\[E \w+\.\w+:\d+\]|\b[Ee]rror(?::| #?-?\d+\b)|\berror\]|NCCL WARN|Last error:"
    r"|\b\w+Error:|\b[Ee]rror in [\w.<>]{1,80}: |^[EF] \d\d-\d\d \d\d:\d\d:\d\d "
    r"|\bsize mismatch for \S+: copying a param\b|\bpthread_create failed\b|^Test \w+ failure\b"
    r"|^\[[\d :,-]+ [CF] \d+ \d+\] |^E[A-Z]\d{4}: |: undefined symbol: |\bunschedulable: "
    r"|^ninja: build stopped|^FAILED: \S"
    r"|^\s*(?:\S+\s+)?Warning\s{2,}[A-Z]\w+\s{2,}\S"
    r"|^Exception raised from (?:nccl|check|throwNCCL|getNCCL|initialize)\w* at "
)
_WORDS = re.compile(
    r"^\s*assert \S|^Error [a-z]|command not found|No such file or directory|(?i:permission denied)|Exec format error"
    r"|(?i:not? (?:found|installed)|does not exist)|^(?:/\S{1,80}/)?(?:ba|da|k|z)?sh: .{1,200}: not a valid "
    r"|(?i:\bquota\b.{0,120}exceed|exceed.{0,80}\bquota\b)"
    r"|\bnodes are available: |, but another process is utilizing it"
    r"|\b(?i:cannot|can't|could not|unable to|failed|failure|evicted|killed|aborted|unrecognized arguments|refused)\b"
)
HINTS = (
    "rror",
    "RROR",
    "atal",
    "FATAL",
    "RITICAL",
    "xception",
    "NCCL WARN",
    "what():",
    "terminate called",
    "access fault",
    "Check FAIL",
    "[Errno ",
)
"""One stands in each line of the two surer kinds: cheap to look for."""
SOFT = (
    "found",
    "No such",
    "enied",
    "annot",
    "can't",
    "ould not",
    "nable to",
    "ailed",
    "illed",
    "victed",
    "efused",
    "nrecognized",
    "not exist",
    "borted",
    "are available: ",
    "is utilizing",
    "ailure",
    "nstalled",
    "topping",
    "mismatch for",
    "imes out",
    "Warning  ",
    "AILED: ",
    "undefined symbol",
    "schedulable: ",
    "xceed",
    "not a valid",
    "rad scale",
)
"""The same of the least sure."""
ERROR_WORDS = (*HINTS, *SOFT)
_NOTHING = re.compile(
    r"^[\s^~]*$|^\s*frame #\d+: "
    r'|^\s*File "|\bFile "[^"]{1,400}", line \d|^\s*raise |^\s*self\.\w|^\s*return \w+\(|error_file'
    r"|(?i:\berrors?[\"']?\s*[:=]\s*(?:0|none|null|false|<N/A>|$))|Traceback \(most"
    r"|(?i:\berror\b\s*+(?:[:=]\s*+)?-?\d+\.\d)"
    r"|\b0 errors?\b|^\s*(?:failed|succeeded|active): \d+$|^nccl\w+Error: |closing signal|ChildFailedError"
    r"|CalledProcessError|Root Cause|failed \(exitcode"
    r"|exits with return code|CHILD PROCESS FAILED|error_handler: ?\{?$|Submitted job triggered an exception"
    r"|couldn't chdir to .*: going to \S+ instead|^a non-zero exit code\. Per user-direction"
    r"|^UserError: User program failed with|async event ?: ?(?:client reregistration|port active|[\w ]{1,12} change)"
    r"|FutureWarning|DeprecationWarning|UserWarning|\bINFO\b|\bDEBUG\b|\bWARNING\b|\blevel=(?:info|debug|warn)"
)
"""Words of errors that are none, or only of launchers whose ranks failed."""
_WARNING = re.compile(r"\bUserWarning: |^WARNING\b(?: \[[^\]]{1,80}\])?(?: \(\S{1,20}\))?:? ")
_WARNED = re.compile(r"\[W\d{0,4} |^W\d{4} |\[I\d{4} ")
"""A warning, or less, of torch's C++ (glog), before its prefix is taken away."""
_REPORTED = re.compile(r"Error: failed to run torchrun ")
"""Of a launcher that starts others: it says that they failed, and all else says more."""
_SOCKET = re.compile(r"socket has failed to (?:bind|connect) .{1,400}errno: (?!97\b)\d")
"""A warning all the same: which port, or which peer, where torch raises no exception that names it. Error 97 only says
that there is no IPv6."""
_SAID = re.compile(r"\s*what\(\): +\S")
"""What C++ adds to the type of an exception that nobody caught."""
_LEVELLED = re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b")
"""The level of an error, before the sentence."""
_TAGGED = re.compile(r"\[rank\d+\]: (?![\s\[])")
"""torch's tag on what it prints of an uncaught exception: also a line whose exception is not there is of one."""
_MINOR = re.compile(r"\b(?:INFO|WARN(?:ING)?|DEBUG|NOTICE)\b|\bI\d{4}\b|^[WI] \d\d-\d\d ")
"""Levels below that of errors, before the sentence."""
_ALIVE = re.compile(
    r"\d%\|.*\||(?i:\b(?:step|iter|iteration|epoch|global_step)\b\W{0,3}\d+.{0,80}\b(?:loss|lr|tok|time|acc))"
    r"|(?i:\bloss\W{0,4}-?\d)|\biteration +\d+/ *\d+ \|"
    r"|^\s*(?:\S+\s+)?Normal\s{2,}(?:Scheduled|Started)\s{2,}"
)
"""A training that goes on."""
_NOT_FINITE = re.compile(
    r"""(?i)loss\]?["']?\s*+(?:[=:|,]\s*+)?(?:tensor\()?["']?(?:(?P<sure>nan)|[-+]?inf)\b"""
    r"""|grad[ _]norm["']?\s*+(?:[=:|]\s*+)?["']?(?:nan|[-+]?inf)\b"""
)
"""Only a loss that is NaN is sure by itself."""
_SKIPPED = re.compile(r"skipped iterations: +[1-9]")
"""A step that a loss scaler leaves out, as it does until its scale fits."""
ENOUGH = 3
"""Such lines in a row that show the same where one does not."""
_ABSENT = re.compile(r"(?i)not exist|no such|not found|cannot find|could ?n.t (?:find|open|read|load)")
"""What is said of something that is not there."""
NEAR = 6
"""Lines above a traceback in which that stands."""


@dataclass(slots=True)
class _Sentence:
    """A line that tells of an error."""

    sureness: Sureness
    failure: Failure | None
    """Its class, where the table knows it."""
    text: str
    first: First
    outlived: bool = False
    """Whether training went on after it."""
    title: bool = False
    """Whether a traceback begins right below it, or Ray says of which kind the exception is that follows."""
    warned: bool = False
    """Whether it is logged as less than an error."""
    lasts: bool = False
    """Whether it holds until training goes on otherwise, however far the end is."""
    times: int = 1
    """How often it was written in a row; only counted for such ones."""


class ErrorLines:
    """Collects such lines while logs are read."""

    def __init__(self) -> None:
        self._kept: list[_Sentence] = []
        self._counts: Counter[int] = Counter()
        self._words: Counter[int] = Counter()
        """How many are kept of each file, by its number, and how many of them say it only in words."""
        self.full = False
        """Whether no more is kept of this file."""
        self._file, self._name = 0, ""
        self.open_here = False
        """Whether a sentence of this file waits for a sign of life after it."""
        self.awaited = 0
        """The line in which the newest sentence goes on, as its colon says; 0 for none."""

    def open(self, file: int, name: str) -> None:
        """The next lines are of this file: its number, from 1, and its name."""
        self._file, self._name, self.open_here, self.awaited = file, name, False, 0
        self.full = self._counts[file] >= MOST or len(self._kept) >= MOST_IN_ALL

    def line(self, line: str, text: str, head: Head, number: int, has_rule: bool) -> None:
        """A line that may report an error; `text`: without prefixes; `has_rule`: a rule reads it, too."""
        if (
            self._joins(line, text, head, number)
            or self.full
            or (_WARNED.search(line, 0, 80) and not _SOCKET.search(text))
        ):
            return
        if _NOTHING.search(text) and text.strip() != REASON:
            self._warning(line, text, head, number)
            return
        before = line.partition(text)[0]
        sureness = sureness_of(text)
        if _LEVELLED.search(before) and not text[:1].isspace():
            sureness = max(sureness or Sureness.LEVEL, Sureness.LEVEL)
        elif sureness is None and _TAGGED.match(line):
            sureness = Sureness.WORDS
        if sureness is None or (sureness is Sureness.WORDS and self._words[self._file] >= MOST_WORDS):
            return
        failure = of_line(text)
        if sureness is Sureness.WORDS and failure is not None:
            sureness, failure = (sureness, None) if failure.symptom else (Sureness.LEVEL, failure)
        if has_rule and (failure is None or failure.symptom):
            return
        first = self._first(line, head, number)
        minor, title = _MINOR.search(before) is not None, OF_RAY.match(text) is not None
        self._keep(_Sentence(sureness, failure, text, first, warned=minor, title=title))
        self.open_here = True

    def _first(self, line: str, head: Head, number: int) -> First:
        return First(self._file, FactLine(self._name, number, shown(line)), head, stamp_of(line))

    def _newest(self) -> _Sentence | None:
        """The newest sentence, where it is of this file."""
        last = self._kept[-1] if self._kept else None
        return last if last is not None and last.first.file == self._file else None

    def _joins(self, line: str, text: str, head: Head, number: int) -> bool:
        """Whether a line is the next one of the sentence before, which says with a colon that more follows."""
        last = self._newest()
        if last is None or last.first.evidence.line != number - 1:
            return False
        if not text[:1].isspace() and (number != self.awaited or NEXT.match(text)):
            return False
        if last.text.startswith("terminate called") and _SAID.match(text):
            last.text, last.failure, last.sureness = text, of_line(text), Sureness.ENDED
            last.first = self._first(line, head, number)
            return True
        indented = text[:1].isspace() and last.sureness is Sureness.ENDED and last.failure is None
        if not last.text.rstrip().endswith(":") and not indented:
            return False
        last.failure = of_line(f"{last.text}\n{text.strip()}") or last.failure
        if last.text.strip() == REASON:
            last.text, last.first = text.strip(), self._first(line, head, number)
        elif last.failure is None and last.sureness is Sureness.ENDED:
            last.text = f"{last.text.rstrip()} {text.strip()}"
        return last.failure is not None or last.sureness is Sureness.ENDED

    def _keep(self, sentence: _Sentence) -> None:
        self._kept.append(sentence)
        goes_on = sentence.sureness is Sureness.ENDED and sentence.text.rstrip().endswith(":")
        self.awaited = sentence.first.evidence.line + 1 if goes_on else 0
        self._counts[self._file] += 1
        self._words[self._file] += sentence.sureness is Sureness.WORDS
        self.full = self._counts[self._file] >= MOST or len(self._kept) >= MOST_IN_ALL

    def _warning(self, line: str, text: str, head: Head, number: int) -> None:
        """A warning of Python's: the reason of a failure that is not told, where the table of causes knows it."""
        match = _WARNING.search(text)
        failure = None if match is None else of_line(text[match.end() :])
        if failure is not None and not failure.symptom and self._words[self._file] < MOST_WORDS:
            first = self._first(line, head, number)
            self._keep(_Sentence(Sureness.WORDS, failure, text, first, warned=True))

    def diverged(self, line: str, number: int, head: Head, wrote: Writer) -> bool:
        """Whether a line of training has a loss that is not a number; the first of those in a row is kept."""
        text = wrote.text
        match = _NOT_FINITE.search(text)
        if match is None or not is_alive(text) or not (match["sure"] or _SKIPPED.search(text) is None):
            return False
        last, times = self._newest(), ENOUGH if match["sure"] else 1
        if last is not None and last.lasts and not last.outlived:
            last.times += times
            return True
        if self.full:
            return True
        first = self._first(line, head, number)
        failure = Failure(
            0,
            "nan",
            f"rank 0 trains on with a loss or gradient that is not a number: {_around(text, match.start())}",
            NAN_REMEDY,
            "maybe",
        )
        self._keep(_Sentence(Sureness.LEVEL, failure, text, first, lasts=True, times=times))
        self.open_here = True
        return True

    def introduces(self, number: int) -> None:
        """A traceback begins in this line: what was logged right above it as its title says less than its exception."""
        last = self._newest()
        if last is None or number - last.first.evidence.line > 1:
            return
        last.title = last.title or (last.failure is None and last.sureness is not Sureness.ENDED)

    def announced(self, file: int, line: int) -> RuleHits | None:
        """What is absent, as a file says right above a traceback that begins in this line; None for nothing."""
        near = (
            each
            for each in reversed(self._kept)
            if each.first.file == file and 0 < line - each.first.evidence.line <= NEAR
        )
        best = next((each for each in near if not each.outlived and _ABSENT.search(each.text)), None)
        return None if best is None else RuleHits.of(_rule(best, True), best.first)

    def outlive(self) -> None:
        """Training goes on in this file."""
        for each in self._kept:
            if each.first.file == self._file:
                each.outlived = True
        self.open_here = False

    def entries(
        self,
        lengths: Mapping[int, int],
        failed: bool,
        killed: First | None = None,
        titles: bool = True,
        symptoms: Mapping[int, int] = MappingProxyType({}),
    ) -> Iterator[RuleHits]:
        """The best sentence, as a rule that fired: a cause where the job failed or nothing came after it.

        `lengths`: lines of each file so far; `failed`: somebody else tells that the job failed; `killed`: where a
        process is reported to have been killed, after which sentences of that file tell only what followed; `titles`:
        also those of tracebacks, whose exceptions are not there; `symptoms`: by number of a file the line of its first
        symptom, after which what the table does not know is one more.
        """
        kept = [
            each
            for each in self._kept
            if not (
                _follows(each.first, killed)
                or (each.title and not titles)
                or each.text.strip() == REASON
                or _is_after(each, symptoms)
            )
        ]
        surer = [each for each in kept if each.sureness > Sureness.WORDS]
        ended = kept if failed else [each for each in kept if _ends(each, lengths)]
        best = min(ended or surer, key=_order, default=None)
        if best is not None:
            yield RuleHits.of(_rule(best, bool(ended)), best.first)


def _around(text: str, at: int) -> str:
    """What stands at a place of a line, of a long one without its beginning."""
    text = shown(text.strip())
    begin = max(0, min(at, len(text)) - QUOTED // 2) if len(text) > QUOTED else 0
    part = text[begin : begin + QUOTED]
    return f"…{part}" if begin else part


def _follows(first: First, killed: First | None) -> bool:
    return killed is not None and first.file == killed.file and first.evidence.line > killed.evidence.line


def _is_after(each: _Sentence, symptoms: Mapping[int, int]) -> bool:
    """Whether a sentence that the table does not know stands after a symptom in the same file."""
    line = symptoms.get(each.first.file)
    follows = line is not None and each.first.evidence.line > line
    return follows and each.sureness < Sureness.ENDED and each.failure is None


def _ends(each: _Sentence, lengths: Mapping[int, int]) -> bool:
    """Whether its file ends with it, and no training went on after it."""
    if each.lasts:
        return not each.outlived and each.times >= ENOUGH
    left = lengths.get(each.first.file, 0) - each.first.evidence.line
    if each.outlived or (each.warned and each.sureness is Sureness.WORDS):
        return False
    return left <= (LAST if each.sureness > Sureness.WORDS else LAST_WORDS)


def is_alive(line: str) -> bool:
    """Whether a line shows that training goes on."""
    for word in ("%|", "oss", "tep", "ter", "poch", "OSS", "TEP", "TER", "POCH", "Normal  "):
        if word in line:
            return _ALIVE.search(line) is not None
    return False


def may_diverge(line: str) -> bool:
    """Whether a line has a loss or gradient that is no number; the words first, since it is asked for every line."""
    maybe = "nan" in line or "NaN" in line or " inf " in line or ": inf" in line or "=inf" in line
    return (maybe or line.endswith(" inf")) and _NOT_FINITE.search(line) is not None


def may_report(line: str) -> bool:
    """Whether a line has torch's tag, the level of an error, or a word without which it is no error.

    A loop: it is asked for every line.
    """
    for word in ERROR_WORDS:
        if word in line:
            return True
    return line.startswith(("[rank", "E "))


def sureness_of(text: str) -> Sureness | None:
    """How sure a line is that something failed; None where it is no error."""
    if _ENDED.search(text):
        return Sureness.ENDED
    if _LEVEL.search(text):
        return Sureness.LEVEL
    return Sureness.WORDS if _WORDS.search(text) else None


def _order(each: _Sentence) -> tuple[bool, bool, bool, bool, int, int, int]:
    failure, first = each.failure, each.first
    symptom = failure is not None and failure.symptom
    reported = _REPORTED.match(each.text) is not None
    return (
        each.outlived,
        symptom,
        failure is None,
        reported,
        -each.sureness,
        first.file,
        first.evidence.line,
    )


def _rule(best: _Sentence, ended: bool) -> Rule:
    failure = best.failure
    if failure is None:
        name, text = UNEXPLAINED, f"No rule knows this: {shown(best.text)[:QUOTED]}"
        remedy = "Read the lines around it: it is the earliest sentence that tells of an error."
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
