"""Help and palette: the keys that act now, with a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.binding import Binding
from textual.events import Key
from textual.screen import Screen
from textual.widgets import Input

from ..keys import ACTIONS, PANES, SCOPES, key_text
from ..rows.glyphs import Row, hang, key_row
from ..rows.key_list import KeyEntry, best_first, command_row, help_row, help_rows, orientation_rows
from .live_keys import LiveKey, context_of, live_keys
from .modal import RowsModal
from .search_dialog import SearchDialog, pointer

MOST_COMMANDS = 20
"""Maximum rows of the palette."""


def help_entries(screen: Screen[object], keymap: Mapping[str, str], readonly: bool) -> list[KeyEntry]:
    """Return every key by its section, those of the focused pane first."""
    here = [key for key in live_keys(screen) if key.of_pane]
    heading = f"This pane: {PANES.get(context_of(screen).pane, 'the form')}"
    entries = [KeyEntry(key.key, key.text, heading, key.action.also) for key in here]
    entries += [KeyEntry(key, text, heading) for key, text in _unlisted(screen)]
    shown = {key.action.id for key in here}
    for scope, title in SCOPES.items():
        entries += [
            KeyEntry(
                key_text(keymap.get(action.id, action.key)),
                action.text,
                title,
                action.also,
                readonly and action.mutates,
            )
            for action in ACTIONS
            if action.scope == scope and action.id not in shown
        ]
    return entries


def _unlisted(screen: Screen[object]) -> list[tuple[str, str]]:
    """Return keys and descriptions of a form, whose keys are not in the table of actions."""
    known = {action.id for action in ACTIONS}
    named: dict[str, tuple[str, str]] = {}
    for entry in screen.active_bindings.values():
        binding = entry.binding
        if binding.id and binding.id.startswith("launch.") and binding.id not in known:
            named.setdefault(binding.id, (key_text(binding.key), binding.description.capitalize()))
    return list(named.values())


class OrientationScreen(RowsModal[None]):
    """The five lines of a first start; any key closes them."""

    def __init__(self, own_keys: Mapping[str, str]) -> None:
        """Create the dialog; `own_keys` are the user's keys by action id."""
        keys = {action.id: key_text(action.key.partition(",")[0]) for action in ACTIONS}
        super().__init__(
            "Welcome to distui", orientation_rows({**keys, **own_keys}), key_row(("any key", " closes"))
        )

    async def _on_key(self, event: Key) -> None:
        event.stop()
        event.prevent_default()
        self.dismiss()

    def on_click(self) -> None:
        self.dismiss()


class HelpScreen(SearchDialog[None]):
    """Every key; typing filters by name and key."""

    HINT = "type to filter: a word, or a key"
    BINDINGS: ClassVar[list[Binding]] = [
        Binding("question_mark,f1,enter", "close", "close", id="help.close", priority=True)
    ]

    def __init__(self, entries: Sequence[KeyEntry], problems: Sequence[Row], topic: str = "") -> None:
        """Create the dialog; `problems` are the mistakes in the user's keys, `topic` is the first search."""
        keys = key_row(("esc", " close   "), ("↑ ↓ PgUp PgDn", " scroll   "), ("^p", " run a command"))
        super().__init__("Keys", keys, cursor=False, typed=topic)
        self._entries, self._problems = entries, problems

    def most_rows(self) -> int:
        return len(self.found_rows(60))

    def found_rows(self, width: int) -> Sequence[Row]:
        if self.typed.strip():
            found = [self._entries[at] for at in best_first(self.typed, self._entries)]
            rows = [(*help_row(entry), (f"  {entry.heading}", "dim")) for entry in found]
            return rows or [(("  no key has this name", "stale"),)]
        rows = [*self._problems, *help_rows(self._entries)]
        return [part for row in rows for part in hang(row, width)]

    def action_close(self) -> None:
        """Clear the search; without one, close."""
        line = self.query_one(Input)
        if line.value:
            line.value = ""
        else:
            self.dismiss()


class PaletteScreen(SearchDialog[LiveKey]):
    """The commands that act now, the best match first; returns the chosen one."""

    HINT = "type the name of a command"

    def __init__(self, screen: Screen[object]) -> None:
        keys = key_row(("Enter", " run   "), ("↑ ↓", " move   "), ("esc", " cancel"))
        super().__init__("Commands", keys)
        live = sorted(live_keys(screen), key=lambda key: not key.of_pane)
        self.commands = [key for key in live if key.action.scope != "move" and key.action.id != "palette"]
        self._entries = [KeyEntry(key.key, key.text, also=key.action.also) for key in self.commands]

    def most_rows(self) -> int:
        return min(MOST_COMMANDS, len(self._entries))

    def found_rows(self, width: int) -> Sequence[Row]:
        found = best_first(self.typed, self._entries)
        rows = [
            (*pointer(row == self.list.cursor), *command_row(self._entries[at], width - 3))
            for row, at in enumerate(found)
        ]
        return rows or [(("no command has this name", "stale"),)]

    def on_input_submitted(self) -> None:
        found = best_first(self.typed, self._entries)
        if self.list.cursor < len(found):
            self.dismiss(self.commands[found[self.list.cursor]])
