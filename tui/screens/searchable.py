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
        """Called after the words have changed."""
        raise NotImplementedError

    def entered(self) -> None:
        """Called for Enter without an open search."""
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
        elif event.key == "enter" or (event.key == "slash" and not self.searching):
            self._enter() if event.key == "enter" else self.search(self.words)
        elif not self.searching:
            return
        elif event.key == "backspace":
            self.search(self.words[:-1])
        elif event.key == "ctrl+u":
            self.search("")
        elif event.character is not None and event.is_printable:
            self.search(self.words + event.character)
        else:
            return
        event.stop()
        event.prevent_default()

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
