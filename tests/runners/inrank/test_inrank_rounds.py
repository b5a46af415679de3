"""Who is in which round: nodes that come, come later, leave, are lost, and are started anew."""

from __future__ import annotations

import random

from each import for_each

from distui.runners.inrank.coordinator import LOST_S, Rounds


def met(rounds: Rounds, *turns: tuple[str, int]) -> list[tuple[int, int, int] | None]:
    return [rounds.place(token, turn) for token, turn in turns]


def test_a_fixed_number_meets_in_the_order_of_its_nodes() -> None:
    rounds = Rounds(2, 2, 5.0)
    rounds.join("b", 1, 1, 0.0)
    assert met(rounds, ("b", 1)) == [None]
    rounds.join("a", 0, 1, 1.0)
    assert met(rounds, ("a", 1), ("b", 1)) == [(1, 0, 2), (1, 1, 2)]
    assert rounds.waiting() == 0


def test_a_restart_is_seen_by_the_others_and_makes_a_new_round() -> None:
    rounds = Rounds(2, 2, 5.0)
    for token, order in (("a", 0), ("b", 1)):
        rounds.join(token, order, 1, 0.0)
    rounds.join("a", 0, 2, 1.0)
    assert rounds.waiting() == 1, "that somebody waits is why the others leave"
    assert met(rounds, ("a", 2), ("b", 1)) == [None, (1, 1, 2)], (
        "who asks late hears of the round as it was"
    )
    rounds.join("b", 1, 2, 2.0)
    assert met(rounds, ("a", 2), ("b", 2)) == [(2, 0, 2), (2, 1, 2)]
    rounds.join("a", 0, 2, 3.0)
    assert met(rounds, ("a", 2)) == [(2, 0, 2)], "said again, the same turn changes nothing"


def test_an_elastic_round_waits_for_its_last_call_and_takes_latecomers_in_the_next() -> None:
    rounds = Rounds(1, 3, 5.0)
    rounds.join("a", 0, 1, 0.0)
    assert rounds.due(0.0) == 5.0
    rounds.join("b", 1, 1, 4.0)
    rounds.pass_time(4.9)
    assert met(rounds, ("a", 1)) == [None]
    rounds.pass_time(5.0)
    assert met(rounds, ("a", 1), ("b", 1)) == [(1, 0, 2), (1, 1, 2)]
    rounds.join("c", 2, 1, 6.0)
    assert (rounds.waiting(), rounds.place("c", 1)) == (1, None)


def test_a_node_too_many_waits_without_disturbing_until_there_is_room() -> None:
    rounds = Rounds(1, 2, 5.0)
    for order, token in enumerate("abc"):
        rounds.join(token, order, 1, 0.0)
    assert (rounds.waiting(), rounds.place("c", 1)) == (0, None)
    rounds.join("a", 0, 2, 1.0)
    assert rounds.waiting() == 2
    rounds.join("b", 1, 2, 1.0)
    assert met(rounds, ("a", 2), ("b", 2), ("c", 1)) == [(2, 0, 2), (2, 1, 2), None], (
        "who was in it goes first"
    )


def test_a_lost_node_makes_room() -> None:
    rounds = Rounds(1, 2, 5.0)
    for order, token in enumerate("abc"):
        rounds.join(token, order, 1, 0.0)
    now = LOST_S + 1
    rounds.hear("a", LOST_S - 1)
    rounds.hear("c", LOST_S - 1)
    rounds.pass_time(now)
    assert rounds.waiting() == 1
    assert rounds.hear("b", now), "it may come back"
    assert not rounds.hear("stranger", now)


def test_a_runner_that_was_started_anew_takes_its_nodes_place() -> None:
    rounds = Rounds(2, 2, 5.0)
    rounds.join("a", 0, 1, 0.0)
    rounds.join("b", 1, 1, 0.0)
    rounds.join("again", 1, 1, 1.0)
    assert rounds.waiting() == 1
    rounds.join("a", 0, 2, 1.0)
    assert met(rounds, ("a", 2), ("again", 1), ("b", 1)) == [(2, 0, 2), (2, 1, 2), None]


def test_a_closed_rendezvous_takes_nobody() -> None:
    rounds = Rounds(1, 1, 5.0)
    rounds.close()
    rounds.join("a", 0, 1, 0.0)
    assert rounds.place("a", 1) is None


@for_each("seed", range(200))
def test_whatever_happens_a_round_is_of_one_size_and_its_ranks_are_numbered(seed: int) -> None:
    """Nodes join, die, are replaced and lost at random; in the end all who are left meet."""
    chance = random.Random(seed)
    most = chance.randint(1, 5)
    rounds, now = Rounds(chance.randint(1, most), most, 5.0), 0.0
    turns: dict[str, tuple[int, int]] = {}
    for _ in range(60):
        now += chance.choice([0.0, 0.5, 3.0, LOST_S / 3])
        order = chance.randrange(most + 1)
        token = chance.choice([f"{order}", f"{order}again"])
        if chance.random() < 0.6:
            turn = turns.get(token, (order, 0))[1] + chance.randint(0, 1)
            turns[token] = (order, turn)
            rounds.join(token, order, turn, now)
        else:
            rounds.hear(token, now)
        places = [place for name, (_, turn) in turns.items() if (place := rounds.place(name, turn))]
        assert len({size for _, _, size in places}) <= 1
        assert len({rank for _, rank, _ in places}) == len(places) <= most
        assert all(0 <= rank < size <= most for _, rank, size in places)
    tokens = [f"last{order}" for order in range(most)]
    for order, token in enumerate(tokens):
        rounds.join(token, order, 1, now + 2 * LOST_S)
    found = [rounds.place(token, 1) for token in tokens]
    assert [place and place[1:] for place in found] == [(rank, most) for rank in range(most)]
