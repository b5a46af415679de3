"""What each rank does now, in a few words: the state column of the cockpit and of `distui status`. Pure.

It is decided from data that the agent sends every second or two: steps, the newest pulse, findings and open commands.
Where these do not tell, the words say less. In a collective the seconds are those since its call, else those since the
newest step.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from typing import NamedTuple

from ...presets.finding import Finding
from ..run.formatting import duration_text, elapsed, spans, step_text
from ..run.freshness import PULSE_S, holds
from ..run.model import RankPhase
from ..run.pulse import Pulse, Site
from ..run.samples import RankSample
from ..run.state import LIVING, Rank, RunState
from ..run.under_way import stopping, stopping_after_failure
from .activity import RESTING_SITES, Kind, open_call, own_code, position_of
from .first_step import doing_words

LONG_CALL_S = 5.0
"""Seconds in one collective above which a rank that made its last step in time is shown as waiting."""


class Now(enum.StrEnum):
    """What a rank does now."""

    PHASE = "phase"
    """Only the state of its process is known."""
    BEGINS = "begins"
    """It has made no step, and does something that takes a while."""
    STEPS = "steps"
    WAITS = "waits"
    """It is in a collective."""
    PAUSES = "pauses"
    """It makes no step for a known reason: a checkpoint, an evaluation, a compilation."""
    BLOCKED = "blocked"
    """It makes no step, and its main thread sleeps outside of collectives."""
    STILL = "still"
    """It makes no step, and it is unknown why."""
    STOPPING = "stopping"
    """It is being ended, by a command or because another rank of its node failed."""


class RankActivity(NamedTuple):
    now: Now
    text: str
    """ "step 0.6 s", "all_reduce 12 s", "blocked 12 s", "stopping 3/30 s", or the state of its process."""
    culprit: bool = False
    """Whether a finding names it as the rank that others wait for."""
    victim: bool = False
    """Whether a finding names it as waiting. `text` then names the ranks that it waits for."""


_PAUSES = {Kind.CHECKPOINT: "checkpoint", Kind.COMPILE: "compiling"}
_EVALUATES = re.compile(r"^_?(eval|evaluate|evaluation|validate|validation)(_|$)")
"""Names of functions that evaluate a model, in the user's own code."""
_ASLEEP_IN = {Kind.LOADER: "data loader", Kind.DEBUGGER: "debugger"}
"""Words for a rank whose main thread sleeps, if its place says more than "blocked"."""
_ASLEEP, _STOPPED = ("S", "D"), ("T", "t")
"""States of a process whose main thread sleeps, and of a suspended one."""


_HANGS = ("hang-", "start-")
"""First parts of the ids of findings about ranks that keep others waiting."""
_MOST_NAMED = 2
"""Maximum parts of the list of ranks that a rank waits for."""


class Activities:
    """The activity of each rank at one moment. What all ranks share is computed once."""

    def __init__(self, state: RunState, now: float) -> None:
        """`now`: unix time by the clock of `state`."""
        self._now = now
        self._stopping = stopping(state, now)
        self._after_failure = stopping_after_failure(state, now)
        self._culprits, self._waits_for = _named(state)

    def of(self, rank: Rank, sample: RankSample | None) -> RankActivity:
        """Return the activity of a rank with its newest valid sample."""
        number, phase = rank.place.rank, rank.phase
        ending = self._stopping or self._after_failure.get(rank.place.node)
        if phase in LIVING and ending is not None:
            return RankActivity(Now.STOPPING, f"stopping {ending.text()}")
        if phase is not RankPhase.RUNNING:
            return RankActivity(Now.PHASE, str(phase), culprit=number in self._culprits)
        doing = _doing(rank, sample, self._now)
        if number in self._culprits:
            return doing._replace(culprit=True)
        if number in self._waits_for:
            return RankActivity(Now.WAITS, f"waits for {self._waits_for[number]}", victim=True)
        return doing


def _named(state: RunState) -> tuple[set[int], dict[int, str]]:
    """Return the ranks that hangs are blamed on, and for each waiting rank the ranks that it waits for.

    If all ranks wait for each other, none is to blame.
    """
    culprits: set[int] = set()
    waits_for: dict[int, str] = {}
    for finding in state.findings.values():
        if not finding.alarm or not finding.id.startswith(_HANGS):
            continue
        ranks = _blamed(finding)
        culprits |= ranks
        waits_for |= dict.fromkeys(finding.waiting, spans(ranks, _MOST_NAMED))
    if 1 < len(state.ranks) <= len(culprits):
        culprits.clear()
    return culprits, waits_for


def _blamed(finding: Finding) -> set[int]:
    if finding.ranks:
        return set(finding.ranks)
    return set() if finding.rank is None else {finding.rank}


def _doing(rank: Rank, sample: RankSample | None, now: float) -> RankActivity:
    """Return what a running rank does, from its sample and its pulse."""
    pulse = _current(rank.pulse, now)
    if sample is None:
        return RankActivity(Now.PHASE, str(rank.phase))
    if sample.still_s is not None:
        return _without_steps(pulse, sample, sample.still_s, now)
    call = _long_call(pulse, sample.step_s or 0.0, now)
    if call is not None:
        return call
    if sample.step_s is not None:
        return RankActivity(Now.STEPS, f"step {step_text(sample.step_s)}")
    return _before_steps(rank, pulse, sample)


def _before_steps(rank: Rank, pulse: Pulse | None, sample: RankSample) -> RankActivity:
    """Return what a rank does that has made no step, or too few to time them."""
    words = ""
    if pulse is not None and not sample.step:
        words = doing_words(pulse.stack)
    if words:
        return RankActivity(Now.BEGINS, words)
    return RankActivity(Now.PHASE, str(rank.phase))


def _current(pulse: Pulse | None, now: float) -> Pulse | None:
    return pulse if pulse is not None and holds(now - pulse.at, PULSE_S) else None


def _has_stepped_since(pulse: Pulse, sample: RankSample) -> bool:
    """Whether the rank has made a step since a pulse, which then says nothing about its stop."""
    return pulse.step is not None and sample.step is not None and pulse.step < sample.step


def _long_call(pulse: Pulse | None, step_s: float, now: float) -> RankActivity | None:
    """Return the collective of a rank if it lasts longer than a whole step. `step_s`: 0 if unknown."""
    call = _call(pulse, now)
    if call is None or call.seconds <= max(LONG_CALL_S, step_s):
        return None
    return call.activity()


class _Call(NamedTuple):
    """The open collective of a rank."""

    op: str
    seconds: float

    def activity(self) -> RankActivity:
        return RankActivity(Now.WAITS, f"{self.op} {duration_text(self.seconds)}")


def _call(pulse: Pulse | None, now: float) -> _Call | None:
    """Return the open collective at a pulse; None without one, or if its age is unknown."""
    call = None if pulse is None else open_call(pulse)
    if call is None:
        return None
    seconds = elapsed(call.created, now)
    return None if seconds is None else _Call(call.op, seconds)


def _without_steps(pulse: Pulse | None, sample: RankSample, still_s: float, now: float) -> RankActivity:
    """Return what a rank does whose steps have stopped."""
    lasted = duration_text(still_s)
    if pulse is None or _has_stepped_since(pulse, sample):
        return RankActivity(Now.STILL, f"no step {lasted}")
    call = _call(pulse, now)
    if call is not None:
        return call.activity()
    position = position_of(pulse.stack)
    if position.kind is Kind.COLLECTIVE:
        return RankActivity(Now.WAITS, position.op)  # since when is unknown
    pause = _pause(pulse.stack)
    if pause:
        return RankActivity(Now.PAUSES, f"{pause} {lasted}")
    if pulse.state in _STOPPED:
        return RankActivity(Now.BLOCKED, f"suspended {lasted}")
    if _sleeps(pulse):
        return RankActivity(Now.BLOCKED, f"{_ASLEEP_IN.get(position.kind, 'blocked')} {lasted}")
    return RankActivity(Now.STILL, f"no step {lasted}")


def _sleeps(pulse: Pulse) -> bool:
    """Whether the main thread slept at one place in several samples, other than for a GPU."""
    rests = pulse.samples > 1 and (pulse.sites or 1) <= RESTING_SITES
    return rests and pulse.state in _ASLEEP and position_of(pulse.stack).kind is not Kind.TORCH


def _pause(stack: Sequence[Site]) -> str:
    """Return a known reason for a stack to make no step; "" otherwise."""
    if any(own_code(site.file) and _EVALUATES.match(site.name) for site in stack):
        return "evaluation"
    return _PAUSES.get(position_of(stack).kind, "")


def pause_of(state: RunState, now: float) -> str:
    """Return the known reason for a run to make no step, "checkpoint"; "" if there is none, or a rank is blocked.

    `now`: unix time by the clock of `state`.
    """
    pauses: set[str] = set()
    for rank in state.ranks.values():
        doing = _doing(rank, rank.sample, now)
        if doing.now is Now.BLOCKED:
            return ""
        if doing.now is Now.PAUSES and rank.pulse is not None:
            pauses.add(_pause(rank.pulse.stack))
    return ", ".join(sorted(pauses))
