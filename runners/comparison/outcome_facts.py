"""The outcome and the first cause of a run or attempt for a comparison. Pure."""

from __future__ import annotations

from ..diagnosis.applied_preset import check_applied
from ..run.model import FirstCause, RunPhase
from ..run.state import Attempt, RunState
from .account import CAUSE, NONE, Facts


def chosen(state: RunState, number: int | None) -> Attempt | None:
    """Return the attempt with that number, by default the newest; None without one."""
    if number is None:
        return state.attempts[-1] if state.attempts else None
    return next((each for each in state.attempts if each.number == number), None)


def outcome_facts(state: RunState, number: int | None) -> Facts:
    """Return the outcome of the whole run or of one attempt."""
    attempt = chosen(state, number)
    facts: Facts = {"state": state.phase.words}
    if number is None:
        facts |= {"attempts": str(len(state.attempts))} if state.attempts else {}
        facts |= {"exit code": str(state.exit_code)} if state.exit_code is not None else {}
    elif attempt is not None:
        facts = {"state": str(attempt.outcome or state.phase.words), "begun by": attempt.cause}
    if attempt is not None and attempt.idle:
        facts["trained"] = attempt.idle
    acted = check_applied(state) if number in (None, state.attempt) else None
    if acted is not None:
        facts["preset acted"] = f"{acted.state}: {acted.text}"
    return facts


def cause_facts(state: RunState, number: int | None) -> Facts:
    """Return the first cause of the attempt, or of the run's newest failed attempt; "none" without a failure."""
    if number is None:
        causes = [each.first_cause for each in state.attempts if each.first_cause is not None]
        cause = causes[-1] if causes else None
    else:
        attempt = chosen(state, number)
        cause = None if attempt is None else attempt.first_cause
    if cause is not None:
        return _cause(cause)
    attempt = chosen(state, number)
    unclear = state.phase is RunPhase.LOST or (
        attempt is not None and str(attempt.outcome) in ("failed", "lost")
    )
    return {} if unclear else {CAUSE: NONE}


def _cause(cause: FirstCause) -> Facts:
    facts = {CAUSE: cause.text, "rank": str(cause.rank), "node": str(cause.node)}
    facts |= {"kind": cause.kind} if cause.kind else {}
    facts |= {"where": cause.where} if cause.where else {}
    facts |= {"exit code": str(cause.exit_code)} if cause.exit_code is not None else {}
    return facts | ({"signal": cause.signal} if cause.signal else {})
