"""Collect Python exceptions from logs, and the process exits that launchers and schedulers report (exits.py).

Classes and remedies are those of live verdicts: runners/inrank/failure_causes.py. Memory does not grow with the log.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ...presets.finding import Role, Severity
from ..inrank.failure_causes import Death, Failure, classify, signal_of
from ..inrank.printed_traceback import BEGIN, LINES, PrintedTraceback, Step, begins, chains, rank_in_head
from .exits import Endings, of_rank
from .file_names import PROCESS
from .heads import Head
from .rules import First, LogLine, Rule, RuleHits

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
OTHERS_SIGNS = 3
"""Training steps of any writer that prove that the job outlived an exception whose writer is no rank."""
SIGNS = 2
"""Training steps after an exception that prove that the script caught it; one step may have been in progress."""
PLACE = 1 << 20
"""Sorts exceptions after the rules if both match one line."""

UNCAUGHT = re.compile(r"\[rank\d+\]: ")
"""torch's tag on uncaught exceptions."""
_VERBOSE = re.compile(r"(?:^|[:\s\]])[VID]\d{4} \d\d:\d\d:\d\d\.\d")
"""A level of torch's logs at which tracebacks are no errors (TORCH_LOGS)."""
_CARRIED = re.compile(r"Caught \w+ in DataLoader worker process")
"""An exception that only carries the one whose traceback follows."""
_WITH_OUTPUT = (
    "Look for that rank's own output, in stderr and in files: `torchrun --log-dir logs --tee 3` keeps it, and @record "
    "of torch.distributed.elastic.multiprocessing.errors on main() prints the traceback."
)
_LEAVES = ("SystemExit:", "KeyboardInterrupt:")
"""Exceptions with which a script ends itself after it has caught another one, or is interrupted."""
_OF_LOGGING = "Call stack:"
"""The logging module prints this after an error in a log call, which does not end the process."""
GENERIC = ("exception", "assertion")
"""Classes that explain nothing: an earlier exception in the chain may explain more."""
DATA = "data-unreadable"
"""In a chain of these, the first one read the file. Later ones are attempts to read it in another way."""
_NO_RANK = re.compile(r"$|[^|]*\|None\|None\|\d")
"""A writer that is no rank: unknown, or a task of Ray. Training goes on if the exception was caught; peers of a rank
always go on.
"""
_NUMBER = re.compile(r"\d+")
_OF_NCCL = re.compile(
    r"DistBackendError|NCCL (?:[Ee]rror|WARN)|ncclInternalError|ncclSystemError|ncclRemoteError"
)


Stream = tuple[int, str]
"""File number and writer."""


@dataclass(slots=True)
class _Trace:
    """A traceback whose lines are still being read, or whose exception may still be followed by a chained one."""

    stream: Stream
    name: str
    head: Head
    printed: PrintedTraceback
    began: int
    """Line number of its first line."""
    last: tuple[int, str]
    """Number and text of the newest line."""
    sure: bool
    """Whether torch marks it as uncaught."""
    ignored: bool
    """Whether Python reports that it ignores the exception."""
    raised: First | None = None
    """The exception's own line; None while it is missing."""

    def evidence(self, number: int, line: str) -> First:
        """Return one of its lines as evidence."""
        return First.of(self.stream[0], self.name, number, line, self.head)

    def is_cut_off(self, lengths: Mapping[int, int]) -> bool:
        """Whether its file ends before the exception. `lengths`: lines of each file so far."""
        if self.raised or self.ignored or not self.printed.is_evident:
            return False
        return lengths.get(self.stream[0], 0) - self.last[0] <= SHORT

    def is_over(self, step: Step, number: int) -> bool:
        """Whether no further line belongs to it. `step`, `number`: its newest line."""
        if step is Step.OVER or self.raised is None:
            return step is Step.OVER
        if step is Step.RAISED:
            return self.printed.is_of_launcher
        return step is Step.NONE and number - self.raised.evidence.line > AFTER

    def cut_off(self) -> RuleHits:
        """Return a failure of unknown class, at the newest line."""
        first = self.evidence(*self.last)
        text = f"The log ends within a traceback{self.printed.where_cut_off()}: {CUT_OFF.text}"
        return RuleHits.of(replace(CUT_OFF, text=text), first)


@dataclass(slots=True)
class _Raised:
    """All occurrences of one exception."""

    failure: Failure
    entry: RuleHits
    sure: bool = False
    """Whether at least one of them certainly ended its process."""
    last: dict[int, int] = field(default_factory=dict)
    """Line number of the newest occurrence, by file."""
    lives: dict[Stream, int] = field(default_factory=dict)
    """Number of training steps that each writer logged after the exception."""
    steps: dict[int, int] = field(default_factory=dict)
    """Number of training steps of all writers after the newest occurrence of a writer that is no rank, by file."""

    @property
    def outlived(self) -> bool:
        """Whether its writer trained on after the exception."""
        signs = OTHERS_SIGNS if self.sure else SIGNS
        return any(count >= signs for count in self.lives.values())

    @property
    def outlived_by_others(self) -> bool:
        """Whether training went on after the exception, of whichever writer."""
        return not self.sure and bool(self.steps) and min(self.steps.values()) >= OTHERS_SIGNS

    def may_be_outlived(self, file: int) -> bool:
        """Whether more training steps in a file would show that training went on."""
        few = any(count < OTHERS_SIGNS for (where, _), count in self.lives.items() if where == file)
        return few or self.steps.get(file, OTHERS_SIGNS) < OTHERS_SIGNS

    def add(self, first: First, sure: bool, stream: Stream | None) -> None:
        """Count an occurrence of this writer, or of an unknown one."""
        self.sure = self.sure or sure
        if stream is not None and _NO_RANK.match(stream[1]) and len(self.steps) < STREAMS:
            self.steps[first.file] = 0
        if stream is not None and (stream in self.lives or len(self.lives) < STREAMS):
            self.lives[stream] = 0
        if self.entry.seen(first.head, first.file):
            self.entry.firsts.append(first)
        if first.file in self.entry.files:
            self.last[first.file] = first.evidence.line


class _Inner(NamedTuple):
    """An exception that precedes another in a chain."""

    failure: Failure
    text: str
    first: First
    """Its line."""

    def explains(self, failure: Failure, text: str, first: First) -> bool:
        """Whether it explains more than the next exception, with this text and line, or is the same one."""
        if first.evidence.line - self.first.evidence.line > LINES or _CARRIED.search(self.text):
            return False
        if text.startswith(_LEAVES):
            return True
        if failure.symptom and not self.failure.symptom:
            return True
        if self.failure.kind in GENERIC:
            return self.failure.kind == failure.kind and self.text == text
        return failure.kind in GENERIC or (failure.kind == self.failure.kind == DATA)


REPORTED = Rule(
    id="launcher-reports",
    severity="error",
    role="symptom",
    layer="python",
    confidence="low",
    place=PLACE - 2,
    text="A rank failed, with an unknown exit code: its launcher reports it. No error of the rank was understood.",
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
SHORT = 4
"""Lines of other writers that may follow a truncated traceback."""


class Exceptions:
    """Collect exceptions line by line. The lines of several ranks may be interleaved.

    An exception counts when its traceback is closed: until then another exception may be chained to it.
    """

    def __init__(self) -> None:
        self.within = False
        """Whether `line` must receive the next lines, because a traceback is open in this file."""
        self._traces: dict[Stream, _Trace] = {}
        self._look_at = 0
        """Line number of the next search for tracebacks of silent writers."""
        self._raised: dict[str, _Raised] = {}
        self._file = 0
        self.pending = False
        """Whether a training step would show that an exception of this file was caught."""
        self._inner: dict[Stream, _Inner] = {}
        """The exception before a chained one, by stream."""
        self._classes: dict[tuple[Any, ...], Failure] = {}
        self._ignored: dict[Stream, int] = {}
        self.ignored_at = -9
        """Number of the newest line of a traceback whose exception Python ignores."""
        self.endings = Endings()
        self.failed = False
        """Whether a log reports a failed process."""
        self.newest_exits: dict[int, int] = {}
        """Line of the newest report of a failed process, by file number."""
        self.crashed: set[int] = set()
        """Numbers of the files that report a failed process whose end was not requested."""
        self._exit: tuple[int, First] | None = None
        """Exit code and line of the first reported exit."""
        self._launcher: First | None = None
        """The first exception of a launcher, which reports that a rank failed."""

    def open(self, file: int) -> None:
        """Start a file with this number (from 1)."""
        self._file, self.pending, self._look_at = file, False, 0
        self.within = self._in_file()

    def _in_file(self) -> bool:
        """Whether a traceback is open in this file. Files may be read in turns."""
        return any(file == self._file for file, _ in self._traces)

    def begin(self, line: LogLine) -> None:
        """Start a traceback if the line begins one."""
        where = line.file, line.stream
        before = self._traces.get(where)
        is_within = before is not None and before.raised is None and BEGIN not in line.text
        if is_within or not begins(line.text):
            return
        if before is not None:
            self._chain_or_close(before, line.text)
        self._make_room(line.number)
        rank = rank_in_head(line.text, line.raw)
        prefix = line.raw[: line.raw.find(line.text)] or line.raw[:400]
        self._traces[where] = _Trace(
            stream=where,
            name=line.name,
            head=line.head if rank is None else of_rank(rank, line.head),
            printed=PrintedTraceback(line.text),
            began=line.number,
            last=(line.number, line.raw),
            sure=UNCAUGHT.search(prefix) is not None,
            ignored=line.number - self._ignored.pop(where, -9) <= 2
            or _VERBOSE.search(line.raw.partition(BEGIN)[0]) is not None,
        )
        self.within = True

    def _make_room(self, number: int) -> None:
        """Close tracebacks that began long ago, and the oldest one if too many are open."""
        for stale in [trace for trace in self._traces.values() if number - trace.began > OLD]:
            self._close(stale)
        if len(self._traces) >= STREAMS:
            self._close(next(iter(self._traces.values())))

    def ignore(self, stream: str, number: int) -> None:
        """Note that Python reports the exception of the next traceback as ignored."""
        if len(self._ignored) < STREAMS:
            self._ignored[self._file, stream] = number

    def alive(self, stream: str) -> None:
        """Count a training step of this writer."""
        where = self._file, stream
        for trace in list(self._traces.values()):
            if trace.raised and trace.stream[0] == self._file:
                self._close(trace)
        self.pending = False
        for raised in self._raised.values():
            if where in raised.lives:
                raised.lives[where] += 1
            if self._file in raised.steps:
                raised.steps[self._file] += 1
            self.pending = self.pending or raised.may_be_outlived(self._file)

    def ended(self, line: LogLine) -> bool:
        """Return True if the line reports how a process exited."""
        ending = self.endings.reported(line.text, line.head, line.raw)
        if ending is None:
            return False
        first = line._replace(head=ending.head).first
        if ending.code:
            self.failed = True
            self._exit = self._exit or (ending.code, first)
            self.newest_exits[first.file] = first.evidence.line
            if signal_of(ending.code) != signal.SIGTERM:
                self.crashed.add(first.file)
        if ending.failure is not None:
            self._keep(ending.failure, first, sure=True)
        return True

    def line(self, text: str, line: str, stream: str, number: int) -> bool:
        """Return True if the line belongs to an open traceback. `text`: the line without prefixes."""
        trace = self._traces.get((self._file, stream))
        if trace is None:
            if number >= self._look_at:
                self._close_left(number)
            return False
        if trace.raised and (chains(text) or text.startswith(_OF_LOGGING)):
            self._chain_or_close(trace, text)
            return False
        step = trace.printed.feed(text)
        if trace.ignored and step in (Step.PART, Step.RAISED):
            self.ignored_at = number
        if step is Step.RAISED:
            trace.raised = trace.evidence(number, line)
            self.pending = True
        elif step is Step.PART and text.strip():
            trace.last = number, line
        if trace.is_over(step, number):
            self._close(trace)
        return step in (Step.PART, Step.RAISED)

    def _close_left(self, number: int) -> None:
        """Close tracebacks of silent writers: no exception is chained over this distance."""
        self._look_at = number + LEFT
        for trace in list(self._traces.values()):
            raised = trace.raised
            if trace.stream[0] == self._file and raised and number - raised.evidence.line > LEFT:
                self._close(trace)

    def entries(self, lengths: Mapping[int, int]) -> Iterator[RuleHits]:
        """Yield the exceptions as rules that fired. `lengths`: lines of each file so far. No line may follow."""
        for trace in list(self._traces.values()):
            if trace.raised:
                self._close(trace)
        for place, raised in enumerate(self._raised.values()):
            ends = any(lengths.get(file, 0) - line <= LAST for file, line in raised.last.items())
            outlived = raised.outlived or (raised.outlived_by_others and not self.failed)
            sure = not outlived and (raised.sure or self.failed or ends)
            rule = _rule(raised.failure, place, sure)
            if outlived and not self.failed:
                rule = replace(rule, severity="note", role="fact")
            yield replace(raised.entry, rule=rule)

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
        ends = [each for each in self._inner.values() if each.first.lines_left(lengths) <= LAST]
        return min(ends, key=lambda each: each.first.position, default=None)

    @property
    def raised(self) -> bool:
        """Whether at least one exception was read."""
        return bool(self._raised)

    @property
    def killed(self) -> First | None:
        """The first exit report if a signal ended that process. Lines after it are consequences."""
        return self._exit[1] if self._exit is not None and signal_of(self._exit[0]) is not None else None

    @property
    def exited(self) -> First | None:
        """The first exit report if no signal ended that process. The launcher then ends the others because of it."""
        return self._exit[1] if self._exit is not None and signal_of(self._exit[0]) is None else None

    @property
    def first_exit(self) -> First | None:
        """The first exit report, or a launcher's exception."""
        return self._exit[1] if self._exit is not None else self._launcher

    def exits(self) -> Iterator[RuleHits]:
        """Yield the first reported exit as a low-confidence cause, else a launcher's exception."""
        if self._exit is not None:
            code, first = self._exit
            rule = replace(_rule(classify(Death(0, code, {})), MOST, True), role="cause", confidence="low")
            if rule.id == "died-exit-silent":
                rule = replace(rule, remedy=_WITH_OUTPUT)
            yield RuleHits.of(rule, first)
        elif self._launcher is not None:
            yield RuleHits.of(REPORTED, self._launcher)

    def _drop(self, trace: _Trace) -> None:
        self._traces.pop(trace.stream, None)
        self.within = self._in_file()

    def _close(self, trace: _Trace) -> None:
        """Count the exception of a traceback, if it has one that counts."""
        self._drop(trace)
        found = self._failure(trace)
        if found is not None:
            self._keep(*found, sure=trace.sure, stream=trace.stream)

    def _chain_or_close(self, trace: _Trace, text: str) -> None:
        """Close a traceback whose writer goes on with `text`. A chain or a wrapper makes both the same failure."""
        self._drop(trace)
        found = None if text.startswith(_OF_LOGGING) else self._failure(trace)
        if found is None:
            return
        if trace.printed.wraps(text):
            self._inner[trace.stream] = _Inner(found[0], trace.printed.text, found[1])
        else:
            self._keep(*found, sure=trace.sure, stream=trace.stream)

    def _failure(self, trace: _Trace) -> tuple[Failure, First] | None:
        """Return the failure that a traceback shows, and its line; of a chain, the exception that explains more."""
        printed, first = trace.printed, trace.raised
        if first is None or trace.ignored or printed.is_group or printed.is_swallowed:
            return None
        first = _with_named_rank(first, printed)
        if printed.is_of_launcher:
            self.failed = True
            self._launcher = self._launcher or first
            self.newest_exits[first.file] = first.evidence.line
            self.crashed.add(first.file)
            return None
        failure = self._classed(printed, first)
        inner = self._inner.pop(trace.stream, None)
        if inner is not None and inner.explains(failure, printed.text, first):
            return inner.failure, replace(inner.first, head=first.head)
        return failure, first

    def _classed(self, printed: PrintedTraceback, first: First) -> Failure:
        """Classify an exception by its first line, and by all its lines if those after the first only add to it.

        They may also be independent lines.
        """
        by_line = whole = self._class_of(printed.raised(1), first)
        if printed.has_more_lines:
            whole = self._class_of(printed.raised(), first)
        if whole.text == by_line.text:
            return by_line
        adds = whole.kind == by_line.kind or (by_line.kind in GENERIC and not whole.symptom)
        return whole if adds else by_line

    def _class_of(self, raised: dict[str, Any], first: First) -> Failure:
        """Classify an exception, cached since many ranks raise the same. NCCL explains what torch raises for it."""
        key = tuple(raised.values())
        failure = self._classes.get(key)
        if failure is None:
            failure = classify(Death(0, None, raised))
            if failure.kind in GENERIC and _OF_NCCL.search(first.evidence.text):
                failure = failure._replace(
                    kind="nccl", symptom=True, remedy="see NCCL's messages before it"
                )
            if len(self._classes) < MOST:
                self._classes[key] = failure
        return failure

    def _keep(self, failure: Failure, first: First, sure: bool, stream: Stream | None = None) -> None:
        """Count an occurrence of a failure, unless there are too many different ones."""
        key = f"{failure.kind}|{failure.key or _NUMBER.sub('#', failure.text)}"
        raised = self._raised.get(key)
        if raised is None:
            if len(self._raised) >= MOST:
                return
            raised = self._raised[key] = _Raised(failure, RuleHits(_rule(failure, 0, True)))
        values = {"where": failure.where} if failure.where else {}
        raised.add(replace(first, values=values), sure, stream)
        self.pending = self.pending or stream in raised.lives


def _with_named_rank(first: First, printed: PrintedTraceback) -> First:
    """Add the rank that the exception's message names. It wins over a launcher's own."""
    rank = printed.named_rank
    if rank is None and first.head.rank is None and printed.task_pid:
        host, node = first.head.host or printed.task_host, f"{PROCESS}{printed.task_pid}"
        return replace(first, head=replace(first.head, rank=0, node=node, host=host))
    if rank is None or (first.head.rank is not None and not printed.is_of_launcher):
        return first
    return replace(first, head=of_rank(rank, first.head))


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


def text_of(failure: Failure) -> str:
    """Return the failure's text without the rank's number, which is invented here."""
    return sentence(f"A rank {failure.text.partition(' ')[2].partition(' ')[2]}")


def sentence(text: str) -> str:
    """Return the text with a capital letter and a period."""
    return f"{text[:1].upper()}{text[1:]}."
