"""Where the collectives of ranks part."""

from __future__ import annotations

from distui.runners.diagnosis import call_differences
from distui.runners.run.pulse import Collective

from .hang_rig import END, STEP, call, series


def made(*ops: str) -> dict[int, Collective]:
    """Collectives from #1 on, each with a call site of its own kind."""
    sites = {"all_reduce": STEP, "barrier": END}
    return {number: call(number, op, sites=sites.get(op, ())) for number, op in enumerate(ops, 1)}


def test_equal_calls_do_not_part() -> None:
    assert call_differences.split({0: call(1), 1: call(1), 2: call(1)}) is None
    assert call_differences.shift(made("all_reduce", "barrier"), made("all_reduce", "barrier")) is None


def test_the_greater_part_comes_first() -> None:
    found = call_differences.split({0: call(1, "barrier"), 1: call(1), 2: call(1)})
    assert found is not None
    assert found.of == "operation"
    assert [ranks for _, ranks in found.variants] == [(1, 2), (0,)]


def test_of_equal_parts_that_of_the_lowest_rank_comes_first() -> None:
    found = call_differences.split({0: call(1, "barrier"), 1: call(1)})
    assert found is not None
    assert [ranks for _, ranks in found.variants] == [(0,), (1,)]


def test_what_differs_most_is_told_and_the_rest_stays_together() -> None:
    found = call_differences.split({0: call(1), 1: call(1, sites=END), 2: call(1, "barrier")})
    assert found is not None
    assert found.of == "operation"
    assert [ranks for _, ranks in found.variants] == [(0, 1), (2,)]


def test_unknown_call_sites_are_no_difference() -> None:
    assert call_differences.split({0: call(1), 1: call(1, sites=())}) is None


def test_a_left_out_call_shifts_all_that_follow() -> None:
    theirs = made("all_reduce", "barrier", "all_reduce", "barrier", "all_reduce")
    found = call_differences.shift(made("all_reduce", "barrier", "barrier", "all_reduce"), theirs)
    assert found is not None
    assert (found.theirs.seq, found.skipped, found.exact) == (3, True, True)


def test_another_call_in_its_place_is_no_shift() -> None:
    theirs = made("all_reduce", "barrier", "all_reduce", "barrier", "all_reduce")
    found = call_differences.shift(
        made("all_reduce", "barrier", "broadcast", "barrier", "all_reduce"), theirs
    )
    assert found is not None
    assert (found.mine.op, found.skipped) == ("broadcast", False)


def test_the_first_that_is_known_may_not_be_the_first() -> None:
    theirs, mine = made("all_reduce", "barrier", "all_reduce"), made("barrier", "all_reduce")
    found = call_differences.shift(mine, theirs)
    assert found is not None
    assert (found.skipped, found.exact) == (True, False)


def test_calls_are_gathered_over_several_looks() -> None:
    early = series(0, STEP, looks=1, recent=(call(1, done=True), call(2, done=True)))
    late = series(
        0, STEP, looks=1, recent=(call(2, sites=(), done=True), call(3, done=True)), active=(call(4),)
    )
    found = call_differences.calls((*early, *late), "0")
    assert sorted(found) == [1, 2, 3, 4]
    assert found[2].sites == STEP
