"""Findings as rows: the banner, each finding with its evidence, and the report of a run that has ended. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from ...presets.finding import Finding, worst_first
from ...presets.plurals import plural
from ...presets.sanitize import clean_text
from ...presets.secrets import mask
from ...runners.diagnosis.missing_data import untimed
from ...runners.diagnosis.status import foreign
from ...runners.run.formatting import (
    agreeing,
    duration_exact,
    duration_short,
    elapsed,
    listed,
    size_text,
    spans_short,
    spans_text,
    time_of_day,
)
from ...runners.run.model import Checkpoint, FirstCause, LinkState, Outcome, RunPhase
from ...runners.run.nccl_reach import uses_gloo
from ...runners.run.state import Attempt, RunState
from . import glyphs
from .frame import Frame, LinkPhase, names, silent
from .glyphs import Cell, Row, clip, fit, hang, labelled, wrap
from .run_status import remains

QUIET = {None, "VERSION", "WARN"}
"""Levels of NCCL_DEBUG that log no statements."""

HOOKED = ("up", "armed")
"""States of a hook that answers."""

SHOWS_ALL = "6 shows all"
"""The key of the findings pane, for screens that show only some findings."""
_EACH = 12
"""Maximum number of findings of one kind that are listed individually."""

_LABEL = 10


class Item(Struct, frozen=True):
    """One row of the list: a finding, or several of one kind."""

    findings: tuple[Finding, ...]
    follows: bool = False
    """Whether these are the symptoms of the cause in the row above."""

    @property
    def first(self) -> Finding:
        return self.findings[0]

    @property
    def key(self) -> str:
        """An id that does not change while findings of this kind come and go."""
        return "symptoms" if self.follows else f"{self.first.role} {self.first.id}"

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every affected rank."""
        return tuple(sorted({rank for finding in self.findings for rank in ranks_of(finding)}))


def ranks_of(finding: Finding) -> tuple[int, ...]:
    alone = () if finding.rank is None else (finding.rank,)
    return finding.ranks or alone


def items(given: Iterable[Finding]) -> list[Item]:
    """Return the rows of the list. Symptoms are grouped below the first cause, if there is one."""
    kinds: dict[tuple[str, str], list[Finding]] = {}
    followers: list[Finding] = []
    ordered = worst_first(given)
    caused = any(finding.role == "cause" and finding.alarm for finding in ordered)
    for finding in ordered:
        if caused and finding.role == "symptom":
            followers.append(finding)
        else:
            kinds.setdefault((finding.role, finding.id), []).append(finding)
    listed = [Item(tuple(alike)) for alike in kinds.values()]
    if followers:
        at = next(at for at, item in enumerate(listed) if item.first.role == "cause")
        listed.insert(at + 1, Item(tuple(followers), follows=True))
    return listed


def item_row(frame: Frame, item: Item, width: int | None = None) -> Row:
    """Return severity, role, place, age and sentence, cut to `width` columns if it is given."""
    first = item.first
    glyph, style = glyphs.severity(first)
    many = f"{len(item.findings)} × " if len(item.findings) > 1 else ""
    lead, role, summary = (f"{glyph} ", style), first.role, many + clean_text(first.text)
    if item.follows:
        lead, role, summary = ("│ ", "dim"), "", _symptoms(item)
    cells: tuple[Cell, ...] = (
        lead,
        (fit(role, 8), "dim" if first.quiet else style),
        (fit(place(frame.state, item), 9) + " ", "dim" if first.quiet else "accent"),
        (fit(_age(frame, item), 4, right=True) + "  ", "dim"),
        (summary, "dim" if first.quiet or item.follows else "text"),
    )
    return cells if width is None else clip(cells, width)


def _age(frame: Frame, item: Item) -> str:
    since = min((each.since for each in item.findings if each.since is not None), default=None)
    return "" if since is None else duration_short(elapsed(since, _now(frame, item.first)))


def _now(frame: Frame, finding: Finding) -> float:
    if frame.state.phase.ended and frame.state.ended:
        return max(frame.state.ended, frame.now)
    return frame.node_now(finding.node or 0)


def _symptoms(item: Item) -> str:
    counts: dict[str, int] = {}
    for finding in item.findings:
        counts[finding.id] = counts.get(finding.id, 0) + 1
    counted = ", ".join(f"{name} {count} ×" if count > 1 else name for name, count in counts.items())
    return f"{plural(len(item.findings), 'symptom')} that go with it: {counted}"


def place(state: RunState, item: Item) -> str:
    """Return `r3`, `r0-3`, `62 ranks`, `c2`; "" if the finding is about the whole run."""
    ranks = item.ranks
    if ranks:
        short = f"r{spans_short(ranks)}"
        return short if len(short) <= 9 else plural(len(ranks), "rank")
    nodes = {finding.node for finding in item.findings if finding.node is not None}
    named = names(state)
    if len(nodes) == 1:
        return named.get(min(nodes), f"node {min(nodes)}")
    return plural(len(nodes), "node") if nodes else ""


def detail_rows(frame: Frame, item: Item, width: int) -> list[Row]:
    """Return one item in full: its sentence, remedy, ranks, start time and evidence."""
    first = item.first
    glyph, style = glyphs.severity(first)
    rows: list[Row] = [((f"{glyph} {first.severity} {first.role} ", style), (first.id, "dim"))]
    rows += wrap(clean_text(first.text), width, "head")
    if first.remedy:
        rows += _labelled("do", first.remedy, width, "accent")
    rows += _labelled("where", _where(frame.state, item), width)
    if first.since is not None:
        rows += _labelled("since", _since(frame, first), width)
    for other in item.findings[1:_EACH]:
        rows += _labelled("also" if not item.follows else other.id, _with_rank(other), width, "dim")
    if len(item.findings) > _EACH:
        rows += _labelled("", f"… {len(item.findings) - _EACH} more of this kind", width, "dim")
    return rows + _evidence(item, width)


def _labelled(label: str, text: str, width: int, style: str = "text") -> list[Row]:
    if not text:
        return []
    head = fit(label, _LABEL) if len(label) < _LABEL else f"{label}  "
    return labelled((head, "dim"), clean_text(text), width, style)


def _where(state: RunState, item: Item) -> str:
    ranks, nodes = item.ranks, {finding.node for finding in item.findings if finding.node is not None}
    nodes |= {state.ranks[rank].place.node for rank in ranks if rank in state.ranks and state.merged}
    named = names(state)
    hosts = [named.get(node, f"node {node}") for node in sorted(nodes)]
    who = spans_text("rank", ranks) if ranks else ""
    return " on ".join(part for part in (who, listed(hosts, 8)) if part)


def _since(frame: Frame, finding: Finding) -> str:
    since = finding.since or 0.0
    seconds = elapsed(since, _now(frame, finding))
    return time_of_day(since) + ("" if seconds is None else f", {duration_exact(seconds)} ago")


def _with_rank(finding: Finding) -> str:
    ranks = ranks_of(finding)
    return f"{spans_text('rank', ranks)}: {finding.text}" if ranks else finding.text


def _evidence(item: Item, width: int) -> list[Row]:
    """Return all evidence of the first finding, then one line of each of the others."""
    lines = [*item.first.evidence, *(each.evidence[0] for each in item.findings[1:_EACH] if each.evidence)]
    if not lines:
        return [(("no evidence was recorded", "dim"),)] if item.first.role == "cause" else []
    rows: list[Row] = [(("evidence", "dim"),)]
    for line in lines:
        wrapped = wrap(clean_text(line), width - 2)
        rows += [(("│ ", "dim"), *row) for row in wrapped]
    return rows


def no_findings(state: RunState) -> str:
    """Return the text for an empty list of findings."""
    if state.phase.ended:
        return "No findings."
    ranks = state.ranks.values()
    if ranks and not any(rank.hook in HOOKED for rank in ranks):
        return "No findings, but no hook answers: what the ranks do is unknown, except that they run."
    return "No findings."


def coverage_rows(state: RunState) -> list[Row]:
    """Return the data sources of verdicts and which are missing; [] before the first rank and after the end."""
    ranks = state.ranks
    if not ranks or state.phase.ended:
        return []
    hooks = sum(rank.hook in HOOKED for rank in ranks.values())
    recorders = sum(rank.pulse is not None and rank.pulse.recorder is True for rank in ranks.values())
    return [
        (("findings are based on", "dim"),),
        _covered("hooks: stacks, steps, collectives", hooks, len(ranks), "rank"),
        _covered("flight recorder of torch", recorders, len(ranks), "rank"),
        _nccl_covered(state),
        *([_UNTIMED] if untimed(state) else []),
    ]


_UNTIMED: Row = (
    (f" {glyphs.MISSING} ", "warn"),
    ("durations of collectives, for slow ranks: ", "text"),
    ("need TORCH_NCCL_ENABLE_TIMING=1", "warn"),
)


def _covered(what: str, there: int, all_: int, noun: str) -> Row:
    whole = there == all_
    glyph, style = (glyphs.OK, "ok") if whole else (glyphs.MISSING, "warn")
    count = f"all {plural(all_, noun)}" if whole else f"{there} of {plural(all_, noun)}"
    return ((f" {glyph} ", style), (f"{what}: ", "text"), (count, "dim" if whole else "warn"))


def _nccl_covered(state: RunState) -> Row:
    what = "NCCL log"
    if uses_gloo(state):
        return ((f" {glyphs.MISSING} ", "dim"), (f"{what}: ", "text"), ("none, the backend is gloo", "dim"))
    if foreign(state):
        return (
            (f" {glyphs.MISSING} ", "dim"),
            (f"{what}: ", "text"),
            ("not read of a job that distui did not start", "dim"),
        )
    quiet = {rank.nccl_debug for rank in state.ranks.values()} <= QUIET
    heard = sum(node.nccl is not None for node in state.nodes.values())
    if quiet:
        return (
            (f" {glyphs.MISSING} ", "warn"),
            (f"{what}: ", "text"),
            ("too quiet; press d for INFO", "warn"),
        )
    return _covered(what, heard, len(state.nodes), "node")


SLOW_CONNECT_S = 5.0
"""Once connecting takes longer than this many seconds, the banner also says why."""


class Statement(Struct, frozen=True):
    """A sentence that a person must read, and its remedy."""

    glyph: str
    style: str
    text: str
    remedy: str = ""


def banner_rows(frame: Frame, width: int, most: int, findings: bool = True) -> list[Row]:
    """Return the link's problems and the findings that need a person, in at most `most` rows.

    The worst comes first, in full. A statement whose remedy does not fit is shown without it, never cut inside it.
    `findings` is False if another pane shows them.
    """
    return fitted(
        [*_of_link(frame), *_failure(frame), *(_of_findings(frame) if findings else ())], width, most
    )


def fitted(statements: Sequence[Statement], width: int, most: int) -> list[Row]:
    """Return as many whole statements as fit, and the number of the others. Only the first may be cut."""
    rows: list[Row] = []
    for at, statement in enumerate(statements):
        others = len(statements) - at - 1
        room = most - len(rows) - bool(others)
        shown = statement_rows(statement, width)
        if len(shown) > room and statement.remedy:
            shown = [*statement_rows(replace(statement, remedy=""), width), _ELSEWHERE]
        if len(shown) > room and rows:
            return [*rows, ((f"   … {others + 1} more: {SHOWS_ALL}", "dim"),)]
        rows += shown if len(shown) <= room else [*shown[: max(1, room - 1)], _ELSEWHERE][:room]
    return rows


_ELSEWHERE: Row = ((f"   → {SHOWS_ALL} of it, and what to do", "accent"),)


def statement_rows(statement: Statement, width: int) -> list[Row]:
    """Return a glyph and the sentence, then the remedy on separate rows."""
    rows = labelled((f" {statement.glyph} ", statement.style), clean_text(statement.text), width - 1)
    if statement.remedy:
        rows += labelled(("   → ", "accent"), clean_text(statement.remedy), width - 1, "accent")
    return rows


def _of_link(frame: Frame) -> list[Statement]:
    return [*_link(frame), *_lost_nodes(frame), *_gpu_problems(frame)]


def _link(frame: Frame) -> list[Statement]:
    status = frame.link
    if status.phase is LinkPhase.LOST:
        wait = max(0.0, (status.retry_at or frame.now) - frame.now)
        what = "agent lost, the ranks go on" if frame.heard else "no agent reached"
        return [
            Statement(glyphs.BAD, "bad", f"{what}: {status.text}; next try in {wait:.0f} s, r tries now")
        ]
    if status.phase is LinkPhase.CONNECTING:
        waited = frame.now - status.since
        why = f": {status.text}" if status.text and waited > SLOW_CONNECT_S else ""
        return [Statement(glyphs.STALE, "warn", f"connecting to the agent, {waited:.0f} s{why}")]
    if frame.quiet:
        text = f"nothing heard from the agent for {duration_short(frame.silence)}: what is shown is old"
        return [Statement(glyphs.STALE, "stale", text)]
    return []


def _lost_nodes(frame: Frame) -> list[Statement]:
    """Return which nodes are lost, and why. The node's own row shows for how long."""
    state = frame.state
    lost = [node for node in silent(state) if state.nodes[node].link is LinkState.LOST]
    if not lost or state.phase.ended:
        return []
    named, why = names(state), state.nodes[lost[0]].link_text
    who, verb = listed([named[node] for node in lost]), agreeing(lost, "does", "do")
    if why.startswith(f"{who} "):  # ssh uses the same name
        text = why
    elif "not answer" in why:
        text = f"{who}: {why}"
    else:
        text = f"{who} {verb} not answer{': ' + why if why else ''}"
    return [Statement(glyphs.BAD, "bad", text)]


def cause_text(cause: FirstCause) -> str:
    """Return which rank failed first, in one sentence."""
    if cause.text:
        return cause.text
    how = f"signal {cause.signal}" if cause.signal else f"exit code {cause.exit_code}"
    return f"rank {cause.rank} failed first ({how})"


def _failure(frame: Frame) -> list[Statement]:
    """Return the cause of a pending or recent restart, and the time until the restart."""
    state = frame.state
    if state.phase.ended or not state.attempts:
        return []
    statements: list[Statement] = []
    last = state.attempts[-1]
    if last.first_cause is not None:
        victims = last.first_cause.victims
        then = f"; then {spans_text('rank', victims)}" if victims else ""
        statements.append(Statement(glyphs.BAD, "bad", f"{cause_text(last.first_cause)}{then}"))
    if state.delay is not None and last.ended is not None:
        wait = max(0.0, last.ended + state.delay.wait_s - frame.node_now(0))
        count = f"failure {state.delay.failures} of {state.delay.limit} allowed"
        statements.append(Statement(glyphs.WARN, "warn", f"restart in {wait:.0f} s ({count})"))
    return statements


def _gpu_problems(frame: Frame) -> list[Statement]:
    return [
        Statement(glyphs.WARN, "warn", f"{node.host or node.node}: {node.gpu_problem}")
        for node in frame.state.nodes.values()
        if node.gpu_problem and node.gpus
    ]


def _of_findings(frame: Frame) -> list[Statement]:
    """Return one statement per kind, the worst first. Symptoms of a shown cause appear only in the findings pane."""
    return [
        of_item(frame, item)
        for item in items(frame.state.findings.values())
        if not item.follows and not item.first.quiet
    ]


def of_item(frame: Frame, item: Item) -> Statement:
    """Return a finding, or a kind of findings: sentence, start time, remedy."""
    finding = item.first
    glyph, style = glyphs.severity(finding)
    many = len(item.findings) > 1
    named = finding.rank is None or f"rank {finding.rank}" in finding.text
    where = ""
    if many:
        where = f"{place(frame.state, item)}: "
    elif not named:
        where = f"rank {finding.rank}: "
    since = "" if finding.since is None else f" · since {_since(frame, finding)}"
    return Statement(glyph, style, f"{where}{finding.text}{since}", finding.remedy)


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
    asked = (
        state.phase is RunPhase.STOPPED
    )  # the user ended the run, so its exit code carries no information
    code = "" if state.exit_code is None or asked else f", exit code {state.exit_code}"
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
        same = finding.role == "cause" and cause is not None and cause.rank in item.ranks
        if not same and finding.text not in stated:
            glyph, style = glyphs.severity(finding)
            rows += labelled((f" {glyph} ", style), clean_text(finding.text), width - 1)
        if finding.remedy:
            rows += labelled(("   → ", "accent"), clean_text(finding.remedy), width - 1, "accent")
    return rows


def _last_cause(state: RunState) -> FirstCause | None:
    return next(filter(None, (attempt.first_cause for attempt in reversed(state.attempts))), None)


def cause_rows(cause: FirstCause, width: int, of: str = "", above: str = "") -> list[Row]:
    """Return the first cause: rank, sentence, last lines of its stderr, victims.

    `of` names an attempt that is not the newest. `above` is the text above these rows, which is not repeated.
    """
    place = f"rank {cause.rank} (local {cause.local_rank}, node {cause.node}, pid {cause.pid or 'unknown'})"
    rows: list[Row] = [((f" first cause{of}  ", "dim"), (place, "head"))]
    if cause_text(cause) not in above:
        rows += wrap(cause_text(cause), width - 1, first="   ")
    if cause.oom:
        rows += wrap(f"killed for memory: {cause.oom}", width - 1, "warn", first="   ")
    if cause.last_lines:
        rows.append(((f" last lines of rank {cause.rank}'s stderr", "dim"),))
    rows += [((" │ ", "bad"), (clean_text(line), "text")) for line in cause.last_lines]
    if cause.victims:
        rows += wrap(f"ended after it: {spans_text('rank', cause.victims)}", width - 1, "dim", first="   ")
    return rows


def _last_cause_rows(state: RunState, cause: FirstCause, width: int, above: str = "") -> list[Row]:
    """Return `cause_rows` with wrapped lines, and with the attempt's number if it is not the newest."""
    number = next(attempt.number for attempt in state.attempts if attempt.first_cause is cause)
    of = "" if number == state.attempts[-1].number else f" of attempt {number}"
    return [piece for row in cause_rows(cause, width, of, above) for piece in hang(row, width)]


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
    """Return the first cause of an attempt. The newest attempt's is shown below the ledger, or among the findings."""
    newest = attempt is state.attempts[-1]
    return "" if newest or attempt.first_cause is None else cause_text(attempt.first_cause)


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
    changed = " ".join(
        f"-{name}" if value is None else f"{name}={mask(name, value)}"
        for name, value in sorted(attempt.env_diff.items())
    )
    return "; ".join(filter(None, [changed, *_differing(attempt)]))


def wrong_rows(frame: Frame, width: int) -> list[Row]:
    """Return all findings, the worst first, each with its remedy; or a row that there are none."""
    rows: list[Row] = []
    for item in items(frame.state.findings.values()):
        rows += statement_rows(of_item(frame, item), width)
    return rows or [((f" {no_findings(frame.state)}", "dim"),)]


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


def event_rows(frame: Frame, width: int, whole: bool = True) -> tuple[list[Row], list[float | None]]:
    """Return the events screen, and per row its unix time in seconds; None for headings.

    The ledger of attempts comes first, then events, commands and checkpoints, newest first. `whole` adds the first
    cause with its last lines, which the report of a run that has ended also shows.
    """
    state = frame.state
    rows = ledger_rows(state, width)
    times: list[float | None] = [None, *(attempt.began for attempt in state.attempts)]
    if not state.attempts:
        rows.append((("   none has started yet", "dim"),))
    cause = _last_cause(state) if whole else None
    if cause is not None:
        rows += [(), *_last_cause_rows(state, cause, width)]
    rows += [(), ((" events, commands and checkpoints, newest first", "dim"),)]
    saves = sorted((saved.at, _save_text(saved)) for saved in state.checkpoints)
    happened = list(heapq.merge(in_order(state.notices), saves, key=itemgetter(0)))
    if not happened:
        rows.append((("   none yet", "dim"),))
    times += [None] * (len(rows) - len(times))
    for at, text in reversed(happened):
        rows += wrap(clean_text(text), width - 1, first=f"   {time_of_day(at)}  ", then=" " * 13)
        times += [at] * (len(rows) - len(times))
    return rows, times
