"""The banner: problems of the link and findings that a person must read, each with its remedy. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...presets.sanitize import clean_text
from ...runners.diagnosis.remedy_commands import command_of
from ...runners.run.formatting import agreeing, duration_short, listed, spans_text
from ...runners.run.model import LinkState
from . import glyphs
from .attempts import cause_text, is_found
from .findings import Item, items, place, since_text
from .frame import Frame, LinkPhase, names, silent
from .glyphs import Row, labelled
from .remedy import remedy_text, with_keys

SHOWS_ALL = "6 shows all"
"""The key of the findings pane, for screens that show only some findings."""

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


def banner_remedy(frame: Frame) -> str:
    """Return the command of the remedy in the banner, else its sentence; "" without a remedy."""
    for item in _shown_items(frame):
        if item.first.remedy:
            return command_of(item.first.remedy) or remedy_text(item.first)
    return ""


def fitted(statements: Sequence[Statement], width: int, most: int) -> list[Row]:
    """Return as many whole statements as fit, and the number of the others. Only the first may be cut."""
    rows: list[Row] = []
    for at, statement in enumerate(statements):
        others = len(statements) - at - 1
        room = most - len(rows) - bool(others)
        shown = _statement_rows(statement, width)
        if len(shown) > room and statement.remedy:
            shown = [*_statement_rows(replace(statement, remedy=""), width), _ELSEWHERE]
        if len(shown) > room and rows:
            return [*rows, ((f"   … {others + 1} more: {SHOWS_ALL}", "dim"),)]
        rows += shown if len(shown) <= room else [*shown[: max(1, room - 1)], _ELSEWHERE][:room]
    return rows


_ELSEWHERE: Row = ((f"   → {SHOWS_ALL} of it, and what to do", "accent"),)


def _statement_rows(statement: Statement, width: int) -> list[Row]:
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
        text = f"no message from the agent for {duration_short(frame.silence)}: what is shown is old"
        return [Statement(glyphs.UNHEARD, "stale", text)]
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


def _failure(frame: Frame) -> list[Statement]:
    """Return the cause of a pending or recent restart, and the time until the restart."""
    state = frame.state
    if state.phase.ended or not state.attempts:
        return []
    statements: list[Statement] = []
    last = state.attempts[-1]
    if last.first_cause is not None and not is_found(state, last.first_cause):
        victims = last.first_cause.victims
        then = f"; then {spans_text('rank', victims)}" if victims else ""
        statements.append(Statement(glyphs.BAD, "bad", f"{cause_text(last.first_cause)}{then}"))
    if state.delay is not None and last.ended is not None:
        wait = max(0.0, last.ended + state.delay.wait_s - frame.node_now(0))
        count = f"failure {state.delay.failures} of {state.delay.limit}"
        statements.append(Statement(glyphs.WARN, "warn", f"restart in {wait:.0f} s ({count})"))
    return statements


def _gpu_problems(frame: Frame) -> list[Statement]:
    return [
        Statement(glyphs.WARN, "warn", f"{node.host or node.node}: {node.gpu_problem}")
        for node in frame.state.nodes.values()
        if node.gpu_problem and node.gpus
    ]


def _shown_items(frame: Frame) -> list[Item]:
    """Return the kinds of findings, the worst first. Symptoms of a shown cause appear only in the findings pane."""
    known = items(frame.state.findings.values())
    return [item for item in known if not item.follows and not item.first.quiet]


def _of_findings(frame: Frame) -> list[Statement]:
    """Return one statement per kind of findings."""
    return [_of_item(frame, item) for item in _shown_items(frame)]


def _of_item(frame: Frame, item: Item) -> Statement:
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
    since = "" if finding.since is None else f" · since {since_text(frame, finding)}"
    return Statement(glyph, style, f"{where}{finding.text}{since}", with_keys(remedy_text(finding)))
