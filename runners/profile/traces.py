"""Traces of torch.profiler: read within limits, summarized, and completed for other programs. Traces are not trusted.

    python -m distui.runners.profile.traces RAW RANK WORLD_SIZE

completes a rank's trace: it replaces RAW by RAW.gz, with a span per step and the data about the rank that HTA needs.
It prints the summary as JSON, or {"problem": sentence}.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

from ..run import file_io

MOST_JSON = 256 << 20
"""Maximum bytes of a trace's JSON for a summary."""
MOST_OPERATORS = 40
"""Maximum number of operators in a summary; those with the most time are kept."""
LONGEST_NAME = 120
MOST_MARKS = 1000
"""Maximum number of step boundaries in a trace: the hook sets 101 at most."""
MARK = re.compile(r"distui\.step#(\d{1,18})")
OPTIMIZER = "Optimizer.step#"
"""Prefix of torch's name for the span of an optimizer step."""
OWN_TRACK = (1 << 31) - 1
"""Thread id that no system has."""
COLLECTIVE = re.compile(r"(?:gloo|nccl|mpi|ucc|xccl|hccl|rccl):")
"""CPU spans of a collective, from its start to its end."""
COLLECTIVE_KERNEL = re.compile(r"nccl|rccl|oneccl", re.IGNORECASE)
_WRAPPERS = (
    "autograd::engine::",
    "torch::autograd::",
    "c10d::",
    "c10d_functional::",
    "_c10d_functional::",
)
"""Operators that compute nothing themselves, and may wait for a collective."""
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


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


class OperatorTime(Struct, frozen=True):
    """Total of one operator in the steps of a trace."""

    name: str
    seconds: float
    """Its own time without the operators that it calls: of GPU kernels if there are any, else of the CPU."""
    calls: int


class TraceSummary(Struct, frozen=True, omit_defaults=True):
    """Summary of a trace, in seconds."""

    seconds: float
    """Duration of all its steps."""
    compute: float
    communication: float
    exposed: float
    """Communication without simultaneous computation."""
    idle: float
    """Neither computation nor communication, and on a GPU no copy."""
    operators: tuple[OperatorTime, ...] = ()
    collectives: tuple[OperatorTime, ...] = ()
    first: int | None = None
    """Number of the first step; None if the trace has no steps."""
    steps: tuple[float, ...] = ()
    """Duration of each step."""
    gpu: bool = False
    """Whether the times are from GPU kernels."""

    @property
    def own(self) -> float:
        """Seconds per step without waiting for communication: the rank with the highest value delays the others."""
        return (self.seconds - self.exposed) / max(1, len(self.steps))


class StepSpan(NamedTuple):
    """One step, in the microseconds of its trace."""

    number: int
    begin: float
    end: float
    pid: int | float | str
    tid: int | float | str


# --- reading


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
        raise TraceError(f"{name} is no trace of torch.profiler, or damaged: {error}") from None
    return trace


# --- intervals: sorted, without overlap

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


# --- summary


def summarized(trace: Trace) -> TraceSummary:
    """Summarize the steps of a trace, or all of it if it has none. Raises TraceError for a trace without operators."""
    spans = [event for event in trace.events if event.countable()]
    steps = step_spans(spans)
    timed = _categorized(spans, ("cpu_op", *_KERNELS))
    if not timed:
        raise TraceError("the trace has no operators")
    begin, end = window = _window(steps, timed)
    inside = _within(spans, window)
    kernels = _categorized(inside, _KERNELS)
    computes, collectives = _kinds(inside, kernels)
    computing, communicating = _clipped(computes, window), _clipped(collectives, window)
    busy = _clipped([*computes, *collectives, *kernels], window)
    operators = _categorized(inside, ("cpu_op",))
    own = _of_kernels(computes, operators) if kernels else _self_times(operators)
    return TraceSummary(
        (end - begin) / 1e6,
        length(computing) / 1e6,
        length(communicating) / 1e6,
        (length(communicating) - common(communicating, computing)) / 1e6,
        max(0.0, end - begin - length(busy)) / 1e6,
        _most(own),
        _most((_short(event.name), event.dur) for event in collectives),
        steps[0].number if steps else None,
        tuple((step.end - step.begin) / 1e6 for step in steps),
        bool(kernels),
    )


def _window(steps: Sequence[StepSpan], timed: Sequence[TraceEvent]) -> Span:
    """Begin and end of the steps, else of all operators."""
    if steps:
        return min(step.begin for step in steps), max(step.end for step in steps)
    return min(event.ts for event in timed), max(event.end for event in timed)


def _within(spans: Iterable[TraceEvent], window: Span) -> list[TraceEvent]:
    """Spans that are at least partly in the window."""
    begin, end = window
    return [event for event in spans if event.ts < end and event.end > begin]


def _clipped(events: Iterable[TraceEvent], window: Span) -> list[Span]:
    begin, end = window
    return union((max(begin, event.ts), min(end, event.end)) for event in events)


def _categorized(events: Iterable[TraceEvent], categories: Sequence[str]) -> list[TraceEvent]:
    return [event for event in events if event.cat in categories]


def _kinds(
    inside: Sequence[TraceEvent], kernels: Sequence[TraceEvent]
) -> tuple[list[TraceEvent], list[TraceEvent]]:
    """Return computing and communicating spans: GPU kernels if there are any, else CPU operators."""
    if not kernels:
        communicating = _categorized(inside, ("cpu_op", "user_annotation"))
        return (
            [event for event in _categorized(inside, ("cpu_op",)) if computes(event.name)],
            [event for event in communicating if COLLECTIVE.match(event.name)],
        )
    computing: list[TraceEvent] = []
    communicating = []
    for event in _categorized(kernels, ("kernel",)):
        kind = communicating if COLLECTIVE_KERNEL.search(event.name) else computing
        kind.append(event)
    return computing, communicating


def computes(name: str) -> bool:
    """Whether a CPU operator computes, instead of only calling other operators or a collective."""
    return ("::" in name and not name.startswith(_WRAPPERS)) or name.startswith("## Call CompiledFxGraph")


def _self_times(operators: Iterable[TraceEvent]) -> Iterator[tuple[str, float]]:
    """Name and own time of each operator: one that begins within another on its thread is called by that."""
    of_thread: dict[tuple[int | float | str, int | float | str], list[TraceEvent]] = {}
    for event in operators:
        if not COLLECTIVE.match(event.name):
            of_thread.setdefault((event.pid, event.tid), []).append(event)
    for events in of_thread.values():
        open_calls: list[list[float]] = []  # end, and own time
        names: list[str] = []
        for event in sorted(events, key=lambda each: (each.ts, -each.dur)):
            while open_calls and open_calls[-1][0] <= event.ts:
                yield names.pop(), max(0.0, open_calls.pop()[1])
            if open_calls:
                open_calls[-1][1] -= event.dur
            open_calls.append([event.end, event.dur])
            names.append(_short(event.name))
        while open_calls:
            yield names.pop(), max(0.0, open_calls.pop()[1])


def _of_kernels(
    kernels: Iterable[TraceEvent], operators: Iterable[TraceEvent]
) -> Iterator[tuple[str, float]]:
    """Kernels with the name of the operator that launched them, or with their own name."""
    launched = {
        event.args.external: event.name for event in operators if event.args and event.args.external
    }
    for event in kernels:
        external = event.args.external if event.args else None
        yield _short(launched.get(external or 0, event.name)), event.dur


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _most(times: Iterable[tuple[str, float]]) -> tuple[OperatorTime, ...]:
    """Operators with the most time; microseconds in, seconds out."""
    sums: dict[str, list[float]] = {}
    for name, dur in times:
        both = sums.setdefault(name, [0.0, 0])
        both[0] += dur
        both[1] += 1
    most = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))[:MOST_OPERATORS]
    return tuple(OperatorTime(name, total / 1e6, int(calls)) for name, (total, calls) in most)


# --- steps


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
    ends = [max([end, *(_around(around, begin) or ())]) for begin, end in times]
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


# --- completion


def completed(data: bytes, trace: Trace, rank: int, world_size: int) -> list[bytes]:
    """Pieces of a trace's content with a span per step, and with the rank if it is missing."""
    spans = [event for event in trace.events if event.countable()]
    steps = step_spans(spans)
    at = data.find(b"[", data.find(b'"traceEvents"')) + 1
    head, rest = data[:at], data[at:]
    if trace.distributed is None or trace.distributed.rank is None:
        # HTA searches for `"rank":` and a space
        about = json.dumps({"distributedInfo": {"backend": "", "rank": rank, "world_size": world_size}})
        head = head.replace(b"{", about[:-1].encode() + b",", 1)
    return [head, *(msgspec.json.encode(event) + b",\n" for event in _step_events(spans, steps)), rest]


def _step_events(spans: Sequence[TraceEvent], steps: Sequence[StepSpan]) -> list[dict[str, object]]:
    """Span events of the steps: on the thread's track, or on a separate track if another span crosses their ends."""
    track = {"tid": OWN_TRACK} if _crossed(spans, steps) else {}
    events: list[dict[str, object]] = []
    for number, begin, end, pid, tid in steps:
        length_ns = round(end * 1000) - round(begin * 1000)
        where = {"pid": pid, "tid": tid, **track}
        if track and not events:
            events.append({"ph": "M", "name": "thread_name", **where, "args": {"name": "steps"}})
        events.append(
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{number}",
                **where,
                "ts": begin,
                "dur": length_ns / 1000,
                "args": {},
            }
        )
    return events


def _crossed(spans: Sequence[TraceEvent], steps: Sequence[StepSpan]) -> bool:
    """Whether a span of this thread partly overlaps a step: Perfetto cannot show both on one track."""
    bounds = [(round(step.begin * 1000), round(step.end * 1000)) for step in steps]
    for event in spans:
        if steps and event.tid == steps[0].tid and event.pid == steps[0].pid:
            begin, end = event.nanoseconds
            first, last = _around(bounds, begin), _around(bounds, end)
            if (first and end > first[1]) or (last and begin < last[0]):
                return True
    return False


def _around(sorted_spans: Sequence[Span], moment: float) -> Span | None:
    """Return the span of a sorted list without overlap that contains a moment."""
    at = bisect_left(sorted_spans, (moment,)) - 1
    return sorted_spans[at] if at >= 0 and moment < sorted_spans[at][1] else None


def complete(raw: Path, rank: int, world_size: int) -> TraceSummary:
    """Replace RAW by RAW.gz, even if it has no summary. Raises TraceError and OSError."""
    ready, packed = Path(f"{raw}.tmp"), Path(f"{raw}.gz")
    try:
        pieces: list[bytes] = []
        problem: TraceError | None = None
        try:
            data = content(raw)
            trace = decoded(raw.name, data)
            pieces = completed(data, trace, rank, world_size)
        except TraceError as error:
            problem = error
        with open(ready, "wb", opener=file_io.opener) as out, gzip.GzipFile("", "wb", 4, out, 0) as file:
            file.writelines(pieces)
            if not pieces:
                with file_io.opened(raw) as source:
                    shutil.copyfileobj(source, file)
        os.replace(ready, packed)
    except (OSError, file_io.FileError):
        ready.unlink(missing_ok=True)
        raise
    raw.unlink()
    if problem is not None:
        raise problem
    return summarized(trace)


def main(words: list[str]) -> int:
    """See the module."""
    raw, rank, world_size = Path(words[0]), int(words[1]), int(words[2])
    try:
        answer = msgspec.json.encode(complete(raw, rank, world_size))
    except (TraceError, file_io.FileError) as error:
        answer = msgspec.json.encode({"problem": str(error)})
    except OSError as error:
        answer = msgspec.json.encode({"problem": f"{raw}.gz could not be written: {error.strerror}"})
    sys.stdout.buffer.write(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
