"""The launch form as one widget: rows that are typed into, chosen, or switched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.events import Key, Paste, Resize
from textual.message import Message

from ..rows.fields import Field, begun_with, stepped
from ..rows.form import Look, form_rows
from .rows_view import RowsView

PAGE = 8
"""Fields of a step by PgUp and PgDn."""


class FormView(RowsView, inherit_bindings=False):
    """Holds what was typed, by the names of fields; fields that are gone keep it until they come back."""

    class Changed(Message):
        """Something was typed or chosen."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.field = name

    class Submitted(Message):
        """Enter: go on with what is there."""

    def __init__(self) -> None:
        super().__init__(id="form", cursor=True)
        self.fields: list[Field] = []
        self.typed: dict[str, str] = {}
        self._index = 0
        self._caret = 0
        self._look = Look([], [], 0)

    # --- from outside

    def set_fields(self, fields: Sequence[Field]) -> None:
        """Show these; the cursor stays on its field where that is among them."""
        at = self.current.name if self.fields else ""
        names = [one.name for one in fields]
        self.fields = list(fields)
        self._index = names.index(at) if at in names else 0
        self._caret = min(self._caret, len(self.text))
        self._draw()

    def set(self, name: str, value: str) -> None:
        """As if it had been typed."""
        self.typed[name] = value
        if self.fields and self.current.name == name:
            self._caret = len(value)
        self._draw()
        self.post_message(self.Changed(name))

    def forget(self, names: Sequence[str]) -> None:
        """As if nothing had been typed there."""
        for name in names:
            self.typed.pop(name, None)
        self._caret = min(self._caret, len(self.text))
        self._draw()

    def go(self, name: str) -> None:
        """Put the cursor on a field."""
        self._to([one.name for one in self.fields].index(name))

    @property
    def current(self) -> Field:
        """The field at hand."""
        return self.fields[self._index]

    @property
    def text(self) -> str:
        """What was typed there."""
        return self.typed.get(self.current.name, "") if self.fields else ""

    # --- keys

    async def _on_key(self, event: Key) -> None:
        if not self.fields:
            return
        key, letter = event.key, event.character
        if key in _MOVES:
            self._to(self._index + _MOVES[key])
        elif key == "enter":
            self.post_message(self.Submitted())
        elif key in ("backspace", "delete", "ctrl+u", "ctrl+w") and self._picked:
            self._put("")
        elif key in ("left", "right") and self._picked:
            self._put(stepped(self.current, self.text, 1 if key == "right" else -1))
        elif not self._picked and self._edit(key):
            pass
        elif letter is not None and letter.isprintable() and event.is_printable:
            self._letter(letter)
        else:
            return
        event.stop()
        event.prevent_default()

    def _on_paste(self, event: Paste) -> None:
        if event.text and self.fields and not self._picked:
            self._insert(event.text.splitlines()[0])
        event.stop()

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Letters go into the form, whatever they do elsewhere."""
        return character is not None and character.isprintable()

    @property
    def _picked(self) -> bool:
        """Whether the field at hand is chosen, not typed."""
        return bool(self.current.choices) or self.current.check

    def _letter(self, letter: str) -> None:
        if not self._picked:
            self._insert(letter)
        elif letter == " ":
            self._put(stepped(self.current, self.text, 1))
        elif self.current.choices:
            self._put(begun_with(self.current, self.text, letter))

    def _edit(self, key: str) -> bool:
        """Keys of a line editor; False for any other."""
        text, at = self.text, self._caret
        match key:
            case "left" | "right":
                self._caret = max(0, min(len(text), at + (1 if key == "right" else -1)))
            case "home" | "ctrl+a":
                self._caret = 0
            case "end" | "ctrl+e":
                self._caret = len(text)
            case "backspace":
                self._put(text[: max(0, at - 1)] + text[at:], max(0, at - 1))
            case "delete" | "ctrl+d":
                self._put(text[:at] + text[at + 1 :], at)
            case "ctrl+u":
                self._put(text[at:], 0)
            case "ctrl+k":
                self._put(text[:at], at)
            case "ctrl+w":
                kept = text[:at].rstrip().rpartition(" ")
                left = kept[0] + kept[1]
                self._put(left + text[at:], len(left))
            case _:
                return False
        self._draw()
        return True

    def _insert(self, text: str) -> None:
        clean = "".join(letter for letter in text if letter.isprintable())
        self._put(self.text[: self._caret] + clean + self.text[self._caret :], self._caret + len(clean))

    def _put(self, text: str, caret: int = 0) -> None:
        changed = text != self.text
        self._caret = caret
        if text:
            self.typed[self.current.name] = text
        else:
            self.typed.pop(self.current.name, None)
        self._draw()
        if changed:
            self.post_message(self.Changed(self.current.name))

    # --- the cursor

    def _to(self, index: int) -> None:
        self._index = max(0, min(index, len(self.fields) - 1))
        self._caret = len(self.text)
        self._draw()

    def move_to(self, index: int) -> None:
        """To the field whose row was clicked, or whose help."""
        if self._look.at:
            self._to(max(0, sum(row <= index for row in self._look.at) - 1))

    def _draw(self) -> None:
        width = max(20, self.scrollable_content_region.width - 1)
        self._look = look = form_rows(
            self.fields, self.typed, self._index, self._caret, width, self.has_focus
        )
        if look.at:
            self.cursor = look.at[self._index]
        self.set_rows(look.rows)
        if look.at and self.shown:
            self._keep_in_sight(look)

    def _keep_in_sight(self, look: Look) -> None:
        """The field at hand with its help, and the heading above the first field."""
        top, first = self.scroll_offset.y, look.at[self._index]
        first = 0 if not self._index else first
        if first < top:
            self._scroll_row(first)
        elif look.end >= top + self.shown:
            self._scroll_row(min(first, look.end - self.shown + 1))

    def on_resize(self, event: Resize) -> None:
        self._draw()

    def watch_has_focus(self, value: bool) -> None:
        super().watch_has_focus(value)
        self._draw()

    def values(self) -> Mapping[str, str]:
        """What was typed, by the names of fields."""
        return dict(self.typed)


_MOVES = {
    "up": -1, "down": 1, "pageup": -PAGE, "pagedown": PAGE, "ctrl+home": -10_000, "ctrl+end": 10_000,
}  # fmt: skip
