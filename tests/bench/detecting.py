"""A look of all detectors at a made run of 1,024 ranks on 128 nodes, healthy and in three kinds of trouble."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from distui.runners.diagnosis.detectors import Judging
from distui.runners.run.model import Event, RankPhase, RankPlace, Stamped
from distui.runners.run.pulse import Collective, ProcessGroup, Pulse, Site
from distui.runners.run.samples import Gpu, Host, RankSample
from distui.runners.run.state import Attempt, Node, Rank, RunState

from .figures import Row, Sample, limit_row
from .options import Effort

RANKS, PER_NODE = 1024, 8
GOAL_MS = 20.0
LOOKS = 12
BEGAN = 1_000_000.0
RING = 64
STEP_S, CALLS = 0.5, 4
STACK = tuple(
    [
        Site(
            f"/env/lib/python3.11/site-packages/torch/nn/modules/module{number}.py", 100 + number, "forward"
        )
        for number in range(12)
    ]
    + [Site("/job/train.py", 50, "step"), Site("/job/train.py", 90, "main")]
)
ASLEEP = (Site("/job/train.py", 33, "load"), *STACK[-1:])

Pulses = Callable[[int, float], Pulse]
"""Rank and time of the look → what it says."""


def rows(effort: Effort) -> list[Row]:
    """The looks that come right after a pulse of every rank; those between them cost less."""
    note = f"{RANKS} ranks on {RANKS // PER_NODE} nodes, with new pulses of {RING} collectives of each right before."
    kinds: tuple[tuple[str, Pulses], ...] = (
        ("healthy", _healthy),
        ("a straggler", _straggling),
        ("a rank that never joins", _hanging),
    )
    return [
        limit_row(
            f"all detectors: a look, {name}", Sample(tuple(_looks(pulses)), "ms", 1), GOAL_MS, notes=(note,)
        )
        for name, pulses in kinds
    ]


def _looks(pulses: Pulses) -> Iterator[float]:
    state = _state()
    told: list[Event] = []

    def emit(event: Event) -> None:
        told.append(event)
        state.apply(Stamped(BEGAN, event))

    judging = Judging(state, None, emit)
    for number in range(LOOKS):
        now = BEGAN + 60.0 + 5.0 * number
        for rank in state.ranks.values():
            rank.pulse, rank.sampled = pulses(rank.place.rank, now), now
        for node in state.nodes.values():
            node.heard = now
        began = time.perf_counter()
        judging.judge(now + 0.5)
        took = 1000 * (time.perf_counter() - began)
        for later in (2.5, 4.5):
            judging.judge(now + later)
        if number > 3:  # the first ones have little to look at
            yield took


def _state() -> RunState:
    places = tuple(
        RankPlace(rank, rank % PER_NODE, rank // PER_NODE, str(rank % PER_NODE)) for rank in range(RANKS)
    )
    state = RunState(attempts=[Attempt(1, BEGAN - 2000, "start", RANKS, {}, places)])
    for number in range(RANKS // PER_NODE):
        gpus = tuple(
            Gpu(
                index,
                f"GPU-{number}-{index}",
                "H100",
                util=99.0,
                mem_used=60 << 30,
                mem_total=80 << 30,
                sm_mhz=1755,
            )
            for index in range(PER_NODE)
        )
        host = Host(cpu_percent=20.0, cores=128, load1=20.0, mem_used=200 << 30, mem_total=1 << 40)
        state.nodes[number] = Node(number, host=f"gpu-{number}", gpus=gpus, metrics=host)
    for place in places:
        sample = RankSample(
            place.rank, pid=place.rank + 1, rss_bytes=20 << 30, gpu=place.local_rank, gpu_mem=60 << 30
        )
        state.ranks[place.rank] = Rank(
            place, RankPhase.RUNNING, pid=place.rank + 1, sample=sample, hook="ready"
        )
    return state


MEMBERS = tuple(range(RANKS))


def _healthy(rank: int, now: float) -> Pulse:
    return _pulse(rank, now, 0.0002 * (rank * 7 % 13))


def _straggling(rank: int, now: float) -> Pulse:
    return _pulse(rank, now, 0.1 if rank == 26 else 0.0002 * (rank * 7 % 13))


def _hanging(rank: int, now: float) -> Pulse:
    """All stand since BEGAN + 60, rank 26 before the call that the others wait in."""
    whole = _pulse(rank, BEGAN + 60.0, 0.0)
    last = whole.groups[0].enqueued
    missing = rank == 26
    waits = Collective("0", last + 1, "all_reduce", "Float[1024]", BEGAN + 60.0, sites=STACK[-2:])
    return Pulse(
        rank=rank, at=now, pid=rank + 1, hook=True, state="S", stack=ASLEEP if missing else STACK, sites=1, samples=10,
        cpu_s=10.0, process_s=11.0, torch=True, step=last // CALLS, recorder=True, recent=whole.recent,
        groups=(ProcessGroup("0", MEMBERS, last if missing else last + 1, last),), active=() if missing else (waits,),
    )  # fmt: skip


def _pulse(rank: int, now: float, late: float) -> Pulse:
    calls = int((now - BEGAN) / STEP_S * CALLS)
    recent = tuple(
        Collective(
            "0", seq, "all_reduce", "Float[1024]",
            created=BEGAN + seq * STEP_S / CALLS + (late if seq % CALLS == 1 else 0.0), done=True,
            sites=STACK[-2:] if seq > calls - 8 else (),
        )
        for seq in range(calls - RING + 1, calls + 1)
    )  # fmt: skip
    return Pulse(
        rank=rank, at=now, pid=rank + 1, hook=True, state="S", stack=STACK, sites=8, samples=10, cpu_s=now - BEGAN,
        process_s=now - BEGAN, torch=True, step=calls // CALLS, recorder=True, recent=recent,
        groups=(ProcessGroup("0", MEMBERS, calls, calls),),
    )  # fmt: skip
