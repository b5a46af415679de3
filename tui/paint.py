"""Painting: changed rows go directly into the picture of the terminal, everything else through Textual."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from typing import Protocol

from rich.color import ColorSystem
from rich.console import RenderableType
from textual._ansi_sequences import SYNC_END, SYNC_START
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App
from textual.events import CursorPosition, Event, Key, MouseDown, MouseScrollDown, MouseScrollUp, Paste
from textual.events import Resize as ResizeEvent
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip

from ..runners.run import clock
from .ink import Cell
from .pacing import Pacer
from .picture import Picture
from .terminal_output import REPEAT_ANSWER, erases_in_colour

SETTLE_S, MOST_SETTLE_S = 0.02, 0.1
"""Seconds without a paint after which a new layout is complete, and the longest wait for that.

Widgets learn their new sizes by messages; many paint a second time then.
"""


class LinePane(Protocol):
    """The painter's view of a pane: lines, and their place on the screen."""

    retitled: bool

    @property
    def screen(self) -> Screen[object]: ...
    @property
    def display(self) -> bool: ...
    @property
    def region(self) -> Region: ...
    @property
    def content_region(self) -> Region: ...
    def drawn(self, lines: Sequence[int], colours: ColorSystem) -> list[list[Cell]]: ...
    def upper_edge(self) -> Strip: ...


class Painter:
    """Puts lines of panes directly into the picture of the terminal.

    Textual paints by widget, with a message and a timer for each, and composes all overlapping widgets. That is most of
    the cost of a cockpit that changes thirty rows per second. The painter skips it for rows of unobstructed panes: their
    place is known, and they look as Textual would have drawn them. Everything else, and every doubtful case, is left to
    Textual.
    """

    def __init__(self, app: PacedApp) -> None:
        self._app = app

    def take(self, pane: LinePane, lines: Iterable[int]) -> bool:
        """Paint these lines of the pane, counted from its top; return False if Textual has to do it."""
        if not self._reaches(pane):
            return False
        app = self._app
        left, top = pane.content_region.offset
        these = sorted(lines)
        for y, cells in zip(these, pane.drawn(these, app.colours), strict=True):
            app.picture.put_cells(left, top + y, cells)
        app.pacer.pump()
        return True

    def take_edge(self, pane: LinePane) -> bool:
        """Paint the upper edge of the pane's frame, with the title; return False if Textual has to do it."""
        if not self._reaches(pane):
            return False
        self._app.picture.put(*pane.region.offset, pane.upper_edge(), self._app.colours)
        self._app.pacer.pump()
        return True

    def _reaches(self, pane: LinePane) -> bool:
        """Whether the app owns the terminal, and no dialog, notification or change of the layout is in the way."""
        app = self._app
        if not (app.pacer.active and app.is_running and app.return_code is None):
            return False
        # These names are private to Textual: a version without them also counts as doubtful.
        if getattr(app, "_batch_count", 1) or getattr(app, "_notifications", True):
            return False
        if app.screen is not pane.screen or not pane.display or pane.retitled:
            return False
        region = pane.region
        return bool(region) and app.screen.region.contains_region(region)


class PacedApp(App[None]):
    """Keeps a picture of its terminal, and writes changes no faster than the terminal reads them."""

    ascii_only = False
    """Whether rows are drawn with ASCII characters only."""

    def __init__(self) -> None:
        super().__init__()
        self.picture = Picture(erases=erases_in_colour(os.environ.get("TERM", "")))
        self.painter = Painter(self)
        self.pacer = Pacer(self._taken, self.write)
        self._settling: asyncio.TimerHandle | None = None
        self._settle_by = 0.0

    def paint_anew(self) -> None:
        """Repaint everything after another program has written to the terminal."""
        self.picture.forget()
        self.pacer.pump()

    @property
    def colours(self) -> ColorSystem:
        """The terminal's color system."""
        return self.console._color_system or ColorSystem.TRUECOLOR

    def _taken(self, budget: int) -> str:
        """Return a batch, with the cursor at its place."""
        text = self.picture.take(budget)
        if not text:
            return ""
        x, y = self.screen.outer_size.clamp_offset(self.cursor_position)
        text = f"{text}\x1b[{y + 1};{x + 1}H"
        return f"{SYNC_START}{text}{SYNC_END}" if getattr(self, "_sync_available", False) else text

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        """Put Textual's composition into the picture; see `App._display`."""
        if not self.pacer.active or not isinstance(renderable, LayoutUpdate | ChopsUpdate):
            super()._display(screen, renderable)
            return
        if self._batch_count or not self._running:
            return
        self.picture.resize(*self.size)
        if isinstance(renderable, LayoutUpdate):
            self._put_layout(renderable)
            self._settle()
        else:
            self._put_chops(renderable)
            if self._settling is not None:
                self._settle()
        self.pacer.pump()
        self.post_display_hook()

    def _settle(self) -> None:
        """Keep output back until the widgets of a new layout have painted."""
        now = clock.monotonic()
        if self._settling is None:
            self.pacer.hold(True)
            self._settle_by = now + MOST_SETTLE_S
        else:
            self._settling.cancel()
        delay = max(0.0, min(SETTLE_S, self._settle_by - now))
        self._settling = asyncio.get_running_loop().call_later(delay, self._settled)

    def _settled(self) -> None:
        self._settling = None
        self.pacer.hold(False)

    def _put_layout(self, update: LayoutUpdate) -> None:
        for y, line in enumerate(update.strips, update.region.y):
            segments = [segment for strip in line for segment in strip]
            self.picture.put(update.region.x, y, segments, self.colours)

    def _put_chops(self, update: ChopsUpdate) -> None:
        """Do the same as ChopsUpdate.render_segments."""
        for y, begin, end in update.spans:
            for to, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
                if strip is not None and x <= end and to > begin:
                    inside = x >= begin and to <= end
                    self.picture.put(
                        x, y, strip if inside else strip.crop(0, min(to, end) - x), self.colours
                    )

    async def on_event(self, event: Event) -> None:
        """Give output caused by a key priority over the rest, until the next frame."""
        if isinstance(event, Key | MouseDown | MouseScrollDown | MouseScrollUp | Paste):
            self.picture.hurried = True
            self.pacer.typed()
        elif isinstance(event, ResizeEvent):
            self.picture.forget()
        await super().on_event(event)

    def write(self, text: str) -> None:
        """Write to the terminal, after previous output."""
        if self._driver is not None:
            self._driver.write(text)

    def on_cursor_position(self, event: CursorPosition) -> None:
        if self.pacer.rtt is None:  # the answer to the greeting
            self.picture.allow(repeats=(event.x, event.y) == REPEAT_ANSWER)
        self.pacer.answered()
