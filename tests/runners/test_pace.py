"""Steps and pace: what is known, what is not, and when steps have stopped."""

from __future__ import annotations

from distui.runners.agent.step_paces import Paces, Steps

UNKNOWN = Steps()


def test_the_pace_is_that_of_the_steps_between_two_samples() -> None:
    paces = Paces()
    assert paces.add(0, 1, (10, 100.0), 100.0) == Steps(10)
    assert paces.add(0, 1, (14, 102.0), 102.0) == Steps(14, 0.5)
    assert paces.add(0, 1, (14, 102.0), 102.0) == Steps(14, 0.5), "no step since: the last pace stands"
    assert paces.add(1, 2, (3, 102.0), 102.0) == Steps(3)


def test_the_pace_of_steps_that_have_stopped_is_no_pace_of_now() -> None:
    paces = Paces()
    paces.add(0, 1, (10, 100.0), 100.0)
    assert paces.add(0, 1, (14, 102.0), 102.0) == Steps(14, 0.5)
    assert paces.add(0, 1, (14, 102.0), 105.0) == Steps(14, 0.5), "no sample is expected sooner"
    assert paces.add(0, 1, (14, 102.0), 106.0) == Steps(14, still_s=4.0, usual_s=0.5)
    assert paces.last(0, 1) == 0.5, "for the end of it"
    assert paces.add(0, 1, (16, 107.0), 107.0) == Steps(16, 2.5), "it goes on"


def test_a_slow_step_is_no_stop() -> None:
    paces = Paces()
    for step in range(5):
        paces.add(0, 1, (step, 1000.0 + 60 * step), 1000.0 + 60 * step)
    assert paces.add(0, 1, (4, 1240.0), 1240.0 + 180.0) == Steps(4, 60.0)
    assert paces.add(0, 1, (4, 1240.0), 1240.0 + 181.0) == Steps(4, still_s=181.0, usual_s=60.0)


def test_one_long_step_does_not_make_long_steps_usual() -> None:
    """After a save or an evaluation a hang is seen as soon as before."""
    paces = Paces()
    for second in range(6):
        paces.add(0, 1, (10 + 2 * second, 100.0 + second), 100.0 + second)
    assert paces.add(0, 1, (21, 225.0), 225.0) == Steps(21, 120.0), "a save took two minutes"
    assert paces.add(0, 1, (21, 225.0), 229.0) == Steps(21, still_s=4.0, usual_s=0.5)


def test_before_the_first_step_there_is_no_pace() -> None:
    paces = Paces()
    assert paces.add(0, 1, (0, 0.0), 105.0) == Steps(0)
    assert paces.add(0, 1, (0, 0.0), 905.0) == Steps(0)
    assert paces.add(0, 1, (5, 905.0), 905.0) == Steps(5)


def test_a_hook_that_does_not_answer_in_time_leaves_what_is_recent() -> None:
    paces = Paces()
    assert paces.add(0, 1, None, 104.0) == UNKNOWN
    paces.add(0, 1, (10, 100.0), 100.0)
    paces.add(0, 1, (20, 101.0), 101.0)
    assert paces.add(0, 1, None, 104.0) == Steps(20, 0.1), "a busy interpreter answers late"
    assert paces.add(0, 1, None, 105.0) == Steps(20), "nobody knows whether it makes steps"
    assert paces.last(0, 1) == 0.1, "for the end of it"
    assert (paces.last(0, 2), paces.last(5, 1)) == (None, None)
    assert paces.add(0, 1, (30, 103.0), 105.5) == Steps(30, 0.2)


def test_another_process_is_another_count() -> None:
    paces = Paces()
    paces.add(0, 1, (10, 100.0), 100.0)
    assert paces.add(0, 2, None, 104.0) == UNKNOWN
    assert paces.add(0, 2, (1, 200.0), 200.0) == Steps(1)


def test_steps_of_a_script_without_an_optimizer_are_unknown() -> None:
    paces = Paces()
    assert paces.add(0, 1, (None, 0.0), 105.0) == UNKNOWN
    assert paces.add(0, 1, (1, 105.0), 105.0) == Steps(1), "it made one later"
