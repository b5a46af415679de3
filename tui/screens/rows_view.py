"""The Line-API widget that every pane is made of: rows in, changed rows repainted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from functools import cache
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.events import Click
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ..keys import bindings
from ..paint import PacedApp, Pacer, styles
from ..rows import glyphs
from ..rows.glyphs import Row, row_width


def merged(segments: Iterable[Segment]) -> list[Segment]:
    """The same picture in fewer pieces: each piece costs some forty bytes of colours on its way to the terminal.

    Neighbours of one style become one, and blanks join them, because the colour of a blank is not seen.
    """
    pieces: list[Segment] = []
    for segment in segments:
        if not segment.text:
            continue
        if pieces and (joined := _joined(pieces[-1], segment)) is not None:
            pieces[-1] = joined
        else:
            pieces.append(segment)
    return pieces


def _joined(left: Segment, right: Segment) -> Segment | None:
    if left.style is not right.style and left.style != right.style:
        if not (_ink_only(left.style) and _ink_only(right.style)):
            return None
        if not left.text.strip(" "):
            return Segment(left.text + right.text, right.style)
        if right.text.strip(" "):
            return None
    return Segment(left.text + right.text, left.style)


@cache
def _ink_only(style: Style | None) -> bool:
    """Whether a style leaves a blank as it is."""
    if style is None:
        return True
    marks = style.underline or style.underline2 or style.reverse or style.strike or style.overline
    return style.bgcolor is None and not marks


def thumb(height: int, virtual: int, position: float) -> tuple[int, int]:
    """First and last cell that the thumb of a scrollbar of this height fills.

    `textual.scrollbar.ScrollBarRender.render_bar` draws eighths of it: nobody sees them move while a log grows.
    """
    if virtual <= height or not height:
        return 0, 0
    size = max(1.0, height * height / virtual)
    start = (height - size) * position / (virtual - height)
    return round(start), round(start + size)


class RowsView(ScrollView):
    """Shows rows and repaints only those that differ from what stands on the screen.

    With `cursor` it has a current row, shown by a glyph in a column of its own, moved by the movement keys.
    """

    BINDINGS: ClassVar[list[Binding]] = bindings("move")  # type: ignore[assignment]
    can_focus = True

    def __init__(self, *, id: str | None = None, cursor: bool = False, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.rows: list[Row] = []
        self.head: Row | None = None
        """A row that does not scroll."""
        self.ascii_only = False
        self.has_cursor = cursor
        self.cursor = 0
        self._left = 0
        self._entitled = ""
        self.retitled = False
        """Whether Textual has yet to paint another title: its rows then come with it, in one picture."""
        self._width = 0
        self._base: Style | None = None
        self._strips: dict[tuple[Row, bool, int, int, str], Strip] = {}

    # --- content

    def set_rows(self, rows: Sequence[Row], head: Row | None = None) -> None:
        """Show these rows; only what changed is repainted."""
        old, self.rows = self.rows, list(rows)
        if head != self.head:
            self.head = head
            self._refresh_rows([-1])
        if len(old) != len(self.rows):
            self.virtual_size = Size(0, len(self.rows) + self._head_rows)
            self.cursor = max(0, min(self.cursor, len(self.rows) - 1))
        changed = [y for y, (was, now) in enumerate(zip(old, self.rows, strict=False)) if was != now]
        changed += range(min(len(old), len(self.rows)), max(len(old), len(self.rows)))
        self._refresh_rows(changed)

    def entitle(self, title: str) -> None:
        """Name the pane; nothing is painted when the name is the same."""
        if title != self._entitled:
            self._entitled = title
            self.retitled = True
            shown = glyphs.to_ascii(title) if self.ascii_only else title
            self.border_title = shown.replace("[", r"\[")  # border titles are markup, patterns are not

    @property
    def _head_rows(self) -> int:
        return 0 if self.head is None else 1

    @property
    def columns(self) -> int:
        """Columns for rows: the scrollbar stands beside them."""
        bar = self.scrollbar_size_vertical if self.show_vertical_scrollbar else 0
        return max(0, self.size.width - bar)

    @property
    def shown(self) -> int:
        """How many rows fit."""
        return max(0, self.size.height - self._head_rows)

    def _refresh_rows(self, changed: Sequence[int]) -> None:
        """These rows changed, -1 is the head: paint those on the screen."""
        if changed:
            self.paint_rows(list(changed))

    @property
    def pacer(self) -> Pacer | None:
        """The app's, where it has one."""
        app = self.app
        return app.pacer if isinstance(app, PacedApp) else None

    def paint_rows(self, rows: list[int]) -> None:
        """Repaint these rows where they are on the screen now."""
        top, height = self.scroll_offset.y - self._head_rows, self.size.height
        lines = {y for row in rows if 0 <= (y := 0 if row < 0 else row - top) < height}
        app = self.app
        if lines and not (isinstance(app, PacedApp) and app.painter.take(self, lines)):
            self.leave_to_textual(lines)

    def leave_to_textual(self, lines: Set[int]) -> None:
        """Let Textual repaint these lines, counted from the top of the pane."""
        if len(lines) > self.size.height // 2:
            self.refresh()
        else:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in lines))

    def drawn(self, lines: Sequence[int]) -> list[Strip]:
        """These lines as they go to the terminal, without the frame; what Textual kept of them is forgotten."""
        self._width = self.columns
        top = self.content_offset.y
        self._styles_cache.set_dirty(*(Region(0, top + y, 1, 1) for y in lines))
        strips = [self.render_line(y) for y in lines]
        for filter in self.get_line_filters():
            ground = self.background_colors[1]
            strips = [strip.apply_filter(filter, ground) for strip in strips]
        return strips

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """As Textual does it, but only the rows are painted again."""
        if self.show_vertical_scrollbar:
            self.slide(self.virtual_size.height, new_value)
        if round(old_value) != round(new_value):
            top = self.scroll_offset.y
            self.paint_rows(list(range(top, top + self.shown)))

    def slide(self, virtual: int, position: float) -> None:
        """Move the thumb of the scrollbar where that can be seen."""
        bar = self.vertical_scrollbar
        height = self.size.height
        if thumb(height, virtual, position) != thumb(height, bar.window_virtual_size, bar.position):
            bar.window_virtual_size = virtual
            bar.position = position

    def repaint(self) -> None:
        """Everything, because colours or glyphs changed."""
        self._strips.clear()
        self._base = None
        self.refresh()

    # --- painting

    def render_line(self, y: int) -> Strip:
        """One line of the pane."""
        if self.head is not None:
            if y == 0:
                return self._strip(self.head, False)
            y -= 1
        index = y + self.scroll_offset.y
        if not 0 <= index < len(self.rows):
            return Strip.blank(self._width, self._ground)
        return self._strip(self.rows[index], self.has_cursor and self.has_focus and index == self.cursor)

    def _strip(self, row: Row, current: bool) -> Strip:
        width = self._width
        key = (row, current, width, self._left, self.app.theme)
        strip = self._strips.get(key)
        if strip is None:
            if len(self._strips) > 2000:
                self._strips.clear()
            strip = self._strips[key] = self._build(row, current, width)
        return strip

    def _build(self, row: Row, current: bool, width: int) -> Strip:
        table = styles(self.app.theme)
        plain = table["text"]
        cells = [(glyphs.CURSOR if current else " ", "accent"), *row] if self.has_cursor else list(row)
        if self.ascii_only:
            cells = [(glyphs.to_ascii(text), style) for text, style in cells]
        segments = [Segment(text, table.get(style, plain)) for text, style in cells]
        base = self._ground + Style(bold=True) if current else self._ground
        over = row_width(tuple(cells)) - width
        if self._left or over > 0:
            segments = self._cut(segments, width, plain)
        else:
            segments.append(Segment(" " * -over, plain))
        return Strip([Segment(text, base + style) for text, style, _ in merged(segments)], width)

    def _cut(self, segments: list[Segment], width: int, plain: Style) -> list[Segment]:
        """The columns that are shown of a row that is longer, or scrolled sideways."""
        return list(Strip(segments).crop(self._left).adjust_cell_length(width, plain))

    def _farthest(self) -> int:
        """Columns by which the longest row is wider than the pane."""
        rows = [*self.rows, *([self.head] if self.head is not None else [])]
        return max(map(row_width, rows), default=0) + self.has_cursor - self.columns

    @property
    def _ground(self) -> Style:
        """The background of rows; Textual searches all ancestors for it."""
        if self._base is None:
            self._base = self.rich_style
        return self._base

    def render_lines(self, crop: Region) -> list[Strip]:
        """Every line is as wide as the others: ask for the width once."""
        self._width = self.columns
        self.retitled = False
        return super().render_lines(crop)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips.clear()
        self._base = None

    def on_focus(self) -> None:
        self._refresh_rows([self.cursor])

    def on_blur(self) -> None:
        self._refresh_rows([self.cursor])

    # --- moving

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In a replay the key that marks plays."""
        return not (action == "mark" and getattr(self.app, "replay", False))

    def move_to(self, index: int) -> None:
        """Put the cursor on a row and make that row visible."""
        old, self.cursor = self.cursor, max(0, min(index, len(self.rows) - 1))
        top = self.scroll_offset.y
        if self.cursor < top:
            self._scroll_row(self.cursor)
        elif self.cursor >= top + self.shown:
            self._scroll_row(self.cursor - self.shown + 1)
        self._refresh_rows([old, self.cursor])
        self.cursor_moved()

    def _scroll_row(self, top: int) -> None:
        """Put this row at the top, or as near as there are rows; also before the scrollbar has come."""
        self.scroll_to(y=top, animate=False, immediate=True, force=True)

    def cursor_moved(self) -> None:
        """For subclasses: the user moved."""

    def action_cursor(self, by: int) -> None:
        """Down or up by rows."""
        if self.has_cursor:
            self.move_to(self.cursor + by)
        else:
            self.scroll_relative(y=by, animate=False, immediate=True)

    def action_page(self, by: int) -> None:
        """Down or up by pages."""
        step = max(1, self.shown - 1) * by
        if self.has_cursor:
            self.move_to(self.cursor + step)
        else:
            self.scroll_relative(y=step, animate=False, immediate=True)

    def action_end(self, bottom: bool) -> None:
        """To the last or the first row."""
        if self.has_cursor:
            self.move_to(len(self.rows) - 1 if bottom else 0)
        else:
            self._scroll_row(len(self.rows) if bottom else 0)

    def action_sideways(self, by: int) -> None:
        """Left or right by columns."""
        left = max(0, min(self._left + by, self._farthest()))
        if left != self._left:
            self._left = left
            self.refresh()

    def on_click(self, event: Click) -> None:
        """Select the row; a double click opens it."""
        inside = event.get_content_offset(self)
        if inside is None or not self.has_cursor or inside.y < self._head_rows:
            return
        index = inside.y - self._head_rows + self.scroll_offset.y
        if index < len(self.rows):
            self.move_to(index)
            if event.chain > 1 and hasattr(self, "action_zoom"):
                self.action_zoom()
