"""The decision guide as rows: a question with its choices, and the advice. Pure."""

from __future__ import annotations

from ...presets.estimate.advice import Advice
from ...presets.estimate.advice_words import formats, more_line, shorter_line, verdict, weights_line
from ...presets.estimate.guide_questions import QUESTIONS, Question
from .advice import question as model_and_gpus
from .glyphs import Row, wrap


def choice_rows(question: Question) -> list[Row]:
    """Return one row per choice, with the digit that selects it."""
    return [
        ((f"{number}  ", "key"), (choice.text, "text")) for number, choice in enumerate(question.choices, 1)
    ]


def title(at: int) -> str:
    """Return the question and the number of questions."""
    return f"{at + 1} of {len(QUESTIONS)}   {QUESTIONS[at].text}"


def end_rows(advice: Advice, width: int) -> list[Row]:
    """Return the advice in the words of `distui advise`, with its command."""
    rows: list[Row] = []
    for sentence in verdict(advice):
        rows += wrap(sentence, width, first="- ")
    if advice.first is not None:
        rows += [(), *wrap(advice.first.command, width, "head")]
    for text, command in (weights_line(advice), more_line(advice), shorter_line(advice)):
        if text:
            rows += [(), *wrap(text, width)]
        if command:
            rows += wrap(command, width, "head")
    counted = f"{model_and_gpus(advice)}. {formats(advice)}."
    return [*rows, (), *wrap(counted, width, "dim")]
