"""Unmodified scripts on Accelerate, DeepSpeed and the Trainer under presets: what their ranks report."""

from __future__ import annotations

from typing import Any

import pytest
from e2e.runs import World

from .hf import HERE, needs_compiler, needs_hf, trained

pytestmark = [needs_hf, needs_compiler, pytest.mark.torch, pytest.mark.long]

ACCELERATE = str(HERE / "accelerate_script.py")
DEEPSPEED = str(HERE / "deepspeed_script.py")
HALF = "--set=precision.param=fp32"


def fell(found: list[dict[str, Any]]) -> None:
    """Every rank's loss fell by a lot, which random steps do not do."""
    for one in found:
        assert one["losses"][-1] < 0.6 * one["losses"][0], one["losses"]


def test_ddp(world: World) -> None:
    run, found = trained(world, "ddp", ACCELERATE)
    assert [one["model"] for one in found] == ["DistributedDataParallel"] * 2
    assert [one["processes"] for one in found] == [2, 2]
    assert [one["here"] for one in found] == [one["whole"] for one in found]
    assert found[0]["losses"] == found[1]["losses"], "reduced over both"
    fell(found)
    obeys = run.status()["plan"]["obeys"]
    assert "Accelerate (Accelerator)" in obeys
    assert "obeys strategy and precision through the environment" in obeys


@pytest.mark.parametrize("stage", [1, 2])
def test_zero_1_and_2_divide_the_optimizer_state(world: World, stage: int) -> None:
    _, found = trained(world, f"ds-zero{stage}", ACCELERATE)
    assert [(one["model"], one["stage"], one["processes"]) for one in found] == [
        ("DeepSpeedEngine", stage, 2)
    ] * 2
    whole = found[0]["whole"]
    assert [one["here"] for one in found] == [whole] * 2, "each rank has all parameters"
    for one in found:
        assert whole / 2 <= one["partition"] < whole / 2 + 64, "each rank updates its half"
        assert one["dtype"] == "torch.bfloat16"
        assert one["mixed_precision"] == "bf16"
    fell(found)


def test_zero_3_divides_the_parameters(world: World) -> None:
    """Small parameters stay whole unless the threshold says otherwise: here none may."""
    threshold = "--set=deepspeed.zero_optimization.stage3_param_persistence_threshold=0"
    _, found = trained(world, "ds-zero3", ACCELERATE, threshold, HALF)
    assert [(one["model"], one["stage"], one["dtype"]) for one in found] == [
        ("DeepSpeedEngine", 3, "torch.float32")
    ] * 2
    for one in found:
        assert one["whole"] / 2 <= one["here"] < one["whole"] / 2 + 64
    fell(found)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_script_of_deepspeeds_own_kind(world: World, stage: int) -> None:
    run, found = trained(world, f"ds-zero{stage}", DEEPSPEED, "--set=batch.micro=16")
    assert [(one["model"], one["stage"], one["processes"], one["micro"]) for one in found] == [
        ("DeepSpeedEngine", stage, 2, 16)
    ] * 2
    assert {one["dtype"] for one in found} == {"torch.bfloat16"}
    if stage < 3:
        assert all(one["partition"] < 0.6 * one["whole"] for one in found)
    fell(found)
    assert "--deepspeed_config, which distui adds" in run.status()["plan"]["obeys"]


@pytest.mark.parametrize(
    ("preset", "model", "stage", "clipping"),
    [("ddp", "DistributedDataParallel", None, None), ("ds-zero2", "DeepSpeedEngine", 2, 0.5)],
)
def test_the_trainer(
    world: World, preset: str, model: str, stage: int | None, clipping: float | None
) -> None:
    """Its own settings go into what is "auto" in DeepSpeed's configuration: the clipping here."""
    run, found = trained(world, preset, str(HERE / "trainer_script.py"))
    assert [(one["model"], one["stage"], one["clipping"], one["processes"]) for one in found] == [
        (model, stage, clipping, 2)
    ] * 2
    for one in found:
        assert one["losses"][-1] < 0.9 * one["losses"][0], one["losses"]
    assert "leaves it to the transformers Trainer" in run.status()["plan"]["obeys"]
