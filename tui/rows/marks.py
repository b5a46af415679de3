"""Marks of events on the time axis of charts: restarts, findings, checkpoints, changes of NCCL_DEBUG. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ...runners.run.state import RunState
from .glyphs import Cell, Row, joined
from .plot import Mode
from .time_axis import Span


class Mark(Struct, frozen=True):
    """An event below the charts."""

    at: float
    """Unix seconds, or the step of a chart by steps."""
    kind: str
    """One of MARKS."""
    text: str = ""


MARKS: dict[str, tuple[str, str, str]] = {
    "nccl": ("◇", "n", "accent"),
    "checkpoint": ("◆", "c", "ok"),
    "finding": ("!", "!", "warn"),
    "restart": ("▲", "^", "bad"),
}
"""Kind → glyph, ASCII glyph, style. In one cell a later kind covers an earlier one."""


_WORDS = {"nccl": "NCCL_DEBUG", "checkpoint": "checkpoint", "finding": "finding", "restart": "restart"}


def legend_of_marks(marks: Sequence[Mark], span: Span, mode: Mode = Mode.BRAILLE) -> str:
    """Return `◆ checkpoint  ! finding` for the marks in a span; "" if there is none."""
    shown = {mark.kind for mark in marks if span.at(mark.at) is not None}
    glyphs = {kind: plain if mode is Mode.ASCII else glyph for kind, (glyph, plain, _) in MARKS.items()}
    return "  ".join(f"{glyphs[kind]} {_WORDS[kind]}" for kind in MARKS if kind in shown)


def mark_row(marks: Sequence[Mark], span: Span, mode: Mode = Mode.BRAILLE) -> Row | None:
    """Return one glyph per mark; None if none is in the span."""
    cells: list[Cell] = [(" ", "dim")] * span.cells
    for kind, (glyph, plain, style) in MARKS.items():
        for mark in marks:
            at = span.at(mark.at) if mark.kind == kind else None
            if at is not None:
                cells[at] = (plain if mode is Mode.ASCII else glyph, style)
    if all(glyph == " " for glyph, _ in cells):
        return None
    return joined(cells)


def marks_of(state: RunState) -> tuple[Mark, ...]:
    """Return restarts, findings, checkpoints and changes of NCCL_DEBUG whose time the state knows."""
    marks: list[Mark] = []
    for attempt in state.attempts:
        if attempt.number > 1:
            marks.append(Mark(attempt.began, "restart", f"attempt {attempt.number}"))
    for finding in state.findings.values():
        if finding.since is not None and finding.alarm:
            marks.append(Mark(finding.since, "finding", finding.text))
    marks += [Mark(each.at, "checkpoint", each.path) for each in state.checkpoints]
    if state.nccl is not None:
        text = state.nccl.text
        marks += [Mark(at, "nccl", text) for at, notice in state.notices if notice.endswith(text)][-1:]
    return tuple(sorted(marks, key=lambda mark: mark.at))
