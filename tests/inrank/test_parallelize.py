"""The one call, looked at from inside the ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
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


@pytest.mark.real
def test_strategies_compute_the_same_in_every_rank(ranks: list[dict[str, Any]]) -> None:
    for seen in ranks:
        ddp = seen["looked"]["ddp"]["losses"]
        for strategy in STRATEGIES:
            losses = seen["looked"][strategy]["losses"]
            assert losses == pytest.approx(ddp, rel=1e-4), strategy
            assert sum(losses[-3:]) < 0.8 * sum(losses[:3]), strategy


@pytest.mark.real
def test_each_strategy_holds_its_share_in_each_rank(ranks: list[dict[str, Any]]) -> None:
    for seen in ranks:
        ddp, shard, part = (seen["looked"][strategy] for strategy in STRATEGIES)
        assert (ddp["model"], ddp["optimizer"], ddp["sharded"]) == ("DistributedDataParallel", "AdamW", [])
        assert ddp["parameters_here"] == ddp["moments_here"] == PARAMETERS
        assert shard["sharded"] == ["FSDPNet", "FSDPLayer", "FSDPLayer"], "root and blocks"
        assert shard["parameters_here"] == shard["moments_here"] == PARAMETERS // 2
        assert part["optimizer"] == "ZeroRedundancyOptimizer"
        assert part["parameters_here"] == PARAMETERS
        assert part["moments_here"] < 0.7 * PARAMETERS
    assert sum(seen["looked"]["zero1"]["moments_here"] for seen in ranks) == PARAMETERS


@pytest.mark.real
def test_a_checkpoint_goes_on_under_any_strategy(ranks: list[dict[str, Any]]) -> None:
    for seen in ranks:
        assert seen["nothing"] == {}, "nothing saved loads nothing"
        for source in STRATEGIES:
            for target in STRATEGIES:
                resumed = seen["resumed"][f"{source} to {target}"]
                assert resumed["step"] == 10, (source, target)
                assert resumed["weights"] == pytest.approx(seen["unbroken"], abs=2e-4), (source, target)


@pytest.mark.real
def test_precision_and_options_reach_torch(ranks: list[dict[str, Any]]) -> None:
    for seen in ranks:
        for strategy in STRATEGIES:
            precise = seen["precise"][strategy]
            assert "torch.bfloat16" in precise["inside"], strategy
            assert (precise["kept"], precise["rounded"]) == (["torch.float32"], False), strategy
            reduced = seen["precise"][f"{strategy} reduce"]
            assert (reduced["inside"], reduced["rounded"]) == (["torch.float32"], True), strategy
        options = seen["optioned"]
        assert options["bucket_bytes"] == 3 * 1024 * 1024
        assert (options["static_graph"], options["bucket_view"], options["unused"]) == (True, True, False)
        assert options["sharded_after_forward"] == {"True": True, "False": False}
