"""The strategies that fit into the memory of GPUs: the content of `distui advise --json`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypedDict

from msgspec import Struct, to_builtins

from ...presets.estimate.advice import Advice, advise, weights_matter
from ...presets.estimate.advice_case import AdviceCase
from ...presets.estimate.advice_words import title_of, verdict
from ...presets.estimate.guide_questions import CHOSEN
from ...presets.estimate.launch_command import LaunchPlace
from ...presets.estimate.model_kinds import mixture
from ...presets.estimate.option import Option
from ...presets.estimate.strategies import script_kinds
from ...presets.estimate.workload import (
    GB,
    VOCABULARY,
    Counted,
    Shape,
    parse_gpus,
    parse_model_args,
    parse_parameters,
    parse_script,
    shape,
    shape_of,
)
from ...presets.finding import PlanError
from ..run.errors import RunError
from ..run.machine import default_python
from . import measured_peaks
from .estimate_inputs import count, kind_of_file
from .measured_peaks import MeasuredPeak

PARTS = ("weights", "gradients", "optimizer", "states", "activations", "buffers", "total")
WEIGHTS = ("fp32", "bf16")
PRECISIONS = ("bf16", "fp16", "fp32")


class MemoryQuestion(Struct, frozen=True, kw_only=True):
    """A model, the GPUs, and how it is trained."""

    gpus: str
    """GPUs of one node, as in "8xA100-80GB"."""
    params: str | None = None
    """The model's parameters, as in "7B". Exactly one of `params` and `script` is given."""
    script: str | None = None
    """File, and class or function, that defines the model: "model.py:GPT". It is executed."""
    model_args: str = ""
    """Arguments of the class or function, as in "layers=12,hidden=768"."""
    python: str | None = None
    """Interpreter that executes the script."""
    kind: str | None = None
    """What parallelizes the model in the script: "parallelize", "ddp", … None: as `script` shows, else unknown."""
    nodes: int = 1
    gpu_memory: float | None = None
    """GB of each GPU, for models that are not in the list."""
    host_memory: float | None = None
    """GB of each node. None: not checked."""
    layers: int | None = None
    hidden: int | None = None
    vocab: int | None = None
    seq: int = 2048
    micro_batch: int = 1
    recompute: bool = False
    """Activation checkpointing of every layer."""
    format: str | None = None
    """Format of the script's weights, "fp32" or "bf16". None: both are estimated."""
    precision: str | None = None
    """Format of the computation: "bf16", "fp16" or "fp32". None: bf16 if the GPU has it."""
    lora: int | None = None
    """Rank of LoRA adapters on a frozen model."""
    qlora: int | None = None
    """Rank of LoRA adapters on a frozen model in 4 bits."""
    experts: int | None = None
    """Experts of each mixture-of-experts layer."""
    top_k: int | None = None
    """Experts that a token takes. None: CHOSEN."""
    active: str | None = None
    """Parameters that a token uses, as in "13B"."""
    on: str | None = None
    """SkyPilot's place for the command."""
    hosts: str | None = None
    """The nodes for the command, as in "gpu1,gpu2"."""


@dataclass(frozen=True, slots=True)
class Advised:
    """The answer to a question."""

    advice: Advice
    counted: Counted | None
    measured: Mapping[str, MeasuredPeak] = field(default_factory=dict)
    """Peaks of earlier runs by the command that they are nearest to, each run once."""


def advised(question: MemoryQuestion) -> Advised:
    """Estimate every strategy. Raises RunError."""
    try:
        return _advised(question)
    except PlanError as error:
        raise RunError(str(error)) from None


def _advised(asked: MemoryQuestion) -> Advised:
    """Estimate every strategy. Raises PlanError and RunError."""
    _check(asked)
    hosts = _hosts(asked)
    place = LaunchPlace(
        gpus=parse_gpus(asked.gpus, asked.gpu_memory),
        nodes=len(hosts) or asked.nodes,
        on=asked.on or "",
        hosts=hosts,
    )
    usual, counted, script = _model(asked)
    case = AdviceCase(
        model=replace(usual, seq=asked.seq, micro_batch=asked.micro_batch, recompute=asked.recompute),
        place=place,
        kind=asked.kind or (kind_of_file(script) if counted else "unknown"),
        weights=asked.format,
        precision=asked.precision,
        lora=asked.qlora if asked.lora is None else asked.lora,
        quantized=asked.qlora is not None,
        host_limit=None if asked.host_memory is None else asked.host_memory * GB,
        script=script,
    )
    if (case.weights, case.half) == ("bf16", "fp16") and weights_matter(case):
        raise PlanError(
            "--format bf16 with --precision fp16: torch's GradScaler refuses gradients in bf16; leave out one"
        )
    advice = advise(case)
    return Advised(advice, counted, _measured(advice, counted is not None))


def _measured(advice: Advice, has_script: bool) -> dict[str, MeasuredPeak]:
    """Return the measured peaks of earlier runs by command; one with the same options is before all others."""
    other = advice.with_bf16.rows if advice.with_bf16 else []
    options = {option.command: option for option in (*advice.rows, *advice.ranked, *other)}
    parameters = advice.case.model.parameters
    launches = []
    for option in options.values():
        launch = measured_peaks.wanted(option.request, os.getcwd(), _ranks(option))
        script = launch.script if has_script else None
        launches.append(launch._replace(script=script, args=None, parameters=parameters))
    found = zip(options, measured_peaks.measured(launches), strict=True)
    peaks = [(command, peak) for command, peak in found if peak is not None]
    by_run: dict[str, tuple[str, MeasuredPeak]] = {}
    for command, peak in sorted(peaks, key=lambda each: bool(each[1].differs)):
        by_run.setdefault(peak.run, (command, peak))
    return dict(by_run.values())


def _ranks(option: Option) -> int:
    return option.place.nodes * option.place.gpus.count


def _hosts(asked: MemoryQuestion) -> tuple[str, ...]:
    return tuple(filter(None, (asked.hosts or "").split(",")))


def _check(asked: MemoryQuestion) -> None:
    """Raise PlanError for a value that no estimate can use."""
    for name in (
        "nodes",
        "layers",
        "hidden",
        "vocab",
        "seq",
        "micro_batch",
        "lora",
        "qlora",
        "experts",
        "top_k",
    ):
        if getattr(asked, name) == 0:
            raise PlanError(f"--{name.replace('_', '-')} 0: a number from 1 on")
    choices = {"format": WEIGHTS, "precision": PRECISIONS, "kind": tuple(script_kinds())}
    for name, allowed in choices.items():
        value = getattr(asked, name)
        if value is not None and value not in allowed:
            raise PlanError(f"--{name} {value}: choose one of {', '.join(allowed)}")
    pairs = (("lora", "qlora"), ("on", "hosts"))
    for one, other in pairs:
        if getattr(asked, one) is not None and getattr(asked, other) is not None:
            raise PlanError(f"--{one} and --{other} exclude each other: leave out one of them")
    named = len(_hosts(asked))
    if named and asked.nodes not in (1, named):
        raise PlanError(f"--nodes {asked.nodes} with {named} hosts: leave out --nodes")
    for name in ("active", "top_k"):
        if getattr(asked, name) is not None and asked.experts is None:
            option = name.replace("_", "-")
            raise PlanError(f"--{option} needs --experts: the number of experts in each layer")


def _model(asked: MemoryQuestion) -> tuple[Shape, Counted | None, str]:
    """Return the model's sizes, measured if there is a script, and the script. Raises PlanError and RunError."""
    if (asked.script is None) == (asked.params is None):
        raise PlanError(
            "give one of --params and --script: the model's parameters, or the file that defines it"
        )
    if asked.script is None:
        if asked.model_args or asked.python:
            raise PlanError("--model-args and --python need --script: name the file that defines the model")
        return _usual(asked, parse_parameters(asked.params or "")), None, "train.py"
    path, name = parse_script(asked.script)
    counted = count(asked.python or default_python(), path, name, parse_model_args(asked.model_args))
    model = shape_of(counted, asked.layers, asked.hidden, asked.vocab)
    if asked.experts is None:
        return model, counted, path
    mixed = _usual(asked, counted.parameters)
    return replace(model, experts=mixed.experts, expert_count=mixed.expert_count), counted, path


def _usual(asked: MemoryQuestion, parameters: int) -> Shape:
    """Return a usual model with this many parameters. Raises PlanError."""
    vocab = asked.vocab or VOCABULARY
    if asked.experts is None:
        return shape(parameters, asked.layers, asked.hidden, vocab)
    active = None if asked.active is None else parse_parameters(asked.active)
    chosen = asked.top_k or CHOSEN
    return mixture(parameters, asked.experts, chosen, active, asked.layers, asked.hidden, vocab)


class FittedStrategy(TypedDict):
    """One strategy, with the changes that it needs; bytes are per GPU."""

    key: str
    title: str
    why: str
    needs: str
    edits: list[str]
    command: str
    ranks: int
    recompute: bool
    passes: int
    fused: bool
    fits: bool
    format: str
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    states_bytes: float
    activations_bytes: float
    buffers_bytes: float
    total_bytes: float
    kept_bytes: float
    host_bytes_per_node: float
    disk_bytes_per_node: float
    bf16_weights_total_bytes: float | None
    measured: MeasuredPeak | None
    notes: list[str]


class AdviceDocument(TypedDict):
    """`advise`."""

    parameters: int
    layers: int
    hidden: int
    vocab: int
    experts: int
    seq: int
    micro_batch: int
    recompute: bool
    counted: dict[str, Any] | None
    kind: str
    ranks: int
    nodes: int
    gpu_memory_bytes: float
    strategies: list[FittedStrategy]
    ranked: list[FittedStrategy]
    first: str | None
    next: str | None
    first_with_bf16_weights: FittedStrategy | None
    more_gpus: FittedStrategy | None
    shorter_sequences: FittedStrategy | None
    verdict: list[str]


def document(asked: Advised) -> AdviceDocument:
    """Return the answer as JSON values."""
    advice, first = asked.advice, asked.advice.first
    case, other = advice.case, advice.with_bf16
    model = case.model
    return {
        "parameters": model.parameters,
        "layers": model.layers,
        "hidden": model.hidden,
        "vocab": model.vocab,
        "experts": model.expert_count,
        "seq": model.seq,
        "micro_batch": model.micro_batch,
        "recompute": model.recompute,
        "counted": None if asked.counted is None else asdict(asked.counted),
        "kind": case.kind,
        "ranks": case.ranks,
        "nodes": case.place.nodes,
        "gpu_memory_bytes": case.limit,
        "strategies": [_strategy(option, asked, advice) for option in advice.rows],
        "ranked": [_strategy(option, asked) for option in advice.ranked],
        "first": None if first is None else first.strategy.key,
        "next": None if first is None else first.command,
        "first_with_bf16_weights": _optional(other.first if other else None, asked),
        "more_gpus": _optional(advice.more, asked),
        "shorter_sequences": _optional(advice.shorter, asked),
        "verdict": verdict(advice),
    }


def _optional(option: Option | None, asked: Advised) -> FittedStrategy | None:
    return None if option is None else _strategy(option, asked)


def _strategy(option: Option, asked: Advised, advice: Advice | None = None) -> Any:
    """Return one option. `advice` has its estimate for weights in bf16."""
    estimate, place = option.estimate, option.place
    peak = asked.measured.get(option.command)
    twin = None if advice is None else advice.also(option)
    return {
        "key": option.strategy.key,
        "title": title_of(option),
        "why": option.strategy.why,
        "needs": option.needs,
        "edits": list(option.edits),
        "command": option.command,
        "ranks": _ranks(option),
        "recompute": option.change.recompute,
        "passes": option.change.passes,
        "fused": option.change.fused,
        "fits": option.fits,
        "format": option.form.name,
        **{f"{part}_bytes": getattr(estimate, part) for part in PARTS},
        "kept_bytes": estimate.all_activations,
        "host_bytes_per_node": estimate.host * place.gpus.count,
        "disk_bytes_per_node": estimate.disk * place.gpus.count,
        "bf16_weights_total_bytes": None if twin is None else twin.estimate.total,
        "measured": None if peak is None else to_builtins(peak),
        "notes": list(estimate.notes),
    }
