"""A list that is searched while one types: `/` begins, Enter ends, esc shows everything again."""

from __future__ import annotations

from textual.events import Key, Paste

from ..rows.glyphs import Row
from .rows_view import RowsView


class SearchableRows(RowsView):
    """Subclasses list anew in `searched`, and say in `entered` what Enter does outside a search."""

    HINT = "search"

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, cursor=True)
        self.words = ""
        self.searching = False

    def searched(self) -> None:
        """The words have changed."""
        raise NotImplementedError

    def entered(self) -> None:
        """Enter was pressed, and no search is open."""
        raise NotImplementedError

    def search_row(self, note: str = "") -> Row:
        """The line of the search."""
        if not (self.searching or self.words):
            return ((" / ", "key"), (self.HINT, "dim"), (note, "dim"))
        caret = "▏" if self.searching else ""
        return ((" / ", "key"), (self.words, "head"), (caret, "accent"), (note, "dim"))

    async def _on_key(self, event: Key) -> None:
        """No bindings, which would take `/` after the letters that come with it over a slow link."""
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
        """While searching, letters are words."""
        return self.searching and character is not None and character.isprintable()

    def on_blur(self) -> None:
        super().on_blur()
        if self.searching:
            self.search(self.words, searching=False)
