"""Collectives that all have joined and that do not end: other calls, a network that is cut, kernels that spin."""

from __future__ import annotations

from distui.runners.run.pulse import Collective, ProcessGroup, Site, Stall

from .hang_rig import (
    END,
    IN_BARRIER,
    LOAD,
    STEP,
    Made,
    call,
    only,
    series,
    waiting,
)

COUNT = (Site("/job/train.py", 55, "count"), *STEP[1:])


def steps(first: int, last: int, leave_out: int = 0) -> tuple[Collective, ...]:
    """Collectives of steps that call all_reduce and broadcast in turn; one of them left out by this rank."""
    made: list[Collective] = []
    turn = first
    while len(made) < last - first + 1:
        if turn != leave_out:
            kind = ("all_reduce", STEP) if turn % 2 else ("broadcast", COUNT)
            made.append(call(first + len(made), kind[0], sites=kind[1], age=40.0 - len(made), done=True))
        turn += 1
    return tuple(made)


def cut(rank: int, here: str, there: str) -> tuple[Stall, ...]:
    """A connection that retransmits."""
    return (Stall(f"{here}:{40000 + rank}", f"{there}:{50000 + rank}", "ESTABLISHED", 6, 4096),)


def test_another_operation_names_both() -> None:
    barrier = call(42, "barrier", sites=END, what="")
    made = Made().wait([0, 2, 3]).add(waiting(1, barrier, stack=IN_BARRIER))
    found = only(made.hang())
    assert (found.id, found.severity, found.rank, found.ranks) == ("hang-mismatch", "error", 1, ())
    assert found.text == (
        "rank 1 is in barrier #42 (train.py:77 finish) where ranks 0, 2, 3 are in all_reduce #42 (train.py:50 step)"
    )
    assert "drop_last" in found.remedy
    assert any(
        line.startswith("rank 1: barrier #42 of default_pg: train.py:77 finish") for line in found.evidence
    )


def test_another_size_names_both() -> None:
    made = Made().wait([0, 1, 2]).add(waiting(3, call(42, what="Float[48]")))
    found = only(made.hang())
    assert (found.id, found.rank) == ("hang-mismatch", 3)
    assert "all_reduce #42 Float[48]" in found.text
    assert "all_reduce #42 Float[20]" in found.text


def test_sizes_of_all_to_all_may_differ() -> None:
    made = Made(ranks=2).add(
        waiting(0, call(42, "all_to_all", what="Float[3]")),
        waiting(1, call(42, "all_to_all", what="Float[9]")),
    )
    assert made.hang() == []


def test_a_rank_that_passed_is_asked_for_what_it_called_there() -> None:
    """The root of a broadcast goes on, and waits in the next one: the culprit is still in the one before."""
    passed = call(41, "broadcast", sites=COUNT, age=16, done=True)
    made = Made(ranks=3).add(
        waiting(0, call(42), recent=(passed,)),
        waiting(1, call(41, age=15)),
        waiting(2, call(42), recent=(passed,)),
    )
    found = only(made.hang())
    assert (found.id, found.rank) == ("hang-mismatch", 1)
    assert "rank 1 is in all_reduce #41 (train.py:50 step)" in found.text
    assert "ranks 0, 2 are in broadcast #41 (train.py:55 count)" in found.text


def test_a_skipped_collective_is_named() -> None:
    """Rank 1 left out the broadcast that was to be #38; from there on it is one ahead."""
    theirs, mine = steps(33, 41), steps(33, 41, leave_out=38)
    made = Made(ranks=3).add(
        waiting(0, call(42, "broadcast", sites=COUNT), recent=theirs),
        waiting(1, call(42, "all_reduce"), recent=mine),
        waiting(2, call(42, "broadcast", sites=COUNT), recent=theirs),
    )
    found = only(made.hang())
    assert (found.id, found.rank) == ("hang-mismatch", 1)
    assert found.text.startswith(
        "rank 1 skipped broadcast #38 of train.py:55 count: rank 1 is in all_reduce #42"
    )
    assert any(
        line.startswith("they part at #38: rank 1 called all_reduce at train.py:50")
        for line in found.evidence
    )


def test_a_rank_that_ended_because_it_skipped_one() -> None:
    theirs, mine = steps(33, 41), steps(33, 41, leave_out=38)
    made = Made(ranks=3).wait([0, 2], call(42, "broadcast", sites=COUNT), recent=theirs)
    made.add(series(1, END, enqueued=41, recent=mine)).end(1)
    found = only(made.hang())
    assert (found.id, found.rank) == ("hang-mismatch", 1)
    assert found.text == (
        "rank 1 skipped broadcast #38 of train.py:55 count; ranks 0, 2 wait for it in broadcast #42"
    )


def test_other_call_sites_alone_are_told_late() -> None:
    def made(age: float) -> Made:
        return Made(ranks=3).wait([0, 1], call(42, age=age)).add(waiting(2, call(42, age=age, sites=END)))

    assert made(12.0).hang() == []
    assert only(made(16.0).hang()).id == "hang-mismatch"


def test_calls_of_the_backward_pass_have_no_sites() -> None:
    made = Made(ranks=2).add(waiting(0, call(42, sites=(), age=30)), waiting(1, call(42, age=30)))
    assert made.hang() == []


def test_a_cut_between_two_nodes() -> None:
    made = Made(nodes=2).add(
        *(waiting(rank, stalls=cut(rank, "10.0.0.1", "10.0.0.2")) for rank in (0, 1)),
        *(waiting(rank, stalls=cut(rank, "10.0.0.2", "10.0.0.1")) for rank in (2, 3)),
    )
    found = only(made.hang())
    assert (found.id, found.rank, found.ranks, found.node) == ("hang-network", 0, (0, 1, 2, 3), 0)
    assert found.text == (
        "rank 0 on gpu-a (10.0.0.1) gets no answer any more from gpu-b (10.0.0.2): "
        "the network between them does not carry"
    )
    assert "rank 0: connection 10.0.0.1:40000 → 10.0.0.2:50000 retransmits" in found.evidence[0]


def test_one_retransmission_is_no_cut() -> None:
    once = (Stall("10.0.0.1:4", "10.0.0.2:5", "ESTABLISHED", 1, 10),)
    assert Made(ranks=2).wait([0, 1], stalls=once).hang() == []


def test_retransmissions_of_one_sample_are_no_cut() -> None:
    """Another connection retransmits than in the sample before."""
    made = Made(ranks=2)
    for rank in (0, 1):
        before = waiting(rank, stalls=cut(rank + 2, "10.0.0.1", "10.0.0.2"))
        now = waiting(rank, stalls=cut(rank, "10.0.0.1", "10.0.0.2"))
        made.add((*before[:-1], now[-1]))
    assert made.hang() == []


def test_the_network_is_not_blamed_for_a_rank_that_sleeps() -> None:
    made = Made(nodes=2).add(
        *(waiting(rank, stalls=cut(rank, "10.0.0.1", "10.0.0.2")) for rank in (0, 1, 2))
    )
    assert only(made.add(series(3, LOAD, enqueued=41)).hang()).id == "hang-not-joined"


def test_a_cut_that_leaves_one_group_behind() -> None:
    """Rank 0 has ended #41 and waits in #42; the others still wait in #41 for what does not come."""
    done = call(41, age=20, done=True)
    made = Made(nodes=2).add(
        waiting(0, call(42, age=19), recent=(done,), stalls=cut(0, "10.0.0.1", "10.0.0.2")),
        *(waiting(rank, call(41, age=20), stalls=cut(rank, "10.0.0.2", "10.0.0.1")) for rank in (1, 2, 3)),
    )
    assert only(made.hang()).id == "hang-network"


def test_kernels_that_spin() -> None:
    made = Made(ranks=2).wait([0, 1], call(42, age=25))
    found = only(made.gpu(0, 100, 150).gpu(1, 100, 160).hang())
    assert (found.id, found.ranks) == ("hang-collective", (0, 1))
    working = Made(ranks=2).wait([0, 1], call(42, age=25)).gpu(0, 100, 150).gpu(1, 100, 600)
    assert working.hang() == []


def test_equal_names_of_different_groups_are_kept_apart() -> None:
    """Every tensor-parallel group is called "tp": ranks 2 and 3 are far ahead of 0 and 1, which is nobody's business."""
    made = Made().add(
        waiting(0, call(8, group="tp"), groups=(ProcessGroup("tp", (0, 1), 8, 7),)),
        series(1, LOAD, groups=(ProcessGroup("tp", (0, 1), 7, 7),)),
        series(2, STEP, share=0.9, sites=5, groups=(ProcessGroup("tp", (2, 3), 900, 900),)),
        series(3, STEP, share=0.9, sites=5, groups=(ProcessGroup("tp", (2, 3), 900, 900),)),
    )
    found = only(made.hang())
    assert (found.rank, found.ranks) == (1, ())
    assert found.text.endswith("rank 0 waits for it in all_reduce #8")
