"""advise: which strategy fits, before a GPU second is paid for."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

from ...presets.errors import PlanError
from ...presets.hardware import GB, parse_gpus
from ...presets.memory import FORMATS, needed, parse_parameters, shape
from ...runners.errors import RunError
from ..rows import advice as rows
from ..rows.advice import HEAD, PARTS, Advice
from ..text import table


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
    return rows.advise(model, form, gpus, options.nodes)


def _text(advice: Advice) -> str:
    lines = [
        rows.question(advice),
        rows.terms(advice),
        "",
        "GB on each GPU, estimated:",
        *table([HEAD, *(rows.table_row(one) for one in advice.estimates)], frozenset(range(1, 8))),
        "",
        *_conclusion(advice),
    ]
    return "\n".join(lines) + "\n"


def _conclusion(advice: Advice) -> list[str]:
    said = rows.verdict(advice)
    if advice.first is not None:
        return [
            said,
            f"    distui launch {advice.first.strategy.words} --nproc-per-node {advice.gpus.count}"
            + f" --nnodes {advice.nodes}" * (advice.nodes > 1)
            + " -- train.py",
        ]
    if needed(advice.model, advice.form, advice.gpus.memory_gb * GB) is not None:
        return [said]
    least = "a smaller --micro-batch" if advice.model.micro_batch > 1 else "a shorter --seq"
    less = least if advice.model.recompute else f"--recompute, {least}"
    return [f"{said} Try {less}."]


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
