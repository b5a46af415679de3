"""How a value of the map of GPUs looks. Pure.

The height of the glyph is the value. Its colour is neutral near the median of the run, and strong far from it. Cells
that are very far on the bad side are reversed, so that they are visible without colours.
"""

from __future__ import annotations

from . import glyphs
from .glyphs import Cell, fit
from .map_cells import FAR, VERY_FAR, MapNode, Scale
from .map_layout import NODE, NUMBERS, Form

UNKNOWN: Cell = ("?", "stale")
BROKEN: Cell = (glyphs.BAD, "bad")


def style_of(badness: float, neutral: str = "text") -> str:
    """Return the style of a value by its deviation: neutral near the median, blue far on the good side."""
    if badness >= VERY_FAR:
        return "outlier"
    if badness >= FAR:
        return "warn"
    return "ok" if badness <= -FAR else neutral


class MapPen(dict[float | None, Cell]):
    """The cells of values; equal ones are drawn once."""

    def __init__(self, scale: Scale, ascii_only: bool, columns: int, neutral: str) -> None:
        """Create it for cells of so many columns; `neutral` is the style of values near the median."""
        super().__init__()
        self._scale, self._ascii_only, self._columns, self._neutral = scale, ascii_only, columns, neutral

    def __missing__(self, value: float | None) -> Cell:
        cell = self[value] = self._drawn(value)
        return cell

    def _drawn(self, value: float | None) -> Cell:
        if value is None:
            return self._wide(UNKNOWN, "")
        unit = self._scale.unit
        number = f"{unit.number(value)}{unit.short}" if self._columns >= NUMBERS else ""
        glyph = glyphs.height(self._scale.height(value), self._ascii_only)
        return self._wide((glyph, style_of(self._scale.badness(value), self._neutral)), number)

    def _wide(self, sign: Cell, number: str) -> Cell:
        """Return a sign as wide as a cell, or with its number."""
        glyph, style = sign
        if self._columns < NUMBERS:
            return glyph * self._columns, style
        # A digit before the number would look like a part of it.
        first = " " if glyph.isdecimal() else glyph
        return fit(first + number, self._columns), style

    def row(self, node: MapNode, first: int) -> list[Cell]:
        """Return the cells of one row of a node, from its cell `first` on."""
        row = [self[value] for value in node.values[first : first + NODE]]
        if node.broken or node.others or node.hidden:
            for at in range(len(row)):
                row[at] = self._odd_cell(node, first + at, row[at])
        return row

    def _odd_cell(self, node: MapNode, cell: int, drawn: Cell) -> Cell:
        if cell in node.hidden:
            return " " * self._columns, "text"
        if cell in node.broken:
            return self._wide(BROKEN, node.broken[cell][:4])
        return (drawn[0], "stale") if cell in node.others else drawn


def map_pens(scale: Scale, ascii_only: bool, form: Form) -> tuple[MapPen, MapPen]:
    """Return the pens of the even and the odd columns of nodes, which differ if there is no gap between them."""
    if ascii_only or form.cell >= NUMBERS:
        styles = ("dim", "dim")
    elif form.gap:
        styles = ("calm", "calm")
    else:
        styles = ("calm", "calm_next")
    even, odd = (MapPen(scale, ascii_only, form.cell, style) for style in styles)
    return even, odd
