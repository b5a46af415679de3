"""The panes of the run screen, and the footer of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding
from textual.events import Resize
from textual.message import Message
from textual.screen import Screen
from textual.signal import Signal

from ..keys import ACTIONS, bindings, key_text
from ..rows.findings import banner_rows
from ..rows.frame import Frame
from ..rows.glyphs import Cell, Row, row_width
from ..rows.heat import heat_rows, heat_title
from ..rows.launching import launch_rows, launch_title, launching
from ..rows.log import end_rows, event_rows
from ..rows.ranks import head_row, table_rows
from ..rows.status import small_terminal_rows, status_row
from .rows_view import RowsView

# -----------------------------------------------------------------------------------------------------------
# The footer: the keys that work here, from the bindings of the focused widget up.


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
            entry.binding.id: entry.binding.key
            for entry in self.screen.active_bindings.values()
            if entry.binding.id in _WORDS and entry.enabled
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


# -----------------------------------------------------------------------------------------------------------
# The panes that only show: each subscribes to the frames and owns its paint.


class Pane(RowsView):
    """A pane that follows the frames."""

    def __init__(self, frames: Signal[Frame], *, id: str, cursor: bool = False) -> None:
        super().__init__(id=id, cursor=cursor)
        self._frames = frames
        self.frame: Frame | None = None

    def on_mount(self) -> None:
        self._frames.subscribe(self, self.show, immediate=True)

    def on_resize(self, event: Resize) -> None:
        if self.frame is not None:
            self.show(self.frame)

    def show(self, frame: Frame) -> None:
        """Paint what changed since the frame before."""
        self.frame = frame
        self.ascii_only = frame.view.ascii
        if self.display and self.size.width:
            self.set_rows(self.build(frame, self.size.width), self.build_head(frame, self.size.width))

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        """The pane's rows."""
        raise NotImplementedError

    def build_head(self, frame: Frame, width: int) -> Row | None:
        """A row that does not scroll, if the pane has one."""
        return None


class StatusLine(Pane):
    """How the run stands, in one row."""

    can_focus = False

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        return [status_row(frame, width)]


class Summary(Pane):
    """All that fits on a terminal that is too small."""

    can_focus = False

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        return small_terminal_rows(frame, width)


class Banner(Pane):
    """What must be read now."""

    can_focus = False

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        return banner_rows(frame, width, max(1, self.size.height))


class HeatMap(Pane):
    """Nodes by GPUs; before the first rank, the launch; after the end of the run, what happened."""

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
    """Findings, attempts, notices."""

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        return event_rows(frame, width)


class RankTable(Pane):
    """One row a rank."""

    BINDINGS: ClassVar[list[Binding]] = bindings("list")  # type: ignore[assignment]

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

    def __init__(self, frames: Signal[Frame], *, id: str) -> None:
        super().__init__(frames, id=id, cursor=True)
        self._order: list[int] = []

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        current = self.current
        rows, self._order = table_rows(frame, width - 1)
        if current in self._order:
            self.cursor = self._order.index(current)
        title = "how the ranks ended" if frame.state.phase.ended else "ranks"
        marked = f" · {len(frame.view.marked)} marked" if frame.view.marked else ""
        self.entitle(f"{title}{marked}")
        return rows

    def build_head(self, frame: Frame, width: int) -> Row | None:
        return head_row(frame, width - 1)

    @property
    def current(self) -> int | None:
        """The rank under the cursor."""
        return self._order[self.cursor] if 0 <= self.cursor < len(self._order) else None

    def action_mark(self) -> None:
        if self.current is not None:
            self.post_message(self.Marked(self.current))
            self.action_cursor(1)

    def action_zoom(self) -> None:
        if self.current is not None:
            self.post_message(self.Zoomed(self.current))
