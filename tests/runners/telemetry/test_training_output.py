"""Training values in whole outputs of trainers, as the agent reads them: right, missed and wrong values, and traps.

The sets of tests/corpus/training were labelled before the first run against them.
"""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from distui.runners.agent.training import lines_signals
from distui.runners.telemetry.rank_signals import RankSignals

CORPUS = Path(__file__).parents[2] / "corpus" / "training"
KINDS = (
    "step", "total", "epoch_step", "epoch_total", "epoch", "loss", "lr", "step_s", "tokens_s", "samples_s",
)  # fmt: skip


class Measured(NamedTuple):
    right: int
    missed: list[str]
    wrong: list[str]


def read(text: str) -> dict[str, float]:
    """Return the values of a rank whose output is this text."""
    rank = RankSignals(0)
    rank.output(lines_signals(text.encode()), 100.0)
    sample = rank.sample(None, None)
    if sample is None:
        return {}
    finite = {kind: getattr(sample, kind) for kind in KINDS if getattr(sample, kind) is not None}
    return finite | {kind: float(value) for kind, value in sample.not_finite.items() if kind in KINDS}


def is_same(value: float, label: float) -> bool:
    return math.isclose(value, label, rel_tol=2e-3) or (math.isnan(value) and math.isnan(label))


def measure(name: str) -> Measured:
    cases: list[dict[str, Any]] = tomllib.loads((CORPUS / name).read_text(encoding="utf-8"))["case"]
    right, missed, wrong = 0, list[str](), list[str]()
    for case in cases:
        values, labels = read(case["text"]), case["want"]
        for kind, value in values.items():
            if kind in labels and is_same(value, labels[kind]):
                right += 1
            elif kind in labels or kind not in case.get("free", ()):
                wrong.append(f"{case['name']}: {kind} {value}")
        missed += [f"{case['name']}: {kind}" for kind in labels if kind not in values]
    return Measured(right, missed, wrong)


def test_the_first_set() -> None:
    """At first sight: 265 of 438 values right, 5 wrong, 0 of 26 traps read."""
    measured = measure("first.toml")
    assert measured.wrong == []
    assert measured.right >= 428, measured.missed


def test_the_second_set() -> None:
    """At first sight: 119 of 186 values right, 3 wrong, 0 of 15 traps read."""
    measured = measure("second.toml")
    assert measured.wrong == []
    assert measured.right >= 173, measured.missed


def test_the_third_set() -> None:
    """At first sight: 120 of 151 values right, 4 wrong, 1 of 12 traps read."""
    measured = measure("third.toml")
    assert measured.wrong == []
    assert measured.right >= 147, measured.missed


def test_the_fourth_set() -> None:
    """At first sight: 98 of 126 values right, 2 wrong, 0 of 8 traps read."""
    measured = measure("fourth.toml")
    assert measured.wrong == []
    assert measured.right >= 126, measured.missed


def test_the_fifth_set() -> None:
    """At first sight: 148 of 151 values right, 0 wrong, 1 of 9 traps read."""
    measured = measure("fifth.toml")
    assert measured.wrong == []
    assert measured.right >= 150, measured.missed


def test_the_sixth_set() -> None:
    """At first sight: 112 of 129 values right, 0 wrong, 0 of 5 traps read."""
    measured = measure("sixth.toml")
    assert measured.wrong == []
    assert measured.right >= 124, measured.missed


def test_steps_that_restart_are_within_an_epoch() -> None:
    rank = RankSignals(0)
    for step in (10, 200, 390, 10):
        rank.output(lines_signals(f"step {step}/400 loss 1.0 lr 0.1\n".encode()), float(step))
    sample = rank.sample(None, None)
    assert sample is not None
    assert (sample.step, sample.epoch_step, sample.epoch_total) == (None, 10, 400)


def test_a_number_with_letters_after_it_is_not_cut() -> None:
    for glued in ("loss: 0.8871Epoch 2/3", "loss: 0.8871step", "loss=12e", "loss: 1.2.3"):
        assert "loss" not in read(glued), glued
