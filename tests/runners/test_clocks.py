"""Clocks that jump give no negative duration anywhere."""

from __future__ import annotations

import re

import pytest

from distui.runners.reports.status_document import status_json
from distui.runners.run.formatting import NA, duration_text, elapsed, time_of_day
from distui.runners.run.model import (
    AttemptEnded,
    AttemptStarted,
    Outcome,
    PlanSummary,
    RunCreated,
    RunEnded,
    RunPhase,
    Stage,
    StageChanged,
    Stamped,
)
from distui.runners.run.state import RunState
from distui.tui.rows.attempts import end_rows, ledger_rows
from distui.tui.rows.frame import Frame, LinkPhase, LinkStatus
from distui.tui.rows.glyphs import ago
from distui.tui.verbs.status import describe, headline

DAY = 86400.0
PLAN = PlanSummary(preset="ddp", strategy="ddp", launcher="torchrun", command="train.py")


def jumped(lasted_s: float | None) -> RunState:
    """A run whose clock was set back by a day in its first attempt."""
    ended = AttemptEnded(1, Outcome.RESTARTED, None, "attempt 1 restarted", lasted_s=lasted_s)
    return RunState().apply_all(
        [
            Stamped(10 * DAY, RunCreated("r", "r", "h", PLAN), 1),
            Stamped(10 * DAY, AttemptStarted(1, "launch", 0, (), {}, 0), 2),
            Stamped(9 * DAY + 70, ended, 3),
            Stamped(9 * DAY + 71, AttemptStarted(2, "restart", 0, (), {}, 0), 4),
        ]
    )


@pytest.mark.parametrize(
    ("began", "until", "seconds"),
    [
        (10.0, 70.0, 60.0),
        (10.0, 9.5, 0.0),
        (DAY, 10.0, None),
        (None, 5.0, None),
        (0.0, 5.0, None),
        (5.0, None, None),
    ],
)
def test_elapsed(began: float | None, until: float | None, seconds: float | None) -> None:
    assert elapsed(began, until) == seconds


def test_a_ledger_with_a_measured_duration_shows_it() -> None:
    state = jumped(70.0)
    assert state.attempts[0].lasted() == 70.0
    assert status_json(state)["attempts"][0]["lasted_s"] == 70.0
    assert "1 min 10 s" in describe(state, 9 * DAY + 90)
    assert "1 min 10 s" in "".join(cell[0] for row in ledger_rows(state, 120) for cell in row)


def test_nothing_negative_is_shown() -> None:
    state = jumped(None)
    assert status_json(state, 9 * DAY)["attempts"][0]["lasted_s"] is None
    shown = describe(state, 9 * DAY + 90) + headline(state, 9 * DAY) + str(ledger_rows(state, 120))
    assert not re.search(r"-\d+ (s|min|h|d)\b", shown), shown
    assert NA in shown
    assert ago(10 * DAY, 9 * DAY) == duration_text(-86400.0) == NA
    assert ago(10 * DAY, 10 * DAY + 61) == "61 s ago"


def test_an_end_before_the_beginning_is_unknown() -> None:
    """Of the run, of its attempts and of the stages of its launch."""
    state = RunState().apply_all(
        [
            Stamped(10 * DAY, RunCreated("r", "r", "h", PLAN), 1),
            Stamped(10 * DAY, StageChanged(Stage.SETUP, "begun"), 2),
            Stamped(9 * DAY, StageChanged(Stage.SETUP, "done"), 3),
            Stamped(10 * DAY, AttemptStarted(1, "launch", 0, (), {}, 0), 4),
            Stamped(9 * DAY, AttemptEnded(1, Outcome.SUCCEEDED, None, "attempt 1 succeeded"), 5),
            Stamped(9 * DAY, RunEnded(RunPhase.SUCCEEDED, 0, "succeeded"), 6),
        ]
    )
    document = status_json(state)
    for each in (document, document["attempts"][0], document["stages"][0]):
        assert (each["began"], each["ended"]) == (10 * DAY, None)
    assert state.end() is None
    assert (
        jumped(70.0).apply_all([Stamped(10 * DAY + 5, RunEnded(RunPhase.STOPPED, 0, "stopped"), 5)]).end()
        == 10 * DAY + 5
    )


def test_an_end_that_nobody_saw_has_no_time() -> None:
    state = RunState().apply_all(
        [
            Stamped(100.0, RunCreated("r", "r", "h", PLAN), 1),
            Stamped(110.0, AttemptStarted(1, "launch", 0, (), {}, 0), 2),
            Stamped(166.0, RunEnded(RunPhase.LOST, None, "lost: nobody saw the end"), 0),
        ]
    )
    attempt = status_json(state)["attempts"][0]
    assert (status_json(state)["ended"], attempt["ended"], attempt["lasted_s"]) == (None, None, None)
    frame = Frame(state, LinkStatus(LinkPhase.FOLLOWING, 100.0), 900.0, 0.0)
    shown = describe(state) + str(ledger_rows(state, 120)) + str(end_rows(frame, 120))
    assert not re.search(r"56 s|66 s|1 min 6 s|lost after", shown), shown


@pytest.mark.parametrize("at", [1e308, -1e18, float("inf"), float("nan")])
def test_a_time_that_no_clock_shows_is_unknown(at: float) -> None:
    assert time_of_day(at) == time_of_day(at, utc=True) == NA
    assert re.fullmatch(r"\d\d:\d\d:\d\d", time_of_day(10 * DAY))
