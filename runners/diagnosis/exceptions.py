"""Exceptions in logs, as Python prints them, with the exits of processes that others report (exits.py).

Classes and remedies are those of live verdicts: runners/inrank/failure_causes.py. Memory does not grow with the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..inrank.failure_causes import Death, Failure, classify
from ..inrank.tracebacks import in_lines, of_launcher, raised_in
from .exits import Endings
from .heads import Head, stamp_of, unshipped
from .nccl_facts import FactLine
from .rules import BEGIN, First, Rule, RuleHits, shown

MOST = 64
"""Different exceptions that are kept."""
STREAMS, LINES = 64, 400
"""Tracebacks that may be printed at the same time, in one file; lines of one."""
OLD = 4000
"""Lines after which an unfinished traceback is dropped."""
AFTER = 6
"""Lines after an exception within which a chained one may begin."""
LAST = 30
"""Lines of a file before its end within which an exception is taken for what ended it."""
PLACE = 1 << 20
"""Behind the rules, where two stand in one line."""

_UNCAUGHT = re.compile(r"\[rank\d+\]: ?$")
"""torch's tag on uncaught exceptions."""
_TAGGED = re.compile(r"^\[(?:rank|default)\d+\]:|^\[\d+,\d+\]<std")
_CHAINED = (
    "another exception occurred",
    "direct cause of the following exception",
    f"Original {BEGIN}",
    "Tracebacks above this line can probably be ignored",  # fairseq
)
"""The next exception is of the same failure, and nearer to its cause or its outcome."""
GENERIC = ("exception", "assertion")
"""Classes that say no more than the exception does: the one before it in a chain may."""
_NUMBER = re.compile(r"\d+")
_OF_NCCL = re.compile(
    r"DistBackendError|NCCL (?:error|WARN)|ncclInternalError|ncclSystemError|ncclRemoteError"
)


@dataclass(slots=True)
class _Trace:
    """A traceback that is being printed."""

    prefix: str
    head: Head
    lines: list[str]
    began: int
    """Line of its beginning."""
    ended: int = 0
    """Line of its exception; 0 before that."""
    key: str = ""
    """Of the exception that it came to."""
    raised: tuple[Failure, str] | None = None
    """Its class, and its line."""


@dataclass(slots=True)
class _Raised:
    """Equal exceptions."""

    failure: Failure
    entry: RuleHits
    sure: bool = False
    """Whether one of them ended its process for certain."""
    last: dict[int, int] = field(default_factory=dict)
    """Line of the newest, by file."""


class Exceptions:
    """Collects exceptions while lines are read; the lines of several ranks may be interleaved."""

    def __init__(self) -> None:
        self.within = False
        """Whether `line` needs the next lines, since a traceback is being printed."""
        self._traces: dict[str, _Trace] = {}
        self._raised: dict[str, _Raised] = {}
        self._file, self._name = 0, ""
        self._inner: dict[str, tuple[Failure, str, int]] = {}
        """By prefix the exception before a chained one, where the table knows its class; its line and its number."""
        self.endings = Endings()
        self.failed = False
        """Whether somebody reported a failed process."""
        self._exit: tuple[int, First] | None = None
        """The first that was reported: its code, and the line."""

    def open(self, file: int, name: str) -> None:
        """The next lines are of this file: its number, from 1, and its name."""
        self._file, self._name, self.within = file, name, False
        self._traces.clear()
        self._inner.clear()

    def begin(self, line: str, head: Head, number: int) -> None:
        """A traceback begins; `head`: whose it is."""
        text = unshipped(line)
        prefix = text[: text.index(BEGIN)].removesuffix("Original ")
        for stale in [trace for trace in self._traces.values() if number - trace.began > OLD]:
            self._close(stale)
        if len(self._traces) < STREAMS or prefix in self._traces:
            self._traces[prefix] = _Trace(prefix, head, [text[len(prefix) :]], number)
            self.within = True

    def ended(self, text: str, line: str, head: Head, number: int) -> None:
        """A line that may report how a process exited; `text`: without prefixes."""
        ending = self.endings.reported(text, head)
        if ending is not None:
            if ending.code and not self.failed:
                self.failed = True
                self._exit = ending.code, self._first(line, ending.head, number)
            if ending.failure is not None:
                self._keep(ending.failure, ending.head, line, number, sure=True)

    def line(self, line: str, number: int) -> bool:
        """A line while `within`, that is none of NCCL's; True where it is one of a traceback."""
        text = unshipped(line)
        trace = self._of(text)
        if trace is None:
            return False
        rest = text[len(trace.prefix) :]
        if trace.ended:
            self._after(trace, rest, number)
            return False
        trace.lines.append(rest[:2000])
        if rest and not rest[0].isspace():
            self._perhaps(trace, line, number)
        if len(trace.lines) > LINES:
            self._close(trace)
        return True

    def entries(self, lengths: Mapping[int, int]) -> Iterator[RuleHits]:
        """The exceptions, as rules that fired; `lengths`: lines of each file so far."""
        for place, raised in enumerate(self._raised.values()):
            sure = (
                raised.sure
                or self.failed
                or any(lengths.get(file, 0) - line <= LAST for file, line in raised.last.items())
            )
            yield replace(raised.entry, rule=_rule(raised.failure, place, sure))

    def exits(self) -> Iterator[RuleHits]:
        """The first exit that was reported, as a cause, for want of a better one."""
        if self._exit is not None:
            code, first = self._exit
            rule = replace(_rule(classify(Death(0, code, {})), MOST, True), role="cause", confidence="low")
            yield RuleHits.of(rule, first)

    def _first(self, line: str, head: Head, number: int) -> First:
        return First(self._file, FactLine(self._name, number, shown(line)), head, stamp_of(line))

    def _of(self, text: str) -> _Trace | None:
        """The traceback of a line: the one with the longest prefix of it; one without a prefix takes no tagged line."""
        fits = [trace for trace in self._traces.values() if text.startswith(trace.prefix)]
        best = max(fits, key=lambda trace: len(trace.prefix), default=None)
        return None if best is None or (not best.prefix and _TAGGED.match(text)) else best

    def _perhaps(self, trace: _Trace, line: str, number: int) -> None:
        """A line that may be the exception's own."""
        kind = raised_in(trace.lines[-1])
        if kind is None:
            return
        if of_launcher(kind):
            self.failed = True
            self._close(trace)
            return
        raised = in_lines(trace.lines)
        if raised:
            failure = _classed(Death(trace.head.rank or 0, None, raised), trace.lines[-1])
            sure = _UNCAUGHT.search(trace.prefix) is not None
            trace.ended, at = number, number
            inner = self._inner.pop(trace.prefix, None)
            if inner is not None and failure.kind in GENERIC and number - inner[2] <= LINES:
                failure, line, at = inner
            trace.key = self._keep(failure, trace.head, line, at, sure)
            trace.raised = failure, line

    def _after(self, trace: _Trace, rest: str, number: int) -> None:
        """A line after an exception: a chained one may begin."""
        if any(word in rest for word in _CHAINED):
            self._take_back(trace.key)
            self._close(trace)
            if trace.raised is not None and trace.raised[0].kind not in GENERIC:
                self._inner[trace.prefix] = *trace.raised, trace.ended
        elif number - trace.ended > AFTER:
            self._close(trace)

    def _close(self, trace: _Trace) -> None:
        self._traces.pop(trace.prefix, None)
        self.within = bool(self._traces)

    def _keep(self, failure: Failure, head: Head, line: str, number: int, sure: bool) -> str:
        key = f"{failure.kind}|{failure.key or _NUMBER.sub('#', failure.text)}"
        if key not in self._raised and len(self._raised) >= MOST:
            return ""
        raised = self._raised.get(key)
        if raised is None:
            raised = self._raised[key] = _Raised(failure, RuleHits(_rule(failure, 0, True)))
        raised.sure = raised.sure or sure
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


def _classed(death: Death, last: str) -> Failure:
    """Its class; what torch raises since NCCL failed is NCCL's to explain."""
    failure = classify(death)
    if failure.kind in ("exception", "assertion") and _OF_NCCL.search(last):
        return failure._replace(kind="nccl", symptom=True, remedy="see NCCL's messages before it")
    return failure


def _rule(failure: Failure, place: int, sure: bool) -> Rule:
    if sure:
        severity, role, remedy = "error", "symptom" if failure.symptom else "cause", failure.remedy
    else:
        severity, role = "warning", "symptom" if failure.symptom else "hint"
        remedy = f"the script may have gone on after it; if not: {failure.remedy}"
    return Rule(
        id=f"died-{failure.kind}", severity=severity, role=role, layer="python",  # type: ignore[arg-type]
        confidence="high" if sure else "low", text=text_of(failure), remedy=sentence(remedy), place=PLACE + place,
    )  # fmt: skip


def text_of(failure: Failure) -> str:
    """What happened, of a rank that the sentence does not name: its number here is made up."""
    return sentence(f"A rank {failure.text.partition(' ')[2].partition(' ')[2]}")


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."
