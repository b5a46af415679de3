"""The fields of the launch form: the cursor, typing, choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from textual.events import Key, Paste, Resize
from textual.message import Message

from ..line_edits import EDITS
from ..option_values import completed_path
from ..rows.form import FormRows, form_rows
from ..rows.form_fields import Field, begun_with, stepped
from .rows_view import RowsView

PAGE = 8
"""Fields per PgUp and PgDn."""


class FormView(RowsView, inherit_bindings=False):
    """Holds the typed texts by field name; a removed field's text is kept until the field returns."""

    @dataclass
    class Changed(Message):
        """The user typed or chose a value."""

        field: str

    class Submitted(Message):
        """The user pressed Enter."""

    def __init__(self) -> None:
        super().__init__(id="form", cursor=True)
        self.fields: list[Field] = []
        self.typed: dict[str, str] = {}
        self._index = 0
        self._caret = 0
        self._laid_out = FormRows([], [], 0)

    # --- from outside

    def set_fields(self, fields: Sequence[Field]) -> None:
        """Show these fields; the cursor stays on its field if that is among them."""
        at = self.current.name if self.fields else ""
        names = [field.name for field in fields]
        self.fields = list(fields)
        if at in names:
            self._index = names.index(at)
            self._caret = min(self._caret, len(self.text))
        else:
            self._index = 0
            self._caret = len(self.text)
        self._draw()

    def set(self, name: str, value: str) -> None:
        """Set a field as if the user had typed the value."""
        self.typed[name] = value
        if self.fields and self.current.name == name:
            self._caret = len(value)
        self._draw()
        self.post_message(self.Changed(name))

    def fill(self, typed: Mapping[str, str]) -> None:
        """Replace all typed texts."""
        self.typed = dict(typed)
        self._caret = len(self.text)
        self._draw()

    def forget(self, names: Sequence[str]) -> None:
        """Remove the typed texts of these fields."""
        for name in names:
            self.typed.pop(name, None)
        self._caret = min(self._caret, len(self.text))
        self._draw()

    def go(self, name: str) -> None:
        self._to([field.name for field in self.fields].index(name))

    @property
    def current(self) -> Field:
        return self.fields[self._index]

    @property
    def text(self) -> str:
        """The typed text of the current field."""
        return self.typed.get(self.current.name, "") if self.fields else ""

    # --- keys

    async def _on_key(self, event: Key) -> None:
        if self.fields and self._handle(event):
            event.stop()
            event.prevent_default()

    def _handle(self, event: Key) -> bool:
        """Handle a key; return False if it is for the screen."""
        key = event.key
        if key in _MOVES:
            self._to(self._index + _MOVES[key])
        elif key == "enter":
            self.post_message(self.Submitted())
        elif key in _TABS:
            return self._tab(key)
        elif not self._change(key):
            return self._type(event)
        return True

    def _change(self, key: str) -> bool:
        """Handle a key that changes a value without a letter."""
        if not self._picked and key in EDITS:
            self._put(*EDITS[key](self.text, self._caret))
        elif self._picked and key in _STEPS:
            self._put(stepped(self.current, self.text, _STEPS[key]))
        elif self._picked and key in _CLEARING:
            self._put("")
        else:
            return False
        return True

    def _type(self, event: Key) -> bool:
        letter = event.character
        if letter is None or not letter.isprintable() or not event.is_printable:
            return False
        self._letter(letter)
        return True

    def _tab(self, key: str) -> bool:
        """Complete a path, or go to another field; return False at the ends of the form."""
        if key == "tab" and self.current.name == "script" and self._complete():
            return True
        index = self._index + _TABS[key]
        if not 0 <= index < len(self.fields):
            return False
        self._to(index)
        return True

    def _on_paste(self, event: Paste) -> None:
        if event.text and self.fields and not self._picked:
            self._insert(event.text.splitlines()[0])
        event.stop()

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Take all printable characters, even if other bindings use them."""
        return character is not None and character.isprintable()

    @property
    def _picked(self) -> bool:
        """Whether the current field offers choices instead of free text."""
        return bool(self.current.choices) or self.current.check

    def type_letter(self, letter: str) -> None:
        """Type a letter here as if the form had the focus."""
        if self.fields:
            self.focus()
            self._letter(letter)

    def _letter(self, letter: str) -> None:
        if not self._picked:
            self._insert(letter)
        elif letter == " ":
            self._put(stepped(self.current, self.text, 1))
        elif self.current.choices:
            self._put(begun_with(self.current, self.text, letter))

    def _complete(self) -> bool:
        """Complete the path as far as it is unambiguous, and show the candidates; return False if it is complete."""
        text = self.text
        further, paths = completed_path(text, ".py")
        names = [path.rstrip("/").rpartition("/")[2] for path in paths[:8]]
        self.border_subtitle = "  ".join(names) if len(paths) > 1 else ""
        if not paths or (further == text and (len(paths) == 1 or text in paths)):
            return False
        if further != text:
            self._put(further, len(further))
        return True

    def _insert(self, text: str) -> None:
        clean = "".join(letter for letter in text if letter.isprintable())
        self._put(self.text[: self._caret] + clean + self.text[self._caret :], self._caret + len(clean))

    def _put(self, text: str, caret: int = 0) -> None:
        if self.current.locked:
            return
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
        self.border_subtitle = ""
        self._index = max(0, min(index, len(self.fields) - 1))
        self._caret = len(self.text)
        self._draw()

    def move_to(self, index: int) -> None:
        """Go to the field whose row or help was clicked."""
        if self._laid_out.at:
            self._to(max(0, sum(row <= index for row in self._laid_out.at) - 1))

    def _draw(self) -> None:
        width = max(20, self.scrollable_content_region.width - 1)
        self._laid_out = laid_out = form_rows(
            self.fields, self.typed, self._index, self._caret, width, self.has_focus
        )
        if laid_out.at:
            self.cursor = laid_out.at[self._index]
        self.set_rows(laid_out.rows)
        if laid_out.at and self.shown:
            self._keep_in_sight(laid_out)

    def _keep_in_sight(self, laid_out: FormRows) -> None:
        """Scroll to the current field with its help; for the first field also to the heading."""
        top, first = self.scroll_offset.y, laid_out.at[self._index]
        if not self._index:
            first = 0
        if first < top:
            self._scroll_row(first)
        elif laid_out.end >= top + self.shown:
            self._scroll_row(min(first, laid_out.end - self.shown + 1))

    def on_resize(self, event: Resize) -> None:
        self._draw()

    def watch_has_focus(self, value: bool) -> None:
        super().watch_has_focus(value)
        self._draw()


_MOVES = {
    "up": -1,
    "down": 1,
    "pageup": -PAGE,
    "pagedown": PAGE,
    "ctrl+home": -10_000,
    "ctrl+end": 10_000,
}
_TABS = {"tab": 1, "shift+tab": -1}
"""They leave the form at its ends."""

_STEPS = {"left": -1, "right": 1}

_CLEARING = ("backspace", "delete", "ctrl+u", "ctrl+w")
"""Keys that remove the choice of a field."""
