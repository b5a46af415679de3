"""Every command that `distui advise` can print: it is a launch, and its plan has the memory that was advised."""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from each import for_each

from distui.presets import skypilot
from distui.presets.estimate.advice import Advice, advise
from distui.presets.estimate.advice_case import AdviceCase
from distui.presets.estimate.launch_command import LaunchPlace
from distui.presets.estimate.memory import estimate_for
from distui.presets.estimate.model_kinds import mixture, with_adapters
from distui.presets.estimate.option import Option
from distui.presets.estimate.script_kind import kind_of_script
from distui.presets.estimate.strategies import script_kinds, strategies
from distui.presets.estimate.workload import FORMATS, GB, GPU, Format, Shape, parse_gpus, shape
from distui.presets.load import load
from distui.presets.plan import Place, Plan, make_plan
from distui.tui.cli import parsed, split_rest
from distui.tui.verbs.launch import requested

SCRIPTS = {
    "parallelize": "from distui.runners.inrank.parallelize import forward_backward, parallelize\n"
    "model, optimizer = parallelize(net, AdamW)\nforward_backward(model, x, y)\n",
    "ddp": "from torch.nn.parallel import DistributedDataParallel\nmodel = DistributedDataParallel(net)\n",
    "accelerate": "from accelerate import Accelerator\naccelerator = Accelerator()\n",
    "trainer": "from transformers import Trainer\nTrainer(model=model).train()\n",
    "deepspeed": "import deepspeed\ndeepspeed.add_config_arguments(parser)\ndeepspeed.initialize(model=model)\n",
    "megatron": "from megatron.training import pretrain\npretrain(provider)\n",
}
SCRIPTS["unknown"] = SCRIPTS["parallelize"]
SAMPLE = 11
"""All cases take minutes."""
MIXTRAL = (47 * GB, 8, 2, 13 * GB, None, None, 32_000)


def models() -> Iterator[Shape]:
    for billions, seq, micro in itertools.product((1, 7, 30, 70, 175), (2048, 131_072), (1, 6)):
        yield replace(shape(billions * GB), seq=seq, micro_batch=micro)
    yield mixture(*MIXTRAL)
    yield mixture(8 * GB, 16, 2, 2 * GB, None, None, 32_000)
    yield replace(shape(13 * GB), recompute=True)


def cases(kind: str) -> Iterator[AdviceCase]:
    places = [("8xA100-80GB", 1), ("8xH100", 4), ("2xA40", 1), ("1xT4", 1), ("8xH100", 16), ("4xL4", 2)]
    for (gpus, nodes), model in itertools.product(places, models()):
        place = LaunchPlace(gpus=parse_gpus(gpus), nodes=nodes)
        yield AdviceCase(model=model, place=place, kind=kind)


def special_cases(kind: str) -> Iterator[AdviceCase]:
    hosts = LaunchPlace(gpus=parse_gpus("8xH100"), nodes=2, hosts=("gpu1", "gpu2"))
    large = shape(30 * GB)
    yield AdviceCase(model=large, place=hosts, kind=kind)
    yield AdviceCase(
        model=large, place=replace(hosts, hosts=()), kind=kind, weights="bf16", precision="fp32"
    )
    yield AdviceCase(
        model=large, place=LaunchPlace(gpus=parse_gpus("8xH100"), on="aws"), kind=kind, precision="bf16"
    )
    yield AdviceCase(model=large, place=hosts, kind=kind, lora=8)
    yield AdviceCase(model=large, place=hosts, kind=kind, lora=8, quantized=True)


def options_of(advice: Advice) -> Iterator[Option]:
    """Every option whose command is printed somewhere."""
    yield from advice.rows
    yield from advice.ranked
    yield from filter(None, (advice.more, advice.shorter, advice.plain))
    if advice.with_bf16 is not None:
        yield from options_of(advice.with_bf16)


def planned(option: Option, kind: str) -> Plan:
    """The plan of the printed command, of a script of this kind."""
    words = shlex.split(option.command)
    assert words[:2] == ["distui", "launch"]
    before, rest = split_rest(words[1:])
    typed = parsed(before)
    typed.rest = rest
    request = requested(typed)
    assert str(request.nnodes) == str(option.request.nnodes)
    assert replace(request, nnodes=option.request.nnodes) == option.request
    if request.hosts:
        request = replace(request, nnodes=len(request.hosts))
    if request.through_sky:
        skypilot.check(request)
    gpus, nodes = option.place.gpus.count, option.place.nodes
    place = Place(
        run="r-1", run_dir="/r", port=1, ras_port=2, gpus=gpus, cores=64, cwd="/", python="/python", nodes=nodes,
        script_source=SCRIPTS[kind],
    )  # fmt: skip
    return make_plan(load(request.preset, request.overrides, cwd=Path("/"), env={}), request, place)


def format_of(option: Option, plan: Plan, kind: str, case: AdviceCase, weights: str) -> Format:
    """The format of the model states that such a script has under the plan."""
    name = weights
    if kind == "megatron":
        name = "megatron"
    elif plan.strategy == "deepspeed" and plan.precision != "fp32":
        name = "mixed"
    elif (
        kind in ("accelerate", "trainer")
        and plan.strategy == "fsdp2"
        and plan.precision != "fp32"
        and not case.lora
    ):
        name = "fp32"
    form = FORMATS[name]
    if case.lora is None:
        return form
    return with_adapters(option.model, form, case.lora, quantized=case.quantized)[1]


@for_each("kind", [*script_kinds()])
def test_every_printed_command_is_a_plan_with_the_advised_memory(kind: str) -> None:
    seen: Counter[str] = Counter()
    done: set[tuple[object, ...]] = set()
    for case in (*[*cases(kind)][::SAMPLE], *special_cases(kind)):
        advice = advise(case)
        for option in options_of(advice):
            key = (option.command, option.model, option.form, option.estimate.limit, option.change.fused)
            if key in done:
                continue
            done.add(key)
            own = kind
            if option is advice.plain or (advice.with_bf16 and option is advice.with_bf16.plain):
                own = "ddp"
            elif "call distui's parallelize()" in option.edits:
                own = "parallelize"
            plan = planned(option, own)
            ranks = plan.nnodes * (plan.nproc_per_node or 0)
            assert ranks == option.place.nodes * option.place.gpus.count
            is_plain = (own == "ddp" and not option.request.adopt) or own == "megatron"
            is_foreign = own == "unknown" and plan.strategy == "deepspeed"
            assert (plan.obeys is None) == (is_plain or is_foreign), (option.command, plan.notes)
            assert is_foreign == ("use DeepSpeed, as by deepspeed.initialize()" in option.edits)
            fused = option.change.fused or script_kinds()[own].fused
            assert ("make its optimizer with fused=True" in option.edits) == option.change.fused
            weights = "bf16" if option.form == FORMATS["bf16"] or case.weights == "bf16" else "fp32"
            forms = {format_of(option, plan, own, case, one) for one in {weights, "bf16", "fp32"}}
            assert option.form in forms
            preset = load(option.request.preset, option.request.overrides, cwd=Path("/"), env={}).preset
            again = estimate_for(
                preset,
                option.model,
                option.form,
                ranks,
                case.limit,
                replace(GPU, foreach=not fused, fused=fused),
                plan.command[1:],
            )
            assert again.total == pytest.approx(option.estimate.total, rel=0.01), option.command
            assert again.host == pytest.approx(option.estimate.host, rel=0.01)
            seen[option.strategy.key] += 1
    assert set(seen) >= {strategy.key for strategy in strategies(kind)}


@for_each("kind", [kind for kind in SCRIPTS if kind != "unknown"])
def test_a_script_shows_its_kind(kind: str) -> None:
    assert kind_of_script(SCRIPTS[kind]) == kind
    assert kind_of_script("import torch\nclass Model(torch.nn.Module): ...\n") == "unknown"
    assert kind_of_script("def (") == "unknown"
    assert kind_of_script(None) == "unknown"
