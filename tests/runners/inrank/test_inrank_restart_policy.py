"""The restart policy and the names of a rank's end, as tables."""

from __future__ import annotations

from typing import Any

from each import for_each

from distui.runners.inrank.failure_causes import Death, Failure, classify, left_early
from distui.runners.inrank.restart_policy import UNLIMITED, after_failure, hopeless, how_it_ended
from distui.runners.run.model import RankPhase

POLICY = {"limit": 3, "backoff_s": 1.0, "backoff_max_s": 3.0, "reset_after_s": 600.0}


@for_each(
    ("failures", "healthy_s", "expected"),
    [
        (0, 5.0, (True, 1.0, 1)),
        (1, 5.0, (True, 2.0, 2)),
        (2, 5.0, (True, 3.0, 3)),  # 4 s, but at most 3
        (3, 5.0, (False, 0.0, 4)),
        (3, 599.9, (False, 0.0, 4)),
        (3, 600.0, (True, 1.0, 1)),  # healthy long enough: counted anew
    ],
)
def test_each_failure_waits_twice_as_long_until_the_limit(
    failures: int, healthy_s: float, expected: Any
) -> None:
    assert after_failure(POLICY, failures, healthy_s) == expected


def test_a_limit_of_none_never_restarts() -> None:
    assert not after_failure({**POLICY, "limit": 0}, 0, 1e9).restart


def test_a_great_many_failures_do_not_overflow() -> None:
    assert after_failure({**POLICY, "limit": 10**6}, 5000, 0.0).wait_s == 3.0


def test_a_launcher_that_decides_for_itself_is_never_held_up() -> None:
    assert after_failure(UNLIMITED, 5000, 0.0) == (True, 0.0, 5001)


@for_each(
    ("exit_code", "asked", "after_another", "name"),
    [
        (0, False, False, RankPhase.SUCCEEDED),
        (0, False, True, RankPhase.SUCCEEDED),
        (0, True, False, RankPhase.STOPPED),
        (3, False, False, RankPhase.FAILED),
        (3, False, True, RankPhase.FAILED),
        (3, True, False, RankPhase.STOPPED),
        (-9, False, False, RankPhase.KILLED),
        (-9, False, True, RankPhase.STOPPED),
        (-15, False, True, RankPhase.STOPPED),
        (-15, True, False, RankPhase.STOPPED),
        (-11, False, True, RankPhase.KILLED),  # a segmentation fault is nobody's stop
        (None, False, False, RankPhase.LOST),
        (None, True, False, RankPhase.STOPPED),
    ],
)
def test_how_a_rank_ended(exit_code: int | None, asked: bool, after_another: bool, name: str) -> None:
    assert how_it_ended(exit_code, asked, after_another) == name


def failed(
    retry: str = "maybe",
    key: str = "ValueError|x|train.py:88",
    step: int | None = 7,
    untrained: bool = False,
    **more: Any,
) -> Failure:
    its = {"kind": "exception", "text": "rank 3 raised ValueError: x", "remedy": "", "retry": retry}
    return Failure(3, **{**its, **more}, key=key, step=step, untrained=untrained)


def test_what_would_come_again_is_not_tried_again() -> None:
    why = hopeless(POLICY, failed("no"), None, 1.0)
    assert why == "a restart cannot help: rank 3 raised ValueError: x"
    assert not hopeless({**POLICY, "always": True}, failed("no"), None, 1.0)
    assert not hopeless(POLICY, None, None, 1.0), "nothing is known"


@for_each(
    ("failure", "earlier", "healthy_s", "said"),
    [
        (failed(), None, 1.0, ""),
        (failed(), failed(), 1.0, "at the same step (7)"),
        (failed(step=0, untrained=True), failed(step=0), 1.0, "twice, before the first step: rank 3"),
        (
            failed(step=0),
            failed(step=0),
            1.0,
            "in the same way twice: rank 3",
        ),  # no optimizer: steps unknown
        (failed(), failed(step=6), 1.0, ""),  # from a checkpoint it may come further each time
        (
            failed(step=6),
            failed(),
            1.0,
            "in the same way twice, at the same step (6)",
        ),  # no further than before
        (failed(step=4), failed(), 1.0, ""),  # that far apart it is another place
        (failed(step=None), failed(step=None), 1.0, ""),
        (failed(), failed(key="KeyError|x|train.py:88"), 1.0, ""),
        (failed(key=""), failed(key=""), 1.0, ""),  # a signal says nothing of why
        (failed(), failed(), 600.0, ""),  # healthy for long in between
    ],
)
def test_the_same_failure_at_the_same_step_is_given_up(
    failure: Failure, earlier: Failure | None, healthy_s: float, said: str
) -> None:
    why = hopeless(POLICY, failure, earlier, healthy_s)
    assert bool(why) == bool(said)
    assert said in why
    assert not hopeless(UNLIMITED, failure, earlier, healthy_s)


@for_each(
    ("key", "earlier_s", "healthy_s", "gives_up"),
    [
        ("signal 6", 24.0, 20.0, True),
        ("signal 11", 20.0, 39.0, True),
        ("signal 11", 20.0, 41.0, False),  # a crash that comes at any time may be a fault of the machine
        ("signal 6", 24.0, 600.0, False),
        ("signal 9", 24.0, 20.0, True),
        ("ValueError|x|train.py:1", 24.0, 20.0, False),
    ],
)
def test_a_crash_that_nobody_counted_the_steps_of_is_judged_by_the_time_it_took(
    key: str, earlier_s: float, healthy_s: float, gives_up: bool
) -> None:
    one = failed(key=key, step=None)
    assert bool(hopeless(POLICY, one, one, healthy_s, earlier_s)) == gives_up


def test_signals_have_a_key_and_those_of_users_and_schedulers_have_none() -> None:
    keys = {number: classify(Death(0, -number, {}, ())).key for number in (6, 7, 8, 9, 11, 24, 1, 2, 15)}
    signals = {number: f"signal {number}" for number in (6, 7, 8, 9, 11, 24)}
    assert keys == {**signals, 1: "", 2: "", 15: ""}


def test_who_left_early_is_the_cause_and_fails_in_the_same_way_again() -> None:
    lost = failed(kind="peer-gone", symptom=True, key="")
    leaver = left_early(lost, {2: (5.0, 30), 1: (4.0, 30)})
    assert leaver is not None
    assert (leaver.rank, leaver.kind, leaver.text) == (
        1, "left-early", "rank 1 ended with exit code 0 before the others were done",
    )  # fmt: skip
    assert "at the same step (30)" in hopeless(POLICY, leaver, leaver, 1.0)
    assert left_early(lost, {}) is None
    assert left_early(failed(), {1: (4.0, 30)}) is None, "what failed of itself needs no other reason"
    assert left_early(None, {1: (4.0, 30)}) is None
