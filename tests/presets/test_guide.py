"""The decision guide, over every combination of answers."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from dataclasses import replace

import pytest
from each import for_each

from distui.presets.estimate import preset_guide
from distui.presets.estimate.memory import estimate_for
from distui.presets.estimate.preset_guide import QUESTIONS, recommend
from distui.presets.estimate.workload import FORMATS, GB, parse_gpus, parse_parameters, shape
from distui.presets.finding import PlanError
from distui.presets.load import BUILTIN, load

EASY = {
    "model": "1B", "gpu": "H100", "count": "8", "nodes": "1", "script": "parallelize", "sequences": "4096",
    "experts": "no",
}  # fmt: skip


def every() -> list[dict[str, str]]:
    keys = [question.key for question in QUESTIONS]
    answers = itertools.product(*([choice.key for choice in one.choices] for one in QUESTIONS))
    return [dict(zip(keys, one, strict=True)) for one in answers]


def test_every_path_ends_at_a_preset_that_ships_with_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    estimates = functools.cache(preset_guide._candidates)  # many paths have the same model and GPUs
    monkeypatch.setattr(preset_guide, "_candidates", estimates)
    ends: Counter[str] = Counter()
    for answers in every():
        found = recommend(answers)
        ends[found.preset] += 1
        assert found.preset in BUILTIN, answers
        assert found.reasons, answers
        assert all(reason.endswith(".") and "\n" not in reason for reason in found.reasons), answers
        assert parse_gpus(found.hardware).count == found.nproc
        assert parse_parameters(found.params) >= 10**9
        assert (found.preset == "single") <= (found.nproc * found.nodes == 1), answers
    assert set(ends) == {
        *(
            "single",
            "ddp",
            "zero1",
            "fsdp2-zero2",
            "fsdp2",
            "fsdp2-offload",
            "hsdp",
            "fsdp2-tp",
            "3d",
            "moe",
        ),
        *("context", "ds-zero1", "ds-zero2", "ds-zero3", "ds-zero3-cpu"),
    }


def test_what_is_said_to_fit_fits_by_the_estimate_of_that_very_preset() -> None:
    tried = set()
    for answers in every()[::11]:  # all of them take seconds
        found = recommend(answers)
        said = "is the simplest that fits" in found.reasons[0]
        if not said or found.preset in ("3d", "fsdp2-tp"):
            continue
        model = replace(shape(parse_parameters(found.params)), seq=int(found.seq), recompute=True)
        gpus, preset = parse_gpus(found.hardware), load(found.preset).preset
        if found.preset == "hsdp":
            preset = replace(preset, mesh=replace(preset.mesh, dp_replicate=found.nodes))
        ranks = found.nproc * found.nodes
        one = estimate_for(preset, model, FORMATS[found.format], ranks, gpus.memory_gb * GB)
        assert one.fits, answers
        assert f"about {one.total / GB:.0f} of" in found.reasons[0] or found.preset == "hsdp", answers
        tried.add((answers["script"], found.preset))
    assert {script for script, _ in tried} == {"parallelize", "trainer", "deepspeed"}
    assert len(tried) >= 9


def test_questions_have_two_to_four_choices() -> None:
    assert all(2 <= len(question.choices) <= 4 for question in QUESTIONS)
    assert all(len(choice.text) < 60 for question in QUESTIONS for choice in question.choices)


@for_each(
    ("answers", "preset", "why"),
    [
        ({}, "ddp", "DDP is the simplest that fits"),
        ({"model": "8B"}, "zero1", "ZeRO-1 is the simplest that fits"),
        ({"model": "8B", "count": "1", "gpu": "T4"}, "fsdp2-offload", "ZeRO-3 needs"),
        ({"model": "8B", "gpu": "A10", "nodes": "1"}, "fsdp2", "ZeRO-3 is the simplest that fits"),
        ({"model": "8B", "gpu": "A10", "nodes": "2"}, "hsdp", "Set mesh.dp_replicate to the number of nodes, 2."),
        ({"count": "1"}, "single", "one GPU is the simplest"),
        ({"script": "own"}, "ddp", "decides itself"),
        ({"script": "trainer", "model": "8B"}, "ds-zero1", "Accelerate and the HF Trainer obey a"),
        ({"script": "deepspeed"}, "ds-zero1", "DeepSpeed's ZeRO-1 is the simplest"),
        ({"experts": "yes"}, "moe", "experts are divided"),
        ({"sequences": "32768"}, "context", "mesh.cp take a piece of each"),
        ({"model": "70B", "nodes": "8"}, "3d", "shortens the all-gathers"),
    ],
)  # fmt: skip
def test_known_cases(answers: dict[str, str], preset: str, why: str) -> None:
    found = recommend({**EASY, **answers})
    assert found.preset == preset, found
    assert why in " ".join(found.reasons)


def test_a_missing_answer_is_one_sentence() -> None:
    with pytest.raises(PlanError, match="no answer to: How many nodes"):
        recommend({**EASY, "nodes": "lots"})
