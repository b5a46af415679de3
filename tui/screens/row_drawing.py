"""Draws the rows of a view: as strips for Textual, and as cells for the painter."""

from __future__ import annotations

from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ..colours import PLAIN, styles
from ..ink import Cell, Pen, pen
from ..rows import glyphs
from ..rows.glyphs import Row, row_width

MOST_STRIPS = 256
"""Maximum number of cached strips of a pane: more than it shows. Textual keeps about 1 KiB for each."""


class DrawnView(ScrollView):
    """A widget whose rows are drawn."""

    has_cursor = False
    left = 0
    """Columns by how much the rows are scrolled sideways."""

    @property
    def ascii_only(self) -> bool:
        return getattr(self.app, "ascii_only", False)

    def cut(self, segments: list[Segment], width: int, plain: Style) -> list[Segment]:
        """Return the visible columns of a row that is too long, or scrolled sideways."""
        return list(Strip(segments).crop(self.left).adjust_cell_length(width, plain))


class RowDrawing:
    """Strips and pens, cached until colours or glyphs change."""

    def __init__(self, view: DrawnView) -> None:
        self._view = view
        self.width = 0
        """Columns for rows."""
        self._ground: Style | None = None
        """The background of rows, cached because Textual searches all ancestors for it."""
        self._strips: dict[tuple[Row, bool, int, int, str], Strip] = {}
        self._pens: dict[tuple[str, bool, str, ColorSystem], Pen] = {}

    def forget(self) -> None:
        """Forget everything after colours or glyphs changed."""
        self._strips.clear()
        self._pens.clear()
        self._ground = None

    def strip(self, row: Row, current: bool) -> Strip:
        """Return a row; `current`: whether the cursor is on it."""
        key = (row, current, self.width, self._view.left, self._view.app.theme)
        strip = self._strips.get(key)
        if strip is None:
            if len(self._strips) > MOST_STRIPS:
                self._strips.clear()
            strip = self._strips[key] = self._build(row, current)
        return strip

    def cells(self, row: Row, current: bool, colours: ColorSystem) -> list[Cell]:
        """Return a row as `strip` draws it, cell by cell."""
        cells: list[Cell] = []
        for text, style in self._pieces(row, current):
            cells += self._pen(style, current, colours).cells(text)
        if self._view.left or len(cells) > self.width:
            strip = self._filtered(self.strip(row, current))
            return [cell for text, style, _ in strip for cell in pen(style, colours).cells(text)]
        return cells + [self._pen("text", current, colours)[" "]] * (self.width - len(cells))

    def _build(self, row: Row, current: bool) -> Strip:
        cells = self._pieces(row, current)
        segments = [Segment(text, self._style(style)) for text, style in cells]
        plain, base = self._style("text"), self._base(current)
        over = row_width(cells) - self.width
        if self._view.left or over > 0:
            segments = self._view.cut(segments, self.width, plain)
        else:
            segments.append(Segment(" " * -over, plain))
        return Strip([Segment(text, base + style) for text, style, _ in segments], self.width)

    def _pieces(self, row: Row, current: bool) -> Row:
        """Return a row with the cursor's column, in ASCII if needed."""
        cells = row
        if self._view.has_cursor:
            cells = ((glyphs.CURSOR if current else " ", "accent"), *row)
        if self._view.ascii_only:
            cells = tuple((glyphs.to_ascii(text), style) for text, style in cells)
        return cells

    def _pen(self, name: str, current: bool, colours: ColorSystem) -> Pen:
        """Return the pen of a style in this view, after the app's line filters."""
        key = (name, current, self._view.app.theme, colours)
        if key not in self._pens:
            (segment,) = self._filtered(Strip([Segment(" ", self._base(current) + self._style(name))]))
            self._pens[key] = pen(segment.style, colours)
        return self._pens[key]

    def _filtered(self, strip: Strip) -> Strip:
        for line_filter in self._view.get_line_filters():
            strip = strip.apply_filter(line_filter, self._view.background_colors[1])
        return strip

    def _style(self, name: str) -> Style:
        app = self._view.app
        table = styles(PLAIN if app.no_color else app.theme)
        return table.get(name, table["text"])

    def _base(self, current: bool) -> Style:
        if self._ground is None:
            self._ground = self._view.rich_style
        return self._ground + Style(bold=True) if current else self._ground
