"""Clickable rows: the tabs of a run, and the footer of keys."""

from __future__ import annotations

from textual.events import Click, Resize
from textual.signal import Signal

from ...presets.finding import failed
from ..background import call
from ..rows.findings import alarms
from ..rows.footer import footer_row
from ..rows.frame import Frame
from ..rows.tabs import ClickArea, tab_row
from .live_keys import context_of, live_keys
from .rows_view import StillRows


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
            found = alarms(frame.state)
            severe = failed(item.first for item in found)
            row, self.spans = tab_row(
                frame.view.pane, len(found), self.size.width, self.keys, severe, self.hidden
            )
            self.set_rows([row])


class KeyFooter(ClickRow):
    """One row of keys: those of the focused pane, and `: command` at the end; `…` if some did not fit."""

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, lambda _: call(self, "keys", self.rebuild))
        self.call_after_refresh(self.rebuild)

    def on_resize(self, event: Resize) -> None:
        self.rebuild()

    def rebuild(self) -> None:
        """Show the keys that act now: `? help  q quit  …`."""
        if not self.screen.is_active:
            return
        pane = context_of(self.screen).pane
        offered = [key for key in live_keys(self.screen) if key.word and key.action.is_shown_in(pane)]
        row = footer_row([(key.action.id, key.key, key.word) for key in offered], self.size.width)
        self.spans = row.spans
        self.set_rows([tuple(row.cells)])

    async def act(self, action: str) -> None:
        """Run the action of the key with this id in the namespace of its binding."""
        for key in live_keys(self.screen):
            if key.action.id == action:
                await self.app.run_action(key.call, key.node)
