"""The panes of the launch screen: presets, form, SkyPilot's candidate nodes, and details next to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.events import Key, Paste, Resize
from textual.message import Message

from ...runners.launch.launch_form import LaunchForm
from ...runners.launch.preset_library import PresetEntry
from ...runners.run.errors import LaunchError
from ..background import background, stop
from ..keys import bindings
from ..option_values import common_start, paths_on
from ..rows import glyphs
from ..rows.form import (
    Field,
    FormRows,
    begun_with,
    best_match,
    candidate_rows,
    form_rows,
    head_row,
    matching,
    preset_rows,
    stepped,
)
from ..rows.glyphs import Row, wrap
from .rows_view import RowsView
from .searchable import SearchableRows

if TYPE_CHECKING:
    from ...runners.hub.sky_process import Candidate

PANES = ("plan", "YAML", "lint", "memory")

Make = Callable[[int], list[Row]]
"""Returns the rows of a pane for a number of columns."""


class Details(RowsView):
    """One pane with a title that lists all panes."""

    BINDINGS: ClassVar[list[Binding]] = [
        Binding("enter", "screen.zoom", "whole height", id="launch.zoom"),
        Binding("tab", "screen.onward(1)", "next pane", id="launch.next"),
        Binding("shift+tab", "screen.onward(-1)", "pane before", id="launch.previous"),
        *(
            Binding(str(number), f"screen.pane({number})", name, id=f"launch.pane_{number}")
            for number, name in enumerate(PANES, 1)
        ),
    ]

    def __init__(self) -> None:
        super().__init__(id="details")
        self.pane = PANES[0]
        self._makes: dict[str, Make] = {name: lambda width: [] for name in PANES}
        self._titles = {name: name for name in PANES}

    def put(self, pane: str, make: Make, title: str = "") -> None:
        """Set a pane's content; `title` replaces its name."""
        self._makes[pane], self._titles[pane] = make, title or pane
        self._rename()
        if pane == self.pane:
            self._draw()

    def show(self, pane: str) -> None:
        if pane != self.pane:
            self.pane = pane
            self.left = 0
            self._scroll_row(0)
        self._rename()
        self._draw()

    def _rename(self) -> None:
        names = (f"F{number} {self._titles[name]}" for number, name in enumerate(PANES, 2))
        self.entitle(
            " · ".join(f"[{text}]" if PANES[at] == self.pane else text for at, text in enumerate(names))
        )

    def _draw(self) -> None:
        self.set_rows(self._makes[self.pane](max(20, self.scrollable_content_region.width)))

    def on_mount(self) -> None:
        self._rename()

    def watch_has_focus(self, value: bool) -> None:
        super().watch_has_focus(value)
        self.border_subtitle = "Enter: whole height, and back" if value else ""

    def on_resize(self, event: Resize) -> None:
        self._draw()


STILL_S = 0.8
"""Seconds without a change of the form before SkyPilot is queried, which costs a process and seconds."""

_LEAST = 6
"""Minimum rows of the list with its frame."""

Ask = Callable[[LaunchForm], Awaitable["list[Candidate]"]]


class Candidates(RowsView):
    """One row per kind of nodes; Enter copies its place into the form."""

    BINDINGS: ClassVar[list[Binding]] = [binding for binding in bindings("list") if binding.id == "zoom"]

    class Taken(Message):
        """The user wants nodes there."""

        def __init__(self, infra: str) -> None:
            super().__init__()
            self.infra = infra

    def __init__(self, ask: Ask) -> None:
        super().__init__(id="candidates", cursor=True)
        self._ask = ask
        self._asked: tuple[str, str, str, str] | None = None
        self._candidates: list[Candidate] = []

    def request(self, form: LaunchForm) -> None:
        """Request these nodes, unless they were the last request."""
        wanted = (form.place, form.nodes, form.gpus, form.cpus)
        if wanted != self._asked:
            self._asked = wanted
            background(self, "candidates", self._fetch(form), exclusive=True)

    def leave(self) -> None:
        """Forget the last request, since the form no longer uses SkyPilot."""
        self._asked = None
        stop(self, "candidates")

    async def _fetch(self, form: LaunchForm) -> None:
        self._show([], "asking SkyPilot …", "dim")
        await asyncio.sleep(STILL_S)
        try:
            nodes = await self._ask(form)
        except LaunchError as error:
            self._show([], f"{glyphs.BAD} {error}", "text")
            return
        self._show(nodes, "SkyPilot knows no such nodes on what is enabled: `sky check` shows that", "warn")

    def _show(self, nodes: list[Candidate], otherwise: str, style: str) -> None:
        self._candidates, self.has_cursor = nodes, bool(nodes)
        words: list[Row] = wrap(otherwise, self.size.width - 1, style, first=" ")
        rows = candidate_rows(nodes) or words
        most = max(_LEAST, self.screen.size.height // 4)
        self.styles.height = min(len(rows) + bool(nodes) + 2, most)
        self.set_rows(rows, head_row() if nodes else None)
        self.refresh()

    def action_zoom(self) -> None:
        if self._candidates:
            self.post_message(self.Taken(self._candidates[self.cursor].infra))


class PresetList(SearchableRows):
    """One row per preset; `/` searches names, titles, summaries and strategies."""

    class Highlighted(Message):
        """The cursor is on another preset; None if the search finds none."""

        def __init__(self, entry: PresetEntry | None) -> None:
            super().__init__()
            self.entry = entry

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

    def set_entries(self, entries: Sequence[PresetEntry], name: str = "") -> None:
        """List these presets, with the cursor on `name` or on the same preset as before."""
        kept = name or (self.current.name if self.current else "")
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
        count = f"{len(self.listed)} of {len(self.entries)}" if self.words else str(len(self.entries))
        self.entitle(f"presets {count}")
        self.set_rows(preset_rows(self.listed, self.scrollable_content_region.width - 1), self.search_row())

    def cursor_moved(self) -> None:
        entry = self.current
        name = entry.name if entry else ""
        if name != self._highlighted:
            self._highlighted = name
            self.post_message(self.Highlighted(entry))

    def entered(self) -> None:
        if self.listed:
            self.post_message(self.Chosen())

    def searched(self) -> None:
        self._list(best_match(self.entries, self.words, self.current.name if self.current else ""))

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


PAGE = 8
"""Fields per PgUp and PgDn."""


class FormView(RowsView, inherit_bindings=False):
    """Holds the typed texts by field name; a removed field's text is kept until the field returns."""

    class Changed(Message):
        """The user typed or chose a value."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.field = name

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
        self._index = names.index(at) if at in names else 0
        self._caret = min(self._caret, len(self.text)) if at in names else len(self.text)
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
        if not self.fields:
            return
        key, letter = event.key, event.character
        if key in _MOVES:
            self._to(self._index + _MOVES[key])
        elif key == "enter":
            self.post_message(self.Submitted())
        elif key == "tab" and self.current.name == "script" and self._complete():
            pass
        elif key in _TABS and 0 <= self._index + _TABS[key] < len(self.fields):
            self._to(self._index + _TABS[key])
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
        self.border_subtitle = (
            "  ".join(path.rstrip("/").rpartition("/")[2] for path in paths[:8]) if len(paths) > 1 else ""
        )
        if not paths or (further == text and (len(paths) == 1 or text in paths)):
            return False
        if further != text:
            self._put(further, len(further))
        return True

    def _edit(self, key: str) -> bool:
        """Handle the keys of a line editor; return False for other keys."""
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
        first = 0 if not self._index else first
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


# completion of a typed path


def completed_path(text: str, ending: str) -> tuple[str, list[str]]:
    """Return the common start of all fitting paths, and those paths.

    Files without `ending` count only if nothing else fits.
    """
    paths = paths_on(text)
    paths = [path for path in paths if path.endswith(("/", ending))] or paths
    return common_start(paths) if paths else text, paths
