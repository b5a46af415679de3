"""Memory of the presets that ship: all of them have an estimate, and what is advised can be launched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from each import for_each
from hypothesis import given
from hypothesis import strategies as st

from distui.presets.estimate.memory import Estimate, estimate_for, format_for
from distui.presets.estimate.survey import compare, data_parallel, survey
from distui.presets.estimate.workload import FORMATS, GB, Shape, shape
from distui.presets.finding import PlanError
from distui.presets.load import BUILTIN, load
from distui.presets.model import Preset
from distui.presets.plan import Place, make_plan
from distui.presets.request import Request

BF16, MIXED, FP32 = (FORMATS[name] for name in ("bf16", "mixed", "fp32"))
MODEL = shape(7 * GB, 32, 4096)
LIMIT = 80 * GB
PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "host", "disk")


def preset(name: str, *overrides: str) -> Preset:
    return load(name, overrides, cwd=Path("/"), env={"HOME": "/nonexistent"}).preset


def of(name: str, *overrides: str, ranks: int = 8) -> Estimate:
    return estimate_for(preset(name, *overrides), MODEL, BF16, ranks, LIMIT)


def words_of(one: Estimate) -> tuple[str, list[str]]:
    """Name and overrides in the words of `distui launch`."""
    name, *rest = one.strategy.words.split()
    assert rest[::2] == ["--set"] * (len(rest) // 2)
    return name, rest[1::2]


@for_each("name", BUILTIN)
def test_every_shipped_preset_has_an_estimate(name: str) -> None:
    loaded = preset(name)
    found = estimate_for(loaded, MODEL, format_for(loaded), 8, LIMIT)
    assert found.strategy.words == name
    assert found.strategy.title
    assert all(getattr(found, part) >= 0 for part in PARTS)
    assert found.all_activations > GB
    assert found.all_activations >= found.activations >= 0
    assert found.buffers >= 1.5 * GB
    assert found.total == pytest.approx(found.states + found.activations + found.buffers)


@for_each(("per_node", "nodes"), [(1, 1), (2, 1), (8, 1), (1, 4), (4, 3), (8, 4)])
def test_what_is_compared_can_be_planned_and_is_the_preset(per_node: int, nodes: int) -> None:
    found = survey(shape(70 * GB), BF16, per_node, nodes, LIMIT)
    for one in found:
        name, overrides = words_of(one)
        loaded = load(name, overrides, cwd=Path("/"), env={"HOME": "/nonexistent"})
        place = Place(run="r-1", run_dir="/r", port=1, ras_port=2, gpus=per_node, cores=8, cwd="/",
                      python="/python", nodes=nodes)  # fmt: skip
        plan = make_plan(loaded, Request(script="train.py", nnodes=nodes, nproc_per_node=per_node), place)
        assert plan.nproc_per_node == per_node
        again = estimate_for(loaded.preset, shape(70 * GB), BF16, per_node * nodes, LIMIT)
        assert [getattr(one, part) for part in PARTS] == [getattr(again, part) for part in PARTS]


def test_the_order_is_from_the_simplest_on() -> None:
    keys = [one.strategy.key for one in survey(MODEL, BF16, 8, 2, LIMIT)]
    assert keys == ["ddp", "zero1", "zero2", "hsdp", "zero3", "tp", "pp", "offload", "ds-cpu", "ds-nvme"]
    keys = [one.strategy.key for one in survey(MODEL, BF16, 1, 1, LIMIT)]
    assert keys == ["single", "offload", "ds-cpu", "ds-nvme"]
    assert "hsdp" not in [one.strategy.key for one in survey(MODEL, BF16, 8, 1, LIMIT)]


def test_a_survey_holds_what_compare_holds() -> None:
    whole = survey(MODEL, BF16, 8, 1, LIMIT)
    assert all(one in whole for one in compare(MODEL, BF16, 8, LIMIT))
    assert all(one.strategy in data_parallel() for one in compare(MODEL, BF16, 8, LIMIT))


def test_tensor_and_pipeline_take_the_smallest_size_that_fits() -> None:
    rows = {one.strategy.key: one for one in survey(MODEL, BF16, 8, 1, LIMIT)}
    assert rows["tp"].strategy.words == "fsdp2-tp"
    assert rows["pp"].strategy.words == "pp-1f1b"
    rows = {one.strategy.key: one for one in survey(MODEL, BF16, 8, 1, 19 * GB)}
    assert rows["tp"].strategy.words == "fsdp2-tp --set mesh.tp=4"
    assert rows["tp"].fits
    assert not replace(rows["tp"], limit=18 * GB).fits
    large = {one.strategy.key: one for one in survey(shape(70 * GB), BF16, 8, 4, LIMIT)}
    assert not large["pp"].fits


def test_tensor_parallelism_divides_matrices_and_what_they_keep() -> None:
    """Korthikanti and others, section 4.2: 10 + 24 / t, and with sequence parallelism 34 / t."""
    logits = 12 * 2048 * 32_000
    unit = 2048 * 4096 * 32
    assert of("tp", "mesh.tp=4").all_activations == (10 + 24 / 4) * unit + logits
    assert of("tp-sp", "mesh.tp=4").all_activations == 34 / 4 * unit + logits
    assert of("tp", "mesh.tp=4").weights == 2 * ((7 * GB - 32_000 * 4096) / 4 + 32_000 * 4096) / 2


def test_a_pipeline_keeps_the_pieces_that_are_under_way() -> None:
    """Sixteen sequences in eight pieces of two: 1F1B's first stage holds three of them in torch, GPipe all eight."""
    model = replace(MODEL, micro_batch=16)
    piece = 34 * 2 * 2048 * 4096 * 16
    logits = 2 * 2048 * 32_000
    one = estimate_for(preset("pp-1f1b", "mesh.microbatches=8"), model, BF16, 8, LIMIT)
    assert one.all_activations == max(3 * piece, piece + 12 * logits)
    all_of_them = estimate_for(preset("pp-gpipe", "mesh.microbatches=8"), model, BF16, 8, LIMIT)
    assert all_of_them.all_activations == 8 * piece + (12 + 7 * 4) * logits
    assert one.weights == pytest.approx(2 * ((7 * GB - 64_000 * 4096) / 2 + 32_000 * 4096))


def test_a_sequence_in_pieces_needs_all_keys_and_values() -> None:
    logits = 12 * 1024 * 32_000
    assert of("context").all_activations == (34 + 2 * 2) * 1024 * 4096 * 32 + logits
    assert of("context").weights == of("fsdp2").weights


def test_hybrid_shards_are_divided_inside_a_replica() -> None:
    assert of("hsdp", ranks=16).weights == of("fsdp2", ranks=8).weights
    assert of("fsdp1-hybrid", ranks=16).weights == of("fsdp1", ranks=8).weights


def test_what_rests_outside_the_gpu_is_said() -> None:
    host = of("fsdp2-offload")
    assert (host.states, host.host, host.disk) == (0, 12 * 7 * GB / 8, 0)
    deep = of("ds-zero3-cpu")
    assert (deep.states, deep.host, deep.disk) == (0, 1.5 * 18 * 7 * GB / 8, 0)
    nvme = of("ds-zero3-nvme")
    assert (nvme.states, nvme.host, nvme.disk) == (0, 0, 18 * 7 * GB / 8)
    half = of("ds-zero2", "strategy.offload_optimizer=cpu")
    assert (half.weights, half.gradients, half.optimizer) == (2 * 7 * GB, 0, 0)
    assert half.host == 1.5 * 16 * 7 * GB / 8


def test_host_memory_that_is_too_small() -> None:
    rows = {one.strategy.key: one for one in survey(MODEL, BF16, 8, 1, LIMIT, host_limit=100 * GB)}
    assert rows["offload"].fits
    assert rows["offload"].host_limit == 100 * GB / 8
    assert not rows["ds-cpu"].fits


def test_deepspeed_has_its_own_buckets() -> None:
    assert of("ds-zero3").buffers == 1.5 * GB + 2 * GB + GB
    zero = {
        "stage3_max_live_parameters": 5e8,
        "reduce_bucket_size": 100_000_000,
        "contiguous_gradients": True,
    }
    small = replace(preset("ds-zero3"), deepspeed={"zero_optimization": zero})
    assert estimate_for(small, MODEL, BF16, 8, LIMIT).buffers == pytest.approx(1.5 * GB + GB + 0.2 * GB)


def test_half_precision_over_weights_in_fp32() -> None:
    """autocast makes a copy of the weights, FSDP gathers them in half the bytes."""
    long = replace(MODEL, seq=32_768)
    cast = estimate_for(preset("ddp", "precision.param=bf16"), long, FP32, 8, LIMIT)
    assert cast.weights == 4 * 7 * GB
    assert cast.all_activations == 38 * 32_768 * 4096 * 32 + 12 * 32_768 * 32_000 + 2 * 7 * GB
    whole, half = (
        estimate_for(preset("fsdp2", f"precision.param={name}"), long, FP32, 8, LIMIT)
        for name in ("fp32", "bf16")
    )
    assert half.weights == whole.weights
    assert half.all_activations == 34 * 32_768 * 4096 * 32 + 12 * 32_768 * 32_000
    assert half.buffers < whole.buffers
    kept = estimate_for(preset("fsdp2-zero2", "precision.param=bf16"), long, FP32, 8, LIMIT)
    assert kept.weights == 2 * 7 * GB


def test_options_that_cost_memory() -> None:
    long = ("strategy.gradient_as_bucket_view=false",)
    few = replace(MODEL, seq=65_536)
    plain, copied = (
        estimate_for(preset("ddp", *options), few, BF16, 8, LIMIT).buffers for options in ((), long)
    )
    assert copied - plain == 2 * 7 * GB
    assert of("fsdp2", "batch.accumulation=4").buffers - of("fsdp2").buffers == 2 * 7 * GB * 7 / 8
    assert of("fsdp2", "strategy.reshard_after_forward=4").buffers - of("fsdp2").buffers == 2 * 7 * GB / 4
    assert of("fsdp2", "strategy.reshard_after_forward=8").buffers == of("fsdp2").buffers


def test_gradients_come_as_activations_go() -> None:
    """Where each step frees them: all but the head's, which come first. Buckets stay, and sums of several passes."""
    head = 2 * 32_000 * 4096 / 8
    for name in ("fsdp2", "fsdp2-zero2"):
        assert of(name).all_activations - of(name).activations == 2 * 7 * GB / 8 - head
    for one in (of("ddp"), of("zero1"), of("ds-zero2"), of("pp-1f1b"), of("fsdp2", "batch.accumulation=2")):
        assert one.all_activations == one.activations
    few = estimate_for(preset("single"), replace(MODEL, seq=16), BF16, 1, LIMIT)
    assert few.activations == 0
    again = estimate_for(preset("single"), replace(MODEL, recompute=True), BF16, 1, LIMIT)
    assert again.activations == 34 * 2048 * 4096  # the layer that is computed again last


def test_experts_are_not_guessed_at() -> None:
    assert of("moe").states == of("ddp").states
    assert "experts" in of("moe").notes[0]
    assert of("ddp").notes == ()


def test_the_format_that_a_preset_implies() -> None:
    assert format_for(preset("fsdp2")) is FP32
    assert format_for(preset("fsdp2", "precision.param=bf16")) is FP32
    assert format_for(preset("ds-zero2")) is MIXED
    assert format_for(preset("ds-zero2", "precision.param=fp32")) is FP32


@given(
    parameters=st.integers(1, 10**12), layers=st.integers(1, 200), hidden=st.integers(1, 20_000),
    vocab=st.integers(1, 300_000), seq=st.integers(1, 1 << 20), micro_batch=st.integers(1, 64),
    recompute=st.booleans(), per_node=st.integers(1, 16), nodes=st.integers(1, 64), form=st.sampled_from([*FORMATS]),
)  # fmt: skip
def test_no_number_is_negative_and_more_memory_never_hurts(
    per_node: int, nodes: int, form: str, **sizes: Any
) -> None:
    model = Shape(**sizes)
    small, large = (survey(model, FORMATS[form], per_node, nodes, limit * GB) for limit in (24, 141))
    for one in small:
        assert min(getattr(one, part) for part in PARTS) >= 0
        assert one.activations <= one.all_activations
        assert not one.fits or one.strategy.key in {each.strategy.key for each in large if each.fits}


def test_a_mesh_that_does_not_divide_the_ranks() -> None:
    with pytest.raises(PlanError, match="does not divide the world size 3"):
        of("fsdp2-tp", ranks=3)
