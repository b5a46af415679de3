"""advise: the strategies that fit into GPU memory, before a GPU second costs money."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace

from ...presets.estimate.memory import Estimate
from ...runners.launch.advice import Advice, Advised, MemoryQuestion, advised, document
from ..rows import advice as rows
from ..rows.advice import HEAD
from ..rows.glyphs import table

ACTIVATIONS_NOTE = (
    "The activations column shows only what exceeds the gradients, which take the same memory in backward."
)


def advise(options: argparse.Namespace) -> int:
    """Print the table; return 1 if no strategy fits. Raises RunError."""
    words = vars(options)
    found = advised(MemoryQuestion(**{name: words[name] for name in MemoryQuestion.__struct_fields__}))
    sys.stdout.write(json.dumps(document(found)) + "\n" if options.json else _text(found))
    return 0 if found.advice.first is not None else 1


def _text(asked: Advised) -> str:
    advice = asked.advice
    reuses = any(estimate.all_activations > estimate.activations for estimate in advice.estimates)
    lines = [
        *_question(asked),
        rows.terms(advice),
        "",
        "GB on each GPU, estimated:",
        *table([HEAD, *(_row(advice, estimate) for estimate in advice.estimates)], frozenset(range(1, 8))),
        *([ACTIVATIONS_NOTE] if reuses else []),
        "",
        *_conclusion(asked),
    ]
    return "\n".join(lines) + "\n"


def _question(asked: Advised) -> list[str]:
    """Return the model and the GPUs; a measured model has its own description."""
    if asked.counted is None:
        return [rows.question(asked.advice)]
    return [asked.counted.text, rows.layers_and_gpus(asked.advice)]


def _row(advice: Advice, estimate: Estimate) -> tuple[str, ...]:
    """Return a strategy's numbers, and its needs outside the GPUs."""
    *cells, state = rows.table_row(estimate)
    needs = rows.elsewhere(advice, estimate)
    if needs and estimate.fits:
        state = f"fits with {needs}"
    elif needs and replace(estimate, host_limit=None).fits:
        state = f"needs {needs}"
    return (*cells, state)


def _conclusion(asked: Advised) -> list[str]:
    """Return the simplest strategy that fits, the reason, and the next command."""
    advice, first = asked.advice, asked.advice.first
    lines = [rows.verdict(advice)]
    if first is None:
        helps = "What would help:" if asked.remedies else "Take a smaller model, or GPUs with more memory."
    else:
        lines += [
            f"    {asked.launch(first)}",
            "    (--dry-run in front of the -- shows the whole plan first)",
        ]
        lines += first.notes
        helps = "To have everything on the GPUs:" if asked.remedies else ""
    if helps:
        lines += ["", helps]
    return [*lines, *(f"  * {remedy.text}" for remedy in asked.remedies)]
