"""Events of a trace of torch.profiler, read within limits, and its steps. Traces are not trusted."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

from ..run import file_io

MOST_JSON = 256 << 20
"""Maximum bytes of a trace's JSON for a summary."""
MOST_MARKS = 1000
"""Maximum number of step boundaries in a trace: the hook sets 101 at most."""
MARK = re.compile(r"distui\.step#(\d{1,18})")
OPTIMIZER = "Optimizer.step#"
"""Prefix of torch's name for the span of an optimizer step."""


class TraceError(Exception):
    """A trace that cannot be read; the text is a sentence that begins with its file."""


class _Arguments(Struct, gc=False):
    external: int | float | str | None = field(name="External id", default=None)


class TraceEvent(Struct, gc=False):
    """The needed fields of an event; times in microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | float | str = 0
    tid: int | float | str = 0
    args: _Arguments | None = None

    @property
    def end(self) -> float:
        return self.ts + self.dur

    @property
    def nanoseconds(self) -> tuple[int, int]:
        """Begin and end in nanoseconds, as viewers round them: a float of microseconds since boot is off by one."""
        begin = round(self.ts * 1000)
        return begin, begin + round(self.dur * 1000)

    def countable(self) -> bool:
        """Whether it is a span with plausible times."""
        return self.ph == "X" and 0 <= self.dur < 1e15 and abs(self.ts) < 1e18


class DistributedInfo(Struct):
    """The rank that wrote the trace."""

    rank: int | None = None


class Trace(Struct):
    events: list[TraceEvent] = field(name="traceEvents")
    distributed: DistributedInfo | None = field(name="distributedInfo", default=None)


class StepSpan(NamedTuple):
    """One step, in the microseconds of its trace."""

    number: int
    begin: float
    end: float
    pid: int | float | str
    tid: int | float | str


def content(path: Path) -> bytes:
    """Read a trace's JSON. Raises TraceError."""
    try:
        with file_io.opened(path) as file:
            data = file.read(MOST_JSON + 1)
    except (file_io.FileError, OSError) as error:
        raise TraceError(str(error)) from None
    if len(data) > MOST_JSON:
        raise TraceError(
            f"{path} has more than {MOST_JSON >> 20} MiB of events, too many to sum up: open it in Perfetto, or profile "
            "fewer steps"
        )
    return data


def decoded(name: str, data: bytes) -> Trace:
    """Decode a trace. Raises TraceError."""
    try:
        trace = msgspec.json.decode(data, type=Trace)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise TraceError(f"{name} is not a trace of torch.profiler, or damaged: {error}") from None
    return trace


Span = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """Merge spans into sorted spans without overlap."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = merged[-1][0], end
        elif end > begin:
            merged.append((begin, end))
    return merged


def length(spans: Sequence[Span]) -> float:
    """Total length of spans without overlap."""
    return sum(end - begin for begin, end in spans)


def common(some: Sequence[Span], others: Sequence[Span]) -> float:
    """Total length of the intersection of two sorted lists without overlap."""
    both, at = 0.0, 0
    for begin, end in some:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        then = at
        while then < len(others) and others[then][0] < end:
            both += min(end, others[then][1]) - max(begin, others[then][0])
            then += 1
    return both


def step_spans(spans: Sequence[TraceEvent]) -> list[StepSpan]:
    """Return the steps between marks; a mark is inside the optimizer's span, whose end is the step's end."""
    marks = sorted(
        ((event, int(match[1])) for event in spans if (match := MARK.fullmatch(event.name))),
        key=lambda mark: mark[0].ts,
    )
    if not 2 <= len(marks) <= MOST_MARKS:
        return []
    first = marks[0][0]
    around = _optimizer_spans(spans, first)
    times = [mark.nanoseconds for mark, _ in marks]
    ends = [max([end, *(span_around(around, begin) or ())]) for begin, end in times]
    return [
        StepSpan(number, begin / 1000, end / 1000, mark.pid, mark.tid)
        for (mark, number), (begin, end) in zip(marks[1:], pairwise(ends), strict=True)
        if end > begin
    ]


def _optimizer_spans(spans: Iterable[TraceEvent], mark: TraceEvent) -> list[Span]:
    """Spans of the optimizer on the thread of a mark, in nanoseconds."""
    return union(
        event.nanoseconds
        for event in spans
        if event.tid == mark.tid and event.pid == mark.pid and event.name.startswith(OPTIMIZER)
    )


def span_around(sorted_spans: Sequence[Span], moment: float) -> Span | None:
    """Return the span of a sorted list without overlap that contains a moment."""
    at = bisect_left(sorted_spans, (moment,)) - 1
    return sorted_spans[at] if at >= 0 and moment < sorted_spans[at][1] else None
