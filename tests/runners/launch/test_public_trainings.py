"""The advice beside what papers, model cards and documentation say of public trainings."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from each import for_each

from distui.presets.estimate.strategies import script_kinds, strategies
from distui.runners.launch.advice import MemoryQuestion, advised

FILE = Path(__file__).with_name("public_trainings.toml")
TRAININGS: list[dict[str, Any]] = tomllib.loads(FILE.read_text())["training"]
AGREE = 0.9


def test_the_list_is_long_enough_and_nine_tenths_agree() -> None:
    assert len(TRAININGS) >= 40
    agreeing = [training for training in TRAININGS if "differs" not in training]
    assert len(agreeing) >= AGREE * len(TRAININGS)
    known = {strategy.key for kind in script_kinds() for strategy in strategies(kind)}
    assert {key for training in TRAININGS for key in training["answer"]} <= known


@for_each("training", TRAININGS)
def test_the_advice_is_what_the_source_says(training: dict[str, Any]) -> None:
    advice = advised(MemoryQuestion(**training["question"])).advice
    first = advice.first.strategy.key if advice.first else None
    assert (first in training["answer"]) == ("differs" not in training), (first, training["source"])
    if "differs" in training:  # the table explains it: the source's strategy is a row that is too large
        rows = {row.strategy.key: row for row in advice.rows}
        assert not any(rows[key].fits for key in training["answer"])
