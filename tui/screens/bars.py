"""Clickable rows: the tabs of a run, and the footer of keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from textual.events import Click, Resize
from textual.signal import Signal

from ...presets.finding import failed
from ..background import call
from ..keys import ACTIONS, key_text
from ..rows.frame import Frame
from ..rows.tabs import ClickableRow, ClickArea, tab_row
from .rows_view import StillRows

_WORDS = {action.id: action.footer for action in ACTIONS if action.footer}


class ClickRow(StillRows):
    """One row with parts that react to clicks."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.spans: list[ClickArea] = []

    def on_click(self, event: Click) -> None:
        inside = event.get_content_offset(self)
        if inside is None:
            return
        for span in self.spans:
            if span.first <= inside.x < span.after:
                self.call_later(self.act, span.action)
                return

    async def act(self, action: str) -> None:
        await self.app.run_action(action, self.screen)


class TabRow(ClickRow):
    """The panes of the run, and the screens outside it."""

    def __init__(self, frames: Signal[Frame]) -> None:
        super().__init__(id="tabs")
        self._frames = frames
        self._frame: Frame | None = None
        self.keys: dict[str, str] = {}
        """The user's own keys by action id."""
        self.hidden: tuple[str, ...] = ()
        """Action ids of places that are disabled."""

    def on_mount(self) -> None:
        self._frames.subscribe(self, self.show, immediate=True)

    def on_resize(self, event: Resize) -> None:
        if self._frame is not None:
            self.show(self._frame)

    def show(self, frame: Frame) -> None:
        """Show the current pane, and the number of alarms."""
        self._frame = frame
        if self.size.width:
            alarms = [finding for finding in frame.state.findings.values() if finding.alarm]
            row, self.spans = tab_row(
                frame.view.pane, len(alarms), self.size.width, self.keys, failed(alarms), self.hidden
            )
            self.set_rows([row])


class KeyFooter(ClickRow):
    """One row of keys; keys that do not fit are dropped from the right, `?` shows all."""

    def __init__(self, *, id: str, other_words: Callable[[], Mapping[str, str]] = dict) -> None:
        """Create the footer; `other_words` maps action ids to their current words, "" hides a key."""
        super().__init__(id=id)
        self.other_words = other_words

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, lambda _: call(self, "keys", self.rebuild))
        self.call_after_refresh(self.rebuild)

    def on_resize(self, event: Resize) -> None:
        self.rebuild()

    def rebuild(self) -> None:
        """Show the keys that work now: `q quit  ? help  …`."""
        if not self.screen.is_active:
            return
        row = ClickableRow()
        row.add((" ", "text"))
        for id, key, word in self._keys():
            if row.width + len(key) + len(word) + 1 > self.size.width:
                break
            row.add((key, "key"), (f" {word}", "text"), action=id)
            row.add(("  ", "text"))
        self.spans = row.spans
        self.set_rows([tuple(row.cells)])

    async def act(self, action: str) -> None:
        """Run the action of the key with this id in the namespace of its binding."""
        for entry in self.screen.active_bindings.values():
            if entry.binding.id == action and entry.enabled:
                await self.app.run_action(entry.binding.action, entry.node)
                return

    def _keys(self) -> list[tuple[str, str, str]]:
        """Return id, key and word of the keys that work now."""
        defaults = {action.id: action.key.split(",") for action in ACTIONS}
        keys: dict[str, str] = {}
        for entry in self.screen.active_bindings.values():
            name, key = entry.binding.id, entry.binding.key
            if name in _WORDS and entry.enabled:
                keys[name] = defaults[name][0] if key in defaults[name] else key
        words = {**_WORDS, **self.other_words()}
        return [(name, key_text(keys[name]), word) for name, word in words.items() if name in keys and word]
