"""Exceptions in logs, as Python prints them, and exits of ranks, as torchrun, mpirun and Slurm report them.

Classes and remedies are those of live verdicts: runners/inrank/failure_causes.py. Memory does not grow with the log.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..inrank.failure_causes import Death, Failure, classify
from ..inrank.tracebacks import in_lines, of_launcher, raised_in
from .nccl_facts import FactLine
from .rules import BEGIN, SOURCES, First, Head, Rule, RuleHits, shown, stamp_of

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

_STAMP = re.compile(
    r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\s+(?:std(?:out|err) [FP] )?"
)
"""What shippers write before each line; it differs from line to line."""
_UNCAUGHT = re.compile(r"\[rank\d+\]: ?$")
"""torch's tag on uncaught exceptions."""
_TAGGED = re.compile(r"^\[(?:rank|default)\d+\]:|^\[\d+,\d+\]<std")
_CHAINED = ("another exception occurred", "direct cause of the following exception", f"Original {BEGIN}")
"""The next exception is of the same failure, and nearer to its cause or its outcome."""
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
        self._lines: dict[int, int] = {}
        self._endings = Endings()
        self._failed = False
        """Whether a launcher reported a failed rank."""

    def open(self, file: int, name: str, before: int) -> None:
        """The next lines are of this file: its number, from 1, and its name; `before`: lines of the file before."""
        self._lines[self._file] = before
        self._file, self._name, self.within = file, name, False
        self._traces.clear()

    def begin(self, line: str, head: Head, number: int) -> None:
        """A traceback begins; `head`: whose it is."""
        text = _STAMP.sub("", line)
        prefix = text[: text.index(BEGIN)].removesuffix("Original ")
        for stale in [trace for trace in self._traces.values() if number - trace.began > OLD]:
            self._close(stale)
        if len(self._traces) < STREAMS or prefix in self._traces:
            self._traces[prefix] = _Trace(prefix, head, [text[len(prefix) :]], number)
            self.within = True

    def ended(self, line: str, head: Head, number: int) -> None:
        """A launcher's line that may report how a rank exited."""
        ending = self._endings.reported(_STAMP.sub("", line), head)
        if ending is not None:
            self._failed = True
            if ending.failure is not None:
                self._keep(ending.failure, ending.head, line, number, sure=True)

    def line(self, line: str, number: int) -> None:
        """A line while `within`, that is none of NCCL's."""
        text = _STAMP.sub("", line)
        trace = self._of(text)
        if trace is None:
            return
        rest = text[len(trace.prefix) :]
        if trace.ended:
            self._after(trace, rest, number)
            return
        trace.lines.append(rest[:2000])
        if rest and not rest[0].isspace():
            self._perhaps(trace, line, number)
        if len(trace.lines) > LINES:
            self._close(trace)

    def entries(self, lines: int) -> Iterator[RuleHits]:
        """The exceptions, as rules that fired; `lines`: lines of the newest file so far."""
        self._lines[self._file] = lines
        for place, raised in enumerate(self._raised.values()):
            sure = (
                raised.sure
                or self._failed
                or any(self._lines.get(file, 0) - line <= LAST for file, line in raised.last.items())
            )
            yield replace(raised.entry, rule=_rule(raised.failure, place, sure))

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
            self._failed = True
            self._close(trace)
            return
        raised = in_lines(trace.lines)
        if raised:
            failure = _classed(Death(trace.head.rank or 0, None, raised), trace.lines[-1])
            sure = _UNCAUGHT.search(trace.prefix) is not None
            trace.key = self._keep(failure, trace.head, line, number, sure)
            trace.ended = number

    def _after(self, trace: _Trace, rest: str, number: int) -> None:
        """A line after an exception: a chained one may begin."""
        if any(word in rest for word in _CHAINED):
            self._take_back(trace.key)
            self._close(trace)
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
            evidence = FactLine(self._name, number, shown(line))
            values = {"where": failure.where} if failure.where else {}
            entry.firsts.append(First(self._file, evidence, head, stamp_of(line), values, False))
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
    says = failure.text.partition(" ")[2].partition(" ")[2]
    if sure:
        severity, role, remedy = "error", "symptom" if failure.symptom else "cause", failure.remedy
    else:
        severity, role = "warning", "symptom" if failure.symptom else "hint"
        remedy = f"the script may have gone on after it; if not: {failure.remedy}"
    return Rule(
        id=f"died-{failure.kind}", severity=severity, role=role, layer="python",  # type: ignore[arg-type]
        confidence="high" if sure else "low", text=f"A rank {says}.", remedy=f"{remedy[0].upper()}{remedy[1:]}.",
        place=PLACE + place,
    )  # fmt: skip


_ENDED = re.compile(r"failed \(exitcode: (-?\d{1,9})\) local_rank: \d+ \(pid: (\d{1,9})\)")
_LISTED = re.compile(
    r"^\s*(?:rank      : (\d{1,9}) \(local_rank: \d+\)|exitcode  : (-?\d{1,9}) +\(pid: (\d{1,9})\))"
)
"""In the table at the end of torchrun: a rank, and below it how it ended."""
_SIGNALLED = re.compile(
    r"process rank (\d{1,9}) with PID (\d{1,9})(?: on node (\S{1,200}))? exited on signal (\d{1,2})\b"
)
_OOM = re.compile(r"Detected \d+ oom[_-]kill event")
"""torchrun's, mpirun's and Slurm's words."""


class ReportedExit(NamedTuple):
    """The exit of a rank, as a launcher reports it."""

    failure: Failure | None
    """None for an exit code without a cause, or an exit that was reported before."""
    head: Head
    """Whose it is."""
    pid: int | None = None


class Endings:
    """State across lines: a table has rank and exit in separate lines, and an exit may be reported twice."""

    def __init__(self) -> None:
        self._rank: int | None = None
        """Whose lines of torchrun's table are being read."""
        self._pids: set[int] = set()
        """Processes whose exit was reported."""

    def reported(self, line: str, head: Head) -> ReportedExit | None:
        """The exit that a line reports, without a failure if it was reported before; None for other lines."""
        listed = _LISTED.match(line)
        if listed is None:
            end = _ending(line, head)
        elif listed[1]:
            self._rank = int(listed[1])
            return None
        else:
            end = _listed(int(listed[2]), int(listed[3]), head, self._rank)
        if end is None or end.pid is None:
            return end
        repeated = end.pid in self._pids
        if len(self._pids) < SOURCES:
            self._pids.add(end.pid)
        return end._replace(failure=None) if repeated else end


def _ending(line: str, head: Head) -> ReportedExit | None:
    """The exit that a line reports; None for other lines."""
    if match := _ENDED.search(line):
        return _listed(int(match[1]), int(match[2]), head, None)
    if match := _SIGNALLED.search(line):
        pid = int(match[2]) or None
        whose = _of(int(match[1]), replace(head, host=match[3] or head.host))
        return ReportedExit(_ended_by_signal(-int(match[4]), pid), whose, pid)
    return ReportedExit(_OF_SLURM, head) if _OOM.search(line) else None


def _listed(code: int, pid: int, head: Head, rank: int | None) -> ReportedExit:
    """The exit of a process, from torchrun."""
    failure = _ended_by_signal(code, pid) if code < 0 else None
    return ReportedExit(failure, head if rank is None else _of(rank, head), pid)


def _of(rank: int, head: Head) -> Head:
    return replace(head, rank=rank, source=(*head.source[:2], rank))


def _ended_by_signal(code: int, pid: int | None) -> Failure:
    """From a launcher's report alone: there is no kernel log here, and an abort is explained before it."""
    failure = classify(Death(0, code, {}, pid=pid))
    if code == -signal.SIGKILL:
        return failure._replace(text=failure.text.removesuffix(" from outside"), remedy=_KILLED)
    return failure._replace(symptom=code in (-signal.SIGABRT, -signal.SIGTERM))


_OF_SLURM = classify(Death(0, -signal.SIGKILL, {}, oom="Slurm counted it"))
_KILLED = (
    "look in that node's kernel log for an out-of-memory kill (`dmesg -T | grep -i kill`), else for who ends "
    "processes there: the scheduler's limits, preemption, a daemon that guards memory"
)
