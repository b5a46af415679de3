"""A moment of a run as the user types it: `14:32:07`, `-5m`, `step 1200`, `first-cause`. Pure."""

from __future__ import annotations

import time

from ..runners.run.formatting import seconds_of, time_before, time_of_day
from .past import Timeline


class MomentError(Exception):
    """The typed text is no moment of the run; the message is one sentence."""


HINT = "type `at 14:32:07`, `at -5m`, `at step 1200`, `at first-cause` or `at start`"


def moment_of(text: str, timeline: Timeline, end: float) -> float:
    """Return the unix time of `14:32:07`, `-5m`, `step 1200`, `first-cause`, `start` or `end`. Raises MomentError.

    A time of day is the last one before `end`. A step is the time of the first checkpoint at or after it;
    without one `Travel` looks for a sample of the step, so the MomentError is about both.
    """
    word, *more = text.lower().split() or [""]
    if word == "step" and len(more) == 1 and more[0].isdecimal():
        return _of_step(timeline, int(more[0]))
    if more or not word:
        raise MomentError(HINT)
    if word == "start":
        return timeline.begin
    if word == "end":
        return end
    if word == "first-cause":
        return _of_first_cause(timeline)
    return _of_clock(word, timeline.begin, end)


def _of_step(timeline: Timeline, step: int) -> float:
    checkpoint = timeline.checkpoint_from(step)
    if checkpoint is None:
        raise MomentError(
            f"no checkpoint or sample has step {step}: the run has not reached it, or its curve is no longer kept"
        )
    return checkpoint.at


def _of_first_cause(timeline: Timeline) -> float:
    cause = timeline.first_cause()
    if cause is None:
        raise MomentError("no attempt of this run has failed: it has no first cause")
    return cause


def _of_clock(word: str, begin: float, end: float) -> float:
    """Return the time of `14:32:07` or `-5m`; up to a minute before the start of the run is its start."""
    ago = seconds_of(word[1:]) if word.startswith("-") else None
    at = time_before(word, end + 1) if ago is None else end - ago
    if at is None:
        raise MomentError(f"invalid time {word!r}: {HINT}")
    if at >= begin - 60:
        return min(max(at, begin), end)
    is_of_the_day_before = time.localtime(at)[:3] != time.localtime(end)[:3]
    if ago is None and is_of_the_day_before:  # `end`'s day has not reached this time of day
        raise MomentError(f"{word} is after the newest known time of this run, {time_of_day(end)}")
    raise MomentError(f"{word} is before the start of this run at {time_of_day(begin)}")
