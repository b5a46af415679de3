"""The memory estimate as rows. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...presets.estimate.advice import Advice
from ...presets.estimate.advice_words import amount, beside, formats, more_line, verdict, weights_line
from ...presets.estimate.memory import Estimate
from ...presets.estimate.option import Option, estimate_preset
from ...presets.estimate.workload import GB, USABLE
from ...presets.finding import PlanError
from ...presets.model import Preset
from ...presets.plurals import plural
from ...runners.launch.advice import PARTS
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

_FULL_WIDTH = 112
"""Minimum columns for the sum of the states, and the total in bf16, in the table."""


def numbers(estimate: Estimate) -> tuple[str, ...]:
    """Return the GB of each of PARTS."""
    return tuple(amount(getattr(estimate, part), 2) for part in PARTS)


def head(advice: Advice) -> tuple[str, ...]:
    """Return the head of the table: one more column if the format of the script's weights decides."""
    return HEAD if advice.with_bf16 is None else (*HEAD[:-1], "in bf16", HEAD[-1])


def table_row(advice: Advice, option: Option) -> tuple[str, ...]:
    """Return the cells below `head`."""
    twin = advice.also(option)
    state = "fits" if option.fits else "too much"
    if twin is not None and twin.fits and not option.fits:
        state = "bf16 fits"
    name = option.title if option.kind == advice.case.kind else f"{option.title} *"
    cells = (name, *numbers(option.estimate))
    if advice.with_bf16 is None:
        return (*cells, state)
    return (*cells, "" if twin is None else amount(twin.estimate.total, 2), state)


def edit_note(advice: Advice) -> str:
    """Return what the `*` in the table means; "" if there is none."""
    is_edited = any(option.kind != advice.case.kind for option in advice.rows)
    return f"* If {advice.case.script} calls distui's parallelize()." if is_edited else ""


def compact(cells: Sequence[tuple[str, ...]], omitted: Collection[str]) -> list[tuple[str, ...]]:
    """Return a narrower table, with letters in the head and without the columns that are `omitted`."""
    head, *rows = cells
    kept = [at for at, name in enumerate(head) if name not in omitted]
    short = tuple(_LETTERS.get(name, name) for name in head)
    return [tuple(row[at] for at in kept) for row in (short, *rows)]


def question(advice: Advice) -> str:
    """Return "7 B parameters, about 33 layers of 4096, on 8 × A100-80GB (80 GB)"."""
    model = advice.case.model
    experts = f" in mixtures of {model.expert_count} experts" if model.expert_count else ""
    return f"{model.parameters / GB:g} B parameters{experts}, about {layers_and_gpus(advice)}"


def layers_and_gpus(advice: Advice) -> str:
    """Return "33 layers of 4096, on 8 × A100-80GB (80 GB)"."""
    model, place = advice.case.model, advice.case.place
    gpus = place.gpus
    where = f"{gpus.count} × {gpus.name} ({gpus.memory_gb:g} GB)"
    if place.nodes > 1:
        where = f"{place.nodes} × {where}"
    return f"{plural(model.layers, 'layer')} of {model.hidden}, on {where}"


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


def memory_rows(advice: Advice, preset: Preset, args: Sequence[str], width: int) -> list[Row]:
    """Return the preset's bar, and below it every strategy with its estimate. `args`: the script's arguments."""
    inside, case = width - 2, advice.case
    try:
        mine = estimate_preset(case, preset, args)
        rows = _bar_rows(preset.name, mine, inside, beside(mine, case.place))
    except PlanError as error:
        mine, rows = None, wrap(f"{preset.name}: n/a, {error}", inside, first=" ")
    sentences = " ".join([*verdict(advice), weights_line(advice)[0], more_line(advice)[0]])
    rows += [(), *wrap(sentences, inside, "head", first=" "), ()]
    rows += [*wrap(question(advice), inside, first=" "), *wrap(formats(advice), inside, "dim", first=" ")]
    return [*rows, (), *table_rows(advice, mine, inside)]


def _bar_rows(name: str, mine: Estimate, width: int, outside: str) -> list[Row]:
    """Return total, bar, components, and notes."""
    state, style = ("fits", "ok") if mine.fits else ("too much", "bad")
    limit = f" of {mine.limit / GB:g} GB on each GPU ({USABLE:.0%} are usable): "
    rows: list[Row] = [((f" {name}  {mine.total / GB:.2f}", "head"), (limit, "text"), (state, style))]
    rows += [((" ", "text"), *bar_row(mine, width)), *_legend_rows(mine, width)]
    if outside:
        rows += wrap(f"Beside it: {outside}.", width, first=" ")
    return [*rows, *(row for note in mine.notes for row in wrap(note, width, "dim", first=" "))]


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
    cells = [("GB", *head(advice)[1:]), *(table_row(advice, option) for option in advice.rows)]
    if width < _FULL_WIDTH:
        cells = compact(cells, ("states", "in bf16"))
    first, *lines = _aligned([row[:-1] for row in cells])
    rows: list[Row] = [((f"   {first}", "dim"),)]
    own = () if mine is None else numbers(mine)
    for option, (*_, text), line in zip(advice.rows, cells[1:], lines, strict=True):
        mark = glyphs.CURSOR if numbers(option.estimate) == own else " "
        state: Cell = (text, "bad" if text == "too much" else "ok")
        rows.append(((f" {mark} ", "accent"), (f"{line}  ", "text"), state))
    note = edit_note(advice)
    rows += wrap(note, width, "dim", first="   ") if note else []
    return [*rows, *_elsewhere_rows(advice, width)]


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return each row as one text; all but the first column are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(fit(cell, widths[at], right=at > 0) for at, cell in enumerate(row)) for row in rows]


def _elsewhere_rows(advice: Advice, width: int) -> list[Row]:
    """Return the memory that strategies need outside the GPUs; [] if none does."""
    needs = [(option.title, beside(option.estimate, option.place)) for option in advice.rows]
    outside = [f"{name}: {amount}" for name, amount in needs if amount]
    return wrap(f"Beside it, {'; '.join(outside)}.", width, "dim", first="   ") if outside else []
