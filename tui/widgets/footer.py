"""The footer: the keys that work here, from the bindings of the focused widget up."""

from __future__ import annotations

from textual.screen import Screen

from ..actions import ACTIONS, key_text
from ..rows.cells import Cell, Row, row_width
from .rows_view import RowsView

_WORDS = {action.id: action.footer for action in ACTIONS if action.footer}


class KeyFooter(RowsView):
    """One row of keys; what does not fit is left out from the right, `?` shows all."""

    can_focus = False

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._changed)
        self.call_after_refresh(self.rebuild)

    def on_resize(self) -> None:
        self.rebuild()

    def _changed(self, screen: Screen[object]) -> None:
        self.rebuild()

    def rebuild(self) -> None:
        """Ask again which keys work."""
        if self.screen.is_active:
            self.set_rows([footer_row(self._keys(), self.size.width)])

    def _keys(self) -> list[tuple[str, str]]:
        active = {
            found.binding.id: found.binding.key
            for found in self.screen.active_bindings.values()
            if found.binding.id in _WORDS and found.enabled
        }
        first = {action.id: action.key.partition(",")[0] for action in ACTIONS}
        default = {action.id: action.key.split(",") for action in ACTIONS}
        keys = {
            name: first[name] if key in default[name] else key
            for name, key in active.items()
            if name is not None
        }
        return [(key_text(keys[name]), word) for name, word in _WORDS.items() if name in keys]


def footer_row(keys: list[tuple[str, str]], width: int) -> Row:
    """`q leave  ? help  …` in at most `width` columns."""
    cells: list[Cell] = [(" ", "text")]
    for key, word in keys:
        more: list[Cell] = [(key, "key"), (f" {word}  ", "text")]
        if row_width((*cells, *more)) > width + 2:
            break
        cells += more
    return tuple(cells)
