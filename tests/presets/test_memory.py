"""Memory a strategy takes: worked examples by hand, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from each import for_each

from distui.presets.estimate.memory import Estimate, estimate_for, stages_of
from distui.presets.estimate.workload import FORMATS, GB, Format, Shape, parse_gpus, parse_parameters, shape
from distui.presets.finding import PlanError
from distui.presets.load import load

BF16, MIXED, FP32 = (FORMATS[name] for name in ("bf16", "mixed", "fp32"))
DATA_PARALLEL = ("ddp", "zero1", "fsdp2-zero2", "fsdp2")


def compare(model: Shape, form: Format, ranks: int) -> dict[str, Estimate]:
    """The estimate of each data-parallel preset."""
    return {name: estimate_for(load(name).preset, model, form, ranks, 80 * GB) for name in DATA_PARALLEL}


def test_states_of_7b_on_8_gpus() -> None:
    """16 bytes a parameter in fp32; the optimizer's 8 go first, then the gradients, then the weights."""
    found = compare(shape(7 * GB), FP32, 8)
    assert {name: one.states / GB for name, one in found.items()} == {
        "ddp": 112.0, "zero1": 63.0, "fsdp2-zero2": 38.5, "fsdp2": 14.0,
    }  # fmt: skip
    half = compare(shape(7 * GB), BF16, 8)
    assert [one.states / GB for one in half.values()] == [56.0, 31.5, 19.25, 7.0]


def test_states_of_7_5b_on_64_gpus_as_in_the_paper() -> None:
    """Figure 1 of the ZeRO paper: 120, 31.4, 16.6 and 1.9 GB; it divides everything to the byte."""
    model = replace(shape(7_500_000_000), largest=1)
    found = compare(model, MIXED, 64)
    assert [round(one.states / GB, 1) for one in found.values()] == [120.0, 31.4, 16.6, 1.9]


def test_one_gpu_has_nobody_to_share_with() -> None:
    found = estimate_for(load("single").preset, shape(124_000_000), FP32, 1, 16 * GB)
    assert found.states == 16 * 124_000_000
    assert found.fits


@for_each(
    ("parameters", "layers", "hidden"),
    [(7 * GB, 33, 4096), (13 * GB, 40, 5120), (70 * GB, 68, 9216), (1, 1, 64)],
)
def test_a_usual_model_of_that_size(parameters: int, layers: int, hidden: int) -> None:
    found = shape(parameters)
    assert (found.layers, found.hidden) == (layers, hidden)


def test_what_is_given_is_taken() -> None:
    found = shape(7 * GB, 32, 4096, 50_000)
    assert (found.layers, found.hidden, found.vocab) == (32, 4096, 50_000)
    assert abs(shape(7 * GB, layers=32).hidden - 4096) <= 512
    assert abs(shape(7 * GB, hidden=4096).layers - 33) <= 1


def test_activations_by_hand() -> None:
    model = shape(7 * GB, 32, 4096)
    logits, once = 12 * 2048 * 32_000, 2048 * 4096
    for changed, form, kept, layer in (
        (model, BF16, 34 * 32 * once, 5 * 2 * once),
        (model, FP32, (16 * 4 + 2) * 32 * once, 5 * 4 * once),
        (replace(model, recompute=True), BF16, 2 * 32 * once, (34 + 5 * 2) * once),
        (replace(model, layer_kept=22.0), BF16, 2 * 22 * 32 * once, 5 * 2 * 22 / 16 * once),
    ):
        (stage,) = stages_of(changed, form)
        assert (stage.kept, stage.logits, stage.layer) == (kept, logits, layer)


def test_what_is_held_beside() -> None:
    """A layer of 0.2 B parameters, 0.8 B outside: 0.4 B of them the head's. Long sequences, so that the optimizer's step
    is not the moment that counts, and few words, so that the logits are not."""
    model = Shape(parameters=8 * GB, layers=36, hidden=4096, vocab=100, seq=65_536, outside=GB * 8 // 10)
    by = {name: (one.buffers - 1.5 * GB) / GB for name, one in compare(model, BF16, 8).items()}
    matrix, gradients = 2 * 4 * 4096**2 / GB, 2 * 0.2 + 2 * 0.4
    assert by == pytest.approx(
        {"ddp": matrix, "zero1": matrix, "fsdp2-zero2": 2 * 8 / 8 + gradients,
         "fsdp2": 2 * (2 * 0.2 + 0.8) + gradients}
    )  # fmt: skip


def test_logits_and_layers_are_not_held_together() -> None:
    """The logits of a large vocabulary are freed before FSDP gathers the layers for their backward."""
    model = Shape(parameters=8 * GB, layers=36, hidden=4096, vocab=100, seq=8192, outside=GB * 8 // 10)
    few, many = (compare(replace(model, vocab=words), BF16, 8)["fsdp2"].total for words in (100, 12_000))
    assert few == many


def test_the_step_of_the_optimizer_counts_where_activations_are_few() -> None:
    """torch's Adam holds one more moment when the activations are gone."""
    model = replace(shape(7 * GB, 32, 4096), seq=1)
    for form, moment in ((BF16, 2), (FP32, 4)):
        found = compare(model, form, 8)
        assert found["ddp"].buffers + found["ddp"].activations == pytest.approx(1.5 * GB + moment * 7 * GB)
        step = found["zero1"].buffers + found["zero1"].activations
        assert step == pytest.approx(1.5 * GB + moment * 7 * GB / 8)
    # gathered layers are gone by then, too
    shards = compare(model, FP32, 2)["fsdp2"]
    assert shards.buffers + shards.activations == pytest.approx(1.5 * GB + 4 * 7 * GB / 2)


def test_zero1_hands_out_whole_tensors() -> None:
    """On many ranks the one with the embedding holds more than its share."""
    model = replace(shape(8 * GB, 32, 4096, vocab=128_000), seq=1)
    assert compare(model, FP32, 64)["zero1"].optimizer == 8 * 128_000 * 4096 > 8 * 8 * GB / 64


@for_each(
    ("text", "number"),
    [
        ("7B", 7 * GB),
        ("350M", 350_000_000),
        ("1.3b", 1_300_000_000),
        ("124_000_000", 124_000_000),
        ("10k", 10_000),
    ],
)
def test_a_number_of_parameters(text: str, number: int) -> None:
    assert parse_parameters(text) == number


@for_each(("text", "asked"), [("7", "7B or 7M"), ("1.5", "1.5B or 1.5M"), ("70_000", "70000B")])
def test_a_bare_number_is_asked_for_its_unit(text: str, asked: str) -> None:
    with pytest.raises(PlanError, match=f"{text}: the unit is missing: write {asked}"):
        parse_parameters(text)
    assert parse_parameters("124_000_000") == 124_000_000


@for_each("text", ["", "B", "seven", "-1B", "0", "nan", "inf", "7BB", "7 GB"])
def test_no_number_of_parameters(text: str) -> None:
    with pytest.raises(PlanError, match="write a number of parameters, as in 7B or 350M"):
        parse_parameters(text)


@for_each(
    ("text", "found"),
    [
        ("8xA100-80GB", ("A100-80GB", 8, 85)),
        ("8 × h100", ("H100", 8, 85)),
        ("H200:4", ("H200", 4, 150)),
        ("L4", ("L4", 1, 24)),
        ("2xX9-64GB", ("X9-64GB", 2, 64)),
    ],
)
def test_gpus(text: str, found: tuple[str, int, int]) -> None:
    gpus = parse_gpus(text)
    assert (gpus.name, gpus.count, gpus.memory_gb) == found


@for_each(
    ("text", "sentence"),
    [
        (
            "8xH1O0",
            "unknown GPU H1O0; did you mean H100? Else give its memory with --gpu-memory GB",
        ),
        ("8xZZZZ", "unknown GPU ZZZZ; give its memory"),
        ("0xH100", "write COUNTxNAME"),
        ("8xH100:8", "write COUNTxNAME"),
        ("8x", "write COUNTxNAME"),
        ("", "write COUNTxNAME"),
    ],
)
def test_no_gpus(text: str, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence.replace("?", r"\?")):
        parse_gpus(text)


def test_a_gpu_that_is_not_known_by_name() -> None:
    assert parse_gpus("4xZZZZ", 20.0).memory_gb == 20.0
