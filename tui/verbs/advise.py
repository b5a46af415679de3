"""advise: the strategies that fit into GPU memory, before a GPU second costs money."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace

from ...presets.estimate import advice_words as words
from ...presets.estimate.advice import Advice
from ...presets.estimate.option import Option
from ...presets.estimate.workload import GB
from ...runners.launch.advice import Advised, MemoryQuestion, advised, document
from ..rows import advice as rows
from ..rows.glyphs import table

ACTIVATIONS_NOTE = (
    "The activations column shows only what exceeds the gradients, which take the same memory in backward."
)
DRY_RUN = "    (--dry-run in front of the -- shows the whole plan first)"


def advise(options: argparse.Namespace) -> int:
    """Print the table; return 1 if no strategy fits. Raises RunError."""
    values = vars(options)
    found = advised(MemoryQuestion(**{name: values[name] for name in MemoryQuestion.__struct_fields__}))
    sys.stdout.write(json.dumps(document(found)) + "\n" if options.json else _text(found))
    return 0 if found.advice.first is not None else 1


def _text(asked: Advised) -> str:
    advice = asked.advice
    estimates = [option.estimate for option in advice.rows]
    reuses = any(estimate.all_activations > estimate.activations for estimate in estimates)
    both = advice.with_bf16 is not None
    weights = ", if the script's weights are fp32; total in bf16 beside it" if both else ""
    lines = [
        *_question(asked),
        words.formats(advice),
        "",
        f"GB on each GPU, estimated{weights}:",
        *table(
            [rows.head(advice), *(_row(advice, option) for option in advice.rows)], frozenset(range(1, 9))
        ),
        *([ACTIVATIONS_NOTE] if reuses else []),
        *_measured(asked),
        "",
        *_conclusion(advice),
    ]
    return "\n".join(lines) + "\n"


def _question(asked: Advised) -> list[str]:
    """Return the model and the GPUs; a measured model has its own description."""
    if asked.counted is None:
        return [rows.question(asked.advice)]
    return [asked.counted.text, rows.layers_and_gpus(asked.advice)]


def _row(advice: Advice, option: Option) -> tuple[str, ...]:
    """Return a strategy's numbers, and its needs outside the GPUs."""
    *cells, state = rows.table_row(advice, option)
    remedied = advice.remedied(option)
    if remedied is not None:
        state = f"fits in {remedied.estimate.total / GB:.1f} with {words.remedies_of(remedied)}"
    needs = words.beside(option.estimate, option.place)
    if needs and option.fits:
        state = f"fits with {needs}"
    elif needs and replace(option.estimate, host_limit=None).fits:
        state = f"needs {needs}"
    return (*cells, state)


def _measured(asked: Advised) -> Iterator[str]:
    """Yield a line per earlier run that measured one of the options."""
    options = (*asked.advice.rows, *asked.advice.ranked)
    shown = {option.command: option for option in options if option.command in asked.measured}
    if shown:
        yield ""
    for command, option in shown.items():
        yield f"{words.title_of(option)}: {asked.measured[command].text(option.estimate.total)}."


def _conclusion(advice: Advice) -> Iterator[str]:
    """Yield the simplest strategy that fits with its command, then the alternatives with theirs."""
    yield from words.verdict(advice)
    if advice.first is not None:
        yield f"    {advice.first.command}"
        yield DRY_RUN
    lines = [make(advice) for make in (words.weights_line, words.more_line, words.shorter_line)]
    for text, command in (*lines, words.plain_line(advice)):
        if text:
            yield ""
            yield text
        if command:
            yield f"    {command}"
    if advice.first is None and not any(text for text, _ in lines):
        yield "Take a smaller model, or GPUs with more memory."
