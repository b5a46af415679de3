"""What remains of a run: the first cause, the ledger of attempts, findings and notices."""

from __future__ import annotations

from collections.abc import Mapping

from ...presets.secrets import mask
from ...runners.diagnosis.stacks import main_frames
from ...runners.diagnosis.standing import standing
from ...runners.logs.clean import clean_text
from ...runners.model import FirstCause, Outcome, RunPhase
from ...runners.state import Attempt, RunState
from . import glyphs
from .banner import cause_text
from .billing import remains
from .cells import Row, duration, fit, numbers, plural, wall, wrap
from .frame import Frame
from .stacks import stack_rows

_OUTCOME = {
    Outcome.SUCCEEDED: "ok",
    Outcome.FAILED: "bad",
    Outcome.RESTARTED: "warn",
    Outcome.STOPPED: "stale",
    Outcome.LOST: "bad",
}


def end_rows(frame: Frame, width: int) -> list[Row]:
    """The end of a run: what happened, why, and what it took."""
    state = frame.state
    glyph, style = glyphs.RUN[state.phase]
    took = duration(state.ended - state.began if state.ended and state.began else None)
    head = f" {glyph} {state.phase} after {took}, {plural(len(state.attempts), 'attempt')}"
    code = "" if state.exit_code is None else f", exit code {state.exit_code}"
    rows: list[Row] = [((head + code, style),)]
    if state.end_text:
        rows += wrap(state.end_text, width - 1, first="   ")
    left = remains(state, frame.now)
    if left:
        rows += wrap(left, width - 1, "warn", first="   ")
    cause = _last_cause(state)
    if cause is not None and state.phase is not RunPhase.SUCCEEDED:
        rows += cause_rows(cause, width)
    if len(state.attempts) > 1:
        rows += ledger_rows(state, width)
    return rows


def _last_cause(state: RunState) -> FirstCause | None:
    return next((one.first_cause for one in reversed(state.attempts) if one.first_cause is not None), None)


def cause_rows(cause: FirstCause, width: int) -> list[Row]:
    """The first cause: rank, sentence, last lines of its stderr, victims."""
    place = f"rank {cause.rank} (local {cause.local_rank}, node {cause.node}, pid {cause.pid or 'unknown'})"
    rows: list[Row] = [((" first cause  ", "dim"), (place, "head"))]
    rows += wrap(cause_text(cause), width - 1, first="   ")
    if cause.oom:
        rows += wrap(f"killed for memory: {cause.oom}", width - 1, "warn", first="   ")
    if cause.last_lines:
        rows.append(((f" last lines of rank {cause.rank}'s stderr", "dim"),))
    rows += [((" │ ", "bad"), (clean_text(line), "text")) for line in cause.last_lines]
    if cause.victims:
        rows += wrap(f"ended after it: ranks {numbers(cause.victims)}", width - 1, "dim", first="   ")
    return rows


def ledger_rows(state: RunState, width: int) -> list[Row]:
    """Every attempt: when, how long, why it began, how it ended, what changed."""
    rows: list[Row] = [((" attempts", "dim"),)]
    for attempt in state.attempts:
        outcome = str(attempt.outcome) if attempt.outcome else "running"
        style = _OUTCOME[attempt.outcome] if attempt.outcome else "ok"
        until = attempt.ended or state.ended
        took = duration(until - attempt.began) if until else ""
        text = f"   {attempt.number:>3}  {wall(attempt.began)}  {fit(attempt.cause, 10)}  {fit(took, 12)}"
        rows.append(((text, "text"), (fit(outcome, 11), style), (_changes(attempt), "dim")))
    return rows


def _changes(attempt: Attempt) -> str:
    return " ".join(
        f"-{name}" if value is None else f"{name}={mask(name, value)}"
        for name, value in sorted(attempt.env_diff.items())
    )


def event_rows(frame: Frame, width: int) -> list[Row]:
    """The events screen: findings with remedy and evidence, the ledger, the notices newest first."""
    state = frame.state
    rows: list[Row] = []
    for finding in standing(state):
        glyph, style = glyphs.severity(finding)
        rows.append(((f" {glyph} {finding.id}", style), (_where(finding.rank, finding.node), "dim")))
        rows += wrap(finding.text, width - 1, first="   ")
        if finding.remedy:
            rows += wrap(f"do: {finding.remedy}", width - 1, "accent", first="   ")
        rows += [((" │ ", "dim"), (clean_text(line), "dim")) for line in finding.evidence]
    if not state.findings:
        rows.append(((" no findings", "dim"),))
    cause = _last_cause(state)
    if cause is not None:
        rows += [(), *cause_rows(cause, width)]
    rows += [(), *ledger_rows(state, width), (), ((" notices, newest first", "dim"),)]
    for at, text in reversed(state.notices):
        rows += wrap(clean_text(text), width - 1, first=f"   {wall(at)}  ", then=" " * 13)
    return rows


def _where(rank: int | None, node: int | None) -> str:
    return (f"  rank {rank}" if rank is not None else "") + (f"  node {node}" if node is not None else "")


def dump_rows(data: Mapping[str, str]) -> list[Row]:
    """What a dump brought, by rank; of stacks first where the ranks are, equal ones together."""
    rows: list[Row] = []
    if any(main_frames(text) for text in data.values()):
        rows += [*stack_rows(data), ()]
    for rank, text in sorted(data.items(), key=lambda item: (len(item[0]), item[0])):
        rows.append(((f"rank {rank}", "head"),))
        rows += [((f"  {clean_text(line)}", "text"),) for line in text.splitlines()]
    return rows
