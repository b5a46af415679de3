"""advise: the strategies that fit into GPU memory, before a GPU second costs money."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace

from ...presets.estimate import advice_words as words
from ...presets.estimate.advice import Advice
from ...presets.estimate.option import Option
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
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    sys.stdout.write(json.dumps(document(found)) + "\n" if options.json else _text(found, width))
    return 0 if found.advice.first is not None else 1


def _text(asked: Advised, width: int | None) -> str:
    """Return the answer; its table is at most `width` wide if that is given."""
    advice = asked.advice
    estimates = [option.estimate for option in advice.rows]
    reuses = any(estimate.all_activations > estimate.activations for estimate in estimates)
    weights = ", if the script's weights are fp32" if advice.with_bf16 is not None else ""
    strategies = _table(advice, width)
    beside = "; total in bf16 beside it" if "in bf16" in strategies[0] else ""
    lines = [
        *_question(asked),
        words.formats(advice),
        "",
        f"GB on each GPU, estimated{weights}{beside}:",
        *strategies,
        *filter(None, [rows.edit_note(advice)]),
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


def _table(advice: Advice, width: int | None) -> list[str]:
    """Return the strategies; a table that is too wide has its long remarks below."""
    cells = [rows.head(advice), *(_row(advice, option) for option in advice.rows)]
    lines = _aligned(cells)
    if width is None or max(map(len, lines)) <= width:
        return lines
    short = [rows.head(advice), *(rows.table_row(advice, option) for option in advice.rows)]
    remarks = [
        f"{long[0]}: {long[-1]}."
        for brief, long in zip(short[1:], cells[1:], strict=True)
        if brief[-1] != long[-1]
    ]
    letters = ", ".join(f"{letter} {part}" for part, letter, _ in rows.BAR)
    for omitted in (("states",), ("states", "in bf16")):
        lines = _aligned(rows.compact(short, omitted))
        if max(map(len, lines)) <= width:
            break
    return [*lines, f"{letters}.", *remarks]


def _aligned(cells: list[tuple[str, ...]]) -> list[str]:
    """Return the rows as text, with their numbers right-aligned."""
    return table(cells, frozenset(range(1, len(cells[0]) - 1)))


def _row(advice: Advice, option: Option) -> tuple[str, ...]:
    """Return a strategy's numbers, and its remedies or its needs outside the GPUs."""
    *cells, state = rows.table_row(advice, option)
    state = _remedied(advice, option) or state
    needs = words.beside(option.estimate, option.place)
    if needs and option.fits:
        state = f"fits with {needs}"
    elif needs and replace(option.estimate, host_limit=None).fits:
        state = f"needs {needs}"
    return (*cells, state)


def _remedied(advice: Advice, option: Option) -> str:
    """Return the remedies with which a strategy fits, maybe only with weights in bf16; "" if none are needed or help."""
    twin, other = advice.also(option), advice.with_bf16
    answers = [("", advice.remedied(option))]
    if other is not None and twin is not None and not (option.fits or twin.fits):
        answers.append(("bf16 ", other.remedied(twin)))
    for lead, found in answers:
        if found is not None:
            needed = words.beside(found.estimate, found.place)
            with_these = " and ".join(filter(None, (words.remedies_of(found), needed)))
            return f"{lead}fits in {words.amount(found.estimate.total, 1)} with {with_these}"
    return ""


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
    for line in (words.weights_line, words.more_line, words.shorter_line, words.plain_line):
        text, command = line(advice)
        if text:
            yield ""
            yield text
        if command:
            yield f"    {command}"
