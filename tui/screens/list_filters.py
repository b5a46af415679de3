"""The filters of the lists of a run: `/` opens a line that filters the focused pane while the user types."""

from __future__ import annotations

from ..rows.pane_filters import PANE_FILTERS, filter_changes
from .cockpit import Cockpit
from .prompts import FilterPrompt


class ListFilters:
    """Opens and removes the filters of panes; each is a field of the view."""

    def __init__(self, app: Cockpit) -> None:
        self._app = app
        self._typed: dict[str, list[str]] = {}
        """Earlier filters by pane, the newest last."""

    def has(self, pane: str) -> bool:
        """Whether the pane is a list with a filter."""
        return pane in PANE_FILTERS

    def open(self, pane: str) -> None:
        """Open the line for the filter of a pane."""
        grammar, before = PANE_FILTERS[pane].grammar, self._text(pane)

        def typed(text: str) -> str:
            self._change(pane, text)
            return grammar.mistake(text)

        def closed(text: str | None) -> None:
            self._change(pane, before if text is None else text)
            if text:
                self._typed[pane] = [*(each for each in earlier if each != text), text]

        earlier = self._typed.get(pane, [])
        hint = f"words, or {grammar.hint()}"
        self._app.push_screen(FilterPrompt(before, earlier, typed, lambda: "", hint), closed)

    def put(self, pane: str, text: str) -> None:
        """Filter a pane, unless the words are wrong."""
        if wrong := PANE_FILTERS[pane].grammar.mistake(text):
            self._app.notify(wrong, severity="error")
        else:
            self._change(pane, text)

    def release(self, pane: str) -> bool:
        """Remove the filter of a pane; return False if there is none."""
        if not self.has(pane) or not self._text(pane):
            return False
        self._change(pane, "")
        return True

    def _text(self, pane: str) -> str:
        text: str = getattr(self._app.view, PANE_FILTERS[pane].field)
        return text

    def _change(self, pane: str, text: str) -> None:
        self._app.change_view(**filter_changes(self._app.view, pane, text))
