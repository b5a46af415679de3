"""Memory of the presets that ship: all of them have an estimate, and what is advised can be launched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from each import for_each

from distui.presets.estimate.memory import Estimate, estimate_for, format_for
from distui.presets.estimate.workload import FORMATS, GB, Shape, shape
from distui.presets.finding import PlanError
from distui.presets.load import BUILTIN, load
from distui.presets.model import Preset

BF16, MIXED, FP32 = (FORMATS[name] for name in ("bf16", "mixed", "fp32"))
MODEL = shape(7 * GB, 32, 4096)
LIMIT = 80 * GB
PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "host", "disk")


def preset(name: str, *overrides: str) -> Preset:
    return load(name, overrides, cwd=Path("/"), env={"HOME": "/nonexistent"}).preset


def of(name: str, *overrides: str, ranks: int = 8) -> Estimate:
    return estimate_for(preset(name, *overrides), MODEL, BF16, ranks, LIMIT)


@for_each("name", BUILTIN)
def test_every_shipped_preset_has_an_estimate(name: str) -> None:
    loaded = preset(name)
    found = estimate_for(loaded, MODEL, format_for(loaded), 8, LIMIT)
    assert all(getattr(found, part) >= 0 for part in PARTS)
    assert found.all_activations > GB
    assert found.all_activations >= found.activations >= 0
    assert found.buffers >= 1.5 * GB
    assert found.total == pytest.approx(found.states + found.activations + found.buffers)


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
    logits, layer = 2 * 2048 * 32_000, 5 * 2 * 2 * 2048 * 4096
    one = estimate_for(preset("pp-1f1b", "mesh.microbatches=8"), model, BF16, 8, LIMIT)
    assert one.all_activations == max(3 * piece + layer, piece + 12 * logits)
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
    assert (host.states, host.host, host.disk) == (0, 8 * 7 * GB / 8, 0)
    deep = of("ds-zero3-cpu")
    assert (deep.states, deep.host, deep.disk) == (0, 1.5 * 18 * 7 * GB / 8, 0)
    nvme = of("ds-zero3-nvme")
    assert (nvme.states, nvme.host, nvme.disk) == (0, 0, 18 * 7 * GB / 8)
    half = of("ds-zero2", "strategy.offload_optimizer=cpu")
    assert (half.weights, half.gradients, half.optimizer) == (2 * 7 * GB, 0, 0)
    assert half.host == 1.5 * 16 * 7 * GB / 8


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
    more = of("fsdp2", "batch.accumulation=4").buffers - of("fsdp2").buffers
    assert more == pytest.approx(2 * 7 * GB * 7 / 8, rel=0.01)
    assert of("fsdp2", "strategy.reshard_after_forward=4").buffers - of("fsdp2").buffers == 2 * 7 * GB / 4
    assert of("fsdp2", "strategy.reshard_after_forward=8").buffers == of("fsdp2").buffers


def test_gradients_come_as_activations_go() -> None:
    """Where each step frees them. Buckets stay, and sums of several passes."""
    for name in ("fsdp2", "fsdp2-zero2"):
        assert of(name).all_activations - of(name).activations == 2 * 7 * GB / 8
    for one in (of("ddp"), of("zero1"), of("ds-zero2"), of("pp-1f1b"), of("fsdp2", "batch.accumulation=2")):
        assert one.all_activations == one.activations
    few = estimate_for(preset("single"), replace(MODEL, seq=16), BF16, 1, LIMIT)
    assert few.activations == 5 * 2 * 16 * 4096  # gradients of the first layer's activations
    again = estimate_for(preset("single"), replace(MODEL, recompute=True), BF16, 1, LIMIT)
    assert again.activations == (34 + 5 * 2) * 2048 * 4096  # the layer that is computed again last


def test_experts_are_divided_over_their_ranks() -> None:
    """Eight billion parameters, six of them in experts: a rank of four has a quarter of those."""
    model = Shape(parameters=8 * GB, layers=32, hidden=4096, experts=6.0 * GB, expert_count=8)
    found = estimate_for(preset("moe", "mesh.ep=4"), model, FP32, 8, LIMIT)
    assert found.weights == pytest.approx(4 * (2 + 6 / 4) * GB)
    assert found.notes == ()


def test_megatrons_arguments_decide() -> None:
    """Its documentation: 6 + 12/d bytes a parameter with the distributed optimizer; TP divides the embedding, too."""
    args = (
        "--tensor-model-parallel-size",
        "4",
        "--pipeline-model-parallel-size",
        "1",
        "--use-distributed-optimizer",
    )
    found = estimate_for(preset("ddp"), MODEL, FORMATS["megatron"], 16, LIMIT, args=args)
    assert found.states == pytest.approx((6 + 12 / 4) * 7 * GB / 4)
    plain = estimate_for(preset("ddp"), MODEL, FORMATS["megatron"], 16, LIMIT, args=args[:-1])
    assert plain.states == pytest.approx(18 * 7 * GB / 4)
    more = ("--micro-batch-size", "2", "--recompute-granularity", "full", "--sequence-parallel")
    again = estimate_for(preset("ddp"), MODEL, FORMATS["megatron"], 16, LIMIT, args=(*args, *more))
    logits = 12 * 2 * 2048 * 32_000 / 4
    assert again.all_activations == pytest.approx(2 * 32 * 2 * 2048 * 4096 / 4 + logits)


def test_experts_are_not_guessed_at() -> None:
    assert of("moe").states == of("ddp").states
    assert "experts" in of("moe").notes[0]
    assert of("ddp").notes == ()


def test_the_format_that_a_preset_implies() -> None:
    assert format_for(preset("fsdp2")) is FP32
    assert format_for(preset("fsdp2", "precision.param=bf16")) is FP32
    assert format_for(preset("ds-zero2")) is MIXED
    assert format_for(preset("ds-zero2", "precision.param=fp32")) is FP32


def test_a_mesh_that_does_not_divide_the_ranks() -> None:
    with pytest.raises(PlanError, match="does not divide the world size 3"):
        of("fsdp2-tp", ranks=3)
