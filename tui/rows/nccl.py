"""The NCCL screen: findings, and NCCL's facts about nodes and communicators. Pure."""

from __future__ import annotations

from ...presets.finding import Finding
from ...presets.plurals import plural
from ...runners.diagnosis.nccl_facts import Communicator, NcclFacts
from ...runners.diagnosis.status import foreign
from ...runners.run.formatting import size_short
from ...runners.run.nccl_reach import uses_gloo
from ...runners.run.state import RunState
from . import glyphs
from .banner import SHOWS_ALL
from .communicators import communicator_rows
from .findings import QUIET, item_row, items
from .frame import CONNECTING, Frame
from .glyphs import Row, labelled, wrap
from .nccl_nodes import node_rows
from .run_status import launching
from .statements import StatementRow, heading

FINDINGS = 4
"""Maximum number of findings on top; the findings pane shows all."""

DERIVED = (
    *("expect-", "version-mismatch", "net-socket-fallback", "gdr-asymmetric", "p2p-hang"),
    *("nccl-flood", "logs-behind"),
)
"""Prefixes of findings that follow from several statements, or from the growth of NCCL's logs; no line shows them."""


def why_empty(state: RunState, reading: str = "") -> str:
    """Return why the screen is empty and what to do; `reading` is the current activity, if any."""
    if uses_gloo(state):
        if state.phase.ended:
            return "The backend is gloo: no NCCL data."
        return (
            "The backend is gloo: no NCCL data. d raises c10d's logging. It writes lines to the log (3) if a process "
            "group or a DDP model is created, and usually none while steps run."
        )
    if reading:
        return reading
    if not (state.live or state.phase.ended):
        return CONNECTING
    if launching(state) or not state.ranks:
        return "No rank has started yet: NCCL's log begins when the ranks meet."
    if state.phase.ended:
        return "Nothing of NCCL is in the logs of this run."
    if foreign(state):
        return "distui did not start this job: it reads no NCCL statements of it, and cannot change its NCCL_DEBUG."
    levels = {rank.nccl_debug for rank in state.ranks.values()}
    if levels <= QUIET:
        level = next(filter(None, levels), "WARN")
        return (
            f"NCCL_DEBUG is {level}, and NCCL's statements need INFO: press d. "
            "Its init messages need a restart; later messages come live."
        )
    return "NCCL has logged nothing yet: it starts when the first communicator is created."


def title(facts: NcclFacts | None) -> str:
    """Return the numbers of nodes and communicators that NCCL's log names, and of its lines."""
    if facts is None:
        return "NCCL"
    parts = [plural(len(facts.nodes), "node")] if facts.nodes else []
    parts += [plural(len(facts.communicators), "communicator")] if facts.communicators else []
    return " · ".join(["NCCL", *parts, f"{facts.nccl_lines:,} lines"])


def statement_rows(
    frame: Frame, facts: NcclFacts, chosen: Communicator | None, width: int
) -> list[StatementRow]:
    """Return findings, notes on unread logs, one card per group of nodes and per communicator."""
    rows = [*_findings(frame, facts, width), *(StatementRow(row) for row in _unread(facts, width))]
    if facts.nodes:
        rows += [heading("nodes"), *node_rows(facts, width), StatementRow(())]
    if chosen is not None:
        many = len(facts.communicators) > 1
        rows.append(heading("communicators", "c chooses the next" if many else ""))
        rows += communicator_rows(facts, chosen, width)
    else:
        text = "no line names a communicator: NCCL_DEBUG=INFO logs them when the ranks meet"
        rows += [StatementRow(row) for row in wrap(text, width, "dim")]
    return rows


def _findings(frame: Frame, facts: NcclFacts, width: int) -> list[StatementRow]:
    ours = [finding for finding in frame.state.findings.values() if _is_from_nccl(finding, facts)]
    alarms = [item for item in items(ours) if item.first.alarm]
    rows = [
        StatementRow(item_row(frame, item, width), facts.raw.get(f"rule:{item.first.id}"))
        for item in alarms[:FINDINGS]
    ]
    if len(alarms) > FINDINGS:
        rows.append(StatementRow(((f"… {len(alarms) - FINDINGS} more: {SHOWS_ALL}", "dim"),)))
    return [*rows, StatementRow(())] if rows else []


def _is_from_nccl(finding: Finding, facts: NcclFacts) -> bool:
    """Whether a finding follows from NCCL's logs; the banner shows the others."""
    return f"rule:{finding.id}" in facts.raw or finding.id.startswith(DERIVED)


def _unread(facts: NcclFacts, width: int) -> list[Row]:
    rows: list[Row] = []
    if facts.behind:
        text = f"{size_short(facts.behind)} of NCCL's logs are not read yet: what is here may be old"
        rows.append(((f"{glyphs.UNHEARD} ", "warn"), (text, "text")))
    if facts.sampled:
        text = "parts of the logs were left out, because they grew faster than they are read; the files are whole"
        rows += labelled((f"{glyphs.WARN} ", "warn"), text, width)
    return rows
