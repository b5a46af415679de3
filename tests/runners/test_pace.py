"""Steps and pace: what is known, and what is not."""

from __future__ import annotations

from distui.runners.agent.sampling import Paces


def test_the_pace_is_that_of_the_steps_between_two_samples() -> None:
    paces = Paces()
    assert paces.add(0, 1, (10, 100.0), 100.0) == (10, None)
    assert paces.add(0, 1, (14, 102.0), 102.0) == (14, 0.5)
    assert paces.add(0, 1, (14, 102.0), 102.0) == (14, 0.5), "no step since: the last pace stands"
    assert paces.add(1, 2, (3, 102.0), 102.0) == (3, None)


def test_the_pace_of_steps_long_ago_is_no_pace_of_now() -> None:
    paces = Paces()
    paces.add(0, 1, (10, 100.0), 100.0)
    assert paces.add(0, 1, (14, 102.0), 102.0) == (14, 0.5)
    assert paces.add(0, 1, (14, 102.0), 162.0) == (14, 0.5), "a save or an evaluation may take so long"
    assert paces.add(0, 1, (14, 102.0), 163.0) == (14, None)
    assert paces.last(0, 1) == 0.5, "for the end of it"
    paces.add(1, 2, (1, 100.0), 100.0)
    paces.add(1, 2, (2, 130.0), 130.0)
    assert paces.add(1, 2, (2, 130.0), 700.0) == (2, 30.0), "20 steps of 30 s are not over"


def test_before_the_first_step_there_is_no_pace() -> None:
    paces = Paces()
    paces.add(0, 1, (0, 0.0), 105.0)
    assert paces.add(0, 1, (5, 105.0), 105.0) == (5, None)


def test_a_hook_that_does_not_answer_in_time_leaves_what_is_recent() -> None:
    paces = Paces()
    assert paces.add(0, 1, None, 104.0) == (None, None)
    paces.add(0, 1, (10, 100.0), 100.0)
    paces.add(0, 1, (20, 101.0), 101.0)
    assert paces.add(0, 1, None, 104.0) == (20, 0.1), "a busy interpreter answers late"
    assert paces.add(0, 1, None, 162.0) == (20, None), "that is long ago"
    assert paces.last(0, 1) == 0.1, "for the end of it"
    assert (paces.last(0, 2), paces.last(5, 1)) == (None, None)
    assert paces.add(0, 1, (30, 103.0), 103.0) == (30, 0.2)


def test_another_process_is_another_count() -> None:
    paces = Paces()
    paces.add(0, 1, (10, 100.0), 100.0)
    assert paces.add(0, 2, None, 104.0) == (None, None)
    assert paces.add(0, 2, (1, 200.0), 200.0) == (1, None)


def test_steps_of_a_script_without_an_optimizer_are_unknown() -> None:
    paces = Paces()
    assert paces.add(0, 1, (None, 0.0), 105.0) == (None, None)
    assert paces.add(0, 1, (1, 105.0), 105.0) == (1, None), "it made one later"
