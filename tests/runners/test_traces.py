"""Traces of torch.profiler: what they say, also those that somebody wrote to break their reader."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_format import partial_overlaps

from distui.runners.profile import trace_events, trace_summary, traces
from distui.runners.profile.trace_events import TraceError
from distui.runners.profile.trace_summary import TraceSummary

MS = 1000.0


def event(
    name: str, begin: float, end: float, cat: str = "cpu_op", tid: object = 1, external: int | None = None
) -> dict[str, Any]:
    """One span, in milliseconds."""
    args = {} if external is None else {"External id": external}
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": begin * MS, "dur": (end - begin) * MS,
            "args": args}  # fmt: skip


def summary(*events: dict[str, Any]) -> TraceSummary:
    document = {"schemaVersion": 1, "traceEvents": list(events)}
    return trace_summary.summarized(trace_events.decoded("t.json", json.dumps(document).encode()))


def marks(first: int, *times: float) -> list[dict[str, Any]]:
    """The hook's marks of the steps from `first` on, each in the optimizer's step that ends it."""
    return [
        event(f"distui.step#{first - 1 + at}", time, time, "user_annotation")
        for at, time in enumerate(times)
    ]


def test_on_the_cpu_operators_compute_and_spans_of_collectives_communicate() -> None:
    its = summary(
        *marks(8, 0, 50, 100),
        event("autograd::engine::evaluate_function: AddmmBackward0", 0, 40),
        event("aten::linear", 0, 20), event("aten::addmm", 5, 15), event("aten::mm", 20, 40),
        event("c10d::allreduce_", 60, 61),
        event("gloo:all_reduce", 30, 70, "user_annotation", tid=2),
        event("aten::later", 200, 300),
    )  # fmt: skip
    assert (its.first, its.steps, its.gpu) == (8, (0.05, 0.05), False)
    assert (its.seconds, its.compute, its.communication) == pytest.approx((0.1, 0.04, 0.04))
    assert (its.exposed, its.idle) == pytest.approx((0.03, 0.03))
    assert its.own == pytest.approx(0.035)
    times = {each.name: each.seconds for each in its.operators}
    assert times["aten::linear"] == pytest.approx(0.01), "without what it calls"
    assert times["aten::addmm"] == pytest.approx(0.01)
    assert times["autograd::engine::evaluate_function: AddmmBackward0"] == pytest.approx(0.0)
    assert "aten::later" not in times
    assert [(each.name, each.calls) for each in its.collectives] == [("gloo:all_reduce", 1)]


def test_on_a_gpu_kernels_do_and_are_named_by_the_operator_that_launched_them() -> None:
    its = summary(
        *marks(1, 0, 100),
        event("aten::mm", 0, 1, external=5),
        event("sm90_gemm", 10, 40, "kernel", 77, external=5),
        event("ncclDevKernel_AllReduce_Sum_bf16", 30, 70, "kernel", 78, external=6),
        event("Memcpy HtoD", 80, 85, "gpu_memcpy", 77),
    )
    assert (its.gpu, its.first, len(its.steps)) == (True, 1, 1)
    assert (its.compute, its.communication, its.exposed) == pytest.approx((0.03, 0.04, 0.03))
    assert its.idle == pytest.approx(0.1 - 0.06 - 0.005)
    assert [(each.name, each.calls) for each in its.operators] == [("aten::mm", 1)]
    assert [each.name for each in its.collectives] == ["ncclDevKernel_AllReduce_Sum_bf16"]


def test_steps_end_with_the_optimizers_span_around_their_mark(tmp_path: Path) -> None:
    events = [
        event("distui.step#4", 0, 1, "user_annotation"),
        event("aten::mm", 2, 8),
        event("Optimizer.step#SGD.step", 9, 12, "user_annotation"),
        event("distui.step#5", 10, 11, "user_annotation"),
        event("distui.step#6", 20, 21, "user_annotation"),
    ]
    raw = tmp_path / "rank-2.json"
    raw.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=2))
    its = traces.complete(raw, 2, 8)
    assert its.first == 5
    assert its.steps == pytest.approx((0.011, 0.009))
    assert os.listdir(tmp_path) == ["rank-2.json.gz"]
    content = json.loads(gzip.decompress((tmp_path / "rank-2.json.gz").read_bytes()))
    assert content["distributedInfo"] == {"backend": "", "rank": 2, "world_size": 8}
    named = [(each["name"], each["ts"], each["dur"]) for each in content["traceEvents"][:2]]
    assert named == [("ProfilerStep#5", 1000, 11000), ("ProfilerStep#6", 12000, 9000)]
    assert content["traceEvents"][2:] == events


SINCE_BOOT_US = 4_889_703_582_258.384
"""A clock as Kineto's: a float of it is up to half a nanosecond off."""


def recorded(folder: Path, *events: dict[str, Any]) -> dict[str, Any]:
    """A trace of rank 5 as it is packed, its times since boot."""
    since = [
        {**each, "ts": round(SINCE_BOOT_US + each["ts"], 3), "dur": round(each["dur"], 3)}
        for each in events
    ]
    raw = folder / "rank-5.json"
    raw.write_text(json.dumps({"traceEvents": since}))
    traces.complete(raw, 5, 8)
    content: dict[str, Any] = json.loads(gzip.decompress((folder / "rank-5.json.gz").read_bytes()))
    return content


def note(name: str, begin: float, end: float) -> dict[str, Any]:
    return event(name, begin, end, "user_annotation")


@given(st.lists(st.tuples(st.integers(20_000, 90_000), st.integers(1, 9_000)), min_size=2, max_size=8))
@settings(deadline=None, max_examples=30)
def test_no_two_spans_of_a_track_overlap_in_part(lengths: list[tuple[int, int]]) -> None:
    """Perfetto leaves one of them out, and for that a nanosecond is enough."""
    at, events = 0.0, []
    for number, (microseconds, nanoseconds) in enumerate(lengths):
        end = at + microseconds / 1e3 + nanoseconds / 1e6
        optimizer = note("Optimizer.step#AdamW.step", end - 5, end)
        events += [
            event("aten::mm", at + 1, at + 2),
            optimizer,
            note(f"distui.step#{number}", end - 2, end - 1),
        ]
        at = end + 0.000_1
    with TemporaryDirectory() as folder:
        spans = recorded(Path(folder), *events)["traceEvents"]
    assert partial_overlaps(spans) == []
    named = [each["name"] for each in spans if each["name"].startswith("ProfilerStep")]
    assert named == [f"ProfilerStep#{number}" for number in range(1, len(lengths))]


def test_what_reaches_over_the_end_of_a_step_moves_no_step(tmp_path: Path) -> None:
    """As a record_function of the script's own around several steps does."""
    marks = [note(f"distui.step#{number}", 10 * number, 10 * number + 1) for number in range(4)]
    spans = recorded(tmp_path, *marks, event("aten::mm", 2, 3), note("epoch", 5, 25))["traceEvents"]
    assert partial_overlaps(spans) == []
    steps = [each for each in spans if each["name"].startswith("ProfilerStep")]
    assert [each["name"] for each in steps] == [f"ProfilerStep#{number}" for number in (1, 2, 3)]
    assert [each["dur"] for each in steps] == pytest.approx([10 * MS] * 3)
    assert {each["tid"] for each in steps}.isdisjoint(
        each["tid"] for each in spans if each["name"] == "epoch"
    )


def test_hta_finds_the_rank_of_a_job_without_a_process_group(tmp_path: Path) -> None:
    """It searches each line for it, with a space."""
    recorded(tmp_path, event("aten::mm", 0, 1))
    lines = gzip.decompress((tmp_path / "rank-5.json.gz").read_bytes()).decode().splitlines()
    assert next(match[1] for line in lines if (match := re.search(r'"rank":\s+(\d+)', line))) == "5"


def test_a_trace_that_is_too_large_is_packed_and_not_summed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, text = tmp_path / "rank-0.json", json.dumps({"traceEvents": [event("aten::mm", 0, 1)] * 40})
    raw.write_text(text)
    monkeypatch.setattr(trace_events, "MOST_JSON", 1000)
    with pytest.raises(TraceError, match="too many to sum up"):
        traces.complete(raw, 0, 1)
    assert os.listdir(tmp_path) == ["rank-0.json.gz"]
    assert gzip.decompress((tmp_path / "rank-0.json.gz").read_bytes()).decode() == text


DEEP = b'{"traceEvents":' + b"[" * 200_000
BAD = {
    "nothing": b"",
    "no JSON": b"\x80\x02ccommands\nsystem\n",
    "no trace": b"[1, 2]",
    "no events": b"{}",
    "deep": DEEP,
    "a name of bytes": b'{"traceEvents":[{"name":"\xff"}]}',
    "a time in words": b'{"traceEvents":[{"ph":"X","ts":"soon"}]}',
    "no operators": b'{"traceEvents":[{"ph":"X","cat":"cpu_op","ts":0,"dur":-5,"name":"aten::mm"}]}',
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_what_is_no_trace_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rank-0.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        trace_summary.summarized(trace_events.decoded("rank-0.json", trace_events.content(path)))
    assert "\n" not in str(caught.value)


def test_a_pipe_or_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-0.json")
    for path in (tmp_path / "rank-0.json", tmp_path, tmp_path / "none"):
        with pytest.raises(TraceError):
            trace_events.content(path)


def test_many_marks_and_long_names_cost_little() -> None:
    marks = [
        event(f"distui.step#{number}", number, number + 0.5, "user_annotation") for number in range(5000)
    ]
    its = summary(*marks, event("aten::" + "x" * 100_000, 0, 10))
    assert its.first is None
    assert len(its.operators[0].name) == trace_summary.LONGEST_NAME


SPANS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 10)).map(lambda both: (float(both[0]), float(sum(both)))),
    max_size=12,
)


def inside(spans: list[tuple[float, float]], at: float) -> bool:
    return any(begin <= at < end for begin, end in spans)


@given(SPANS, SPANS)
def test_intervals_are_what_counting_says(
    some: list[tuple[float, float]], others: list[tuple[float, float]]
) -> None:
    ours, theirs = trace_events.union(some), trace_events.union(others)
    assert trace_events.length(ours) == sum(inside(some, at) for at in range(60))
    both = sum(inside(some, at) and inside(others, at) for at in range(60))
    assert trace_events.common(ours, theirs) == trace_events.common(theirs, ours) == both
