"""Painting: theme colours, incremental updates, and the pace of frames on a slow terminal."""

from __future__ import annotations

import asyncio
import os
import select
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from rich.color import ColorSystem
from rich.console import RenderableType
from rich.style import Style
from textual._ansi_sequences import SYNC_END, SYNC_START
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.constants import ESCAPE_DELAY
from textual.drivers.linux_driver import LinuxDriver
from textual.events import CursorPosition, Event, Key, MouseDown, MouseScrollDown, MouseScrollUp, Paste
from textual.events import Resize as ResizeEvent
from textual.geometry import Region
from textual.screen import Screen
from textual.scrollbar import ScrollBar
from textual.theme import BUILTIN_THEMES, Theme

from ..runners.run import clock
from .picture import Cell, Picture
from .terminal import Waiting, take_answers

# Status colours are Okabe and Ito's; the heat ramp is like cividis, with rising lightness. Colour-blind users can
# distinguish both. Glyphs repeat everything that a colour shows.
DARK, LIGHT, ANSI = "distui-dark", "distui-light", "distui-ansi"

NAMES = (DARK, LIGHT, ANSI)
"""Ordered as the theme key cycles through them."""

RAMP = (
    "#16233f",
    "#223a63",
    "#3a4c6c",
    "#525e70",
    "#6a6f76",
    "#868479",
    "#a49a70",
    "#c4b462",
    "#e4cf5b",
)
"""Background of heat cells, cold to hot."""

LIGHT_RAMP = (
    "#edf1f5",
    "#dde7f0",
    "#cbdcea",
    "#b5cfe4",
    "#9bbfdb",
    "#7dadd1",
    "#5d98c4",
    "#1f6ea5",
    "#00507f",
)
"""Background of heat cells on a light ground: idle is pale, busy is dark."""

_DARK = {
    "text": "#d3dae3",
    "head": "bold #ffffff",
    "dim": "#8b97a3",
    "stale": "#7c8792",
    "accent": "#8ecdf0",
    "ok": "#56b4e9",
    "warn": "#e69f00",
    "bad": "bold #e8702a",
    "hit": "#0f1419 on #e4cf5b",
}
_LIGHT = {
    "text": "#1c2733",
    "head": "bold #000000",
    "dim": "#5a6672",
    "stale": "#66717d",
    "accent": "#0b5d8f",
    "ok": "#00639c",
    "warn": "#8a5a00",
    "bad": "bold #b04300",
    "hit": "#000000 on #e4cf5b",
}
_TERMINAL = {
    "text": "default",
    "head": "bold",
    "dim": "bright_black",
    "stale": "bright_black",
    "accent": "cyan",
    "ok": "blue",
    "warn": "yellow",
    "bad": "bold red",
    "hit": "reverse",
}


def _ramp(ramp: Sequence[str], cold: str, hot: str, turn: int) -> dict[str, str]:
    """Return styles of heat cells and bars.

    From step `turn` on the text is `hot`. Bars are brighter than their ground.
    """
    cells = {
        f"heat{step}": f"{hot if step >= turn else cold} on {colour}" for step, colour in enumerate(ramp)
    }
    bars = {f"bar{step}": f"{ramp[max(step, turn - 2)]} on {ramp[0]}" for step in range(len(ramp))}
    return cells | bars


def _terminal_ramp() -> dict[str, str]:
    """Return heat styles without background: the sixteen terminal colours have no order. The glyph shows the value."""
    names = (f"{kind}{step}" for kind in ("heat", "bar") for step in range(len(RAMP)))
    return {name: "bold" if name[-1] in "78" else "default" for name in names}


def _parsed(table: dict[str, str]) -> dict[str, Style]:
    whole = table | {"tab": table["head"], "key": f"bold {table['accent']}"}
    return {name: Style.parse(text) for name, text in whole.items()}


_STYLES = {
    DARK: _parsed(_DARK | _ramp(RAMP, "#ffffff", "#0b0f14", 5)),
    LIGHT: _parsed(_LIGHT | _ramp(LIGHT_RAMP, "#0b0f14", "#ffffff", 7)),
    ANSI: _parsed(_TERMINAL | _terminal_ramp()),
}


def styles(theme: str) -> dict[str, Style]:
    """Return the styles of a theme by name; a theme of Textual uses those of distui's theme with a similar ground."""
    return _STYLES[theme if theme in _STYLES else _alike(BUILTIN_THEMES.get(theme))]


def _alike(theme: Theme | None) -> str:
    if theme is None:
        return DARK
    if theme.background == "ansi_default":
        return ANSI
    return DARK if theme.dark else LIGHT


def _theme(name: str, table: dict[str, str], ground: str, surface: str, panel: str, border: str) -> Theme:
    """Return a theme with the table's colours for Textual's own widgets."""
    return Theme(
        name=name,
        dark=name == DARK,
        primary=table["ok"],
        secondary=table["accent"],
        accent=table["accent"],
        warning=table["warn"],
        error=table["bad"].removeprefix("bold "),
        success=table["ok"],
        foreground=table["text"],
        background=ground,
        surface=surface,
        panel=panel,
        variables={"footer-background": panel, "border": border},
    )


THEMES = (
    _theme(DARK, _DARK, "#0f1419", "#141b22", "#1b242d", "#33414f"),
    _theme(LIGHT, _LIGHT, "#fafbfc", "#f1f3f5", "#e4e8ec", "#b7c0c9"),
    replace(BUILTIN_THEMES["ansi-dark"], name=ANSI),
)
"""Themes of Textual's own widgets: inputs, lists, frames."""


SOON_S = 0.04
"""Seconds from an important event to its frame, so that simultaneous events share one frame."""

APART_S = 0.2
"""Minimum seconds between two frames, unless a key requests one."""

GATHER_S = 0.2
"""Seconds from a sample to its frame: samplers of one second do not report simultaneously."""

SAMPLES_S = 0.95
"""Minimum seconds between two frames that only show samples: a little less than the sampling interval."""

CLOCKS_S = 1.25
"""Seconds until a frame without news, for ages and countdowns.

Longer than the sampling interval, so that samples set the pace.
"""


class Beat:
    """Calls `due` if a frame is due: soon after important events, once per second after samples, and for clocks.

    Nothing polls; everything within one frame is painted together. Must be used in the thread of a running event loop.
    """

    def __init__(self, due: Callable[[], None]) -> None:
        self._due = due
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0
        self._last = float("-inf")

    def stir(self, sample: bool) -> None:
        """Schedule a frame for a sample, or for an important event."""
        now = asyncio.get_running_loop().time()
        wait, apart = (GATHER_S, SAMPLES_S) if sample else (SOON_S, APART_S)
        self._call_at(max(now + wait, self._last + apart))

    def at_once(self) -> None:
        """Schedule a frame as soon as the loop is free, since the screen is still empty."""
        self._call_at(asyncio.get_running_loop().time())

    def beaten(self) -> None:
        """Record a frame, and schedule the next one for clocks."""
        self.stop()
        self._last = asyncio.get_running_loop().time()
        self._call_at(self._last + CLOCKS_S)

    def stop(self) -> None:
        """Schedule no more frames until the next event."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _call_at(self, at: float) -> None:
        if self._timer is not None:
            if self._at <= at:
                return
            self._timer.cancel()
        self._at = at
        self._timer = asyncio.get_running_loop().call_at(at, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._due()


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

    def take_bar(self, pane: LinePane, bar: ScrollBar) -> bool:
        """Paint the pane's scrollbar; return False if Textual has to do it."""
        if not self._reaches(pane):
            return False
        app, region = self._app, bar.region
        bar._set_dirty()
        for y, strip in enumerate(bar.render_lines(Region(0, 0, *region.size)), region.y):
            app.picture.put(region.x, y, strip, app.colours)
        app.pacer.pump()
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


LEAVE_S, LEAVE_MOST_S = 0.5, 3.0
"""Maximum seconds to wait at exit for answers of a fast and of a slow terminal."""


class CalmDriver(LinuxDriver):
    """Textual's driver with an input thread that sleeps until there is input or an escape is due.

    Textual's thread wakes up ten times per second to check whether it has to end, and for a single escape.
    """

    _bell: tuple[int, int] | None = None
    """A pipe; writing to it ends the thread."""

    def start_application_mode(self) -> None:
        self._close_bell()
        self._bell = os.pipe()
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def disable_input(self) -> None:
        """See Driver.disable_input.

        Textual calls it twice at exit, the second time after the shell's screen and modes are restored.
        """
        if self._bell is None:
            super().disable_input()
            return
        os.write(self._bell[1], b"\0")
        super().disable_input()
        self._close_bell()
        self._take_answers()

    def _take_answers(self) -> None:
        """Wait for the terminal's pending answers, which the shell would otherwise receive as input."""
        pacer = getattr(self._app, "pacer", None)
        if pacer is None or not (pacer.owes or pacer.rtt is not None):
            return
        self.write(ASK)  # answered last, so that no other answer is pending
        patience = min(LEAVE_MOST_S, max(LEAVE_S, 4 * (pacer.rtt or 0.0)))
        take_answers(self.fileno, 1 + pacer.owes, patience)

    def _close_bell(self) -> None:
        ends, self._bell = self._bell or (), None
        for end in ends:
            os.close(end)

    def run_input_thread(self) -> None:
        """Run as LinuxDriver.run_input_thread does, without the timer."""
        if self._bell is None:
            return
        bell = self._bell[0]
        parser = XTermParser(self._debug)
        decode = getincrementaldecoder("utf-8")().decode
        wait = Waiting(self.fileno, bell)
        patience: float | None = None
        while bell not in (ready := wait(patience)):
            patience = None
            if ready:
                if not ready[self.fileno] & select.POLLIN:
                    return  # the terminal was closed
                try:
                    data = os.read(self.fileno, 4096)
                except OSError:
                    data = b""
                if not data:
                    return
                patience = 1000 * ESCAPE_DELAY + 1
                for event in parser.feed(decode(data)):
                    self.process_message(event)
            for event in parser.tick():
                self.process_message(event)


ASK = "\x1b[6n"
"""Device status report 6 (ECMA-48): the terminal answers with the cursor's position."""

FEWEST, FIRST, MOST = 256, 4096, 1 << 16
"""Minimum, initial and maximum bytes per batch. The initial size protects a slow link until its speed is known."""

FAST_S, SLOW_S = 0.05, 0.15
"""Delays over the fastest answer below which the next batch doubles, and above which it shrinks."""

PATIENCE_S, MOST_PATIENCE_S = 10.0, 320.0
"""Seconds without an answer before one more batch is sent; doubled each time up to the maximum."""

GREETING_S = 1.0
"""Patience for the very first question: most terminals answer in milliseconds, and some never."""

DEAF_S = 3.0
"""A key so many seconds after a question shows that its answer was lost."""


class Pacer:
    """Writes no faster than the terminal reads: one batch in flight, its size set by the round-trip time.

    Without this a slow link fills with old frames, and every key waits for them. After each batch the pacer requests the
    cursor's position (`ESC[6n`); the answer confirms that everything before it has arrived. A terminal that has never
    answered within PATIENCE_S gets all output at once until it answers. A terminal that stops answering gets no more
    output.
    """

    def __init__(
        self,
        take: Callable[[int], str],
        write: Callable[[str], None],
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        """Create the pacer. `take` returns at most so many bytes of pending output; `write` writes them."""
        self.active = False
        """Whether the app owns a terminal."""
        self.budget = FIRST
        self.rtt: float | None = None
        """Round-trip seconds of the last batch."""
        self.mute = False
        """Whether the terminal has never answered, although it had time to."""
        self._least: float | None = None
        """The fastest answer."""
        self._take = take
        self._write = write
        self._clock = clock
        self._depth = 0
        self._asked: float | None = None
        self._sent = 0
        """Characters of the batch in flight."""
        self._patience = GREETING_S
        self._begun = False

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send everything painted inside as one batch."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self.pump()

    @property
    def owes(self) -> bool:
        """Whether an answer of the terminal is pending."""
        return self._asked is not None

    @property
    def busy(self) -> bool:
        """Whether a batch is in flight."""
        return self._asked is not None and not self.mute

    def greet(self) -> None:
        """Start with a question before any output, so that the first answer measures the terminal's latency."""
        self.active = True
        self._ask("")

    def pump(self) -> None:
        """Send the next batch, unless one is in flight."""
        if self._depth or not self.active:
            return
        if self._asked is not None and self._clock() - self._asked >= self._patience:
            self._give_up_answer()
        if self.mute or not self._begun:  # the very first batch waits for no answer
            if text := self._take(MOST if self.mute else self.budget):
                self._begun = True
                self._ask(text) if self._asked is None else self._write(text)
        elif self._asked is None and (text := self._take(self.budget)):
            self._ask(text)

    def _give_up_answer(self) -> None:
        """Stop waiting for the terminal, which is mute if it has never answered."""
        self.mute = self.mute or self._least is None
        self._patience = min(max(PATIENCE_S, 2 * self._patience), MOST_PATIENCE_S)
        self.budget = FEWEST
        self._asked = None

    def _ask(self, text: str) -> None:
        self._asked, self._sent = self._clock(), len(text)
        self._write(text + ASK)

    def answered(self) -> None:
        """Record that the terminal has read the batch."""
        if self._asked is None:
            return
        took = self.rtt = self._clock() - self._asked
        self._least = took if self._least is None else min(self._least, took)
        self._asked, self.mute, self._patience = None, False, PATIENCE_S
        if took - self._least < FAST_S and 2 * self._sent > self.budget:  # a small batch is always fast
            self.budget = min(MOST, self.budget * 2)
        elif took - self._least > SLOW_S:
            self.budget = max(FEWEST, self.budget // 2, round(self.budget * FAST_S / took))
        self.pump()

    def typed(self) -> None:
        """Record a key, which shows that the terminal is in use."""
        if self._asked is not None and self._clock() - self._asked >= DEAF_S:
            self._asked = None
            self.pump()


class PacedApp(App[None]):
    """Keeps a picture of its terminal, and writes changes no faster than the terminal reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.picture = Picture()
        self.painter = Painter(self)
        self.pacer = Pacer(self._taken, self.write)

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
        else:
            self._put_chops(renderable)
        self.pacer.pump()
        self.post_display_hook()

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
        self.pacer.answered()
