"""The rows above the footer that ask for a column to sort by: its letter, or arrows and Enter."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.events import Key, Resize
from textual.screen import ModalScreen

from ..rows.sort_keys import SortKey, sort_row
from .modal import key_rows
from .rows_view import StillRows

STEPS = {"left": -1, "up": -1, "shift+tab": -1, "right": 1, "down": 1, "tab": 1}
"""Keys that move the cursor among the columns. Letters choose a column, so that h, j, k and l do not move."""


class SortPrompt(ModalScreen[str | None]):
    """Asks for a column; returns its id, or None."""

    def __init__(self, keys: Sequence[SortKey], current: str) -> None:
        super().__init__()
        self._keys, self._current = keys, current
        self._cursor = next((at for at, key in enumerate(keys) if key.id == current), 0)
        self.rows = StillRows(id="sort-keys")

    def compose(self) -> ComposeResult:
        yield self.rows

    def on_resize(self, event: Resize) -> None:
        self._draw(event.size.width)

    def _draw(self, width: int) -> None:
        head = (("sort by  ", "dim"), ("", "text"))
        rows = key_rows((*head, *sort_row(self._keys, self._current, self._cursor)), width - 2)
        self.rows.styles.height = len(rows)
        self.rows.set_rows([((" ", "text"), *row) for row in rows])

    async def _on_key(self, event: Key) -> None:
        """Take a column by its letter, or by arrows and Enter; any other key cancels."""
        event.stop()
        event.prevent_default()
        if event.key in STEPS:
            self._cursor = (self._cursor + STEPS[event.key]) % len(self._keys)
            self._draw(self.size.width)
        elif event.key == "enter":
            self.dismiss(self._keys[self._cursor].id)
        else:
            chosen = [key.id for key in self._keys if event.character == key.letter]
            self.dismiss(chosen[0] if chosen else None)
