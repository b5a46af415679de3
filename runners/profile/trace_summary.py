"""Summary of a trace: computation, communication, and the operators with the most time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from .trace_events import Span, StepSpan, Trace, TraceError, TraceEvent, common, length, step_spans, union

MOST_OPERATORS = 40
"""Maximum number of operators in a summary; those with the most time are kept."""
LONGEST_NAME = 120
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
