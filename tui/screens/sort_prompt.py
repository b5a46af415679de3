"""The rows above the footer that ask for the letter of a column to sort by."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.events import Key, Resize
from textual.screen import ModalScreen

from ..rows.sort_keys import SortKey, sort_row
from .modal import key_rows
from .rows_view import StillRows


class SortPrompt(ModalScreen[str | None]):
    """Asks for a column by its letter; returns its id, or None."""

    def __init__(self, keys: Sequence[SortKey], current: str) -> None:
        super().__init__()
        self._keys, self._current = keys, current
        self.rows = StillRows(id="sort-keys")

    def compose(self) -> ComposeResult:
        yield self.rows

    def on_resize(self, event: Resize) -> None:
        head = (("sort by  ", "dim"), ("", "text"))
        rows = key_rows((*head, *sort_row(self._keys, self._current)), event.size.width - 2)
        self.rows.styles.height = len(rows)
        self.rows.set_rows([((" ", "text"), *row) for row in rows])

    async def _on_key(self, event: Key) -> None:
        """Take the letter of a column; any other key cancels."""
        event.stop()
        event.prevent_default()
        chosen = [key.id for key in self._keys if event.character == key.letter]
        self.dismiss(chosen[0] if chosen else None)
