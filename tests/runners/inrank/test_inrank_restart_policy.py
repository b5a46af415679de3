"""The restart policy and the names of a rank's end, as tables."""

from __future__ import annotations

from typing import Any

import pytest

from distui.runners.inrank.failure_causes import Failure
from distui.runners.inrank.restart_policy import UNLIMITED, after_failure, hopeless, how_it_ended
from distui.runners.model import RankPhase

POLICY = {"limit": 3, "backoff_s": 1.0, "backoff_max_s": 3.0, "reset_after_s": 600.0}


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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
) -> Failure:
    text = "rank 3 raised ValueError: x"
    return Failure(3, "exception", text, "", retry, key=key, step=step, untrained=untrained)


def test_what_would_come_again_is_not_tried_again() -> None:
    why = hopeless(POLICY, failed("no"), None, 1.0)
    assert why == "a restart cannot help: rank 3 raised ValueError: x"
    assert not hopeless({**POLICY, "always": True}, failed("no"), None, 1.0)
    assert not hopeless(POLICY, None, None, 1.0), "nothing is known"


@pytest.mark.parametrize(
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
        (failed(step=6), failed(), 1.0, ""),
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
