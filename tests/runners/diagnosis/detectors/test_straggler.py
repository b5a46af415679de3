"""Who the others wait for: found where it is so, and nobody accused where it is not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from each import for_each
from msgspec import structs

from distui.presets.finding import Finding
from distui.runners.diagnosis import straggler
from distui.runners.diagnosis.lags import lags
from distui.runners.diagnosis.view import View
from distui.runners.run.pulse import Site
from distui.runners.run.samples import RankSample

from .lag_rig import BEGAN, LOADER, STACK, Training, arrivals_of, view_of

FED = (*LOADER[2:3], *STACK)
"""In the loader, which has workers."""


def slow(rank: int, seconds: float = 0.2) -> Callable[[int, int], float]:
    return lambda number, step: seconds if number == rank else 0.0


def found(view: View) -> list[Finding]:
    return list(straggler.find(view))


def alarms(view: View) -> list[Finding]:
    return [one for one in found(view) if one.severity != "note"]


@for_each("overlap", [False, True])
@for_each("ranks", [2, 4, 9])
def test_a_slow_rank_is_named_with_its_price(ranks: int, overlap: bool) -> None:
    (one,) = found(Training(ranks=ranks, overlap=overlap, late=slow(1)).view())
    assert (one.id, one.severity, one.rank, one.node) == ("straggler", "warning", 1, 0)
    assert one.text == (
        "rank 1 is the one that the others wait for, about 30 % of each step; "
        "no reason is seen in clocks, throttling, CPU or I/O"
    )
    assert one.evidence[1].startswith("the others wait 20")
    assert " ms in each step of 70" in one.evidence[1]
    assert one.since is not None
    assert BEGAN <= one.since < BEGAN + 30


def test_without_a_reason_it_waits_for_a_few_looks_at_the_rank() -> None:
    view = Training(late=slow(1)).view(20.0)
    few = {rank: pulses[-3:] for rank, pulses in view.history.items()}
    assert len(found(view)) == 1
    arrivals = arrivals_of(view.history, 4)
    assert found(View(state=view.state, plan=None, now=view.now, history=few, arrivals=arrivals)) == []
    blind = {rank: [structs.replace(one, stack=()) for one in pulses] for rank, pulses in few.items()}
    assert (
        len(found(View(state=view.state, plan=None, now=view.now, history=blind, arrivals=arrivals))) == 1
    )


def test_nccl_tells_by_the_time_of_its_kernels() -> None:
    (one,) = found(Training(nccl=True, late=slow(3)).view())
    assert one.rank == 3
    assert "kernels" in one.evidence[0]


def test_nccl_without_kernel_times_says_nothing() -> None:
    view = Training(late=slow(3), nccl=True).view()
    history = {
        rank: [
            structs.replace(
                pulse, recent=tuple(structs.replace(call, duration_ms=None) for call in pulse.recent)
            )
            for pulse in pulses
        ]
        for rank, pulses in view.history.items()
    }
    assert found(view_of(view.state, view.now, history)) == []


def test_the_same_without_counted_steps() -> None:
    (one,) = found(Training(counted=False, late=slow(1)).view())
    assert one.rank == 1
    assert "% of the time" in one.text


@for_each("calls", [2, 4])
@for_each("counted", [False, True])
@for_each("nccl", [False, True])
def test_a_broadcast_in_each_step_parts_no_steps(calls: int, counted: bool, nccl: bool) -> None:
    """DDP sends its buffers from rank 0 before each forward pass: those wait only for that one."""
    made = Training(begins="broadcast", calls=calls, counted=counted, nccl=nccl, late=slow(1))
    (one,) = found(made.view())
    assert (one.id, one.rank) == ("straggler", 1)
    assert "about 30 % of " in one.text or "about 29 % of " in one.text
    assert alarms(replace(made, late=slow(1, 0.03)).view()) == []


def test_a_group_whose_ranks_are_not_told_is_the_whole_world() -> None:
    (one,) = found(Training(told=False, late=slow(2)).view())
    assert one.rank == 2


def test_an_unknown_group_says_nothing() -> None:
    assert found(Training(told=False, group="7", late=slow(2)).view()) == []


@for_each(
    ("name", "training"),
    [
        ("even", Training()),
        ("a little slower", Training(late=slow(1, 0.03))),
        ("in turn", Training(late=lambda rank, step: 0.3 if step % 4 == rank else 0.0)),
        ("one long validation", Training(late=lambda rank, step: 15.0 if (rank, step) == (0, 30) else 0.0)),
        ("validation again and again", Training(late=lambda rank, step: 2.0 if rank == 0 and step % 8 == 0 else 0.0)),
        ("all slow alike", Training(late=lambda rank, step: 0.5)),
        ("tiny steps", Training(step_s=0.004, late=slow(1, 0.002))),
        ("long steps", Training(step_s=12.0)),
        ("slow compile of the first step", Training(late=lambda rank, step: 20.0 * (rank == 1 and step == 0))),
        ("broadcast", Training(op="broadcast", late=slow(0))),
        ("too few collectives", Training(step_s=3.0, calls=1, late=slow(1, 1.0))),
    ],
)  # fmt: skip
def test_healthy_jobs_are_left_alone(name: str, training: Training) -> None:
    assert alarms(training.view()) == [], name


@for_each(("seconds", "late", "count"), [(4.0, 0.2, 0), (8.0, 0.07, 0), (9.0, 0.3, 1)])
def test_a_short_time_says_something_only_of_a_high_price(seconds: float, late: float, count: int) -> None:
    training = Training(late=slow(1, late))
    arrivals = arrivals_of(training.history(seconds, 0.5), 4)
    view = training.view()
    assert (
        len(
            found(
                View(
                    state=view.state,
                    plan=None,
                    now=BEGAN + seconds,
                    history=view.history,
                    arrivals=arrivals,
                )
            )
        )
        == count
    )


@for_each("seed", range(22, 27))
def test_luck_with_very_uneven_steps_accuses_nobody(seed: int) -> None:
    times, made = random.Random(seed), dict[tuple[int, int], float]()

    def late(rank: int, step: int) -> float:
        if (rank, step) not in made:
            made[rank, step] = times.expovariate(1.0)
        return made[rank, step]

    assert alarms(Training(ranks=2, step_s=0.02, late=late).view(30.0)) == []


@for_each(
    ("others", "hidden", "raised"),
    [(2, False, "input-bound"), (1, False, "straggler"), (0, False, "straggler"), (2, True, "straggler")],
)
def test_who_waits_for_its_loader_is_slow_only_if_the_others_workers_have_less_to_do(
    others: int, hidden: bool, raised: str
) -> None:
    training = Training(late=slow(1, 0.5), stacks={1: FED})
    busy = {rank: None if hidden else 2 if rank == 1 else others for rank in range(4)}
    history = {
        rank: [structs.replace(each, workers_busy=busy[rank]) for each in pulses]
        for rank, pulses in training.history().items()
    }
    (one,) = found(view_of(training.state(), BEGAN + 41, history))
    assert one.id == raised
    assert "data loader" in one.text
    if raised == "input-bound":
        assert one.severity == "note"
        assert one.text.endswith("(train.py:40 train)")
        assert one.evidence[0].startswith(
            "rank 1 comes last in most steps, its queue of batches is the emptiest"
        )


@for_each(
    ("filled", "asleep"),
    [((0, 2, 2), 0), ((2, 2, 0), 0), ((0, 1, 2, 2), 0), ((0, 0, 0, 0, 2, 2), 4)],
)
def test_workers_that_had_nothing_to_do_for_a_moment_make_no_straggler(
    filled: tuple[int, ...], asleep: int
) -> None:
    """Queues are first filled, and one batch may be late on one rank: a few such looks prove nothing."""
    training = Training(late=slow(1, 0.5), stacks={1: FED})
    history = training.history()
    lately = {}
    for rank, pulses in history.items():
        seen = pulses[-len(filled) :]
        steps = [seen[0].step] * asleep + [pulse.step for pulse in seen[asleep:]]
        lately[rank] = [
            structs.replace(pulse, workers_busy=2 if rank == 1 else busy, step=step)
            for pulse, busy, step in zip(seen, filled, steps, strict=True)
        ]
    arrivals = arrivals_of(history, 4)
    view = View(state=training.state(), plan=None, now=BEGAN + 41, history=lately, arrivals=arrivals)
    assert alarms(view) == []


def test_a_rank_that_waits_for_its_loader_is_not_named_before_its_workers_were_seen_often_enough() -> None:
    training = Training(late=slow(1, 0.5), stacks={1: FED})
    history = {
        rank: [structs.replace(each, workers_busy=2 * (rank == 1)) for each in pulses]
        for rank, pulses in training.history().items()
    }
    arrivals = arrivals_of(history, 4)
    early = {rank: pulses[-2:] for rank, pulses in history.items()}
    state = training.state()
    view = View(state=state, plan=None, now=BEGAN + 41, history=early, arrivals=arrivals)
    assert found(view) == []
    state.findings["straggler", 1, 0] = Finding(
        "straggler", "warning", "rank 1 …, about 45 % of each step", rank=1
    )
    assert [one.id for one in found(view)] == ["straggler"]


def test_what_is_long_past_says_nothing() -> None:
    view = Training(late=slow(1)).view()
    later = view_of(view.state, view.now + 300, view.history)
    assert found(later) == []


def test_clocks_that_differ_accuse_nobody() -> None:
    even = Training(nodes=2, step_s=0.1, calls=8, skew={1: 0.015})
    assert found(even.view()) == []


def test_on_another_node_the_clocks_margin_is_taken_off() -> None:
    (one,) = found(Training(nodes=2, skew={1: 0.015}, late=slow(3, 0.4)).view())
    assert (one.rank, one.node) == (3, 1)
    assert one.text.startswith("rank 3 on gpu-b is the one")


def test_a_node_whose_ranks_are_slow_in_turn_is_named() -> None:
    late = lambda rank, step: 0.3 if rank == 2 + step % 2 else 0.0  # noqa: E731
    (one,) = found(Training(ranks=6, nodes=3, late=late).view())
    assert (one.rank, one.node, one.ranks) == (None, 1, (2, 3))
    assert one.text.startswith("the ranks on gpu-b hold the others up")


def test_it_is_told_in_the_same_words_while_little_changes() -> None:
    training = Training(late=slow(1))
    (first,) = found(training.view())
    training = Training(late=slow(1, 0.22))
    state = training.state()
    state.findings[first.id, first.rank, first.node] = first
    assert found(training.view(state=state)) == [first]
    much = Training(late=slow(1, 0.8))
    (other,) = found(much.view(state=state))
    assert "about 60 %" in other.text
    assert other.since == first.since


def test_it_stays_a_little_below_the_limit_and_then_goes() -> None:
    training = Training(late=slow(1, 0.05))
    assert found(training.view()) == []
    state = training.state()
    said = Finding("straggler", "warning", "rank 1 …, about 10 % of each step; …", rank=1, node=0)
    state.findings["straggler", 1, 0] = said
    assert found(training.view(state=state)) == [said]
    assert found(Training(late=slow(1, 0.02)).view(state=state)) == []


def test_steps_that_have_just_become_slow_are_not_outvoted_by_the_fast_ones_before() -> None:
    """Eighteen seconds with many fast steps, then twelve with few."""
    training = Training(step_s=0.05, late=lambda rank, step: 0.5 if rank == 1 and step >= 340 else 0.0)
    view = training.view(30.0)
    (one,) = found(view_of(view.state, view.now, view.history))
    assert one.rank == 1
    assert "about 90 %" in one.text


def test_the_reason_is_where_it_is_since_it_is_slow() -> None:
    """Twenty-four seconds of one kind of steps, then sixteen in which rank 1 is late."""
    training = Training(step_s=0.05, late=lambda rank, step: 0.5 if rank == 1 and step >= 450 else 0.0)
    view = training.view(40.0)
    slow_since = next(lag.since for lag in lags(view.arrivals, {}, view.now) if lag.rank == 1)
    assert slow_since == pytest.approx(BEGAN + 450 * 0.054, abs=1.0)
    here = (Site("/job/train.py", 12, "tokenise"), *STACK)
    history = {
        rank: [
            structs.replace(each, stack=here if rank == 1 and each.at >= slow_since else STACK)
            for each in pulses
        ]
        for rank, pulses in view.history.items()
    }
    (one,) = found(view_of(view.state, view.now, history))
    assert "it is often at train.py:12 tokenise" in one.text


def test_whoever_has_no_data_left_waits_for_nobody_in_particular() -> None:
    """torch's Join: ranks that are through call what the others call, and wait for each of their steps."""
    torch = "/env/lib/python3.11/site-packages/torch/distributed"
    through = (
        Site(f"{torch}/distributed_c10d.py", 3168, "all_reduce"),
        Site(f"{torch}/algorithms/join.py", 285, "_get_num_nonjoined_procs"),
        Site(f"{torch}/algorithms/join.py", 264, "__exit__"),
        *STACK,
    )
    assert found(Training(late=slow(1)).view()) != []
    assert found(Training(late=slow(1), stacks={0: through}).view()) == []


def test_the_slow_loader_of_one_rank_is_the_reason() -> None:
    (one,) = found(Training(late=slow(1), stacks={1: LOADER}).view())
    assert one.text == (
        "rank 1 holds the others up: it waits for its data loader (data.py:12 __getitem__); "
        "costs about 30 % of each step"
    )
    assert "num_workers" in one.remedy


def test_slow_loaders_of_all_ranks_are_no_straggler() -> None:
    training = Training(late=lambda rank, step: 0.5, stacks=dict.fromkeys(range(4), LOADER))
    (one,) = found(training.view())
    assert (one.id, one.severity) == ("input-bound", "note")
    assert "data.py:12 __getitem__" in one.text
    state = training.state()
    state.findings["input-bound", None, None] = one
    assert found(training.view(50.0, state)) == [one]


def test_loaders_before_the_first_step_are_not_told() -> None:
    view = Training(stacks=dict.fromkeys(range(4), LOADER)).view()
    history = {
        rank: [structs.replace(pulse, step=0) for pulse in pulses] for rank, pulses in view.history.items()
    }
    assert found(view_of(view.state, view.now, history)) == []


def test_a_rank_that_is_late_because_it_waits_elsewhere_is_not_named() -> None:
    """Rank 1 waits for rank 0 in their own group, and both are late for the whole world."""
    world = Training(late=lambda rank, step: 0.2 if rank < 2 else 0.0)
    pair = Training(ranks=2, late=slow(0), group="3")
    view, inner = world.view(), pair.view()
    history = {
        rank: [
            structs.replace(
                one,
                groups=(*one.groups, *other.groups),
                recent=(*one.recent[-32:], *other.recent[-32:]),
            )
            if other is not None
            else one
            for one, other in zip(pulses, inner.history.get(rank, [None] * len(pulses)), strict=True)
        ]
        for rank, pulses in view.history.items()
    }
    both = found(view_of(view.state, view.now, history))
    assert [one.rank for one in both if one.rank is not None] == [0]


def test_a_group_that_was_made_anew_counts_again() -> None:
    training = Training(late=slow(1))
    arrivals = arrivals_of(training.history(), 4)
    (group,) = arrivals.groups
    assert group.newest_completed > 200
    again = [pulses[0] for pulses in Training(late=slow(2)).history(10.0).values()]
    for pulse in again:
        arrivals.add(structs.replace(pulse, at=pulse.at + 500), 4)
    assert 0 < group.newest_completed < 100


def test_reasons_join_from_telemetry() -> None:
    training = Training(late=slow(1))
    state = training.state()
    for number, rank in state.ranks.items():
        rank.sample = RankSample(number, throttled_percent=70.0 if number == 1 else 0.0)
    (one,) = found(training.view(state=state))
    assert (
        one.text
        == "rank 1 holds the others up: its cgroup's CPU quota holds it back; costs about 30 % of each step"
    )
    assert "cpu.max" in one.remedy
