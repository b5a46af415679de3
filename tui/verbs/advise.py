"""advise: which strategy fits, before a GPU second is paid for."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from typing import Any

from ...presets.errors import PlanError
from ...presets.hardware import GB, Gpus, parse_gpus
from ...presets.memory import (
    FORMATS,
    USABLE,
    Estimate,
    Format,
    Shape,
    compare,
    needed,
    parse_parameters,
    shape,
)
from ...runners.errors import RunError
from ..text import table

HEAD = ("", "weights", "gradients", "optimizer", "states", "activations", "buffers", "total", "")
PARTS = ("weights", "gradients", "optimizer", "states", "activations", "buffers", "total")


@dataclass(frozen=True, slots=True)
class Advice:
    """What was asked, and what would fit."""

    model: Shape
    form: Format
    gpus: Gpus
    nodes: int
    estimates: list[Estimate]

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus.count

    @property
    def first(self) -> Estimate | None:
        """The simplest that fits."""
        return next((one for one in self.estimates if one.fits), None)


def advise(options: argparse.Namespace) -> int:
    """Print the table; 1 where nothing fits. Raises RunError."""
    try:
        advice = _advice(options)
    except PlanError as error:
        raise RunError(str(error)) from None
    sys.stdout.write(json.dumps(_document(advice)) + "\n" if options.json else _text(advice))
    return 0 if advice.first is not None else 1


def _advice(options: argparse.Namespace) -> Advice:
    """Raises PlanError."""
    gpus = parse_gpus(options.gpus, options.gpu_memory)
    for name in ("nodes", "layers", "hidden", "vocab", "seq", "micro_batch"):
        if getattr(options, name) == 0:
            raise PlanError(f"--{name.replace('_', '-')} 0: a number from 1 on.")
    usual = shape(parse_parameters(options.params), options.layers, options.hidden, options.vocab)
    model = replace(usual, seq=options.seq, micro_batch=options.micro_batch, recompute=options.recompute)
    form = FORMATS[options.format]
    found = compare(model, form, options.nodes * gpus.count, gpus.memory_gb * GB)
    return Advice(model, form, gpus, options.nodes, found)


def _text(advice: Advice) -> str:
    model, gpus = advice.model, advice.gpus
    where = (
        f"{advice.nodes} × " * (advice.nodes > 1) + f"{gpus.count} × {gpus.name} ({gpus.memory_gb:g} GB)"
    )
    lines = [
        f"{model.parameters / GB:g} B parameters, about {model.layers} layers of {model.hidden}, on {where}",
        f"{advice.form.text}; {model.micro_batch} × {model.seq} positions a GPU"
        + ("; layers are recomputed" if model.recompute else ""),
        "",
        "GB on each GPU, estimated:",
        *table([HEAD, *(_row(one) for one in advice.estimates)], frozenset(range(1, 8))),
        "",
        *_conclusion(advice),
    ]
    return "\n".join(lines) + "\n"


def _row(one: Estimate) -> tuple[str, ...]:
    numbers = (f"{getattr(one, part) / GB:.2f}" for part in PARTS)
    return (one.strategy.title, *numbers, "fits" if one.fits else "too much")


def _conclusion(advice: Advice) -> list[str]:
    first = advice.first
    if first is not None:
        strategy = first.strategy
        return [
            f"{strategy.title} is the simplest that fits: {strategy.why}.",
            f"    distui launch {strategy.words} --nproc-per-node {advice.gpus.count}"
            + f" --nnodes {advice.nodes}" * (advice.nodes > 1)
            + " -- train.py",
        ]
    ranks = needed(advice.model, advice.form, advice.gpus.memory_gb * GB)
    usable = f"{USABLE:.0%} of {advice.gpus.memory_gb:g} GB are usable"
    if ranks is not None:
        return [f"Nothing fits ({usable}): ZeRO-3 needs {ranks} such GPUs."]
    least = "a smaller --micro-batch" if advice.model.micro_batch > 1 else "a shorter --seq"
    less = least if advice.model.recompute else f"--recompute, {least}"
    return [f"Nothing fits ({usable}), on however many GPUs: activations alone are too much. Try {less}."]


def _document(advice: Advice) -> dict[str, Any]:
    first = advice.first
    return {
        "parameters": advice.model.parameters,
        "layers": advice.model.layers,
        "hidden": advice.model.hidden,
        "ranks": advice.ranks,
        "gpu_memory_bytes": advice.gpus.memory_gb * GB,
        "format": advice.form.name,
        "strategies": [
            {
                "key": one.strategy.key,
                "launch": one.strategy.words,
                "fits": one.fits,
                **{f"{part}_bytes": getattr(one, part) for part in PARTS},
            }
            for one in advice.estimates
        ],
        "first": None if first is None else first.strategy.key,
    }
