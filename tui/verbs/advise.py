"""advise: the strategies that fit into GPU memory, before a GPU second costs money."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any, TypedDict

from ...presets.estimate.memory import Estimate
from ...presets.estimate.preset_guide import Remedy, needed, on_gpus, remedies, survey
from ...presets.estimate.workload import (
    FORMATS,
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
from ...runners.launch.estimate_inputs import count
from ...runners.run.errors import RunError
from ...runners.run.machine import default_python
from ..rows import advice as rows
from ..rows.advice import HEAD, PARTS, Advice
from ..rows.glyphs import table

BEYOND = "Activations are counted only where they exceed the gradients that replace them in backward."


@dataclass(frozen=True, slots=True)
class _Asked:
    """The request and its results."""

    advice: Advice
    counted: Counted | None
    script: str
    remedies: list[Remedy]
    """Set if no strategy fits with everything on the GPUs."""


def advise(options: argparse.Namespace) -> int:
    """Print the table; return 1 if no strategy fits. Raises RunError."""
    try:
        asked = _asked(options)
    except PlanError as error:
        raise RunError(str(error)) from None
    sys.stdout.write(json.dumps(_document(asked)) + "\n" if options.json else _text(asked))
    return 0 if asked.advice.first is not None else 1


def _asked(options: argparse.Namespace) -> _Asked:
    """Evaluate the options. Raises PlanError and RunError."""
    gpus = parse_gpus(options.gpus, options.gpu_memory)
    for name in ("nodes", "layers", "hidden", "vocab", "seq", "micro_batch"):
        if getattr(options, name) == 0:
            raise PlanError(f"--{name.replace('_', '-')} 0: a number from 1 on")
    usual, counted, script = _model(options)
    model = replace(usual, seq=options.seq, micro_batch=options.micro_batch, recompute=options.recompute)
    form, limit = FORMATS[options.format], gpus.memory_gb * GB
    host = None if options.host_memory is None else options.host_memory * GB
    estimates = survey(model, form, gpus.count, options.nodes, limit, host)
    advice = Advice(model, form, gpus, options.nodes, estimates)
    tried = [] if on_gpus(estimates) else remedies(model, form, gpus.count, options.nodes, limit)
    return _Asked(advice, counted, script, tried)


def _model(options: argparse.Namespace) -> tuple[Shape, Counted | None, str]:
    """Return the model's sizes, measured if there is a script, and the script. Raises PlanError and RunError."""
    if options.script is None:
        if options.model_args or options.python:
            raise PlanError("--model-args and --python need --script: name the file that defines the model")
        parameters, vocab = parse_parameters(options.params), options.vocab or VOCABULARY
        return shape(parameters, options.layers, options.hidden, vocab), None, "train.py"
    path, name = parse_script(options.script)
    counted = count(options.python or default_python(), path, name, parse_model_args(options.model_args))
    return shape_of(counted, options.layers, options.hidden, options.vocab), counted, path


def _text(asked: _Asked) -> str:
    advice = asked.advice
    beyond = any(estimate.kept > estimate.activations for estimate in advice.estimates)
    lines = [
        *_question(asked),
        rows.terms(advice),
        "",
        "GB on each GPU, estimated:",
        *table([HEAD, *(_row(advice, estimate) for estimate in advice.estimates)], frozenset(range(1, 8))),
        *([BEYOND] if beyond else []),
        "",
        *_conclusion(asked),
    ]
    return "\n".join(lines) + "\n"


def _question(asked: _Asked) -> list[str]:
    """Return the model and the GPUs; a measured model has its own description."""
    whole = rows.question(asked.advice)
    return [whole] if asked.counted is None else [asked.counted.text, whole.partition(", about ")[2]]


def _row(advice: Advice, estimate: Estimate) -> tuple[str, ...]:
    """Return a strategy's numbers, and its needs outside the GPUs."""
    *cells, state = rows.table_row(estimate)
    needs = rows.elsewhere(advice, estimate)
    if needs and estimate.fits:
        state = f"fits with {needs}"
    elif needs and replace(estimate, host_limit=None).fits:
        state = f"needs {needs}"
    return (*cells, state)


def _conclusion(asked: _Asked) -> list[str]:
    """Return the simplest strategy that fits, the reason, and the next command."""
    advice, first = asked.advice, asked.advice.first
    lines = [rows.verdict(advice)]
    if first is None:
        helps = "What would help:" if asked.remedies else "Take a smaller model, or GPUs with more memory."
    else:
        lines += [_launch(asked, first), "    (--dry-run in front of the -- shows the whole plan first)"]
        lines += first.notes
        helps = "To have everything on the GPUs:" if asked.remedies else ""
    if helps:
        lines += ["", helps]
    return [*lines, *(f"  * {remedy.text}" for remedy in asked.remedies)]


def _launch(asked: _Asked, estimate: Estimate) -> str:
    nodes = asked.advice.nodes
    command = f"    distui launch {estimate.strategy.words} --nproc-per-node {asked.advice.gpus.count}"
    if nodes > 1:
        command += f" --nnodes {nodes}"
    return f"{command} -- {asked.script}"


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


def _document(asked: _Asked) -> AdviceDocument:
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
        "next": None if first is None else _launch(asked, first).strip(),
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
        "kept_bytes": estimate.kept,
        "host_bytes_per_node": estimate.host * advice.gpus.count,
        "disk_bytes_per_node": estimate.disk * advice.gpus.count,
        "notes": list(estimate.notes),
    }
