"""The memory estimate as rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...presets.estimate.memory import Estimate, estimate_for
from ...presets.estimate.survey import needed
from ...presets.estimate.workload import GB, USABLE
from ...presets.finding import PlanError
from ...presets.model import Preset
from ...runners.launch.advice import PARTS, Advice
from . import glyphs
from .glyphs import Cell, Row, fit, row_width, wrap

HEAD = ("", "weights", "gradients", "optimizer", "states", "activations", "buffers", "total", "")

BAR = (
    ("weights", "W", "heat2"),
    ("gradients", "G", "heat3"),
    ("optimizer", "O", "heat5"),
    ("activations", "A", "heat6"),
    ("buffers", "B", "heat8"),
)
"""Component, its letter in the bar (readable without colour), its style."""

_LETTERS = {part: letter for part, letter, _ in BAR}

_FULL_WIDTH = 102
"""Minimum columns for the sum of the states in the table."""


def numbers(estimate: Estimate) -> tuple[str, ...]:
    """Return the GB of each of PARTS."""
    return tuple(f"{getattr(estimate, part) / GB:.2f}" for part in PARTS)


def table_row(estimate: Estimate) -> tuple[str, ...]:
    """Return the cells below HEAD."""
    return (estimate.strategy.title, *numbers(estimate), "fits" if estimate.fits else "too much")


def question(advice: Advice) -> str:
    """Return "7 B parameters, about 33 layers of 4096, on 8 × A100-80GB (80 GB)"."""
    return f"{advice.model.parameters / GB:g} B parameters, about {layers_and_gpus(advice)}"


def layers_and_gpus(advice: Advice) -> str:
    """Return "33 layers of 4096, on 8 × A100-80GB (80 GB)"."""
    model, gpus = advice.model, advice.gpus
    where = f"{gpus.count} × {gpus.name} ({gpus.memory_gb:g} GB)"
    if advice.nodes > 1:
        where = f"{advice.nodes} × {where}"
    return f"{model.layers} layers of {model.hidden}, on {where}"


def terms(advice: Advice) -> str:
    """Return the assumptions of the estimate: formats and batch."""
    model = advice.model
    recompute = "; layers are recomputed" if model.recompute else ""
    return f"{advice.form.text}; {model.micro_batch} × {model.seq} positions per GPU{recompute}"


def verdict(advice: Advice) -> str:
    """Return the simplest strategy that fits and why, else the number of GPUs that would fit, if any number does."""
    first = advice.first
    if first is not None:
        return f"{first.strategy.title} is the simplest that fits: {first.strategy.why}."
    ranks = needed(advice.model, advice.form, advice.gpus.memory_gb * GB)
    usable = f"{USABLE:.0%} of {advice.gpus.memory_gb:g} GB are usable"
    if ranks is not None:
        return f"Nothing fits ({usable}): ZeRO-3 needs {ranks} such GPUs."
    return f"Nothing fits ({usable}), on any number of GPUs: the activations are too large."


def bar_row(estimate: Estimate, width: int) -> Row:
    """Return a bar of the GPU's memory with a letter per component; `|` marks the end of the memory."""
    whole = max(estimate.limit, estimate.total)
    room = max(10, width - 3)
    end = round(room * estimate.limit / whole)
    cells: list[Cell] = []
    drawn, reached = 0, 0.0
    for part, letter, style in BAR:
        reached += getattr(estimate, part)
        upto = round(room * reached / whole)
        cells += _split(letter * (upto - drawn), style, drawn, end)
        drawn = upto
    return (
        ("[", "dim"),
        *cells,
        *_split(glyphs.MISSING * (room - drawn), "stale", drawn, end),
        ("]", "dim"),
    )


def _split(text: str, style: str, begin: int, end: int) -> list[Cell]:
    """Return a piece of the bar, with the end mark in it if that falls inside."""
    at = end - begin
    if not text or not 0 < at < len(text):
        return [(text, style)] if at != 0 or not begin else [("|", "bad"), (text, style)]
    return [(text[:at], style), ("|", "bad"), (text[at:], style)]


def memory_rows(advice: Advice, preset: Preset, width: int) -> list[Row]:
    """Return the preset's bar, and below it every strategy with its estimate."""
    inside = width - 2
    try:
        ranks = 1 if preset.strategy.kind == "single" else advice.ranks
        mine = estimate_for(preset, advice.model, advice.form, ranks, advice.gpus.memory_gb * GB)
        rows = _bar_rows(preset.name, mine, inside, elsewhere(advice, mine))
    except PlanError as error:
        mine, rows = None, wrap(f"{preset.name}: n/a, {error}", inside, first=" ")
    rows += [(), *wrap(verdict(advice), inside, "head", first=" "), ()]
    rows += [*wrap(question(advice), inside, first=" "), *wrap(terms(advice), inside, "dim", first=" ")]
    return [*rows, (), *table_rows(advice, mine, inside)]


def _bar_rows(name: str, mine: Estimate, width: int, beside: str) -> list[Row]:
    """Return total, bar, components, and notes."""
    state, style = ("fits", "ok") if mine.fits else ("too much", "bad")
    limit = f" of {mine.limit / GB:g} GB on each GPU ({USABLE:.0%} are usable): "
    rows: list[Row] = [((f" {name}  {mine.total / GB:.2f}", "head"), (limit, "text"), (state, style))]
    rows += [((" ", "text"), *bar_row(mine, width)), *_legend_rows(mine, width)]
    if beside:
        rows += wrap(f"Beside it: {beside}.", width, first=" ")
    return [*rows, *(row for note in mine.notes for row in wrap(note, width, "dim", first=" "))]


def elsewhere(advice: Advice, estimate: Estimate) -> str:
    """Return the memory that a strategy needs outside the GPUs: "84 GB of host memory per node"; "" if none."""
    parts = (("host memory", estimate.host), ("disk", estimate.disk))
    sizes = [(name, size * advice.gpus.count / GB) for name, size in parts if size]
    return ", ".join(
        f"{f'{size:,.0f}' if size >= 10 else f'{size:.2g}'} GB of {name} per node" for name, size in sizes
    )


def _legend_rows(estimate: Estimate, width: int) -> list[Row]:
    """Return the GB of each letter of the bar, wrapped to `width`."""
    rows: list[Row] = []
    line: Row = ((" ", "text"),)
    for part, letter, style in BAR:
        text = f" {part} {getattr(estimate, part) / GB:.2f}  "
        if row_width(line) + len(letter + text) > width:
            rows.append(line)
            line = ((" ", "text"),)
        line = (*line, (letter, style), (text, "text"))
    return [*rows, line]


def table_rows(advice: Advice, mine: Estimate | None, width: int) -> list[Row]:
    """Return GB per GPU for every strategy, with a mark in front of one that has the preset's numbers.

    A narrow table has the letters of the bar instead of component names, and leaves out the sum of the states.
    """
    head: tuple[str, ...] = ("GB", *PARTS)
    columns = list(range(len(HEAD) - 1))
    if width < _FULL_WIDTH:
        head = ("GB", *(_LETTERS.get(part, part) for part in PARTS))
        columns.remove(HEAD.index("states"))
    cells = [table_row(case) for case in advice.estimates]
    first, *lines = _aligned([head, *cells], columns)
    rows: list[Row] = [((f"   {first}", "dim"),)]
    own = () if mine is None else numbers(mine)
    for case, row, line in zip(advice.estimates, cells, lines, strict=True):
        mark = glyphs.CURSOR if numbers(case) == own else " "
        state: Cell = (row[-1], "ok" if case.fits else "bad")
        rows.append(((f" {mark} ", "accent"), (f"{line}  ", "text"), state))
    return [*rows, *_elsewhere_rows(advice, width)]


def _aligned(rows: Sequence[tuple[str, ...]], columns: Sequence[int]) -> list[str]:
    """Return some columns of each row as one text; all but the first column are right-aligned."""
    widths = {column: max(len(row[column]) for row in rows) for column in columns}
    return [
        "  ".join(fit(row[column], widths[column], right=column > 0) for column in columns) for row in rows
    ]


def _elsewhere_rows(advice: Advice, width: int) -> list[Row]:
    """Return the memory that strategies need outside the GPUs; [] if none does."""
    needs = [(case.strategy.title, elsewhere(advice, case)) for case in advice.estimates]
    beside = [f"{name}: {amount}" for name, amount in needs if amount]
    return wrap(f"Beside it, {'; '.join(beside)}.", width, "dim", first="   ") if beside else []
