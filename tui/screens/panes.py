"""The panes of the run screen without tables: header, banner, launch, end, events, findings, the card."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding
from textual.events import Resize
from textual.geometry import Size
from textual.message import Message
from textual.signal import Signal

from ...runners.run.state import Attempt
from ..background import call
from ..keys import bindings
from ..rows.attempts import StacksOf, Target, end_rows, event_rows
from ..rows.banner import banner_rows
from ..rows.card import card_rows
from ..rows.frame import Frame
from ..rows.glyphs import Row
from ..rows.header import TRENDS_FROM, header_rows
from ..rows.run_status import launch_rows, launch_title
from .cockpit import Cockpit
from .rows_view import RowsView


class Pane(RowsView):
    """A pane that follows the frames."""

    app: Cockpit

    def __init__(self, frames: Signal[Frame], *, id: str, cursor: bool = False) -> None:
        super().__init__(id=id, cursor=cursor)
        self._frames = frames
        self.frame: Frame | None = None
        self._made: tuple[Frame, Size] | None = None
        """The frame and the size for the current rows."""

    def on_mount(self) -> None:
        self._frames.subscribe(self, self.show, immediate=True)

    def on_resize(self, event: Resize) -> None:
        if self._made is None or self._made[0] is not self.frame or self._made[1] != self.size:
            self.again()

    def watch_show_vertical_scrollbar(self) -> None:
        self.call_next(self.again)  # the scrollbar changes the width of its rows

    def again(self) -> None:
        if self.frame is not None:
            call(self, self.id or "pane", self.show, self.frame)

    def show(self, frame: Frame) -> None:
        """Paint the changes since the last frame; a pane that is hidden, or whose parent is, builds nothing."""
        self.frame = frame
        if getattr(self.screen, "placing", False):
            return
        if self.display and self.size.width and getattr(self.parent, "display", True):
            self._made = (frame, self.size)
            self.set_rows(self.build(frame, self.columns), self.build_head(frame, self.columns))

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        raise NotImplementedError

    def build_head(self, frame: Frame, width: int) -> Row | None:
        """Return a row that does not scroll, if the pane has one."""
        return None


class Header(Pane):
    """The run and its state: two rows, or one on a low terminal."""

    can_focus = False

    def __init__(
        self, frames: Signal[Frame], trends: Callable[[Frame], Mapping[str, str]], *, id: str
    ) -> None:
        """Create the header; `trends` returns sparklines by field of `Progress`."""
        super().__init__(frames, id=id)
        self._trends = trends

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        return header_rows(frame, width, self._trends(frame) if width >= TRENDS_FROM else None)


def too_small(width: int) -> str:
    """Return the hint for a terminal that is too small, shortened to fit."""
    texts = (
        " enlarge the terminal to 60×15; keys work",
        " enlarge the terminal to 60×15",
        " 60×15 or more",
    )
    return next((text for text in texts if len(text) < width), texts[-1])


class Summary(Pane):
    """The content of a terminal that is too small for panes."""

    can_focus = False

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        return [*header_rows(frame, width), ((too_small(width), "dim"),)]


class Banner(Pane):
    """Problems that need the user's attention now."""

    can_focus = False
    findings = True
    """False if another visible pane shows them."""

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        return banner_rows(frame, width, max(1, self.size.height), self.findings)


class Launch(Pane):
    """The stages of a launch, before the first rank."""

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        self.entitle(launch_title(frame.state))
        return launch_rows(frame, width)


class Ended(Pane):
    """How the run ended."""

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        self.entitle("summary")
        return end_rows(frame, width)


class Events(Pane):
    """Attempts, events, commands, checkpoints; Enter opens a failure's log or stacks, or shows the time of the event."""

    BINDINGS: ClassVar[list[Binding]] = bindings("events")  # type: ignore[assignment]

    @dataclass
    class Failed(Message):
        """The user wants the log line that raised in an attempt."""

        attempt: Attempt

    @dataclass
    class StacksWanted(Message):
        """The user wants stacks that were taken at a Unix time."""

        at: float

    class EventMoved(Message):
        """The cursor is on another event."""

    def __init__(self, frames: Signal[Frame], go: Callable[[float], None], *, id: str) -> None:
        """Create the pane; `go` shows another time."""
        super().__init__(frames, id=id, cursor=True)
        self._go = go
        self._targets: list[Target] = []

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        self.entitle("events")
        rows, self._targets = event_rows(frame, width - 1, frame.view.pane == "events")
        return rows

    @property
    def current(self) -> Target:
        """What the row under the cursor leads to."""
        return self._targets[self.cursor] if self.cursor < len(self._targets) else None

    def cursor_moved(self) -> None:
        self.post_message(self.EventMoved())

    def action_zoom(self) -> None:
        target = self.current
        if isinstance(target, Attempt):
            self.post_message(self.Failed(target))
        elif isinstance(target, StacksOf):
            self.post_message(self.StacksWanted(target.at))
        elif target is not None:
            self._go(target)


class Card(Pane):
    """Name, command and directories of the run."""

    def __init__(self, frames: Signal[Frame], *, id: str) -> None:
        super().__init__(frames, id=id)
        self.places: Mapping[str, str] = {}
        """Directories of the run on this machine."""

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        self.entitle("run")
        return card_rows(frame, width, self.places)
