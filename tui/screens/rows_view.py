"""The Line-API widget that every pane is based on: takes rows, repaints changed rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import ClassVar

from rich.color import ColorSystem
from textual.binding import Binding
from textual.content import Content
from textual.events import Click
from textual.geometry import Region, Size
from textual.scrollbar import ScrollBar
from textual.strip import Strip

from ..ink import Cell
from ..keys import bindings
from ..pacing import Pacer
from ..paint import PacedApp
from ..rows import glyphs
from ..rows.glyphs import Row, row_width
from .row_drawing import DrawnView, RowDrawing


def thumb(height: int, virtual: int, position: float) -> tuple[int, int]:
    """Return the first and last cell of the thumb of a scrollbar of this height.

    `textual.scrollbar.ScrollBarRender.render_bar` draws eighths of a cell, whose changes are invisible while a log
    grows.
    """
    if virtual <= height or not height:
        return 0, 0
    size = max(1.0, height * height / virtual)
    start = (height - size) * position / (virtual - height)
    return round(start), round(start + size)


class RowsView(DrawnView):
    """Shows rows and repaints only those that differ from the screen.

    With `cursor` it has a current row, marked by a glyph in a separate column, and the movement keys move it.
    """

    BINDINGS: ClassVar[list[Binding]] = bindings("move")  # type: ignore[assignment]
    can_focus = True

    def __init__(self, *, id: str, cursor: bool = False) -> None:
        super().__init__(id=id)
        self.rows: list[Row] = []
        self.head: Row | None = None
        """A row that does not scroll."""
        self.has_cursor = cursor
        self.cursor = 0
        self._entitled = ""
        self.retitled = False
        """Whether Textual still has to paint a new title; its rows are then painted in the same update."""
        self._drawing = RowDrawing(self)

    # --- content

    def set_rows(self, rows: Sequence[Row], head: Row | None = None) -> None:
        """Show these rows; only changed rows are repainted."""
        old, self.rows = self.rows, list(rows)
        if head != self.head:
            self.head = head
            self.paint_rows([-1])
        if len(old) != len(self.rows):
            self.virtual_size = Size(0, len(self.rows) + self._head_rows)
            self.cursor = max(0, min(self.cursor, len(self.rows) - 1))
        changed = [y for y, (was, now) in enumerate(zip(old, self.rows, strict=False)) if was != now]
        changed += range(min(len(old), len(self.rows)), max(len(old), len(self.rows)))
        self.paint_rows(changed)

    def entitle(self, title: str) -> None:
        """Set the pane's title; nothing is painted if it is unchanged."""
        if title == self._entitled:
            return
        self._entitled = title
        shown = glyphs.to_ascii(title) if self.ascii_only else title
        app = self.app
        self._border_title = Content(shown)  # setting `border_title` would repaint the whole pane
        if not self.content_offset.y:
            return  # without a frame, the title is not shown
        if not (isinstance(app, PacedApp) and app.painter.take_edge(self)):
            self.retitled = True
            self.refresh()

    def upper_edge(self) -> Strip:
        """Return the upper edge of the pane's frame as Textual draws it, with the current title."""
        edge = Region(0, 0, self.outer_size.width, 1)
        self._styles_cache.set_dirty(edge)
        return self.render_lines(edge)[0]

    @property
    def _head_rows(self) -> int:
        return 0 if self.head is None else 1

    @property
    def columns(self) -> int:
        """Columns for rows, without the scrollbar."""
        bar = self.scrollbar_size_vertical if self.show_vertical_scrollbar else 0
        return max(0, self.size.width - bar)

    @property
    def shown(self) -> int:
        """Number of rows that fit."""
        return max(0, self.size.height - self._head_rows)

    @property
    def pacer(self) -> Pacer | None:
        """The app's pacer, if it has one."""
        app = self.app
        return app.pacer if isinstance(app, PacedApp) else None

    def paint_rows(self, rows: Iterable[int]) -> None:
        """Repaint these rows if they are visible; -1 is the head."""
        top, height = self.scroll_offset.y - self._head_rows, self.size.height
        lines = {y for row in rows if 0 <= (y := 0 if row < 0 else row - top) < height}
        if not lines:
            return
        app = self.app
        if not (isinstance(app, PacedApp) and app.painter.take(self, lines)):
            self.leave_to_textual(lines)

    def leave_to_textual(self, lines: Set[int]) -> None:
        """Let Textual repaint these lines, counted from the top of the pane."""
        if len(lines) > self.size.height // 2:
            self.refresh()
        else:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in lines))

    def drawn(self, lines: Sequence[int], colours: ColorSystem) -> list[list[Cell]]:
        """Return these lines as terminal cells, without the frame, and invalidate Textual's cache of them."""
        self._drawing.width = self.columns
        top = self.content_offset.y
        self._styles_cache.set_dirty(*(Region(0, top + y, 1, 1) for y in lines))
        return [self._drawing.cells(*self.row_at(y), colours) for y in lines]

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scroll as Textual does, but repaint only the rows."""
        if self.show_vertical_scrollbar:
            self.slide(self.virtual_size.height, new_value)
        if round(old_value) != round(new_value):
            top = self.scroll_offset.y
            self.paint_rows(range(top, top + self.shown))

    def slide(self, virtual: int, position: float) -> None:
        """Move the thumb of the scrollbar if that is visible."""
        bar, height = self.vertical_scrollbar, self.size.height
        if thumb(height, virtual, position) == thumb(height, bar.window_virtual_size, bar.position):
            return
        bar.set_reactive(ScrollBar.window_virtual_size, virtual)
        bar.set_reactive(ScrollBar.position, bar.validate_position(position))
        bar.refresh()

    def repaint(self) -> None:
        """Repaint everything after colours or glyphs changed."""
        self._drawing.forget()
        self.refresh()

    # --- painting

    def row_at(self, y: int) -> tuple[Row, bool]:
        """Return the row of a line, counted from the top of the pane, and whether the cursor is on it."""
        if self.head is not None:
            if y == 0:
                return self.head, False
            y -= 1
        index = y + self.scroll_offset.y
        if not 0 <= index < len(self.rows):
            return (), False
        return self.rows[index], self.has_cursor and self.has_focus and index == self.cursor

    def render_line(self, y: int) -> Strip:
        """Return one line of the pane."""
        return self._drawing.strip(*self.row_at(y))

    def _farthest(self) -> int:
        """Return the columns by how much the longest row is wider than the pane."""
        rows = [*self.rows, *([self.head] if self.head is not None else [])]
        return max(map(row_width, rows), default=0) + self.has_cursor - self.columns

    def render_lines(self, crop: Region) -> list[Strip]:
        """Determine the width once for all lines."""
        self._drawing.width = self.columns
        self.retitled = False
        return super().render_lines(crop)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._drawing.forget()

    def on_focus(self) -> None:
        self.paint_rows([self.cursor])

    def on_blur(self) -> None:
        self.paint_rows([self.cursor])

    # --- moving

    def move_to(self, index: int) -> None:
        """Move the cursor to a row and make that row visible."""
        old, self.cursor = self.cursor, max(0, min(index, len(self.rows) - 1))
        top = self.scroll_offset.y
        if self.cursor < top:
            self._scroll_row(self.cursor)
        elif self.cursor >= top + self.shown:
            self._scroll_row(self.cursor - self.shown + 1)
        self.paint_rows([old, self.cursor])
        self.cursor_moved()

    def stay_on(self, index: int) -> None:
        """Move the cursor along with its item to another row; a visible cursor stays visible."""
        top = self.scroll_offset.y
        was_visible = top <= self.cursor < top + self.shown
        self.cursor = index
        if was_visible and not top <= index < top + self.shown:
            self.call_after_refresh(self._show_cursor)  # the new number of rows is known then

    def show_top(self, index: int | None) -> None:
        """Show the first rows in a new order; the cursor stays on its item, now at `index`, if that is one of them."""
        self.cursor = index if index is not None and index < self.shown else 0
        self.call_after_refresh(self._scroll_row, 0)

    def _show_cursor(self) -> None:
        top = self.scroll_offset.y
        if not top <= self.cursor < top + self.shown:
            self._scroll_row(self.cursor if self.cursor < top else self.cursor - self.shown + 1)

    def _scroll_row(self, top: int) -> None:
        """Scroll this row to the top, or as near as possible, even before the scrollbar is shown."""
        self.scroll_to(y=top, animate=False, immediate=True, force=True)

    def cursor_moved(self) -> None:
        """Respond to a move of the cursor; subclasses override it."""

    def action_cursor(self, by: int) -> None:
        if self.has_cursor:
            self.move_to(self.cursor + by)
        else:
            self.scroll_relative(y=by, animate=False, immediate=True)

    def action_page(self, by: int) -> None:
        self.action_cursor(max(1, self.shown - 1) * by)

    def action_end(self, bottom: bool) -> None:
        if self.has_cursor:
            self.move_to(len(self.rows) - 1 if bottom else 0)
        else:
            self._scroll_row(len(self.rows) if bottom else 0)

    def action_sideways(self, by: int) -> None:
        left = max(0, min(self.left + by, self._farthest()))
        if left != self.left:
            self.left = left
            self.refresh()

    def on_click(self, event: Click) -> None:
        """Select the row; a double click opens it."""
        inside = event.get_content_offset(self)
        index = None if inside is None else self.clicked_row(inside.y)
        if index is not None:
            self.move_to(index)
            if event.chain > 1 and hasattr(self, "action_zoom"):
                self.action_zoom()

    def clicked_row(self, y: int) -> int | None:
        """Return the index of the row at a line of the pane; None without a cursor, on the head or below the rows."""
        index = y - self._head_rows + self.scroll_offset.y
        if not self.has_cursor or y < self._head_rows or index >= len(self.rows):
            return None
        return index


class StillRows(RowsView):
    """Rows that never have the focus."""

    can_focus = False
