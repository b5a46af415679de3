"""The list of presets with its search."""

from __future__ import annotations

from collections.abc import Sequence

from textual.events import Key, Paste, Resize
from textual.message import Message
from textual.strip import Strip

from ..follow import PresetEntry
from ..rows.cells import Row
from ..rows.shelf import matching, shelf_rows
from .rows_view import RowsView


class PresetList(RowsView):
    """One row a preset; `/` searches in names, titles, summaries and strategies."""

    class Highlighted(Message):
        """Another preset is at hand; None: the search finds none."""

        def __init__(self, entry: PresetEntry | None) -> None:
            super().__init__()
            self.entry = entry

    class Chosen(Message):
        """Enter: on to the form."""

    def __init__(self) -> None:
        super().__init__(id="presets", cursor=True)
        self.entries: list[PresetEntry] = []
        self.listed: list[PresetEntry] = []
        self.words = ""
        self.searching = False
        self._told: str | None = None

    @property
    def current(self) -> PresetEntry | None:
        """The preset at hand."""
        return self.listed[self.cursor] if self.listed else None

    def set_entries(self, entries: Sequence[PresetEntry], name: str = "") -> None:
        """List these, with the cursor on `name` or where it was."""
        kept = name or (self.current.name if self.current else "")
        self.entries = list(entries)
        self._told = None
        self._list(kept)

    def go(self, name: str) -> None:
        """Put the cursor on a preset; the search is over where it would hide it."""
        if name not in [one.name for one in self.listed]:
            self.words, self.searching = "", False
        self._list(name)

    def _list(self, name: str) -> None:
        self.listed = matching(self.entries, self.words)
        names = [one.name for one in self.listed]
        self._draw()
        self.move_to(names.index(name) if name in names else 0)

    def _draw(self) -> None:
        found = f"{len(self.listed)} of {len(self.entries)}" if self.words else str(len(self.entries))
        self.entitle(f"presets {found}")
        self.set_rows(shelf_rows(self.listed, self.scrollable_content_region.width - 1), self._head())

    def _head(self) -> Row:
        if self.searching:
            return ((" / ", "key"), (self.words, "head"), ("▏", "accent"))
        if self.words:
            return ((" / ", "key"), (self.words, "head"))
        return ((" / ", "key"), ("search", "dim"))

    def cursor_moved(self) -> None:
        entry = self.current
        name = entry.name if entry else ""
        if name != self._told:
            self._told = name
            self.post_message(self.Highlighted(entry))

    async def _on_key(self, event: Key) -> None:
        """No bindings, which would take `/` after the letters that come with it over a slow link."""
        if event.key == "escape" and (self.searching or self.words):
            self._search("", searching=False)
        elif event.key == "enter" or (event.key == "slash" and not self.searching):
            self._enter() if event.key == "enter" else self._search(self.words)
        elif not self.searching:
            return
        elif event.key == "backspace":
            self._search(self.words[:-1])
        elif event.key == "ctrl+u":
            self._search("")
        elif event.character is not None and event.is_printable:
            self._search(self.words + event.character)
        else:
            return
        event.stop()
        event.prevent_default()

    def _on_paste(self, event: Paste) -> None:
        if self.searching and event.text:
            self._search(self.words + event.text.splitlines()[0])
        event.stop()

    def _enter(self) -> None:
        """The search is done; or on to the form."""
        if self.searching:
            self._search(self.words, searching=False)
        elif self.listed:
            self.post_message(self.Chosen())

    def _search(self, words: str, searching: bool = True) -> None:
        kept = self.current.name if self.current else ""
        self.words, self.searching = words, searching
        self._list(kept)

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """While searching, letters are words."""
        return self.searching and character is not None and character.isprintable()

    def on_resize(self, event: Resize) -> None:
        self._draw()
        self.move_to(self.cursor)

    def _scroll_row(self, top: int) -> None:
        if self.shown:  # before the first layout nothing is out of sight
            super()._scroll_row(top)

    def render_line(self, y: int) -> Strip:
        """The preset at hand is marked also while the form has the keys."""
        if (
            not self.has_focus
            and self.rows
            and y - self._head_rows + self.scroll_offset.y == self.cursor
            and y
        ):
            return self._strip(self.rows[self.cursor], True)
        return super().render_line(y)

    def on_blur(self) -> None:
        super().on_blur()
        self.searching = False
        self._draw()
