"""A list with incremental search: `/` begins, Enter ends, esc shows everything again."""

from __future__ import annotations

from textual.events import Key, Paste

from ..rows.glyphs import Row
from .rows_view import RowsView


class SearchableRows(RowsView):
    """Base of searchable lists. Subclasses filter in `searched`, and handle Enter outside a search in `entered`."""

    HINT = "search"

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, cursor=True)
        self.words = ""
        self.searching = False

    def searched(self) -> None:
        """Filter the rows by `words`, after a search began, changed or ended."""
        raise NotImplementedError

    def entered(self) -> None:
        """Handle Enter outside a search."""
        raise NotImplementedError

    def search_row(self, note: str = "") -> Row:
        """Return the line of the search."""
        if not (self.searching or self.words):
            return ((" / ", "key"), (self.HINT, "dim"), (note, "dim"))
        caret = "▏" if self.searching else ""
        return ((" / ", "key"), (self.words, "head"), (caret, "accent"), (note, "dim"))

    async def _on_key(self, event: Key) -> None:
        """Handle keys without bindings: `/` and the letters after it arrive together over a slow link."""
        if event.key == "escape" and (self.searching or self.words):
            self.search("", searching=False)
        elif event.key == "enter":
            self._enter()
        elif event.key == "slash" and not self.searching:
            self.search(self.words)
        elif self.searching and (edited := self._edited(event)) is not None:
            self.search(edited)
        else:
            return
        event.stop()
        event.prevent_default()

    def _edited(self, event: Key) -> str | None:
        """Return the words after a key; None if the key does not edit them."""
        if event.key == "backspace":
            return self.words[:-1]
        if event.key == "ctrl+u":
            return ""
        return self.words + event.character if event.character is not None and event.is_printable else None

    def _on_paste(self, event: Paste) -> None:
        if self.searching and event.text:
            self.search(self.words + event.text.splitlines()[0])
        event.stop()

    def _enter(self) -> None:
        if self.searching:
            self.search(self.words, searching=False)
        else:
            self.entered()

    def search(self, words: str, searching: bool = True) -> None:
        self.words, self.searching = words, searching
        self.searched()

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Consume letters while searching."""
        return self.searching and character is not None and character.isprintable()

    def on_blur(self) -> None:
        super().on_blur()
        if self.searching:
            self.search(self.words, searching=False)
