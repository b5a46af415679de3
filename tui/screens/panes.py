"""The panes of the run screen: header, banner, ranks, GPUs, the card of the run, its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from textual.binding import Binding
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.signal import Signal

from ...runners.run.model import RunPhase
from ..background import call
from ..keys import bindings
from ..rows.card import card_rows
from ..rows.findings import banner_rows, end_rows, event_rows, wrong_rows
from ..rows.frame import Frame
from ..rows.glyphs import Row
from ..rows.header import TRENDS_FROM, header_rows
from ..rows.ranks import heat_rows, heat_title
from ..rows.run_status import launch_rows, launch_title, launching
from ..rows.tables import Table, gpu_table, rank_table
from .bars import KeyFooter as KeyFooter
from .rows_view import RowsView


class Pane(RowsView):
    """A pane that follows the frames."""

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
        self.ascii_only = frame.view.ascii
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


class HeatMap(Pane):
    """Nodes by GPUs; before the first rank the launch; after the end of the run its summary."""

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        state = frame.state
        if launching(state):
            self.entitle(launch_title(state))
            return launch_rows(frame, width)
        if state.phase.ended:
            self.entitle("what happened")
            return end_rows(frame, width)
        self.entitle(heat_title(frame))
        return heat_rows(frame, width)


class Events(Pane):
    """Attempts, events, commands, checkpoints; Enter moves the whole screen to that time."""

    BINDINGS: ClassVar[list[Binding]] = bindings("events")  # type: ignore[assignment]

    class TimeChosen(Message):
        """The user wants to see that time."""

        def __init__(self, at: float) -> None:
            super().__init__()
            self.at = at

    def __init__(self, frames: Signal[Frame], *, id: str) -> None:
        super().__init__(frames, id=id, cursor=True)
        self._times: list[float | None] = []

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        self.entitle("attempts, events, commands, checkpoints")
        rows, self._times = event_rows(frame, width - 1, frame.view.pane == "events")
        return rows

    def action_zoom(self) -> None:
        at = self._times[self.cursor] if self.cursor < len(self._times) else None
        if at is not None:
            self.post_message(self.TimeChosen(at))


class Wrong(Pane):
    """The findings, on the overview."""

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        self.entitle("what is wrong")
        return wrong_rows(frame, width)


class Card(Pane):
    """Name, command and directories of the run."""

    def __init__(self, frames: Signal[Frame], *, id: str) -> None:
        super().__init__(frames, id=id)
        self.places: Mapping[str, str] = {}
        """Directories of the run on this machine."""

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        self.entitle("run")
        return card_rows(frame, width, self.places)


class TablePane(Pane):
    """A table whose rows are built when they become visible; a click on its head sorts."""

    BINDINGS: ClassVar[list[Binding]] = bindings("list", "tables")  # type: ignore[assignment]

    class Sorted(Message):
        """The user wants another order."""

        def __init__(self, table: str, column: str) -> None:
            super().__init__()
            self.table, self.column = table, column

    name_: ClassVar[str] = ""
    """Name in the settings file."""

    def __init__(self, frames: Signal[Frame], *, id: str) -> None:
        super().__init__(frames, id=id, cursor=True)
        self.table = Table()
        self._skip = 0
        """Number of skipped columns."""

    def make(self, frame: Frame, width: int, first: int, count: int, skip: int) -> Table:
        """Return the table with `count` rows built from row `first`."""
        raise NotImplementedError

    def heading(self, frame: Frame) -> str:
        """Return the title without the count of columns."""
        raise NotImplementedError

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        current = self.current
        self.table = self.make(frame, width - 1, self.scroll_offset.y, self.size.height + 1, self._skip)
        cut = self.table.shown < self.table.of
        self.entitle(
            self.heading(frame)
            + (f" · {self.table.shown} of {self.table.of} columns, l h: others" if cut else "")
        )
        if current is not None and current in self.table.order:
            self.cursor = self.table.order.index(current)
        return self.table.rows

    def build_head(self, frame: Frame, width: int) -> Row | None:
        return self.table.head

    @property
    def current(self) -> int | None:
        """The item under the cursor: a rank, or an index in the list of GPUs."""
        return self.table.order[self.cursor] if 0 <= self.cursor < len(self.table.order) else None

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        if round(old_value) != round(new_value):
            self.again()
        super().watch_scroll_y(old_value, new_value)

    def action_sideways(self, by: int) -> None:
        """Scroll to the columns that do not fit, if any."""
        if by > 0 and self.table.more:
            self._skip += 1
        elif by < 0 and self._skip:
            self._skip -= 1
        else:
            return
        self.again()

    def on_click(self, event: Click) -> None:
        """Sort by a column after a click on the head."""
        inside = event.get_content_offset(self)
        if inside is None or inside.y > 0:
            super().on_click(event)
            return
        at = inside.x - 1  # without the column of the cursor
        for first, after, column in self.table.areas:
            if first <= at < after:
                self.post_message(self.Sorted(self.name_, column))


class GpuTable(TablePane):
    """One row per GPU of the run."""

    name_ = "gpus"

    def make(self, frame: Frame, width: int, first: int, count: int, skip: int) -> Table:
        return gpu_table(frame, width, first, count, skip)

    def heading(self, frame: Frame) -> str:
        return "GPUs"


class RankTable(TablePane):
    """One row per rank."""

    name_ = "ranks"
    beside_gpus = False
    """Whether the GPU table is on the screen."""

    class Zoomed(Message):
        """The user wants the log of one rank."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    class Marked(Message):
        """The user marked or unmarked a rank."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    class Moved(Message):
        """The user moved the cursor to another rank."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    def make(self, frame: Frame, width: int, first: int, count: int, skip: int) -> Table:
        return rank_table(frame, width, first, count, skip, self.beside_gpus)

    def heading(self, frame: Frame) -> str:
        ended = frame.state.phase.ended and frame.state.phase is not RunPhase.EXPORTED
        title = "how the ranks ended" if ended else "ranks"
        marked = f" · {len(frame.view.marked)} marked" if frame.view.marked else ""
        return f"{title}{marked}"

    def cursor_moved(self) -> None:
        if self.current is not None:
            self.post_message(self.Moved(self.current))

    def action_mark(self) -> None:
        if self.current is not None:
            self.post_message(self.Marked(self.current))
            self.action_cursor(1)

    def action_zoom(self) -> None:
        if self.current is not None:
            self.post_message(self.Zoomed(self.current))
