"""The strategies that fit into the memory of GPUs: the content of `distui advise --json`."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from typing import Any, TypedDict

from msgspec import Struct

from ...presets.estimate.memory import Estimate
from ...presets.estimate.remedies import Remedy, on_gpus, remedies
from ...presets.estimate.survey import needed, survey
from ...presets.estimate.workload import (
    FORMATS,
    GB,
    VOCABULARY,
    Counted,
    Format,
    NodeGpus,
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
from .estimate_inputs import count

PARTS = ("weights", "gradients", "optimizer", "states", "activations", "buffers", "total")


@dataclass(frozen=True, slots=True)
class Advice:
    """The question, and the estimate of every strategy."""

    model: Shape
    form: Format
    gpus: NodeGpus
    nodes: int
    estimates: list[Estimate]

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus.count

    @property
    def first(self) -> Estimate | None:
        """Return the simplest strategy that fits."""
        return next((estimate for estimate in self.estimates if estimate.fits), None)


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
    format: str = "bf16"
    """Bytes per parameter: "bf16", "mixed" or "fp32"."""


@dataclass(frozen=True, slots=True)
class Advised:
    """The answer to a question."""

    advice: Advice
    counted: Counted | None
    script: str
    remedies: list[Remedy]
    """Set if no strategy fits with everything on the GPUs."""

    def launch(self, estimate: Estimate) -> str:
        """Return the command that launches a strategy."""
        nodes = self.advice.nodes
        command = f"distui launch {estimate.strategy.words} --nproc-per-node {self.advice.gpus.count}"
        if nodes > 1:
            command += f" --nnodes {nodes}"
        return f"{command} -- {shlex.quote(self.script)}"


def advised(question: MemoryQuestion) -> Advised:
    """Estimate every strategy. Raises RunError."""
    try:
        return _advised(question)
    except PlanError as error:
        raise RunError(str(error)) from None


def _advised(asked: MemoryQuestion) -> Advised:
    """Estimate every strategy. Raises PlanError and RunError."""
    gpus = parse_gpus(asked.gpus, asked.gpu_memory)
    for name in ("nodes", "layers", "hidden", "vocab", "seq", "micro_batch"):
        if getattr(asked, name) == 0:
            raise PlanError(f"--{name.replace('_', '-')} 0: a number from 1 on")
    if asked.format not in FORMATS:
        raise PlanError(f"--format {asked.format}: choose one of {', '.join(FORMATS)}")
    usual, counted, script = _model(asked)
    model = replace(usual, seq=asked.seq, micro_batch=asked.micro_batch, recompute=asked.recompute)
    form, limit = FORMATS[asked.format], gpus.memory_gb * GB
    host = None if asked.host_memory is None else asked.host_memory * GB
    estimates = survey(model, form, gpus.count, asked.nodes, limit, host)
    advice = Advice(model, form, gpus, asked.nodes, estimates)
    tried = [] if on_gpus(estimates) else remedies(model, form, gpus.count, asked.nodes, limit)
    return Advised(advice, counted, script, tried)


def _model(asked: MemoryQuestion) -> tuple[Shape, Counted | None, str]:
    """Return the model's sizes, measured if there is a script, and the script. Raises PlanError and RunError."""
    if (asked.script is None) == (asked.params is None):
        raise PlanError(
            "give one of --params and --script: the model's parameters, or the file that defines it"
        )
    if asked.script is None:
        if asked.model_args or asked.python:
            raise PlanError("--model-args and --python need --script: name the file that defines the model")
        parameters, vocab = parse_parameters(asked.params or ""), asked.vocab or VOCABULARY
        return shape(parameters, asked.layers, asked.hidden, vocab), None, "train.py"
    path, name = parse_script(asked.script)
    counted = count(asked.python or default_python(), path, name, parse_model_args(asked.model_args))
    return shape_of(counted, asked.layers, asked.hidden, asked.vocab), counted, path


class FittedStrategy(TypedDict):
    """One strategy; bytes are per GPU."""

    key: str
    title: str
    why: str
    launch: str
    fits: bool
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
    notes: list[str]


class AdviceDocument(TypedDict):
    """`advise`."""

    parameters: int
    layers: int
    hidden: int
    vocab: int
    seq: int
    micro_batch: int
    recompute: bool
    counted: dict[str, Any] | None
    ranks: int
    nodes: int
    gpu_memory_bytes: float
    format: str
    strategies: list[FittedStrategy]
    first: str | None
    next: str | None
    remedies: list[str]
    zero3_ranks: int | None


def document(asked: Advised) -> AdviceDocument:
    """Return the answer as JSON values."""
    advice, first = asked.advice, asked.advice.first
    model, limit = advice.model, advice.gpus.memory_gb * GB
    return {
        "parameters": model.parameters,
        "layers": model.layers,
        "hidden": model.hidden,
        "vocab": model.vocab,
        "seq": model.seq,
        "micro_batch": model.micro_batch,
        "recompute": model.recompute,
        "counted": None if asked.counted is None else asdict(asked.counted),
        "ranks": advice.ranks,
        "nodes": advice.nodes,
        "gpu_memory_bytes": limit,
        "format": advice.form.name,
        "strategies": [_strategy(advice, estimate) for estimate in advice.estimates],
        "first": None if first is None else first.strategy.key,
        "next": None if first is None else asked.launch(first),
        "remedies": [remedy.text for remedy in asked.remedies],
        "zero3_ranks": needed(model, advice.form, limit),
    }


def _strategy(advice: Advice, estimate: Estimate) -> Any:
    return {
        "key": estimate.strategy.key,
        "title": estimate.strategy.title,
        "why": estimate.strategy.why,
        "launch": estimate.strategy.words,
        "fits": estimate.fits,
        **{f"{part}_bytes": getattr(estimate, part) for part in PARTS},
        "kept_bytes": estimate.all_activations,
        "host_bytes_per_node": estimate.host * advice.gpus.count,
        "disk_bytes_per_node": estimate.disk * advice.gpus.count,
        "notes": list(estimate.notes),
    }
