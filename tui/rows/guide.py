"""The decision guide as rows. Pure."""

from __future__ import annotations

from ...presets.guide import QUESTIONS, Question, Recommendation
from .cells import Row, plural, wrap


def choice_rows(question: Question) -> list[Row]:
    """A row a choice, with the digit that takes it."""
    return [
        ((f"{number}  ", "key"), (choice.text, "text")) for number, choice in enumerate(question.choices, 1)
    ]


def title(at: int) -> str:
    """The question, and how many there are."""
    return f"{at + 1} of {len(QUESTIONS)}   {QUESTIONS[at].text}"


def end_rows(found: Recommendation, width: int) -> list[Row]:
    """Where the answers led, and why."""
    rows: list[Row] = []
    for reason in found.reasons:
        rows += wrap(reason, width, first="- ")
    ranks = f"{plural(found.nproc, 'rank')} a node, {plural(found.nodes, 'node')}"
    counted = f"Counted with weights in 16 bit, layers recomputed, {found.seq} positions."
    return [
        *rows,
        (),
        ((f"{ranks}; model {found.params} on {found.hardware}", "dim"),),
        ((counted, "dim"),),
    ]
