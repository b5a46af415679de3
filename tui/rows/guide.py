"""The decision guide as rows: a question with its choices, and the recommended preset. Pure."""

from __future__ import annotations

from ...presets.estimate.preset_guide import QUESTIONS, Question, Recommendation
from ...presets.plurals import plural
from .glyphs import Row, wrap


def choice_rows(question: Question) -> list[Row]:
    """Return one row per choice, with the digit that selects it."""
    return [
        ((f"{number}  ", "key"), (choice.text, "text")) for number, choice in enumerate(question.choices, 1)
    ]


def title(at: int) -> str:
    """Return the question and the number of questions."""
    return f"{at + 1} of {len(QUESTIONS)}   {QUESTIONS[at].text}"


def end_rows(recommended: Recommendation, width: int) -> list[Row]:
    """Return the result of the answers, and the reasons."""
    rows: list[Row] = []
    for reason in recommended.reasons:
        rows += wrap(reason, width, first="- ")
    ranks = f"{plural(recommended.nproc, 'rank')} per node, {plural(recommended.nodes, 'node')}"
    counted = f"Counted with weights in 16 bit, layers recomputed, {recommended.seq} positions."
    return [
        *rows,
        (),
        ((f"{ranks}; model {recommended.params} on {recommended.hardware}", "dim"),),
        ((counted, "dim"),),
    ]
