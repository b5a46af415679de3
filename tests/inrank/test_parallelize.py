"""The one call, looked at from inside the ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from each import for_each
from starts import environment, finished, torchrun

pytestmark = pytest.mark.torch
PROBE = Path(__file__).parent / "probe.py"
PARAMETERS = 578
STRATEGIES = ["ddp", "fsdp2", "zero1"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the probe saw in each of two ranks."""
    folder = tmp_path_factory.mktemp("probe")
    finished(torchrun(PROBE, str(folder)), environment(), folder)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the probe saw in a plain process."""
    folder = tmp_path_factory.mktemp("alone")
    finished([sys.executable, PROBE, folder], environment(), folder)
    seen: dict[str, Any] = json.loads((folder / "rank-0.json").read_text())
    return seen


@for_each("strategy", STRATEGIES)
def test_loss_falls_in_every_rank(ranks: list[dict[str, Any]], strategy: str) -> None:
    for seen in ranks:
        losses = seen["looked"][strategy]["losses"]
        assert sum(losses[-3:]) < 0.8 * sum(losses[:3])


def test_strategies_compute_the_same(ranks: list[dict[str, Any]]) -> None:
    for seen in ranks:
        ddp = seen["looked"]["ddp"]["losses"]
        assert seen["looked"]["fsdp2"]["losses"] == pytest.approx(ddp, rel=1e-4)
        assert seen["looked"]["zero1"]["losses"] == pytest.approx(ddp, rel=1e-4)


def test_ddp_holds_everything_in_each_rank(ranks: list[dict[str, Any]]) -> None:
    for seen in ranks:
        ddp = seen["looked"]["ddp"]
        assert (ddp["model"], ddp["optimizer"], ddp["sharded"]) == ("DistributedDataParallel", "AdamW", [])
        assert ddp["parameters_here"] == ddp["moments_here"] == PARAMETERS


def test_fsdp2_shards_root_and_blocks(ranks: list[dict[str, Any]]) -> None:
    shards = [seen["looked"]["fsdp2"] for seen in ranks]
    assert all(shard["sharded"] == ["FSDPNet", "FSDPLayer", "FSDPLayer"] for shard in shards)
    assert [shard["parameters_here"] for shard in shards] == [PARAMETERS // 2] * 2
    assert [shard["moments_here"] for shard in shards] == [PARAMETERS // 2] * 2


def test_zero1_divides_only_the_optimizer(ranks: list[dict[str, Any]]) -> None:
    parts = [seen["looked"]["zero1"] for seen in ranks]
    assert all(part["optimizer"] == "ZeroRedundancyOptimizer" for part in parts)
    assert all(part["parameters_here"] == PARAMETERS for part in parts)
    assert sum(part["moments_here"] for part in parts) == PARAMETERS
    assert all(part["moments_here"] < 0.7 * PARAMETERS for part in parts)


@for_each("source", STRATEGIES)
@for_each("target", STRATEGIES)
def test_checkpoint_goes_on_under_any_strategy(
    ranks: list[dict[str, Any]], source: str, target: str
) -> None:
    for seen in ranks:
        went_on = seen["resumed"][f"{source} to {target}"]
        assert went_on["step"] == 10
        assert went_on["weights"] == pytest.approx(seen["unbroken"], abs=2e-4)


def test_nothing_saved_loads_nothing(ranks: list[dict[str, Any]]) -> None:
    assert [seen["nothing"] for seen in ranks] == [{}, {}]


@for_each("strategy", STRATEGIES)
def test_bf16_computes_inside_and_keeps_fp32_weights(ranks: list[dict[str, Any]], strategy: str) -> None:
    for seen in ranks:
        precise = seen["precise"][strategy]
        assert "torch.bfloat16" in precise["inside"]
        assert precise["kept"] == ["torch.float32"]
        assert not precise["rounded"]


@for_each("strategy", STRATEGIES)
def test_gradients_are_reduced_in_bf16(ranks: list[dict[str, Any]], strategy: str) -> None:
    for seen in ranks:
        precise = seen["precise"][f"{strategy} reduce"]
        assert precise["inside"] == ["torch.float32"]
        assert precise["rounded"]


def test_options_reach_torch(ranks: list[dict[str, Any]]) -> None:
    for seen in ranks:
        options = seen["optioned"]
        assert options["bucket_bytes"] == 3 * 1024 * 1024
        assert (options["static_graph"], options["bucket_view"], options["unused"]) == (True, True, False)
        assert options["sharded_after_forward"] == {"True": True, "False": False}


@pytest.mark.long
def test_single_wraps_nothing_and_resumes(alone: dict[str, Any]) -> None:
    single = alone["looked"]["single"]
    assert (single["model"], single["optimizer"]) == ("Net", "AdamW")
    assert sum(single["losses"][-3:]) < 0.8 * sum(single["losses"][:3])
    assert alone["resumed"]["single to single"]["weights"] == pytest.approx(alone["unbroken"], abs=2e-4)
    assert "torch.bfloat16" in alone["precise"]["single"]["inside"]
