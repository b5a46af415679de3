"""Memory that ran out: whose, how much, how fast, and what would fit; and memory that is about to."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from each import for_each
from msgspec import structs

from distui.presets.estimate.strategies import strategies
from distui.presets.finding import Finding
from distui.runners.diagnosis import memory_growth, memory_remedies, out_of_memory
from distui.runners.diagnosis.memory_curve import POINTS_KEPT, MemoryCurve, MemoryPoint
from distui.runners.diagnosis.view import View
from distui.runners.run.model import FirstCause, Outcome, PlanSummary, RankPhase, RankPlace, RunPhase
from distui.runners.run.samples import Gpu, Host, RankSample
from distui.runners.run.state import Attempt, Node, Rank, RunState

NOW = 1_000_000.0
GIB = 2**30
NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB of "
    "which 1.23 GiB is free. Process 4242 has 9.00 GiB memory in use. Including non-PyTorch memory, this process has "
    "68.90 GiB memory in use. Of the allocated memory 66.50 GiB is allocated by PyTorch, and 1.40 GiB is reserved by "
    "PyTorch but unallocated. If reserved but unallocated memory is large try setting ..."
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.69 GiB total capacity; 14.50 GiB already "
    "allocated; 9.69 MiB free; 21.50 GiB reserved in total by PyTorch)"
)
PLAN = PlanSummary("ddp", "ddp", "torchrun", "train.py --lr 1", nproc_per_node=4, obeys="it obeys")


def state_of(cause: FirstCause | None = None, ranks: int = 4, host: Host | None = None) -> RunState:
    places = tuple(RankPlace(rank, rank) for rank in range(ranks))
    attempt = Attempt(1, NOW - 1000, "start", ranks, {}, places)
    if cause is not None:
        attempt.ended, attempt.outcome, attempt.first_cause = NOW, Outcome.FAILED, cause
    state = RunState(attempts=[attempt], plan=PLAN, phase=RunPhase.RUNNING)
    state.nodes[0] = Node(0, host="gpu-a", metrics=host)
    state.ranks = {
        place.rank: Rank(place, RankPhase.RUNNING, sample=RankSample(place.rank)) for place in places
    }
    return state


def found(state: RunState, now: float = NOW + 1, **more: Any) -> list[Finding]:
    return list(out_of_memory.find(View(state=state, plan=None, now=now, history={}, **more)))


def rise(seconds: float, low: float, high: float, every: float = 2.0) -> list[tuple[float, int]]:
    """GiB over time until NOW."""
    count = int(seconds / every)
    return [
        (NOW - seconds + every * number, round(GIB * (low + (high - low) * number / count)))
        for number in range(count + 1)
    ]


def host_points(values: list[tuple[float, int]]) -> list[MemoryPoint]:
    return [MemoryPoint(at, size) for at, size in values]


# --- CUDA ----------------------------------------------------------------------------------------------------


def test_cuda_memory_in_the_words_of_torch_2() -> None:
    said = out_of_memory.parse_cuda(NEW)
    gib = [None if size is None else round(size / GIB, 2) for size in said[:4]]
    assert gib == [2.0, 79.15, 66.5, 1.4]
    assert (said.gpu, round(said.others / GIB, 2)) == (1, 9.0)


def test_cuda_memory_in_the_words_of_torch_1() -> None:
    said = out_of_memory.parse_cuda(OLD)
    assert (said.tried, said.gpu, said.others) == (20 * 2**20, 0, 0)
    assert said.capacity == round(23.69 * GIB)
    assert said.unused == pytest.approx(7.0 * GIB, rel=0.01)


def test_words_without_numbers_give_none() -> None:
    assert out_of_memory.parse_cuda("CUDA out of memory") == (None, None, None, None, None, 0)


def test_cuda_memory_that_ran_out_names_rank_price_and_the_next_strategy() -> None:
    cause = FirstCause(
        1,
        1,
        0,
        text="rank 1 ran out",
        last_lines=("Traceback", NEW),
        victims=(0, 2),
        at=NOW - 1,
        kind="cuda-oom",
    )
    points = [MemoryPoint(at, None, size) for at, size in rise(40, 1.2, 68.0)]
    (one,) = found(state_of(cause), memory={1: points})
    assert (one.id, one.severity, one.rank, one.node, one.ranks) == ("oom-cuda", "error", 1, 0, (0, 2))
    assert one.text == "rank 1 ran out of GPU memory of 79.2 GiB: 2.0 GiB more did not fit"
    assert "rank 1's GPU memory: 1.2 → 68.0 GiB in 40 s" in one.evidence
    assert NEW in one.evidence
    assert "end the other processes" in one.remedy
    assert "`distui launch zero1 --nproc-per-node 4 -- train.py --lr 1`" in one.remedy
    assert "`distui advise --script train.py --gpus 4xGPU --gpu-memory 85`" in one.remedy


def test_memory_in_pieces_has_its_own_remedy() -> None:
    (one,) = found(state_of(FirstCause(0, 0, 0, last_lines=(OLD,))))
    assert one.remedy.startswith(
        "the memory is in pieces: try --env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    )


def test_another_failure_is_not_ours() -> None:
    cause = FirstCause(0, 0, 0, text="ValueError", last_lines=("ValueError: no",), kind="exception")
    assert found(state_of(cause)) == []
    mentioned = structs.replace(
        cause, last_lines=("step 3: recovered from CUDA out of memory", "ValueError: no")
    )
    assert found(state_of(mentioned)) == []


def test_it_is_told_for_a_while_after_a_restart() -> None:
    state = state_of(FirstCause(1, 1, 0, last_lines=(NEW,)))
    state.attempts[0].outcome = Outcome.RESTARTED
    state.attempts.append(Attempt(2, NOW, "failure", 4, {}, state.attempts[0].ranks))
    points = [MemoryPoint(at, None, size) for at, size in rise(40, 1.2, 68.0)]
    (one,) = found(state, memory_before={1: points})
    assert "rank 1's GPU memory: 1.2 → 68.0 GiB in 40 s" in one.evidence
    state.attempts[1].began = NOW - 500
    assert found(state) == []


def test_a_stop_is_no_failure() -> None:
    state = state_of(FirstCause(1, 1, 0, last_lines=(NEW,)))
    state.attempts[0].outcome = Outcome.STOPPED
    assert found(state) == []


# --- what would fit ------------------------------------------------------------------------------------------


@for_each(
    ("preset", "kind", "following"),
    [
        ("ddp", "ddp", "zero1"),
        ("mine", "ddp", "zero1"),
        ("zero1", "zero1", "fsdp2-zero2"),
        ("fsdp2-zero2", "fsdp2", "fsdp2"),
        ("fsdp2", "fsdp2", "fsdp2-offload"),
        ("hsdp", "fsdp2", "fsdp2-offload"),
        ("fsdp2-offload", "fsdp2", None),
        ("ds-zero2", "deepspeed", "ds-zero3"),
        ("ds-zero3", "deepspeed", "ds-zero3-cpu"),
        ("single", "single", None),
        ("", "", None),
    ],
)
def test_the_next_step_of_the_ladder(preset: str, kind: str, following: str | None) -> None:
    assert memory_remedies.following(structs.replace(PLAN, preset=preset, strategy=kind)) == following


def test_the_ladder_is_that_of_advice() -> None:
    plain = [row.preset for row in strategies("parallelize") if row.needs != "edit" and not row.sizes]
    assert list(memory_remedies.LADDER) == plain
    assert list(memory_remedies.DEEPSPEED) == [row.preset for row in strategies("deepspeed")]


def test_a_script_that_obeys_nothing_is_not_sent_to_another_preset() -> None:
    said = memory_remedies.memory_remedy(structs.replace(PLAN, obeys=None))
    assert "distui launch" not in said
    assert "the script obeys none" in said
    assert "micro batch" in said


def test_one_rank_has_no_next_strategy() -> None:
    assert memory_remedies.following(structs.replace(PLAN, nproc_per_node=1)) is None


# --- host ----------------------------------------------------------------------------------------------------

KILLED = FirstCause(2, 2, 0, pid=7, signal="SIGKILL", text="rank 2 was killed", at=NOW)
LIMITED = Host(mem_total=64 * GIB, mem_used=9 * GIB, cgroup_mem_max=8 * GIB, cgroup_mem_used=2 * GIB)


def test_a_kill_in_a_cgroup_with_the_curve_of_its_rank() -> None:
    cause = structs.replace(KILLED, oom="cgroup memory.events: oom_kill 0 → 1", kind="host-oom")
    points = host_points([*rise(100, 1.2, 1.2)[:-20], *rise(40, 1.2, 7.9)])
    (one,) = found(state_of(cause, host=LIMITED), memory={2: points})
    assert (one.id, one.severity, one.rank) == ("oom-cgroup", "error", 2)
    assert one.text == "rank 2 was killed: the memory of 8.0 GiB of its cgroup ran out"
    assert one.evidence == (
        "cgroup memory.events: oom_kill 0 → 1",
        "rank 2's host memory: 1.2 → 7.9 GiB in 40 s",
    )


def test_a_kill_on_the_whole_node_and_who_held_most() -> None:
    cause = structs.replace(KILLED, oom="kernel log: Out of memory: Killed process 7 (python)")
    points = {2: host_points(rise(40, 1, 3)), 0: host_points(rise(40, 1, 40))}
    (one,) = found(state_of(cause, host=Host(mem_total=64 * GIB, mem_used=GIB)), memory=points)
    assert one.id == "oom-host"
    assert one.text == "rank 2 was killed: host memory of 64.0 GiB ran out"
    assert "rank 0 held more: 40.0 GiB" in one.evidence


@for_each(("used", "ids"), [(7.8, ["oom-cgroup"]), (5.0, [])])
def test_a_kill_that_the_kernel_does_not_explain_counts_where_memory_was_full(
    used: float, ids: list[str]
) -> None:
    points = host_points(rise(40, 1.0, used))
    ones = found(state_of(KILLED, host=LIMITED), node_memory={0: points})
    assert [one.id for one in ones] == ids
    assert all("most likely" in one.text for one in ones)


def test_an_allocation_that_failed_is_no_kill() -> None:
    line = "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."
    (one,) = found(state_of(FirstCause(0, 0, 0, last_lines=(line,), kind="host-oom")))
    assert one.id == "oom-host"
    assert one.text == "rank 0 failed: host memory ran out"
    assert line in one.evidence


@for_each(("used", "tried", "refused"), [(9, 2, True), (62, 2, False), (9, 60, False)])
def test_an_allocation_that_failed_on_a_node_with_room(used: float, tried: int, refused: bool) -> None:
    """`ulimit -v`: not the memory of the node ran out."""
    line = f"RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate {tried * GIB} bytes."
    cause = FirstCause(0, 0, 0, last_lines=(line,), kind="host-oom", at=NOW)
    host = Host(mem_total=64 * GIB, mem_used=int(used * GIB))
    (one,) = found(state_of(cause, host=host), node_memory={0: host_points(rise(40, used, used))})
    assert ("a limit of the process itself refuses it" in one.text) is refused
    assert one.text.startswith("rank 0 asked for 2.0 GiB and got no more") is refused
    assert ("ulimit -v" in one.remedy) is refused


# --- what is about to ----------------------------------------------------------------------------------------


def growing(low: float, high: float, seconds: float = 800.0) -> dict[str, Any]:
    """Rank 1 grows, and the node with it."""
    own, node = MemoryCurve(), MemoryCurve()
    for (at, size), (_, whole) in zip(
        rise(seconds, low, high), rise(seconds, low + 20, high + 20), strict=True
    ):
        own.add(MemoryPoint(at, size))
        node.add(MemoryPoint(at, whole))
    return {"memory": {1: own.points}, "node_memory": {0: node.points}}


def full(used: float) -> Host:
    return Host(mem_total=64 * GIB, mem_used=round(used * GIB))


def test_memory_that_grows_steadily_towards_the_limit() -> None:
    state = state_of(host=full(50))
    (one,) = found(state, **growing(10, 30))
    assert (one.id, one.severity, one.rank, one.node) == ("mem-creep", "warning", 1, 0)
    assert one.text == (
        "the host memory of rank 1 grows steadily and reaches the 64.0 GiB of the node within half an hour"
    )
    state.findings[one.id, one.rank, one.node] = one
    assert found(state, **growing(10, 31)) == [one]


@for_each(
    ("name", "host", "curves"),
    [
        ("slowly", full(30), growing(10, 11)),
        ("far from the limit", full(10), growing(1, 2)),
        ("for a short time", full(60), growing(10, 30, 90)),
        ("fast, but far from the limit", full(10), growing(1, 8, 150)),
        ("not at all", full(63), growing(30, 30)),
        ("falling", full(63), growing(30, 20)),
        ("unknown limit", None, growing(10, 30)),
        ("mapped files", full(50), growing(10, 30) | {"node_memory": {0: host_points(rise(800, 40, 40))}}),
    ],
)
def test_memory_that_need_not_worry(name: str, host: Host | None, curves: dict[str, Any]) -> None:
    assert found(state_of(host=host), **curves) == [], name


def test_memory_that_grows_fast_is_told_after_two_minutes() -> None:
    (one,) = found(state_of(host=full(50)), **growing(10, 20, 130))
    assert (one.id, one.rank) == ("mem-creep", 1)


def test_memory_that_grows_unevenly_is_not_told_again_and_again() -> None:
    state, curve = state_of(host=full(50)), growing(10, 20, 130)
    (one,) = found(state, **curve)
    state.findings[one.id, one.rank, one.node] = one
    points = curve["memory"][1]
    for at, gib in ((NOW + 20.0, 20.0), (NOW + 40.0, 20.5)):  # a pause, then a little more
        points.append(MemoryPoint(at, round(gib * GIB)))
    assert found(state, **curve) == [one]
    points.extend(MemoryPoint(NOW + 50.0 + 5 * number, round(20.5 * GIB)) for number in range(20))
    assert found(state, now=NOW + 150.0, **curve) == []


def test_memory_that_grows_in_warm_up() -> None:
    state = state_of(host=full(50))
    state.attempts[0].began = NOW - 120
    assert found(state, **growing(10, 30)) == []


def shape(size: Callable[[float], float]) -> list[tuple[float, int]]:
    return [(NOW - 900 + at, round(GIB * size(at))) for at in range(0, 900, 2)]


@for_each(
    ("name", "size", "grows"),
    [
        ("line", lambda at: 1 + at / 100, True),
        ("saw teeth on a line", lambda at: 1 + at / 100 + (at % 40) / 20, True),
        ("saw teeth", lambda at: 1 + (at % 300) / 20, False),
        ("one step", lambda at: 1 + 8 * (at > 450), False),
        ("levels off", lambda at: 10 - 9 * 0.99**at, False),
        ("flat", lambda at: 5, False),
    ],
)
def test_steady_growth(name: str, size: Callable[[float], float], grows: bool) -> None:
    assert (memory_growth.steady(shape(size), 300) is not None) is grows, name


def test_the_memory_of_a_gpu_grows() -> None:
    state = state_of()
    state.nodes[0].gpus = (Gpu(3, "u", "H100", mem_used=70 * GIB, mem_total=80 * GIB),)
    state.ranks[1].sample = RankSample(1, gpu=3)
    points = [MemoryPoint(at, None, size) for at, size in rise(800, 40, 70, 20)]
    (one,) = found(state, memory={1: points})
    assert (
        one.text
        == "the GPU memory of rank 1 grows steadily and reaches the 80.0 GiB of its GPU within half an hour"
    )


def test_a_cgroup_that_is_nearly_full() -> None:
    host = structs.replace(LIMITED, cgroup_mem_used=round(7.7 * GIB))
    state = state_of(host=host)
    state.ranks[3].sample = RankSample(3, rss_bytes=6 * GIB)
    (one,) = found(state)
    assert (one.id, one.severity, one.node, one.evidence) == (
        "oom-near",
        "warning",
        0,
        ("rank 3 holds 6.0 GiB",),
    )
    assert "95% of its 8.0 GiB" in one.text
    state.findings[one.id, one.rank, one.node] = one
    state.nodes[0].metrics = structs.replace(LIMITED, cgroup_mem_used=round(7.3 * GIB))
    assert found(state) == [one]
    state.nodes[0].metrics = structs.replace(LIMITED, cgroup_mem_used=7 * GIB)
    assert found(state) == []


def test_what_is_nearly_full_is_not_told_of_ranks_that_have_ended() -> None:
    host = structs.replace(LIMITED, cgroup_mem_used=round(7.9 * GIB))
    assert found(state_of(FirstCause(0, 0, 0, text="ValueError", kind="exception"), host=host)) == []


def test_a_machine_that_is_full_without_a_cgroup_is_not_told_so() -> None:
    assert found(state_of(host=full(63))) == []


# --- the curve -----------------------------------------------------------------------------------------------


def test_a_curve_stays_small_and_dense_at_its_end() -> None:
    kept = MemoryCurve()
    for number in range(2000):
        kept.add(MemoryPoint(2.0 * number, number))
    ages = [3998.0 - point.at for point in kept.points]
    assert len(ages) == POINTS_KEPT
    assert ages[-30:] == [2.0 * number for number in range(29, -1, -1)]
    assert 900 < ages[0] < 1200
    assert max(before - after for before, after in pairwise(ages)) <= 22.0
    kept.add(MemoryPoint(10.0, 1))
    assert kept.points[-1].at == 3998.0


@for_each(
    ("values", "text"),
    [
        ([], ""),
        ([(0.0, 5)], ""),
        ([(0.0, 2 * GIB), (50.0, 2 * GIB)], "2.0 GiB, steady"),
        ([(0.0, 100 << 20), (10.0, 200 << 20)], "100.0 → 200.0 MiB in 10 s"),
        ([(0.0, 5 * GIB), (10.0, GIB), (20.0, 6 * GIB)], "1.0 → 6.0 GiB in 10 s"),
    ],
)
def test_curves_in_words(values: list[tuple[float, int]], text: str) -> None:
    assert memory_growth.growth_text(values) == text
