"""Completion of a rank's trace for other programs.

    python -m distui.runners.profile.traces RAW RANK WORLD_SIZE

replaces RAW by RAW.gz, with a span per step and the data about the rank that HTA needs. It prints the summary as JSON,
or {"problem": sentence}.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..run import file_io
from .trace_events import StepSpan, Trace, TraceError, TraceEvent, content, decoded, span_around, step_spans
from .trace_summary import TraceSummary, summarized

OWN_TRACK = (1 << 31) - 1
"""Thread id that no system has."""


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
            first, last = span_around(bounds, begin), span_around(bounds, end)
            if (first and end > first[1]) or (last and begin < last[0]):
                return True
    return False


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
