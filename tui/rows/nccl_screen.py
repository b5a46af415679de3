"""The NCCL screen's rows: findings, nodes, communicators; and of the chosen one its pairs, rings and init. Pure."""

from __future__ import annotations

from ...runners.diagnosis.facts import Communicator, Facts, Line
from ...runners.state import RunState
from . import glyphs
from .cells import Row, amount, plural, wrap
from .findings import QUIET, item_row, items
from .frame import Frame
from .joining import init_rows, ring_rows
from .launching import launching
from .matrix import matrix_rows
from .statements import Told, communicator_rows, name_of, node_rows

FINDINGS = 4
"""Most findings on top; the pane of findings has all."""

OTHERS = ("hang-", "straggler", "died-", "oom-", "mem-", "start-")
"""How findings begin that rest on something else than NCCL's words: the banner has them."""


def why_empty(state: RunState, reading: str = "") -> str:
    """Why there is nothing to show, and what to do, in a sentence; `reading`: what is being done about it."""
    if state.plan is not None and state.plan.backend == "gloo":
        return "This run uses gloo: NCCL is not used, so there is nothing that it could say."
    if reading:
        return reading
    if launching(state) or not state.ranks:
        return "No rank has started yet: NCCL speaks when the ranks meet."
    if state.phase.ended:
        return "Nothing of NCCL is in the logs of this run."
    levels = {rank.nccl_debug for rank in state.ranks.values()}
    if levels <= QUIET:
        level = next((one for one in levels if one), "WARN")
        return (
            f"NCCL_DEBUG is {level}, and NCCL's statements need INFO: press d. "
            "What it says while ranks meet comes with a restart; what it says later comes live."
        )
    return "NCCL has said nothing yet: its statements come when the first communicator is made."


def title(facts: Facts | None) -> str:
    """How much was read of how many."""
    if facts is None:
        return "NCCL"
    parts = [plural(len(facts.nodes), "node"), plural(len(facts.communicators), "communicator")]
    return " · ".join(["NCCL", *parts, f"{facts.nccl_lines:,} lines"])


def said_rows(frame: Frame, facts: Facts, chosen: Communicator | None, width: int) -> list[Told]:
    """Findings, what is not read, a card for nodes that are alike, a card a communicator."""
    rows = [*_findings(frame, facts, width), *(Told(row) for row in _unread(facts, width))]
    if facts.nodes:
        rows += [_head("nodes"), *node_rows(facts, width)]
    if chosen is not None:
        many = len(facts.communicators) > 1
        rows += [Told(()), _head("communicators", "c chooses the next" if many else "")]
        rows += communicator_rows(facts, chosen, width)
    else:
        told = "no line tells of a communicator: NCCL_DEBUG=INFO tells it when the ranks meet"
        rows += [Told(()), *(Told(row) for row in wrap(told, width, "dim"))]
    return rows


def _head(text: str, hint: str = "") -> Told:
    return Told(((text, "accent"), (f"   {hint}" if hint else "", "dim")))


def _findings(frame: Frame, facts: Facts, width: int) -> list[Told]:
    about = (one for one in frame.state.findings.values() if not one.id.startswith(OTHERS))
    found = [item for item in items(about) if item.first.severity != "info"]
    rows = [
        Told(item_row(frame, item, width), _evidence(facts, item.first.id)) for item in found[:FINDINGS]
    ]
    if len(found) > FINDINGS:
        rows.append(Told(((f"… {len(found) - FINDINGS} more: i shows all", "dim"),)))
    return [*rows, Told(())] if rows else []


def _evidence(facts: Facts, rule: str) -> Line | None:
    return facts.raw.get(f"rule:{rule}")


def _unread(facts: Facts, width: int) -> list[Row]:
    rows: list[Row] = []
    if facts.behind:
        text = f"{amount(facts.behind)} of NCCL's logs are not read yet: what is here may be old"
        rows.append(((f"{glyphs.STALE} ", "warn"), (text, "text")))
    if facts.sampled:
        text = "parts of the logs were left out, because they grew faster than they are read; the files are whole"
        rows += [
            ((f"{glyphs.WARN} " if not at else "  ", "warn"), *row)
            for at, row in enumerate(wrap(text, width - 2))
        ]
    return rows


def map_rows(facts: Facts, one: Communicator | None, width: int) -> list[Told]:
    """Of one communicator: the matrix, the rings, the timeline of init."""
    if one is None:
        return []
    return [
        _head("transport of each pair", name_of(one)),
        *matrix_rows(one, width, facts.raw),
        Told(()),
        _head("rings"),
        *(Told(row) for row in ring_rows(one, width)),
        Told(()),
        _head("init"),
        *(Told(row) for row in init_rows(one, width)),
    ]
