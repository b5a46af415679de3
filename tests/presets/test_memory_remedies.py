"""What helps where nothing fits: all of it tried."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from each import for_each

from distui.presets.estimate.memory import estimate_for
from distui.presets.estimate.remedies import on_gpus, remedies
from distui.presets.estimate.survey import needed, survey
from distui.presets.estimate.workload import FORMATS, GB, Shape, shape
from distui.presets.load import load

BF16 = FORMATS["bf16"]


def changed(model: Shape, options: str) -> Shape:
    """The model with options of `distui advise`."""
    words = options.split()
    values = dict(pairwise(words))
    return replace(
        model,
        recompute=model.recompute or "--recompute" in words,
        micro_batch=int(values.get("--micro-batch", model.micro_batch)),
        seq=int(values.get("--seq", model.seq)),
    )


@for_each("parameters", [1, 7, 30, 70])
@for_each("micro_batch", [1, 6, 16])
@for_each("seq", [2048, 65_536])
@for_each("nodes", [1, 4])
@for_each("recompute", [False, True])
def test_what_is_said_to_help_does(
    parameters: int, micro_batch: int, seq: int, nodes: int, recompute: bool
) -> None:
    limit = 24 * GB
    model = replace(shape(parameters * GB), micro_batch=micro_batch, seq=seq, recompute=recompute)
    if on_gpus(survey(model, BF16, 8, nodes, limit)):
        return
    for one in remedies(model, BF16, 8, nodes, limit):
        if one.estimate is None:
            assert one.change.startswith("Take more GPUs: ZeRO-3 fits on ")
            continue
        name, *rest = one.estimate.strategy.words.split()
        preset = load(name, rest[1::2]).preset
        again = estimate_for(preset, changed(model, one.options), BF16, 8 * nodes, limit)
        assert again.fits
        assert again.total == pytest.approx(one.estimate.total)
        assert not again.host
        assert f"({one.options})" in one.text
        if "accumulation" in one.estimate.strategy.words:
            assert preset.batch.accumulation * changed(model, one.options).micro_batch == micro_batch


def test_each_kind_of_help() -> None:
    limit = 40 * GB
    large = replace(shape(7 * GB), micro_batch=8, seq=8192)
    assert [one.options for one in remedies(large, BF16, 8, 1, limit)] == ["--recompute", "--micro-batch 1"]
    long = replace(shape(7 * GB), seq=1 << 18, recompute=True)
    (shorter,) = remedies(long, BF16, 8, 1, limit)
    assert shorter.text.startswith("Take shorter sequences (--seq ")
    more = remedies(replace(shape(70 * GB), recompute=True), BF16, 8, 1, limit)
    ranks = needed(replace(shape(70 * GB), recompute=True), BF16, limit)
    assert ranks is not None
    assert [one.text for one in more] == [
        f"Take more GPUs: ZeRO-3 fits on {ranks} such ({-(-ranks // 8)} nodes)."
    ]


def test_nothing_helps() -> None:
    one_layer = Shape(parameters=500 * GB, layers=1, hidden=8192, seq=65_536)
    assert remedies(one_layer, BF16, 1, 1, 16 * GB) == []


def test_a_batch_of_many_samples_is_cut_soon() -> None:
    model = replace(shape(7 * GB), micro_batch=7_207_200, recompute=True)
    one, *_ = remedies(model, BF16, 8, 1, 80 * GB)
    assert one.options.startswith("--micro-batch ")
