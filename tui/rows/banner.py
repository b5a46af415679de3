"""The lines below the status line: what a user must read now, worst first."""

from __future__ import annotations

from ...runners.formatting import duration_short, elapsed, spans_text
from ...runners.model import FirstCause, LinkState
from ..follower import LinkPhase
from . import glyphs
from .findings import items, place
from .frame import Frame
from .glyphs import Row, clip
from .status import listed, names, silent

SLOW_CONNECT_S = 5.0
"""After this long, connecting is worth a line of its own."""


def banner_rows(frame: Frame, width: int, most: int) -> list[Row]:
    """At most `most` rows, at least one."""
    rows = [
        *_link_rows(frame),
        *_lost_nodes(frame),
        *_failure(frame),
        *_gpu_problems(frame),
        *_findings(frame),
    ]
    rows = rows or _newest(frame)
    if len(rows) > most > 1 and len(frame.state.findings) > 1:
        hidden = len(rows) - most + 1
        rows = [*rows[: most - 1], ((f"  … {hidden} more: i shows all", "dim"),)]
    return [clip(row, width) for row in rows[:most]] or [()]


def _link_rows(frame: Frame) -> list[Row]:
    status = frame.link
    if status.phase is LinkPhase.LOST:
        wait = max(0.0, (status.retry_at or frame.now) - frame.now)
        what = "agent lost, the ranks go on" if frame.heard else "no agent reached"
        text = f" {what}: {status.text}; next try in {wait:.0f} s, r tries now"
        return [((f" {glyphs.BAD}", "bad"), (text, "text"))]
    if status.phase is LinkPhase.CONNECTING:
        waited = frame.now - status.since
        why = f": {status.text}" if status.text and waited > SLOW_CONNECT_S else ""
        return [((f" {glyphs.STALE}", "warn"), (f" connecting to the agent, {waited:.0f} s{why}", "text"))]
    if frame.quiet:
        text = f" nothing heard from the agent for {duration_short(frame.silence)}: what is shown is old"
        return [((f" {glyphs.STALE}", "stale"), (text, "text"))]
    return []


def _lost_nodes(frame: Frame) -> list[Row]:
    """Which nodes are lost, and why; for how long is told where the node is."""
    state = frame.state
    lost = [node for node in silent(state) if state.nodes[node].link is LinkState.LOST]
    if not lost or state.phase.ended:
        return []
    named, why = names(state), state.nodes[lost[0]].link_text
    who, verb = listed([named[node] for node in lost]), "does" if len(lost) == 1 else "do"
    if why.startswith(f"{who} "):  # ssh knows it by the same name
        text = why
    elif "not answer" in why:
        text = f"{who}: {why}"
    else:
        text = f"{who} {verb} not answer{': ' + why if why else ''}"
    return [((f" {glyphs.BAD}", "bad"), (f" {text}", "text"))]


def cause_text(cause: FirstCause) -> str:
    """Which rank failed first, in one sentence."""
    if cause.text:
        return cause.text
    how = f"signal {cause.signal}" if cause.signal else f"exit code {cause.exit_code}"
    return f"rank {cause.rank} failed first ({how})"


def _failure(frame: Frame) -> list[Row]:
    """While a restart is pending or the first seconds after it: what made it necessary."""
    state = frame.state
    if state.phase.ended or not state.attempts:
        return []
    rows: list[Row] = []
    last = state.attempts[-1]
    if state.delay is not None and last.ended is not None:
        wait = max(0.0, last.ended + state.delay.wait_s - frame.node_now(0))
        count = f"failure {state.delay.failures} of {state.delay.limit} allowed"
        rows.append(((f" {glyphs.WARN}", "warn"), (f" restart in {wait:.0f} s ({count})", "text")))
    if last.first_cause is not None:
        victims = (
            f"; then {spans_text('rank', last.first_cause.victims)}" if last.first_cause.victims else ""
        )
        rows.insert(0, ((f" {glyphs.BAD}", "bad"), (f" {cause_text(last.first_cause)}{victims}", "text")))
    return rows


def _gpu_problems(frame: Frame) -> list[Row]:
    return [
        ((f" {glyphs.WARN}", "warn"), (f" {node.host or node.node}: {node.gpu_problem}", "text"))
        for node in frame.state.nodes.values()
        if node.gpu_problem and node.gpus
    ]


def _findings(frame: Frame) -> list[Row]:
    """One row a kind, the worst first; symptoms of a cause that stands here are left to the pane of findings."""
    rows: list[Row] = []
    for item in items(frame.state.findings.values()):
        if item.follows:
            continue
        finding = item.first
        glyph, style = glyphs.severity(finding)
        many = len(item.findings) > 1
        named = finding.rank is None or f"rank {finding.rank}" in finding.text
        where = f" {place(frame.state, item)}:" if many else "" if named else f" rank {finding.rank}:"
        remedy = f" ({finding.remedy})" if finding.remedy else ""
        ink = "dim" if finding.quiet else "text"
        rows.append(((f" {glyph}", style), (f"{where} {finding.text}{remedy}", ink)))
    return rows


def _newest(frame: Frame) -> list[Row]:
    """The newest notice, or what runs, so that the line is never a blank to wonder about."""
    plan = frame.state.plan
    if not frame.state.notices or frame.state.phase.ended:
        return [((f"   {plan.preset}  {plan.command}", "dim"),)] if plan is not None else []
    at, text = frame.state.notices[-1]
    return [((f"   {duration_short(elapsed(at, frame.node_now(0)))} ago: ", "dim"), (text, "dim"))]
