"""Findings from reported losses; what a healthy training reports raises none."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import Any

from each import for_each

from distui.presets.finding import Finding
from distui.runners.diagnosis.detectors import owns
from distui.runners.diagnosis.training_health import TrainingHealth
from distui.runners.diagnosis.view import View
from distui.runners.run.model import RankPhase, RankPlace
from distui.runners.run.samples import TrainingSample
from distui.runners.run.state import Attempt, Node, Rank, RunState

EVERY_S = 10.0
"""Between two reports."""


class Told:
    """A training of 2 ranks that reports; its findings after each report."""

    def __init__(self) -> None:
        self.health, self.now, self.step = TrainingHealth(), 1000.0, 0
        places = (RankPlace(0, 0), RankPlace(1, 1))
        self.state = RunState(attempts=[Attempt(1, 1000.0, "launch", 2, {}, places)])
        self.state.nodes[0] = Node(0, host="gpu-a")
        self.state.ranks = {place.rank: Rank(place, RankPhase.RUNNING) for place in places}

    def report(self, rank: int = 0, **fields: Any) -> list[Finding]:
        self.now, self.step = self.now + EVERY_S, self.step + 10
        loss = fields.get("loss")
        if loss is not None and not math.isfinite(loss):
            fields["loss"] = None
            fields["not_finite"] = {"loss": str(loss)}
            fields.setdefault("not_finite_since", {"loss": self.step})
        sources = dict.fromkeys(fields, "wandb")
        self.state.training[rank] = TrainingSample(
            rank, self.now, step=self.step, sources=sources, **fields
        )
        return self.judge()

    def judge(self) -> list[Finding]:
        return list(self.health.find(View(state=self.state, plan=None, now=self.now + 1, history={})))

    def all(self, losses: Iterable[float], **fields: Any) -> list[str]:
        """Ids of what was raised at any time."""
        return [finding.id for loss in losses for finding in self.report(loss=loss, **fields)]

    def restart(self) -> None:
        self.now += 30
        self.state.attempts.append(
            Attempt(self.state.attempt + 1, self.now, "restart", 2, {"NCCL_DEBUG": "INFO"}, ())
        )
        self.state.training.clear()


def falling(count: int = 200, noise: float = 0.05, seed: int = 1) -> list[float]:
    """A loss as trainings have it: from 10 to about 3, with noise."""
    at_random = random.Random(seed)
    return [3 + 7 * math.exp(-at / 30) + at_random.gauss(0, noise) for at in range(count)]


# --- NaN and Inf ---


def test_a_nan_is_an_error_at_once_and_names_its_first_step() -> None:
    told = Told()
    assert told.all(falling(20)) == []
    (finding,) = told.report(loss=math.nan, not_finite_since={"loss": 203}, lr=1e-3)
    assert (finding.id, finding.severity, finding.rank) == ("loss-not-finite", "error", 0)
    assert finding.text == "the loss is NaN since step 203: rank 0"
    assert any("last finite loss was" in line for line in finding.evidence)
    (later,) = told.report(loss=math.nan, not_finite_since={"loss": 203}, lr=5e-4)
    assert later == finding  # else the journal would get one with each report


def test_ranks_that_follow_are_named() -> None:
    told = Told()
    told.report(loss=2.0)
    told.report(rank=1, loss=2.0)
    told.report(rank=1, loss=math.nan)
    (finding,) = told.report(rank=0, loss=math.nan)
    assert (finding.rank, finding.ranks) == (0, (0, 1))


def test_a_loss_that_is_finite_again_clears_it() -> None:
    told = Told()
    told.report(loss=2.0)
    assert told.report(loss=math.nan)
    assert told.report(loss=2.1) == []


@for_each("first", [math.nan, math.inf])
def test_an_empty_mean_at_the_start_is_none(first: float) -> None:
    told = Told()
    assert told.report(loss=first) == []
    assert told.report(loss=first) == []
    assert told.report(loss=2.0) == []


def test_a_training_that_is_nan_from_its_first_step_on_is_found() -> None:
    told = Told()
    assert [len(told.report(loss=math.nan)) for _ in range(4)] == [0, 0, 1, 1]


def test_one_infinite_batch_is_none_and_staying_so_is() -> None:
    told = Told()
    told.report(loss=2.0)
    assert [len(told.report(loss=math.inf)) for _ in range(3)] == [0, 0, 1]


def test_a_zero_in_place_of_nan_is_found() -> None:
    told = Told()
    told.report(loss=2.0)
    found: list[Finding] = []
    for _ in range(3):
        found = told.report(loss=0.0, not_finite={"grad_norm": "nan"})
    assert [finding.id for finding in found] == ["loss-not-finite"]
    assert told.report(loss=0.0) == []


def test_values_of_the_script_may_be_infinite() -> None:
    told = Told()
    assert all(told.report(loss=2.0, not_finite={"best/val_loss": "inf"}) == [] for _ in range(6))


# --- divergence ---

HEALTHY: dict[str, Callable[[], list[float]]] = {
    "falling": falling,
    "noisy": lambda: falling(noise=1.5),
    "warm-up with a hump": lambda: [9 + at / 20 for at in range(40)] + falling(200),
    "spikes": lambda: [loss if at % 37 else loss * 30 for at, loss in enumerate(falling(300))],
    "a spike of 15 reports": lambda: falling(120) + [9.0] * 15 + [3.0] * 100,
    "flat": lambda: [5.0 + math.sin(at) for at in range(300)],
    "rises a little": lambda: falling(150) + [3.0 + at / 100 for at in range(100)],
    "overfits its running mean": lambda: [10.0] * 30 + [4.0] * 60 + [5.0] * 200,
    "negative": lambda: [-at / 10 for at in range(200)],
    "zero": lambda: [0.0] * 200,
    "a cycle of data": lambda: [3 + 2 * math.sin(at / 5) for at in range(400)],
}


@for_each("name", HEALTHY)
def test_a_healthy_loss_raises_nothing(name: str) -> None:
    assert Told().all(HEALTHY[name]()) == []


def test_a_loss_that_rises_and_stays_is_found_and_keeps_its_words() -> None:
    told = Told()
    assert told.all(falling(150)) == []
    at_random = random.Random(2)
    raised = [told.report(loss=9 + at_random.gauss(0, 0.3)) for _ in range(60)]
    found = [finding for findings in raised for finding in findings]
    assert found
    assert {finding.id for finding in found} == {"loss-diverges"}
    assert len(set(found)) == 1
    assert found[0].severity == "warning"
    told.all([3.0] * 60)
    assert told.report(loss=3.0) == []


def test_losses_of_a_gan_raise_nothing() -> None:
    told = Told()
    ids = [
        finding.id
        for loss in falling(150) + [9.0] * 80
        for finding in told.report(loss=loss, values={"d_loss": 0.3, "g_loss": 3.0})
    ]
    assert ids == []


def test_a_restart_from_a_checkpoint_raises_nothing() -> None:
    told = Told()
    told.all(falling(100))
    told.restart()
    assert told.all([5 + loss / 10 for loss in falling(15)] + [3.2] * 60) == []


def test_judging_owns_them() -> None:
    for name in ("loss-not-finite", "loss-diverges"):
        assert owns(Finding(name, "warning", ""))
