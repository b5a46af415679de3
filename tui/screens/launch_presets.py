"""The list of presets on the launch screen."""

from __future__ import annotations

from collections.abc import Sequence

from textual.events import Resize
from textual.message import Message

from ...runners.launch.preset_library import PresetEntry
from ..rows.glyphs import Row
from ..rows.preset_list import best_match, matching, preset_rows
from .searchable import SearchableRows


class PresetList(SearchableRows):
    """One row per preset; `/` searches names, titles, summaries and strategies."""

    class Highlighted(Message):
        """The cursor is on another preset, or on none."""

    class Chosen(Message):
        """The user pressed Enter to continue to the form."""

    def __init__(self) -> None:
        super().__init__(id="presets")
        self.entries: list[PresetEntry] = []
        self.listed: list[PresetEntry] = []
        self._highlighted: str | None = None

    @property
    def current(self) -> PresetEntry | None:
        return self.listed[self.cursor] if self.listed else None

    @property
    def current_name(self) -> str:
        """Name of the preset under the cursor; "" if the search finds none."""
        return self.listed[self.cursor].name if self.listed else ""

    def set_entries(self, entries: Sequence[PresetEntry], name: str = "") -> None:
        """List these presets, with the cursor on `name` or on the same preset as before."""
        kept = name or self.current_name
        self.entries = list(entries)
        self._highlighted = None
        self._list(kept)

    def go(self, name: str) -> None:
        """Move the cursor to a preset; clear the search if it would hide the preset."""
        if name not in [entry.name for entry in self.listed]:
            self.words, self.searching = "", False
        self._list(name)

    def _list(self, name: str) -> None:
        self.listed = matching(self.entries, self.words)
        names = [entry.name for entry in self.listed]
        self._draw()
        self.move_to(names.index(name) if name in names else 0)

    def _draw(self) -> None:
        fitting = f"{len(self.listed)} of " if self.words else ""
        self.entitle(f"presets {fitting}{len(self.entries)}")
        self.set_rows(preset_rows(self.listed, self.scrollable_content_region.width - 1), self.search_row())

    def cursor_moved(self) -> None:
        name = self.current_name
        if name != self._highlighted:
            self._highlighted = name
            self.post_message(self.Highlighted())

    def entered(self) -> None:
        if self.listed:
            self.post_message(self.Chosen())

    def searched(self) -> None:
        self._list(best_match(self.entries, self.words, self.current_name))

    def on_resize(self, event: Resize) -> None:
        self._draw()
        self.move_to(self.cursor)

    def _scroll_row(self, top: int) -> None:
        if self.shown:  # before the first layout all rows are visible
            super()._scroll_row(top)

    def row_at(self, y: int) -> tuple[Row, bool]:
        """Mark the selected preset even while the form has the focus."""
        if (
            not self.has_focus
            and self.rows
            and y - self._head_rows + self.scroll_offset.y == self.cursor
            and y
        ):
            return self.rows[self.cursor], True
        return super().row_at(y)
