"""The attempts of a run as rows: first causes, the ledger, the report of an ended run, its events. Pure."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping
from operator import itemgetter

from msgspec import Struct

from ...presets.plurals import plural
from ...presets.sanitize import clean_text
from ...runners.run.formatting import duration_exact, size_text, spans_text, time_of_day
from ...runners.run.model import Checkpoint, FirstCause, Outcome, RunPhase
from ...runners.run.state import Attempt, RunState
from . import glyphs
from .attempt_rule import environment_changes
from .findings import Item, items
from .frame import CONNECTING, Frame
from .glyphs import Cell, Row, clip, fit, hang, labelled, row_width, wrap
from .pane_filters import fitting_events
from .remedy import remedy_text
from .run_status import remains


def cause_text(cause: FirstCause) -> str:
    """Return which rank failed first, in one sentence."""
    if cause.text:
        return cause.text
    how = f"signal {cause.signal}" if cause.signal else f"exit code {cause.exit_code}"
    return f"rank {cause.rank} failed first ({how})"


_QUOTED: Cell = (" │ ", "bad")
"""Mark before a line of a log."""

_OUTCOME = {
    Outcome.SUCCEEDED: "ok",
    Outcome.FAILED: "bad",
    Outcome.RESTARTED: "warn",
    Outcome.STOPPED: "stale",
    Outcome.LOST: "bad",
    Outcome.ENDED: "stale",
}


def end_rows(frame: Frame, width: int) -> list[Row]:
    """Return the end of a run: what happened, why, and how long the run took."""
    state = frame.state
    glyph, style = glyphs.RUN[state.phase]
    after = "" if state.phase is RunPhase.LOST else f" after {duration_exact(state.lasted(frame.now))}"
    head = f" {glyph} {state.phase}{after}, {plural(len(state.attempts), 'attempt')}"
    by_user = state.phase is RunPhase.STOPPED  # the exit code then says nothing
    code = "" if state.exit_code is None or by_user else f", exit code {state.exit_code}"
    rows: list[Row] = [((head + code, style),)]
    if state.end_text and state.end_text != str(state.phase):
        rows += wrap(state.end_text, width - 1, first="   ")
    left = remains(state, frame.now)
    if left:
        rows += wrap(left, width - 1, "warn", first="   ")
    cause = _last_cause(state)
    if cause is not None and state.phase is not RunPhase.SUCCEEDED:
        rows += _last_cause_rows(state, cause, width, state.end_text)
    rows += _end_remedies(state, cause, width)
    if len(state.attempts) > 1:
        rows += ledger_rows(state, width)
    return rows


def _end_remedies(state: RunState, cause: FirstCause | None, width: int) -> list[Row]:
    """Return the remedies of the findings, with their sentences unless the cause already says them."""
    rows: list[Row] = []
    stated = cause_text(cause) if cause is not None else ""
    for item in items(state.findings.values()):
        finding = item.first
        if item.follows or finding.quiet:
            continue
        same = cause is not None and _explains(item, cause)
        if not same and finding.text not in stated:
            glyph, style = glyphs.severity(finding)
            rows += labelled((f" {glyph} ", style), clean_text(finding.text), width - 1)
        if finding.remedy:
            rows += labelled(("   → ", "accent"), clean_text(remedy_text(finding)), width - 1, "accent")
    return rows


def _explains(item: Item, cause: FirstCause) -> bool:
    return item.first.role == "cause" and cause.rank in item.ranks


def is_found(state: RunState, cause: FirstCause) -> bool:
    """Whether a finding already explains a first cause."""
    return any(_explains(item, cause) for item in items(state.findings.values()))


def _last_cause(state: RunState) -> FirstCause | None:
    return next(filter(None, (attempt.first_cause for attempt in reversed(state.attempts))), None)


def cause_rows(cause: FirstCause, width: int, of: str = "", above: str = "") -> list[Row]:
    """Return the first cause: rank, sentence, last lines of its stderr, victims.

    `of` names the attempt if there are several. `above` is the text above these rows, which is not repeated.
    """
    place = f"rank {cause.rank} (local {cause.local_rank}, node {cause.node}, pid {cause.pid or 'unknown'})"
    rows: list[Row] = [((f" first cause{of}  ", "dim"), (place, "head"))]
    if cause_text(cause) not in above:
        rows += wrap(cause_text(cause), width - 1, first="   ")
    if cause.oom:
        rows += wrap(f"killed for memory: {cause.oom}", width - 1, "warn", first="   ")
    if cause.last_lines:
        rows.append(((f" last lines of rank {cause.rank}'s stderr", "dim"),))
    rows += [(_QUOTED, (clean_text(line), "text")) for line in cause.last_lines]
    if cause.victims:
        rows += wrap(f"ended after it: {spans_text('rank', cause.victims)}", width - 1, "dim", first="   ")
    return rows


def _attempt_of(state: RunState, cause: FirstCause) -> Attempt:
    return next(attempt for attempt in state.attempts if attempt.first_cause is cause)


def _last_cause_rows(state: RunState, cause: FirstCause, width: int, above: str = "") -> list[Row]:
    """Return `cause_rows` with wrapped lines, and with the attempt's number if there are several attempts."""
    number = _attempt_of(state, cause).number
    of = "" if len(state.attempts) < 2 else f" of attempt {number}"
    return [piece for row in cause_rows(cause, width, of, above) for piece in _hung(row, width)]


def _hung(row: Row, width: int) -> list[Row]:
    """Wrap a row of a label and a text; each part of a quoted line keeps its mark."""
    if row[:1] != (_QUOTED,) or row_width(row) <= width:
        return hang(row, width)
    mark, (text, style) = row
    return [(mark, *part) for part in wrap(text, width - 1 - row_width((mark,)), style)]


def ledger_rows(state: RunState, width: int) -> list[Row]:
    """Return one row per attempt: start, duration, why it began, how it ended, what changed."""
    rows: list[Row] = [((" attempts", "dim"),)]
    for attempt in state.attempts:
        outcome = str(attempt.outcome) if attempt.outcome else "running"
        style = _OUTCOME[attempt.outcome] if attempt.outcome else "ok"
        took = ""
        if attempt.ended is not None:
            took = duration_exact(attempt.lasted(None))
        elif state.ended is not None:
            took = duration_exact(attempt.lasted(state.ended))
        text = f"   {attempt.number:>3}  {time_of_day(attempt.began)}  {fit(attempt.cause, 10)}  {fit(took, 12)}"
        more = "; ".join(filter(None, [_changes(attempt), _why_it_failed(state, attempt)]))
        rows.append(clip(((text, "text"), (fit(outcome, 11), style), (more, "dim")), width))
    return rows


def _why_it_failed(state: RunState, attempt: Attempt) -> str:
    """Return the first cause of an attempt; of a run with one attempt it is below the ledger, or among the findings."""
    is_only = len(state.attempts) < 2
    return "" if is_only or attempt.first_cause is None else cause_text(attempt.first_cause)


def _differing(attempt: Attempt) -> list[str]:
    """Return one text per rank whose environment differs from the attempt's change."""
    return [
        f"rank {rank} has "
        + " ".join(
            f"no {name}" if value is None else f"{name}={value}" for name, value in sorted(env.items())
        )
        for rank, env in sorted(attempt.env_differs.items(), key=lambda pair: int(pair[0]))
    ]


def _changes(attempt: Attempt) -> str:
    return "; ".join(filter(None, [environment_changes(attempt), *_differing(attempt)]))


LATE_S = 10.0
"""Maximum delay of a report by a runner or node. A larger difference means that its clock was set back."""


def in_order(notices: Iterable[tuple[float, str]]) -> list[tuple[float, str]]:
    """Sort by time. The agent reads a runner's reports some tenths of a second after its own observations."""
    ordered: list[tuple[float, str]] = []
    for at, text in notices:
        place = len(ordered)
        while place and 0 < ordered[place - 1][0] - at <= LATE_S:
            place -= 1
        ordered.insert(place, (at, text))
    return ordered


def _save_text(saved: Checkpoint) -> str:
    parts = [
        "" if saved.size is None else size_text(saved.size),
        "" if saved.duration_s is None else f"took {duration_exact(saved.duration_s)}",
    ]
    what = "checkpoint" if saved.complete else "torn checkpoint"
    of = "" if saved.step is None else f" of step {saved.step:,}"
    return ", ".join([f"{what}{of}: {saved.path}", *filter(None, parts)])


class StacksOf(Struct, frozen=True):
    """Stacks that were taken at a Unix time."""

    at: float


Target = float | Attempt | StacksOf | None
"""What a row leads to: a Unix time, the line that raised in a failed attempt, stacks, or nothing."""
LeadingRow = tuple[Row, Target]


def event_rows(frame: Frame, width: int, whole: bool = True) -> tuple[list[Row], list[Target]]:
    """Return the events screen, and per row what it leads to.

    The ledger of attempts comes first, then events, commands and checkpoints, newest first. `whole` adds what the
    overview shows elsewhere: the first cause with its last lines, and the present findings.
    """
    state = frame.state
    failed = {attempt.ended: attempt for attempt in state.attempts if attempt.first_cause is not None}
    pairs = _ledger(state, width, failed)
    cause = _last_cause(state) if whole else None
    if cause is not None:
        attempt = _attempt_of(state, cause)
        pairs += [((), None), *((row, attempt) for row in _last_cause_rows(state, cause, width))]
    pairs += [((), None), (((" events, commands and checkpoints, newest first", "dim"),), None)]
    pairs += _happened(frame, width, failed, whole)
    return [row for row, _ in pairs], [target for _, target in pairs]


def _ledger(state: RunState, width: int, failed: Mapping[float | None, Attempt]) -> list[LeadingRow]:
    """Return the rows of the attempts; a failed attempt leads to the line that raised."""
    heading, *rows = ledger_rows(state, width)
    targets = [failed.get(attempt.ended, attempt.began) for attempt in state.attempts]
    pairs: list[LeadingRow] = [(heading, None), *zip(rows, targets, strict=True)]
    if not rows:
        none = "none has started yet" if state.live else CONNECTING
        pairs.append((((f"   {none}", "dim"),), None))
    return pairs


def _happened(
    frame: Frame, width: int, failed: Mapping[float | None, Attempt], whole: bool
) -> list[LeadingRow]:
    """Return the rows of events, commands and checkpoints, the newest first."""
    state = frame.state
    saves = sorted((saved.at, _save_text(saved)) for saved in state.checkpoints)
    found = set() if whole else {finding.text for finding in state.findings.values() if not finding.quiet}
    notices = [notice for notice in state.notices if notice[1] not in found]
    happened = fitting_events(frame, list(heapq.merge(in_order(notices), saves, key=itemgetter(0))))
    if not happened:
        none = "no event matches: esc removes the filter" if frame.view.event_filter else "none yet"
        return [(((f"   {none}", "dim"),), None)]
    pairs: list[LeadingRow] = []
    for at, text in reversed(happened):
        rows = wrap(clean_text(text), width - 1, first=f"   {time_of_day(at)}  ", then=" " * 13)
        leads_to = StacksOf(at) if _STACKS.search(text) else failed.get(at, at)
        pairs += [(row, leads_to) for row in rows]
    return pairs


_STACKS = re.compile(r"(^|: )stacks of ")
"""Report of a dump of stacks, in a merged run after the name of the node."""
