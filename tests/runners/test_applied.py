"""Applied, not applied, unknown: what ranks show against what the preset asks for."""

from __future__ import annotations

from typing import Any

import pytest

from distui.runners.agent.hook_clients import wrapping_of
from distui.runners.diagnosis import applied_preset
from distui.runners.diagnosis.applied_preset import check_applied
from distui.runners.diagnosis.view import View
from distui.runners.run.model import Outcome, PlanSummary, RankPlace, Wrapped
from distui.runners.run.state import Attempt, Rank, RunState


def state(
    *made: Wrapped | None, strategy: str = "ddp", obeys: str | None = "it obeys", **plan: Any
) -> RunState:
    places = tuple(RankPlace(rank, rank, 0) for rank in range(len(made)))
    found = RunState(plan=PlanSummary("mine", strategy, "torchrun", "train.py", obeys=obeys, **plan))
    found.ranks = {place.rank: Rank(place, made=one) for place, one in zip(places, made, strict=True)}
    found.attempts = [Attempt(1, 0.0, "launch", len(made), {}, places)]
    return found


def wrapped(*strategies: str, **more: Any) -> Wrapped:
    return Wrapped(strategies, **more)


def test_what_is_there_against_what_is_asked() -> None:
    cases: list[tuple[Wrapped, dict[str, Any], str, str]] = [
        (wrapped("ddp"), {}, "applied", "is wrapped in DistributedDataParallel"),
        (wrapped(), {}, "not applied", "is wrapped in nothing"),
        (wrapped("ddp", "fsdp2"), {}, "not applied", "DistributedDataParallel alone"),
        (wrapped("ddp"), {"strategy": "zero1"}, "not applied", "asks for ZeroRedundancyOptimizer"),
        (wrapped("ddp", "zero1"), {"strategy": "zero1"}, "applied", "and ZeroRedundancyOptimizer"),
        (wrapped("deepspeed", zero_stage=2), {"strategy": "deepspeed", "zero_stage": 2}, "applied", "(ZeRO stage 2)"),
        (wrapped("deepspeed", zero_stage=1), {"strategy": "deepspeed", "zero_stage": 2}, "not applied", "ZeRO stage 2"),
        (wrapped("deepspeed"), {"strategy": "deepspeed", "zero_stage": 2}, "applied", "DeepSpeed"),
        (wrapped("fsdp2"), {"strategy": "fsdp2", "mesh": {"dp_shard": 1, "tp": 2}}, "not applied", "asks for tp 2"),
        (wrapped("fsdp2", dims={"data": 1, "tp": 2}), {"strategy": "fsdp2", "mesh": {"tp": 2}}, "applied", "by tp 2"),
        (wrapped("fsdp2", dims={"tp": 4}), {"strategy": "fsdp2", "mesh": {"tp": 2}}, "not applied", "divided by tp 4"),
        (wrapped(dims={"pp": 2}), {"mesh": {"pp": 2, "dp": 1}}, "applied", "pp 2"),
        (wrapped("ddp"), {"mesh": {"pp": 2, "dp": 1}}, "not applied", "asks for pp 2"),
        (wrapped("fsdp1", param="fp16"), {"strategy": "fsdp1", "precision": "bf16"}, "applied", "fp16 instead of bf16"),
        (wrapped("fsdp1", param="bf16"), {"strategy": "fsdp1", "precision": "bf16"}, "applied", "is wrapped in Fully"),
    ]  # fmt: skip
    for made, plan, wanted, words in cases:
        found = check_applied(state(made, made, **plan))
        assert found is not None
        assert (found.state, words in found.text) == (wanted, True), found


def test_the_rank_that_differs_is_named_and_nothing_is_known_before() -> None:
    found = check_applied(state(wrapped("ddp"), wrapped()))
    assert found is not None
    assert (found.state, found.text.startswith("rank 1: mine asks for Distributed")) == (
        "not applied",
        True,
    )
    nothing = check_applied(state(None, None))
    assert nothing is not None
    assert nothing.state == "unknown"
    assert check_applied(RunState()) is None
    alone = check_applied(state(wrapped()))
    assert alone is not None
    assert alone.state == "applied", "one rank has nobody to average with"


def test_ranks_without_a_group_train_alone() -> None:
    def found(*made: Wrapped | None) -> list[str]:
        return [
            one.id
            for one in applied_preset.find_not_applied(
                View(state=state(*made, obeys=None), plan=None, now=1.0, history={})
            )
        ]

    alone, unsure, speaks = wrapped(grouped=False), wrapped(grouped=None), wrapped(grouped=True)
    assert found(alone, alone) == ["acted-alone"]
    for made in (
        (alone,),
        (alone, None),
        (alone, unsure),
        (alone, speaks),
        (wrapped("ddp", grouped=False),) * 2,
    ):
        assert found(*made) == []


def test_a_finding_weighs_what_the_plan_expected() -> None:
    def found(state: RunState) -> list[tuple[str, str]]:
        view = View(state=state, plan=None, now=1.0, history={})
        return [(one.id, one.severity) for one in applied_preset.find_not_applied(view)]

    assert found(state(wrapped())) == []
    assert found(state(wrapped(), wrapped())) == [("acted-otherwise", "warning")]
    assert found(state(wrapped(), wrapped(), obeys=None)) == [], "the plan has said so before"
    idle = state(None, None)
    idle.attempts[0].outcome, idle.attempts[0].idle = Outcome.SUCCEEDED, "no training step was seen"
    assert found(idle) == [("acted-idle", "warning")]


@pytest.mark.parametrize(
    "told", [None, 3, "x", [], {"strategies": 4}, {"dims": {"tp": "a"}}, {"strategies": [None]}]
)
def test_what_a_hook_tells_is_checked(told: object) -> None:
    assert wrapping_of(told) is None


def test_what_a_newer_hook_tells_is_taken() -> None:
    assert wrapping_of(
        {"strategies": ["ddp"], "zero_stage": None, "dims": {}, "param": None, "new": 1}
    ) == Wrapped(("ddp",))
