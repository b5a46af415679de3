"""The ranking of strategies: the scenarios of a public decision guide, remedies in order of cost, and both formats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from distui.presets.estimate.advice import Advice, advise
from distui.presets.estimate.advice_case import AdviceCase
from distui.presets.estimate.advice_words import more_line, plain_line, title_of, verdict, weights_line
from distui.presets.estimate.launch_command import LaunchPlace
from distui.presets.estimate.model_kinds import mixture
from distui.presets.estimate.option import Option
from distui.presets.estimate.workload import GB, Shape, parse_gpus, parse_parameters, shape
from distui.presets.finding import PlanError

TIER = "--on sky --gpus H100:8 --nnodes {} --network-tier best"


def asked(params: str, gpus: str, nodes: int = 1, **about: Any) -> Advice:
    sizes = {name: about.pop(name) for name in ("seq", "micro_batch", "recompute") if name in about}
    model = replace(shape(parse_parameters(params)), **sizes)
    return advise(AdviceCase(model=model, place=LaunchPlace(gpus=parse_gpus(gpus), nodes=nodes), **about))


def first(advice: Advice) -> Option:
    assert advice.first is not None
    return advice.first


@for_each(
    ("advice", "key", "command"),
    [
        (asked("1B", "4xA100-80GB"), "ddp", "distui launch ddp "),
        (asked("7B", "8xA100-80GB"), "zero2", "distui launch fsdp2-zero2 "),
        (asked("13B", "8xA100-80GB"), "zero2", "distui launch fsdp2-zero2 "),
        (asked("30B", "8xA100-80GB"), "zero3", "--set strategy.activation_checkpointing=true"),
        (asked("70B", "8xH100"), "offload", "distui launch fsdp2-offload "),
        (asked("70B", "8xH100", kind="deepspeed"), "ds-cpu", "distui launch ds-zero3-cpu "),
        (asked("70B", "8xH100", 4), "zero3", TIER.format(4)),
        (asked("175B", "8xH100", 16, kind="megatron"), "megatron-3d",
         "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4"),
        (asked("175B", "8xH100", 16), "zero3", TIER.format(16)),
        (asked("8B", "8xH100", seq=131_072), "cp", "distui launch context "),
    ],
)  # fmt: skip
def test_a_decision_guides_scenarios(advice: Advice, key: str, command: str) -> None:
    assert first(advice).strategy.key == key
    assert command in first(advice).command


def test_experts() -> None:
    model = mixture(8 * GB, 16, 2, 2 * GB, None, None, 32_000)
    advice = advise(AdviceCase(model=model, place=LaunchPlace(gpus=parse_gpus("8xH100"))))
    assert (first(advice).strategy.key, first(advice).title) == ("ep", "DDP + EP 4")
    assert "--set mesh.ep=4" in first(advice).command
    assert "set expert_parallel = True" in " ".join(verdict(advice))


def test_mixtral_and_deepseek_v3_have_the_experts_of_their_papers() -> None:
    """45 B and 654 B inside experts; arXiv 2401.04088 and 2412.19437 have sizes of all and of active parameters."""
    mixtral = mixture(46_700_000_000, 8, 2, 12_900_000_000, 32, 4096, 32_000)
    assert mixtral.experts == pytest.approx(45.1 * GB, rel=0.01)
    deepseek = mixture(671 * GB, 256, 8, 37 * GB, 61, 7168, 129_280)
    assert deepseek.experts == pytest.approx(654 * GB, rel=0.01)
    assert mixture(47 * GB, 8, 2, None, None, None, 32_000).experts == pytest.approx(45 * GB, rel=0.03)
    with pytest.raises(PlanError, match="--top-k 8"):
        mixture(47 * GB, 8, 8, None, None, None, 32_000)
    with pytest.raises(PlanError, match="--active"):
        mixture(47 * GB, 8, 2, 50 * GB, None, None, 32_000)


def test_the_remedies_are_in_order_of_their_cost() -> None:
    """A fused optimizer, recomputed layers, smaller batches; then an edit; then host memory; then more GPUs."""
    advice = asked("32B", "8xA100-80GB")
    assert title_of(first(advice)) == "ZeRO-3 (FSDP2) with recomputed layers and a fused optimizer"
    assert [option.needs for option in advice.ranked] == sorted(
        (option.needs for option in advice.ranked), key=["", "edit", "host", "disk"].index
    )
    batch = first(asked("7B", "8xA100-40GB", seq=8192, micro_batch=8))
    assert batch.change.passes == 4
    assert "--set batch.micro=2 --set batch.accumulation=4" in batch.command
    assert first(asked("7B", "8xA100-80GB", micro_batch=7_207_200)).change.recompute


def test_the_fewest_gpus_with_the_remedies_are_offered() -> None:
    advice = asked("80B", "8xH100")
    assert advice.more is not None
    assert (advice.more.place.nodes, advice.more.change.recompute) == (3, True)
    text, command = more_line(advice)
    assert text.startswith(
        "To have everything on the GPUs take 3 nodes (24 GPUs): ZeRO-3 (FSDP2) with recomputed"
    )
    assert text.endswith("With bf16 weights 2 nodes (16 GPUs) are enough.")
    assert TIER.format(3) in command
    assert asked("80B", "8xH100", 3).more is None
    assert not [
        one for one in asked("80B", "8xH100", 2, weights="fp32").ranked if one.needs in ("", "edit")
    ]
    small = asked("7B", "1xA100-80GB")
    assert small.more is not None
    assert (small.more.place.gpus.count, small.more.place.nodes) == (2, 1)
    assert more_line(asked("1B", "1xH100")) == ("", "")


def test_both_formats_are_shown_where_the_script_decides() -> None:
    advice = asked("3.8B", "2xA40")
    assert title_of(first(advice)) == "ZeRO-2"
    text, command = weights_line(advice)
    assert text == "If the script's weights are bf16, DDP fits, with 39.5 of 48 GB."
    assert command.startswith("distui launch ddp ")
    assert first(asked("3.8B", "2xA40", weights="bf16")).strategy.key == "ddp"
    assert asked("3.8B", "2xA40", weights="fp32").with_bf16 is None
    deepspeed = asked("3.8B", "2xA40", kind="deepspeed")
    assert deepspeed.with_bf16 is None  # it casts the weights
    plain = asked("3.8B", "2xA40", kind="ddp")
    zero1 = next(row for row in plain.rows if row.strategy.key == "zero1")
    twin = plain.also(zero1)
    assert twin is not None
    assert [round(one.estimate.total / GB, 1) for one in (zero1, twin)] == [59.0, 30.8]


@for_each(
    ("params", "gpus", "nodes", "kind"),
    [
        ("70B", "8xH100", 1, "unknown"),
        ("70B", "8xH100", 2, "trainer"),
        ("175B", "8xH100", 16, "unknown"),
        ("30B", "8xA800", 2, "ddp"),
        ("405B", "8xH800", 16, "megatron"),
    ],
)
def test_the_table_has_the_recommended_layouts(params: str, gpus: str, nodes: int, kind: str) -> None:
    """Both totals of a row are of the same layout, and less memory is needed in bf16."""
    advice = asked(params, gpus, nodes, kind=kind)
    layouts = [row.layout for row in advice.rows]
    assert len(set(layouts)) == len(layouts)
    assert first(advice).layout in layouts
    if advice.with_bf16 is not None:
        assert first(advice.with_bf16).layout in layouts
    for row in advice.rows:
        twin = advice.also(row)
        if twin is not None:
            assert twin.sizes == row.sizes
            assert twin.estimate.total < row.estimate.total


@for_each(
    ("gpus", "about"),
    [
        ("1xT4", {"kind": "trainer"}),
        ("1xT4", {}),
        ("1xH100", {"precision": "fp16"}),
        ("1xH100", {"kind": "trainer", "lora": 16, "quantized": True}),
    ],
)  # fmt: skip
def test_no_second_total_without_bf16_or_with_a_base_in_4_bits(gpus: str, about: dict[str, Any]) -> None:
    """A GradScaler refuses gradients in bf16, and 4 bits do not depend on the weights."""
    advice = asked("0.5B", gpus, **about)
    assert advice.with_bf16 is None
    assert weights_line(advice) == ("", "")
    forced = first(asked("0.5B", "1xT4", kind="trainer", weights="bf16"))
    assert "--fp16" not in forced.command


def test_a_plain_ddp_script_gets_adopt() -> None:
    advice = asked("3.8B", "2xA40")
    text, command = plain_line(advice)
    assert "--kind" in text
    assert command.startswith("distui launch fsdp2 --adopt ")
    small = first(asked("1B", "2xA40", kind="ddp"))
    assert not small.request.adopt  # DDP is what it does
    whole = asked("70B", "8xH100", 4, kind="ddp")  # does not fit on the first GPU
    assert first(whole).needs == "edit"
    assert title_of(first(whole)) == "ZeRO-3 (FSDP2) with recomputed layers"  # before tensor parallelism
    assert "call distui's parallelize()" in " ".join(verdict(whole))


def test_adapters() -> None:
    lora = first(asked("7B", "1xA100-80GB", kind="trainer", lora=16))
    assert (lora.strategy.key, lora.needs) == ("single", "")
    assert lora.estimate.total < 60 * GB
    qlora = first(asked("65B", "1xA6000", kind="trainer", lora=16, quantized=True))
    assert qlora.strategy.key == "single"  # arXiv 2305.14314: 65 B on 48 GB
    assert "--gradient_checkpointing true" in qlora.command
    rows = asked("7B", "8xH100", kind="trainer", lora=16, quantized=True).rows
    storages = {
        row.strategy.key: "bnb_4bit_quant_storage=torch.bfloat16" in " ".join(row.edits) for row in rows
    }
    assert storages == {
        **dict.fromkeys(("ddp", "ds-zero1", "ds-zero2"), False),
        **dict.fromkeys(("zero3", "ds-zero3", "offload", "ds-cpu", "ds-nvme"), True),
    }


def test_old_gpus_have_no_bf16() -> None:
    assert "bf16" not in first(asked("350M", "1xT4")).command
    assert "--fp16 true" in first(asked("350M", "1xV100", kind="trainer")).command


def test_names_of_places() -> None:
    place = LaunchPlace(gpus=parse_gpus("8xH100"), nodes=2, hosts=("gpu1", "gpu2"))
    advice = advise(AdviceCase(model=shape(30 * GB), place=place))
    assert "--hosts gpu1,gpu2 --nproc-per-node 8 " in first(advice).command
    slurm = advise(AdviceCase(model=shape(GB), place=replace(place, nodes=1, hosts=(), on="slurm/lab")))
    assert "--on slurm/lab --gpus H100:8 --" in first(slurm).command
    assert "--network-tier" not in first(asked("3B", "4xL4", 2)).command  # it has no faster network
    named = replace(AdviceCase(model=shape(GB), place=replace(place, hosts=())), script="my model.py")
    assert first(advise(named)).command.endswith(" -- 'my model.py'")


def test_nothing_helps() -> None:
    one_layer = Shape(parameters=500 * GB, layers=1, hidden=8192, seq=65_536)
    advice = advise(AdviceCase(model=one_layer, place=LaunchPlace(gpus=parse_gpus("1xT4"))))
    assert advice.first is None
    assert verdict(advice) == [
        "Nothing fits: 92% of 16 GB are usable.",
        "Take a smaller model, or GPUs with more memory.",
    ]


def test_host_memory_that_is_too_small() -> None:
    case = AdviceCase(
        model=shape(70 * GB), place=LaunchPlace(gpus=parse_gpus("8xH100")), host_limit=500 * GB
    )
    assert first(advise(case)).strategy.key == "ds-nvme"


@settings(max_examples=15)
@given(
    parameters=st.integers(10**6, 10**12), layers=st.integers(1, 200), hidden=st.integers(64, 20_000),
    vocab=st.integers(1, 300_000), seq=st.integers(1, 1 << 20), micro_batch=st.integers(1, 64),
    recompute=st.booleans(), per_node=st.integers(1, 16), nodes=st.integers(1, 64),
    kind=st.sampled_from(["unknown", "ddp", "accelerate", "trainer", "deepspeed", "megatron"]),
)  # fmt: skip
def test_no_number_is_negative_and_more_memory_never_hurts(
    per_node: int, nodes: int, kind: str, **sizes: Any
) -> None:
    model = Shape(**sizes)
    small, large = (
        advise(
            AdviceCase(
                model=model,
                place=LaunchPlace(gpus=parse_gpus(f"{per_node}xX", memory), nodes=nodes),
                kind=kind,
                weights="fp32",
            )
        )
        for memory in (24.0, 141.0)
    )
    for option in (*small.rows, *small.ranked):
        estimate = option.estimate
        parts = (
            estimate.weights,
            estimate.gradients,
            estimate.optimizer,
            estimate.activations,
            estimate.buffers,
        )
        assert min(*parts, estimate.host, estimate.disk) >= 0
        assert estimate.activations <= estimate.all_activations
    assert bool(small.ranked) <= bool(large.ranked)
