"""Who is in which pair, and who is to blame: every case a made one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from distui.runners.doctor import pair_checks as checks
from distui.runners.doctor.pair_checks import (
    Blame,
    Members,
    Result,
    first_round,
    second_round,
    state,
    usual,
    verdict,
)

SIZE = 1 << 20
World = Callable[[Members], Result]


def good(members: Members) -> Result:
    count = len(members)
    return Result(members, SIZE, 0.010 * 2 * (count - 1) / count)


def slow(members: Members) -> Result:
    return Result(members, SIZE, 0.040)


def wrong(members: Members) -> Result:
    return Result(members, SIZE, 0.010, right=False)


def dead(members: Members) -> Result:
    return Result(members, SIZE, problem=f"{members[0]}: no answer")


def world(
    bad_nodes: dict[int, World] | None = None, bad_links: dict[Members, World] | None = None
) -> World:
    """How groups do where these nodes and links are bad."""

    def do(members: Members) -> Result:
        for node, how in (bad_nodes or {}).items():
            if node in members:
                return how(members)
        for link, how in (bad_links or {}).items():
            if set(link) <= set(members):
                return how(members)
        return good(members)

    return do


def rounds(count: int, do: World) -> tuple[list[Result], list[Result], Blame]:
    first = [do(group) for group in first_round(count)]
    second = [do(group) for wave in second_round(first) for group in wave]
    return first, second, verdict(first, second)


def test_first_round() -> None:
    assert [first_round(count) for count in range(5)] == [
        [], [], [(0, 1)], [(0, 1, 2)], [(0, 1), (2, 3)]
    ]  # fmt: skip
    assert first_round(7) == [(0, 1), (2, 3), (4, 5, 6)]


def test_where_all_is_well_one_round_is_enough() -> None:
    for count in range(2, 12):
        first, second, said = rounds(count, good)
        assert sorted(member for one in first for member in one.members) == list(range(count))
        assert (second, said) == ([], Blame({}, {}))


def test_one_bad_node_or_link_is_named_and_nothing_else() -> None:
    for count in range(4, 12):
        for how, name in ((slow, "slow"), (dead, "dead"), (wrong, "wrong")):
            for node in range(count):
                _, second, said = rounds(count, world({node: how}))
                assert said == Blame({node: name}, {}), (count, name, node, second)  # type: ignore[dict-item]
                assert len(second) in (2, 3)
            for group in first_round(count):
                _, _, said = rounds(count, world(bad_links={group: how}))
                assert said == Blame({}, {group: name}), (count, name, group)  # type: ignore[dict-item]


def test_two_nodes_cannot_be_told_apart() -> None:
    _, second, said = rounds(2, dead)
    assert (second, said) == ([], Blame({}, {(0, 1): "dead"}))
    assert rounds(2, slow)[2] == Blame({}, {})  # slower than what?


def test_of_three_each_pair_is_tried() -> None:
    assert rounds(3, world({1: dead}))[2] == Blame({1: "dead"}, {})
    assert rounds(3, world(bad_links={(0, 2): dead}))[2] == Blame({}, {(0, 2): "dead"})
    assert rounds(3, dead)[2].nothing_works


def test_two_bad_nodes_among_many() -> None:
    assert rounds(8, world({2: dead, 7: slow}))[2] == Blame({2: "dead", 7: "slow"}, {})
    assert rounds(6, world({2: dead, 3: dead}))[2] == Blame({2: "dead", 3: "dead"}, {})


def test_who_could_reduce_with_somebody_is_not_dead() -> None:
    """Node 3's partners: 2, who is dead, and 1, with whom it is slow."""
    first, second, said = rounds(4, world({2: dead, 3: slow}))
    assert said == Blame({2: "dead", 3: "slow"}, {})
    _, found = checks.check_pairs(["a", "b", "c", "d"], first, second)
    assert (found.id, found.text) == (
        "D-PAIR-SLOW",
        "d is slow with every node that it could reduce with (b).",
    )
    first, second = [good((0, 1)), dead((2, 3))], [good((2, 0)), slow((3, 1))]
    assert verdict(first, second) == Blame({3: "slow"}, {(2, 3): "dead"})


def test_where_no_pair_worked_others_are_made() -> None:
    """Nodes 0 and 2 of four are dead: each pair of the first round has one of them."""
    assert rounds(4, world({0: dead, 2: dead}))[2] == Blame({0: "dead", 2: "dead"}, {})
    _, second, said = rounds(5, dead)
    assert said == Blame({}, {}, nothing_works=True)
    assert sorted({member for one in second for member in one.members}) == [0, 1, 2, 3, 4]


def test_nobody_is_in_two_pairs_at_once() -> None:
    first = [good((0, 1)), *(dead((at, at + 1)) for at in range(2, 12, 2))]
    waves = second_round(first)
    assert len(waves) == 5
    for wave in waves:
        members = [member for group in wave for member in group]
        assert len(members) == len(set(members))
    assert {group[0] for wave in waves for group in wave} == set(range(2, 12))
    assert {group[1] for wave in waves for group in wave} == {0, 1}


def test_a_triple_is_compared_by_bandwidth_not_by_time() -> None:
    assert good((0, 1)).bandwidth == pytest.approx(good((0, 1, 2)).bandwidth)
    assert state(Result((0, 1), SIZE, 0.021), usual([good((2, 3))])) == "slow"
    assert state(Result((0, 1), SIZE, 0.019), usual([good((2, 3))])) == "good"


def test_what_is_said() -> None:
    names = ["a", "b", "c", "d"]
    first, second, _ = rounds(4, world({1: dead}))
    (found,) = checks.check_pairs(names, first, second)
    assert (found.id, found.severity, found.where, found.value) == ("D-PAIR-DEAD", "error", "b", "n/a")
    assert "b could reduce with none of its partners (a, d): 1: no answer." in found.text
    first, second, _ = rounds(4, world(bad_links={(0, 1): slow}))
    (found,) = checks.check_pairs(names, first, second)
    assert (found.id, found.severity, found.where) == ("D-LINK-SLOW", "warning", "a, b")
    assert found.value == "0.03 GB/s, the others 0.10 GB/s"
    (found,) = checks.check_pairs(["a", "b"], [dead((0, 1))], [])
    assert found.text == "a and b cannot reduce with each other: 0: no answer."
    (found,) = checks.check_pairs(names, *rounds(4, dead)[:2])
    assert (found.id, found.value) == ("D-PAIRS", "0 of 4 pairs")
    assert [one.id for one in checks.check_pairs(names, *rounds(4, world({3: wrong}))[:2])] == [
        "D-PAIR-WRONG"
    ]
    assert [one.id for one in checks.check_pairs(["a", "b"], [wrong((0, 1))], [])] == ["D-LINK-WRONG"]
    assert checks.check_pairs(["a"], [], []) == []
