"""The list of presets as rows, and what a search finds. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from ..follow import PresetEntry
from . import glyphs
from .cells import Row, clip, fit, row_width, wrap

_MARKS = {"yours": "y", "project": "p"}


def matching(entries: Sequence[PresetEntry], words: str) -> list[PresetEntry]:
    """Those that hold every word, in whatever order: in name, title, summary, strategy or origin."""
    wanted = words.lower().split()
    return [one for one in entries if all(word in _text(one) for word in wanted)]


def _text(one: PresetEntry) -> str:
    return f"{one.name} {one.title} {one.summary} {one.strategy} {one.origin} {one.problem}".lower()


def shelf_rows(entries: Sequence[PresetEntry], width: int) -> list[Row]:
    """A row a preset: its name, and a mark where it does not ship or does not load."""
    rows: list[Row] = []
    for one in entries:
        name = fit(one.name, max(4, width - 2))
        if one.problem:
            rows.append(((f"{name} ", "stale"), (glyphs.BAD, "bad")))
        else:
            rows.append(((f"{name} ", "text"), (_MARKS.get(one.origin, " "), "accent")))
    return rows


def why_rows(one: PresetEntry | None, width: int, height: int) -> list[Row]:
    """When to take the preset at hand; or why it cannot be taken."""
    if one is None:
        return [((" no preset has all of these words: esc shows them all", "warn"),)]
    if one.problem:
        return wrap(one.problem, width - 1, first=f" {glyphs.BAD} ", then=" ")[:height]
    return wrap(one.summary, width - 1, first=" ")[:height]


def title_row(one: PresetEntry | None, width: int) -> Row:
    """What the screen is, and what the preset at hand is; its name where there is room."""
    head: Row = ((" distui · new run", "head"),)
    if one is None:
        return head
    origin = {"yours": " (your own)", "project": " (of this project)"}.get(one.origin, "")
    long = f" · {one.name} · {one.title}{origin}" if one.title else f" · {one.name}{origin}"
    short = f" · {one.title}{origin}" if one.title else long
    return clip((*head, (long if row_width(head) + cell_len(long) <= width else short, "text")), width)
