"""Collect Python exceptions from logs, and the process exits that launchers and schedulers report (exits.py).

Classes and remedies are those of live verdicts: runners/inrank/failure_causes.py. Memory does not grow with the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ...presets.finding import Role, Severity
from ..inrank.failure_causes import Death, Failure, classify, signal_of
from ..inrank.tracebacks import of_launcher
from .exits import Endings, of_rank
from .heads import Head, stamp_of
from .nccl_facts import FactLine
from .printed_traceback import LINES, PrintedTraceback, Step, begins
from .rules import BEGIN, First, Rule, RuleHits, shown

MOST = 64
"""Maximum number of different exceptions."""
STREAMS = 64
"""Maximum number of tracebacks that are open at the same time in one file."""
OLD = 4000
"""Lines after the start of an unfinished traceback before it is dropped."""
LEFT = 64
"""Lines of other writers after an exception before its traceback is closed."""
AFTER = 6
"""Maximum distance in lines between an exception and a chained one."""
LAST = 30
"""An exception within this many lines of the file's end counts as the reason for the end."""
SIGNS = 2
"""Training steps after an exception that prove that the script caught it; one step may have been in progress."""
PLACE = 1 << 20
"""Sorts exceptions after the rules if both match one line."""

_UNCAUGHT = re.compile(r"\[rank\d+\]: ")
"""torch's tag on uncaught exceptions."""
_CHAINED = (
    "another exception occurred",
    "direct cause of the following exception",
    f"Original {BEGIN}",
    "Tracebacks above this line can probably be ignored",  # fairseq
)
"""Text between two tracebacks that report the same failure."""
_OF_LOGGING = "Call stack:"
"""The logging module prints this after an error in a log call, which does not end the process."""
_GROUPS = re.compile(r"^(?:.*\.)?(?:Base)?ExceptionGroup$")
"""Exceptions that contain others, printed after them."""
_RANK = re.compile(r"Traceback \(most recent call last\): \(RANK (\d{1,7})\)")
"""The rank of an exception inside a CheckpointException."""
_OF_ENGINE = re.compile(r"\[[\d: -]{8,25}(?:[DPE]P\d+ )*TP(\d{1,5})(?: [DPE]P\d+)*\] ")
"""The tensor-parallel rank in SGLang's prefix of a traceback."""
_OWN = re.compile(r"\bdid not receive grad for rank (\d{1,7})\b")
"""A message that names the rank that raised the exception."""
_SPAWNED = re.compile(r"-- Process (\d{1,7}) terminated")
"""The rank in the exception of torch.multiprocessing.spawn."""
GENERIC = ("exception", "assertion")
"""Classes that explain nothing: an earlier exception in the chain may explain more."""
_NUMBER = re.compile(r"\d+")
_OF_NONE = re.compile(r"'NoneType'")
"""Matches exceptions from the use of a value that is None."""
_OF_NCCL = re.compile(
    r"DistBackendError|NCCL (?:[Ee]rror|WARN)|ncclInternalError|ncclSystemError|ncclRemoteError"
)


Stream = tuple[int, str]
"""File number and writer."""


@dataclass(slots=True)
class _Trace:
    """A traceback whose lines are still being read."""

    stream: Stream
    name: str
    """Name of the file."""
    head: Head
    printed: PrintedTraceback
    began: int
    """Line number of its first line."""
    sure: bool
    """Whether torch marks it as uncaught."""
    ignored: bool = False
    """Whether Python reports that it ignores the exception."""
    ended: int = 0
    """Line number of the exception; 0 while it is missing."""
    last: tuple[int, str] = (0, "")
    """Number and text of the newest line."""
    key: str = ""
    """Key of the exception in `Exceptions._raised`."""
    raised: tuple[Failure, str] | None = None
    """The failure, and the exception's line."""
    more: bool = False
    """Whether further lines of the message are not classified yet."""

    def is_cut_off(self, lengths: Mapping[int, int]) -> bool:
        """Whether its file ends before the exception. `lengths`: lines of each file so far."""
        printed = self.printed
        if self.ended or self.ignored or not (printed.place or printed.headed or printed.wrapped):
            return False
        return lengths.get(self.stream[0], 0) - self.last[0] <= SHORT

    def cut_off(self) -> RuleHits:
        """Return a failure of unknown class, at the newest line."""
        number, line = self.last
        text = "The log ends within a traceback"
        if self.printed.wrapped:
            text += f", of {self.printed.wrapped}"
        if self.printed.place:
            text += f", at {self.printed.place}{_within(self.printed, line)}"
        evidence = FactLine(self.name, number, shown(line))
        first = First(self.stream[0], evidence, self.head, stamp_of(line))
        return RuleHits.of(replace(CUT_OFF, text=f"{text}: {CUT_OFF.text}"), first)


@dataclass(slots=True)
class _Raised:
    """All occurrences of one exception."""

    failure: Failure
    entry: RuleHits
    sure: bool = False
    """Whether at least one of them certainly ended its process."""
    last: dict[int, int] = field(default_factory=dict)
    """Line number of the newest occurrence, by file."""
    began: dict[int, int] = field(default_factory=dict)
    """Line number where the traceback of the first occurrence begins, by file."""
    lives: dict[Stream, int] = field(default_factory=dict)
    """Number of training steps that each writer logged after the exception."""

    @property
    def outlived(self) -> bool:
        """Whether training went on after the exception."""
        return not self.sure and any(count >= SIGNS for count in self.lives.values())


class _Inner(NamedTuple):
    """An exception that precedes another in a chain."""

    failure: Failure
    line: str
    number: int
    text: str
    first: First
    """Its line as evidence."""


REPORTED = Rule(
    id="launcher-reports",
    severity="error",
    role="symptom",
    layer="python",
    confidence="low",
    place=PLACE - 2,
    text="A rank failed, with an unknown exit code: its launcher reports it, and no line shows why.",
    remedy="Look for the rank's own output: stderr, a folder of logs, the logs of the other nodes.",
)
CUT_OFF = Rule(
    id="died-cut-off",
    severity="error",
    role="cause",
    layer="python",
    confidence="low",
    place=PLACE - 1,
    text="its exception is not there.",
    remedy="Look for the rest: the end of the file, stderr, the logs of the other ranks.",
)
QUOTED = 120
"""Maximum length of a quoted source line, in characters."""
SHORT = 4
"""Lines of other writers that may follow a truncated traceback."""


class Exceptions:
    """Collect exceptions line by line. The lines of several ranks may be interleaved."""

    def __init__(self) -> None:
        self.within = False
        """Whether `line` must receive the next lines, because a traceback is open in this file."""
        self._traces: dict[Stream, _Trace] = {}
        self._look_at = 0
        """Line number of the next search for tracebacks of silent writers."""
        self._raised: dict[str, _Raised] = {}
        self._file, self._name = 0, ""
        self.pending = False
        """Whether a training step would show that an exception of this file was caught."""
        self._inner: dict[Stream, _Inner] = {}
        """The exception before a chained one, by stream."""
        self._classes: dict[tuple[Any, ...], Failure] = {}
        self._ignored: dict[Stream, int] = {}
        self.endings = Endings()
        self.failed = False
        """Whether a log reports a failed process."""
        self._exit: tuple[int, First] | None = None
        """Exit code and line of the first reported exit."""
        self._launcher: First | None = None
        """The first exception of a launcher, which reports that a rank failed."""

    def open(self, file: int, name: str) -> None:
        """Start a file with this number (from 1) and name."""
        self._file, self._name, self.pending, self._look_at = file, name, False, 0
        self.within = self._in_file()

    def _in_file(self) -> bool:
        """Whether a traceback is open in this file. Files may be read in turns."""
        return any(file == self._file for file, _ in self._traces)

    def begin(self, text: str, line: str, stream: str, head: Head, number: int) -> None:
        """Start a traceback if `text` begins one. `text`: the line without prefixes; `head`, `stream`: its writer."""
        where = self._file, stream
        trace = self._traces.get(where)
        headed = BEGIN in text
        if not begins(text) or (trace is not None and not headed and not trace.ended):
            return
        if (named := _RANK.search(text) or _OF_ENGINE.search(line)) is not None:
            head = of_rank(int(named[1]), head)
        if trace is not None:
            self._leave(trace, text)
        for stale in [trace for trace in self._traces.values() if number - trace.began > OLD]:
            self._close(stale)
        if len(self._traces) >= STREAMS:
            self._close(next(iter(self._traces.values())))
        ignored = number - self._ignored.pop(where, -9) <= 2
        sure = _UNCAUGHT.search(line[: line.find(text)] or line[:400]) is not None
        self._traces[where] = _Trace(
            where, self._name, head, PrintedTraceback(text), number, sure, ignored, last=(number, line)
        )
        self.within = True

    def ignore(self, stream: str, number: int) -> None:
        """Note that Python reports the exception of the next traceback as ignored."""
        if len(self._ignored) < STREAMS:
            self._ignored[self._file, stream] = number

    def alive(self, stream: str) -> None:
        """Count a training step of this writer."""
        self.pending = False
        where = self._file, stream
        for raised in self._raised.values():
            if where in raised.lives:
                raised.lives[where] += 1
                self.pending = self.pending or raised.lives[where] < SIGNS

    def ended(self, text: str, line: str, head: Head, number: int) -> bool:
        """Return True if the line reports how a process exited. `text`: the line without prefixes."""
        ending = self.endings.reported(text, head, line)
        if ending is None:
            return False
        if ending.code:
            self.failed = True
            self._exit = self._exit or (ending.code, self._first(line, ending.head, number))
        if ending.failure is not None:
            self._keep(ending.failure, ending.head, line, number, sure=True)
        return True

    def line(self, text: str, line: str, stream: str, number: int) -> bool:
        """Return True if the line belongs to an open traceback. `text`: the line without prefixes."""
        trace = self._traces.get((self._file, stream))
        if trace is None:
            if number >= self._look_at:
                self._close_left(number)
            return False
        if trace.ended and self._is_over(trace, text):
            return False
        step = trace.printed.feed(text)
        if step is Step.PART and text.strip():
            trace.last = number, line
        if trace.more and step is not Step.MORE:
            self._settle(trace)
        if step is Step.RAISED:
            self._came_to(trace, line, number)
        elif step is Step.MORE:
            trace.more = True  # it may also be an independent line
        elif step is Step.OVER or (trace.ended and number - trace.ended > AFTER):
            self._close(trace)
        return step in (Step.PART, Step.RAISED)

    def _is_over(self, trace: _Trace, text: str) -> bool:
        """Close a complete traceback if the line shows that it was logged, or that another one is chained to it."""
        if text.startswith(_OF_LOGGING):
            self._settle(trace)
            self._take_back(trace.key)
            self._close(trace)
            return True
        if any(word in text for word in _CHAINED):
            self._leave(trace, text)
            return True
        return False

    def _close_left(self, number: int) -> None:
        """Close tracebacks of silent writers: no exception is chained over this distance."""
        self._look_at = number + LEFT
        for trace in list(self._traces.values()):
            if trace.stream[0] == self._file and trace.ended and number - trace.ended > LEFT:
                self._close(trace)

    def entries(self, lengths: Mapping[int, int]) -> Iterator[RuleHits]:
        """Yield the exceptions as rules that fired. `lengths`: lines of each file so far."""
        for trace in self._traces.values():
            self._settle(trace)
        for place, raised in enumerate(self._raised.values()):
            ends = any(lengths.get(file, 0) - line <= LAST for file, line in raised.last.items())
            sure = raised.sure or ((self.failed or ends) and not raised.outlived)
            yield replace(raised.entry, rule=_rule(raised.failure, place, sure))

    def cut_off(self, lengths: Mapping[int, int]) -> Iterator[RuleHits]:
        """Yield the first traceback that the end of its file cuts off: a failure of unknown class.

        If it belongs to a chain, yield the exception before it instead.
        """
        cut = [each for each in self._traces.values() if each.is_cut_off(lengths)]
        first = min(cut, key=lambda each: (each.stream[0], each.began), default=None)
        inner = self._unfinished(lengths) if first is None else self._inner.get(first.stream)
        if inner is not None:
            yield RuleHits.of(_rule(inner.failure, MOST + 1, True), inner.first)
        elif first is not None:
            yield first.cut_off()

    def _unfinished(self, lengths: Mapping[int, int]) -> _Inner | None:
        """Return the first exception before a chained one that the end of its file cuts off before its first frame."""
        ends = [
            each for each in self._inner.values() if lengths.get(each.first.file, 0) - each.number <= LAST
        ]
        return min(ends, key=lambda each: (each.first.file, each.number), default=None)

    def of_none(self) -> Iterator[tuple[int, int, int]]:
        """Yield rule place, file and first line of the traceback of each exception about a None."""
        for place, raised in enumerate(self._raised.values()):
            if raised.failure.kind in GENERIC and _OF_NONE.search(raised.failure.text):
                yield from ((PLACE + place, file, line) for file, line in raised.began.items())

    @property
    def raised(self) -> bool:
        """Whether the line of at least one exception was read."""
        return bool(self._raised)

    @property
    def killed(self) -> First | None:
        """The first exit report if a signal ended that process. Lines after it are consequences."""
        return self._exit[1] if self._exit is not None and signal_of(self._exit[0]) is not None else None

    @property
    def exited(self) -> First | None:
        """The first exit report if no signal ended that process. The launcher then ends the others because of it."""
        return self._exit[1] if self._exit is not None and signal_of(self._exit[0]) is None else None

    def exits(self) -> Iterator[RuleHits]:
        """Yield the first reported exit as a low-confidence cause, else a launcher's exception."""
        if self._exit is not None:
            code, first = self._exit
            rule = replace(_rule(classify(Death(0, code, {})), MOST, True), role="cause", confidence="low")
            yield RuleHits.of(rule, first)
        elif self._launcher is not None:
            yield RuleHits.of(REPORTED, self._launcher)

    def _first(self, line: str, head: Head, number: int) -> First:
        return First(self._file, FactLine(self._name, number, shown(line)), head, stamp_of(line))

    def _came_to(self, trace: _Trace, line: str, number: int) -> None:
        """Handle the exception's own line."""
        printed = trace.printed
        trace.ended = number
        if of_launcher(printed.kind, printed.text):
            self._launched("", line, trace.head, number)
            self._close(trace)
        elif not trace.ignored and not _GROUPS.match(printed.kind):
            self._take(trace, line, number)

    def _launched(self, text: str, line: str, head: Head, number: int) -> None:
        """Note a launcher's own exception. `text`: its message, which may name the rank."""
        self.failed = True
        if (named := _SPAWNED.match(text)) is not None:
            head = of_rank(int(named[1]), head)
        self._launcher = self._launcher or self._first(line, head, number)

    def _take(self, trace: _Trace, line: str, number: int) -> None:
        """Count the exception, or the one before it in the chain if that explains more."""
        failure = self._classed(trace.printed.raised(), line)
        inner, at, head = self._inner.pop(trace.stream, None), number, trace.head
        if inner is not None and number - inner.number <= LINES:
            again = inner.failure.kind == failure.kind and inner.text == trace.printed.text
            if again or (failure.kind in GENERIC and inner.failure.kind not in GENERIC):
                failure, line, at = inner.failure, inner.line, inner.number
        trace.key, trace.raised = (
            self._keep(failure, head, line, at, trace.sure, trace.stream),
            (failure, line),
        )
        if trace.key:
            self._raised[trace.key].began.setdefault(trace.stream[0], trace.began)

    def _settle(self, trace: _Trace) -> None:
        """Classify again with the further lines of the message."""
        more, trace.more = trace.more, False
        if not more or trace.raised is None:
            return
        before, line = trace.raised
        raised = trace.printed.raised()
        text = str(raised["text"])
        if of_launcher(trace.printed.kind, text):
            self._launched(text, line, trace.head, trace.ended)
            self._take_back(trace.key)
            trace.raised = None
            return
        named = _OWN.search(text) if trace.head.rank is None else None
        if named is not None:
            trace.head = of_rank(int(named[1]), trace.head)
        failure = self._classed(raised, line)
        other = failure.kind != before.kind and before.kind in GENERIC and not failure.symptom
        if other or (failure.kind == before.kind and (failure.text != before.text or named is not None)):
            self._take_back(trace.key)
            trace.key = self._keep(failure, trace.head, line, trace.ended, trace.sure, trace.stream)
            trace.raised = failure, line

    def _classed(self, raised: dict[str, Any], last: str) -> Failure:
        """Classify an exception, cached since many ranks raise the same. NCCL explains what torch raises for it."""
        key = tuple(raised.values())
        failure = self._classes.get(key)
        if failure is None:
            failure = classify(Death(0, None, raised))
            if failure.kind in GENERIC and _OF_NCCL.search(last):
                failure = failure._replace(
                    kind="nccl", symptom=True, remedy="see NCCL's messages before it"
                )
            if len(self._classes) < MOST:
                self._classes[key] = failure
        return failure

    def _leave(self, trace: _Trace, text: str) -> None:
        """Close a traceback whose writer begins another. A chain or a wrapper makes both the same failure."""
        wrapped = trace.printed.kind.endswith("CheckpointException") and BEGIN in text
        self._settle(trace)
        if trace.ended and (wrapped or any(word in text for word in _CHAINED)):
            self._take_back(trace.key)
            if trace.raised is not None:
                failure, line = trace.raised
                first = self._first(line, trace.head, trace.ended)
                self._inner[trace.stream] = _Inner(failure, line, trace.ended, trace.printed.text, first)
        self._close(trace)

    def _close(self, trace: _Trace) -> None:
        self._settle(trace)
        self._traces.pop(trace.stream, None)
        self.within = self._in_file()

    def _keep(
        self, failure: Failure, head: Head, line: str, number: int, sure: bool, stream: Stream | None = None
    ) -> str:
        key = f"{failure.kind}|{failure.key or _NUMBER.sub('#', failure.text)}"
        if key not in self._raised and len(self._raised) >= MOST:
            return ""
        raised = self._raised.get(key)
        if raised is None:
            raised = self._raised[key] = _Raised(failure, RuleHits(_rule(failure, 0, True)))
        raised.sure = raised.sure or sure
        if stream is not None and (stream in raised.lives or len(raised.lives) < STREAMS):
            raised.lives[stream], self.pending = 0, True
        entry = raised.entry
        first = entry.seen(head, self._file)
        if self._file in entry.files:
            raised.last[self._file] = number
        if first:
            values = {"where": failure.where} if failure.where else {}
            entry.firsts.append(replace(self._first(line, head, number), values=values))
        return key

    def _take_back(self, key: str) -> None:
        raised = self._raised.get(key)
        if raised is not None:
            raised.entry.count -= 1
            if not raised.entry.count:
                del self._raised[key]


def _rule(failure: Failure, place: int, sure: bool) -> Rule:
    severity: Severity
    role: Role
    if sure:
        severity, role = "error", "symptom" if failure.symptom else "cause"
        remedy = failure.remedy
    else:
        severity, role = "warning", "symptom" if failure.symptom else "hint"
        remedy = f"the script may have gone on after it; if not: {failure.remedy}"
    return Rule(
        id=f"died-{failure.kind}",
        severity=severity,
        role=role,
        layer="python",
        confidence="high" if sure else "low",
        text=text_of(failure),
        remedy=sentence(remedy),
        place=PLACE + place,
    )


def _within(printed: PrintedTraceback, last: str) -> str:
    """Return the innermost frame if in a library, and its source line: the only hints to the missing exception."""
    file, line, name = printed.innermost
    inner = f"{file.rpartition('/')[2]}:{line}" != printed.place
    library = f", in {name} ({'/'.join(file.split('/')[-2:])}:{line})" if inner else ""
    newest, before = printed.sources
    cut = before and last.rstrip().endswith(newest)  # the file's last line may be truncated
    source = before if cut else newest
    return library + (f", at `{source[:QUOTED]}`" if source else "")


def text_of(failure: Failure) -> str:
    """Return the failure's text without the rank's number, which is invented here."""
    return sentence(f"A rank {failure.text.partition(' ')[2].partition(' ')[2]}")


def sentence(text: str) -> str:
    """Return the text with a capital letter and a period."""
    return f"{text[:1].upper()}{text[1:]}."
