"""The guide's questions, over every combination of answers: its answer is the advice."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from each import for_each

from distui.presets.estimate.advice import Advice, advise
from distui.presets.estimate.advice_words import title_of, verdict
from distui.presets.estimate.guide_questions import QUESTIONS, case_of
from distui.presets.estimate.strategies import script_kinds
from distui.presets.finding import PlanError
from distui.presets.load import BUILTIN

EASY = {
    "model": "1B", "experts": "no", "training": "all", "sequences": "4096", "gpu": "H100", "count": "8", "nodes": "1",
    "kind": "parallelize",
}  # fmt: skip
PART = 211
"""All answers take minutes; a prime reaches every choice."""


def every() -> list[dict[str, str]]:
    keys = [question.key for question in QUESTIONS]
    answers = itertools.product(*([choice.key for choice in one.choices] for one in QUESTIONS))
    return [dict(zip(keys, one, strict=True)) for one in answers]


def recommend(**answers: str) -> Advice:
    return advise(case_of({**EASY, **answers}))


def test_paths_end_at_a_preset_that_ships_with_sentences() -> None:
    ends: Counter[str] = Counter()
    for answers in every()[::PART]:
        found = advise(case_of(answers))
        sentences = verdict(found)
        assert all(sentence.endswith(".") and "\n" not in sentence for sentence in sentences), answers
        if found.first is None:
            assert sentences[0].startswith("Nothing fits"), answers
            continue
        ends[found.first.preset.name] += 1
        assert found.first.preset.name in BUILTIN
        assert found.first.fits
        assert sentences[0].startswith(f"{title_of(found.first)} is the simplest that fits"), answers
    assert set(ends) >= {
        *("single", "ddp", "zero1", "fsdp2", "fsdp2-offload", "hsdp", "moe", "context"),
        *("ds-zero1", "ds-zero3", "ds-zero3-cpu"),
    }


def test_questions_have_two_to_six_choices() -> None:
    assert all(2 <= len(question.choices) <= 6 for question in QUESTIONS)
    assert all(len(choice.text) < 60 for question in QUESTIONS for choice in question.choices)
    kinds = next(question for question in QUESTIONS if question.key == "kind").choices
    assert {choice.key for choice in kinds} == set(script_kinds()) - {"unknown"}


@for_each(
    ("answers", "preset", "words"),
    [
        ({}, "ddp", "DDP is the simplest that fits"),
        ({"model": "8B"}, "fsdp2-zero2", "ZeRO-2 is the simplest that fits"),
        ({"model": "8B", "count": "1", "gpu": "T4"}, "fsdp2-offload", "host memory per node"),
        ({"model": "70B", "nodes": "4"}, "fsdp2", "ZeRO-3 (FSDP2) with recomputed layers is the simplest"),
        ({"model": "34B", "gpu": "L40S", "nodes": "8"}, "fsdp2", "ZeRO-3 (FSDP2)"),
        ({"model": "8B", "nodes": "4", "gpu": "A10"}, "hsdp", "HSDP"),
        ({"count": "1"}, "single", "One GPU is the simplest"),
        ({"kind": "ddp"}, "ddp", "take one sequence per rank and pass"),
        ({"kind": "ddp", "model": "8B"}, "fsdp2", "before --adopt divides it"),
        ({"kind": "trainer", "model": "8B"}, "ds-zero1", "DeepSpeed ZeRO-1 is the simplest"),
        ({"kind": "deepspeed"}, "ds-zero1", "DeepSpeed ZeRO-1 is the simplest"),
        ({"kind": "megatron", "model": "175B", "nodes": "16"}, "ddp", "Megatron TP 8 × PP 4"),
        ({"experts": "yes", "model": "8B"}, "moe", "experts divided over ranks"),
        ({"sequences": "131072", "model": "8B"}, "context", "a piece of every sequence"),
        ({"training": "qlora", "model": "8B", "gpu": "T4", "count": "1", "kind": "trainer"}, "single", "4 bits"),
    ],
)  # fmt: skip
def test_known_cases(answers: dict[str, str], preset: str, words: str) -> None:
    found = recommend(**answers)
    assert found.first is not None
    assert found.first.preset.name == preset, verdict(found)
    assert words in " ".join(verdict(found))


def test_a_missing_answer_is_one_sentence() -> None:
    with pytest.raises(PlanError, match="no answer to: How many nodes"):
        case_of({**EASY, "nodes": "lots"})
