"""A run in a list and in a headline: its figures, its state in words, and its worst finding."""

from __future__ import annotations

from msgspec import Struct

from ...presets.finding import worst_first
from ...presets.sanitize import clean_text
from ..run.history import History
from ..run.model import RunPhase
from ..run.run_directories import Entry
from ..run.state import RunState
from ..telemetry import curves, step_totals
from ..telemetry.progress import hung, progress

FOREIGN = "watch-"
"""Prefix of the ids of jobs that distui did not start."""


def foreign(state: RunState) -> bool:
    """Whether distui only watches the job, without having started it."""
    return state.run.startswith(FOREIGN)


DAMAGED = "damaged"
"""Id of the finding about damaged files of the run."""


def attempts_unknown(state: RunState, damaged: bool = False) -> bool:
    """Whether the attempts are unknown rather than none: the run is running, or files are damaged."""
    damaged = damaged or any(finding.id == DAMAGED for finding in state.findings.values())
    return not state.attempts and (damaged or state.phase is RunPhase.RUNNING)


def worst(state: RunState) -> str:
    """Return the worst finding of a run, else how it ended; "" if it runs or succeeded without a finding."""
    findings = worst_first(state.findings.values())
    cause = next((attempt.first_cause for attempt in reversed(state.attempts) if attempt.first_cause), None)
    if state.phase is RunPhase.FAILED and cause is not None:
        return clean_text(cause.text)
    if findings and findings[0].alarm:
        return clean_text(findings[0].text)
    if state.phase is RunPhase.SUCCEEDED:
        return ""
    return clean_text(state.end_text) if state.end_text != str(state.phase) else ""


class RunFigures(Struct, frozen=True):
    """Figures of a run in a list; None if unknown."""

    attempt: int | None
    nodes: int | None
    ranks: int | None
    step: int | None
    total: int | None
    exit_code: int | None
    finding: str
    """The worst finding, or the run's end."""
    lasted_s: float | None
    hung: bool = False
    ended: float | None = None
    """Unix time."""


def figures(entry: Entry, history: History, phase: RunPhase, now: float) -> RunFigures:
    """Figures of a run, from its own files; `phase` is from `run_directories.phase`."""
    state, line = history.state, progress(history.state, now)
    attempt = nodes = ranks = lasted_s = None
    if not attempts_unknown(state, bool(history.problems)):
        attempt = state.attempt
        nodes = max(1, len({rank.place.node for rank in state.ranks.values()}))
        ranks = len(state.ranks)
    if state.began and phase is not RunPhase.LOST:
        lasted_s = state.lasted(now)
    step, total = (line.step, line.total) if phase.ended else _advanced(entry, state, now)
    return RunFigures(
        attempt=attempt,
        nodes=nodes,
        ranks=ranks,
        step=step,
        total=total,
        exit_code=state.exit_code,
        finding=worst(state),
        lasted_s=lasted_s,
        hung=not phase.ended and hung(state),
        ended=state.end(entry.record.created),
    )


RECENT_S = 120.0
"""Maximum age of a step on disk to count as a live run's current step: scripts report only now and then."""


def _advanced(entry: Entry, state: RunState, now: float) -> tuple[int | None, int | None]:
    """Step and total of a live run, from its first node's metrics on disk: the journal has neither."""
    store = next(iter(curves.kept(entry).values()), None)
    if store is None:
        return None, None
    values = curves.newest(store, ("train.step", "rank.step"), now - RECENT_S, now)
    reported, counted = values["train.step"].values(), values["rank.step"].values()
    if not reported:
        return (int(min(counted)) if counted else None), None
    total = None if state.plan is None else step_totals.of_text(state.plan.command)
    return int(max(reported)), None if total is None else total[0]


def world_size(state: RunState) -> int:
    """Return the number of ranks of the newest attempt, with those that `srun` started on other machines."""
    return max(len(state.ranks), state.world_size)


HUNG = "hung?"
"""Suffix of the state: a hang is a conclusion from samples, and the findings have the reason."""


def state_words(state: RunState) -> str:
    """Return the state of a run in words, with a hang."""
    return f"{state.phase.words}, {HUNG}" if hung(state) else state.phase.words
