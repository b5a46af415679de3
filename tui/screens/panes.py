"""The panes of the run screen: those that only show, the findings, and the NCCL screen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.events import Resize
from textual.message import Message
from textual.signal import Signal

from ...runners.diagnosis.nccl_facts import Communicator, FactLine, NcclFacts
from ...runners.errors import RunError
from ...runners.formatting import plural
from ..keys import bindings
from ..rows.findings import (
    Item,
    banner_rows,
    coverage_rows,
    detail_rows,
    end_rows,
    item_row,
    items,
    no_findings,
    timed_event_rows,
    wrong_rows,
)
from ..rows.frame import Frame
from ..rows.glyphs import Row, wrap
from ..rows.nccl import StatementRow, by_size, chosen_of, statement_rows, title, why_empty
from ..rows.nccl_map import map_rows, wanted_width
from ..rows.ranks import head_row, heat_rows, heat_title, table_rows
from ..rows.run_status import launch_rows, launch_title, launching, status_row
from ..source import NodeFacts, read_run
from .bars import KeyFooter as KeyFooter
from .rows_view import RowsView


class Pane(RowsView):
    """A pane that follows the frames."""

    def __init__(self, frames: Signal[Frame], *, id: str, cursor: bool = False) -> None:
        super().__init__(id=id, cursor=cursor)
        self._frames = frames
        self.frame: Frame | None = None

    def on_mount(self) -> None:
        self._frames.subscribe(self, self.show, immediate=True)

    def on_resize(self, event: Resize) -> None:
        self.again()

    def again(self) -> None:
        """Paint the newest frame again."""
        if self.frame is not None:
            self.show(self.frame)

    def show(self, frame: Frame) -> None:
        """Paint what changed since the frame before; what is hidden, by itself or with its parent, costs nothing."""
        self.frame = frame
        self.ascii_only = frame.view.ascii
        if self.display and self.size.width and getattr(self.parent, "display", True):
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


def too_small(width: int) -> str:
    """What a terminal is told that has no room for the panes, as much of it as fits."""
    texts = (
        " enlarge the terminal to 60×15; keys work",
        " enlarge the terminal to 60×15",
        " 60×15 or more",
    )
    return next((text for text in texts if len(text) < width), texts[-1])


class Summary(Pane):
    """All that fits on a terminal that is too small."""

    can_focus = False

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        return [status_row(frame, width), ((too_small(width), "dim"),)]


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
    """Attempts, notices, commands; Enter shows the whole screen as it was then."""

    BINDINGS: ClassVar[list[Binding]] = bindings("events")  # type: ignore[assignment]

    class Chosen(Message):
        """The user wants to see that time."""

        def __init__(self, at: float) -> None:
            super().__init__()
            self.at = at

    def __init__(self, frames: Signal[Frame], *, id: str) -> None:
        super().__init__(frames, id=id, cursor=True)
        self._times: list[float | None] = []

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        rows, self._times = timed_event_rows(frame, width - 1)
        return rows

    def action_zoom(self) -> None:
        at = self._times[self.cursor] if self.cursor < len(self._times) else None
        if at is not None:
            self.post_message(self.Chosen(at))


class Wrong(Pane):
    """What is wrong, on the overview."""

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        self.entitle("what is wrong")
        return wrong_rows(frame, width)


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


class FindingList(Pane):
    """One row a finding, or a kind of findings."""

    BINDINGS: ClassVar[list[Binding]] = bindings("findings")  # type: ignore[assignment]

    class Moved(Message):
        """Another finding is under the cursor."""

    class Zoomed(Message):
        """The user wants the log that a finding is about."""

        def __init__(self, item: Item) -> None:
            super().__init__()
            self.item = item

    def __init__(self, frames: Signal[Frame]) -> None:
        super().__init__(frames, id="findings", cursor=True)
        self._items: list[Item] = []

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        key = self.current.key if self.current is not None else ""
        self._items = items(frame.state.findings.values())
        keys = [item.key for item in self._items]
        if key in keys:
            self.cursor = keys.index(key)
        self.entitle(_title(frame, self._items))
        if not self._items:
            return [((no_findings(frame.state), "text"),)]
        return [item_row(frame, item, width - 2) for item in self._items]

    @property
    def current(self) -> Item | None:
        """What is under the cursor."""
        return self._items[self.cursor] if 0 <= self.cursor < len(self._items) else None

    def cursor_moved(self) -> None:
        self.post_message(self.Moved())

    def action_zoom(self) -> None:
        if self.current is not None:
            self.post_message(self.Zoomed(self.current))


def _title(frame: Frame, listed: Sequence[Item]) -> str:
    alarms = sum(item.first.alarm for item in listed)
    counted = plural(alarms, "alarm") if alarms else "no alarm"
    return f"findings · {counted}{'' if frame.state.phase.ended else ' · w: where each rank is'}"


class FindingDetail(Pane):
    """One finding in full, and what verdicts rest on."""

    def __init__(self, frames: Signal[Frame], findings: FindingList) -> None:
        super().__init__(frames, id="finding")
        self._findings = findings

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        item = self._findings.current
        covered = coverage_rows(frame.state)
        if item is None and frame.state.phase.ended:
            self.entitle("what happened")
            hint = f"its logs may say more: distui diagnose {frame.state.name}"
            return [*end_rows(frame, width - 1), (), ((f" {hint}", "dim"),)]
        self.entitle("evidence" if item is not None else "data")
        if item is None:
            return covered
        return [*detail_rows(frame, item, max(20, width - 2)), (), *covered]


class Diagnosis(Vertical):
    """List and detail; the list is no taller than half, and no taller than it needs."""

    def __init__(self, frames: Signal[Frame]) -> None:
        super().__init__(id="diagnosis")
        self._frames = frames
        self.list = FindingList(frames)
        self.detail = FindingDetail(frames, self.list)

    def compose(self) -> ComposeResult:
        yield self.list
        yield self.detail

    def on_mount(self) -> None:
        self._frames.subscribe(self, self._share, immediate=True)

    def _share(self, frame: Frame) -> None:
        """Give the list its rows."""
        if not self.display:
            return
        frames = self.list.gutter.height
        wanted = max(1, len(items(frame.state.findings.values()))) + frames
        height = max(2 + frames, min(wanted, self.size.height // 2))
        if self.list.styles.height is None or self.list.styles.height.value != height:
            self.list.styles.height = height
            self.call_after_refresh(self.again)

    def again(self) -> None:
        """Paint both as they are now."""
        self.list.again()
        self.detail.again()

    def on_resize(self) -> None:
        if self.list.frame is not None:
            self._share(self.list.frame)

    def on_finding_list_moved(self) -> None:
        self.detail._scroll_row(0)
        self.detail.again()


BESIDE = 120
"""Columns from which the map stands beside."""

CARDS = 60
"""Columns that the cards keep."""


class StatementRows(Pane):
    """Rows with a cursor: Enter opens the line that a row rests on."""

    BINDINGS: ClassVar[list[Binding]] = bindings("statements")  # type: ignore[assignment]

    class Opened(Message):
        """The user wants the raw line."""

        def __init__(self, line: FactLine | None) -> None:
            super().__init__()
            self.line = line

    def __init__(
        self, frames: Signal[Frame], id: str, make: Callable[[Frame, int], list[StatementRow]]
    ) -> None:
        super().__init__(frames, id=id, cursor=True)
        self._make = make
        self._statements: list[StatementRow] = []

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        self._statements = self._make(frame, width - 2)  # the cursor and the scrollbar
        return [statement.row for statement in self._statements]

    def action_zoom(self) -> None:
        if 0 <= self.cursor < len(self._statements):
            self.post_message(self.Opened(self._statements[self.cursor].line))


class NcclBoard(Horizontal):
    """Knows the facts and the chosen communicator; both panes ask here."""

    def __init__(self, frames: Signal[Frame], run: str) -> None:
        super().__init__(id="nccl")
        self._frames = frames
        self.chosen: str | None = None
        """Id of the communicator; None: the first that is not ready, else the largest."""
        self.panel = StatementRows(frames, "said", self.cards)
        """The cards."""
        self.map = StatementRows(frames, "map", self.mapped)
        """The matrix, the rings and the timeline of the chosen communicator, where there is room beside."""
        self._heard = NodeFacts()
        self._run = run
        self._reading = False
        """Whether its logs are read, or were."""
        self._read: NcclFacts | None = None
        self._why = ""
        self._columns = -1
        """Of the map; 0 where it stands below the cards."""
        self._stop = threading.Event()
        self._version = 0
        """Grows whenever there are other facts."""
        self._last: NcclFacts | None = None
        self._picked: tuple[object, Communicator | None] = (None, None)
        self._mapped: tuple[object, list[StatementRow]] = (None, [])

    def compose(self) -> ComposeResult:
        yield self.panel
        yield self.map

    def on_unmount(self) -> None:
        self._stop.set()

    def on_mount(self) -> None:
        self._frames.subscribe(self, self._share, immediate=True)

    def on_resize(self, event: Resize) -> None:
        if self.panel.frame is not None:
            self._share(self.panel.frame)

    def _share(self, frame: Frame) -> None:
        """Give the map what the matrix takes, and the cards no less than they need."""
        width = self.size.width
        if not self.display or not width:
            return
        comm = self._communicator(frame)
        beside = comm is not None and width >= BESIDE
        wanted = min(width - CARDS, 6 + wanted_width(comm)) if comm is not None and beside else 0
        columns = max(wanted, width // 2) if beside else 0
        if columns != self._columns:
            self._columns = columns
            self.map.display = beside
            self.map.styles.width = columns or 1
            self.call_after_refresh(self.again)

    def _communicator(self, frame: Frame) -> Communicator | None:
        """The chosen communicator."""
        facts = self.facts(frame)
        key = (self._version, self.chosen)
        if facts is None:
            return None
        if self._picked[0] != key:
            self._picked = key, chosen_of(facts, self.chosen)
        return self._picked[1]

    def again(self) -> None:
        """Paint both panes as they are now."""
        self.panel.again()
        self.map.again()

    # --- the facts

    def facts(self, frame: Frame) -> NcclFacts | None:
        """What the nodes report, or what was read of the logs of a run that has ended."""
        facts = self._heard.of(frame.state)
        if facts is None and frame.state.phase.ended:
            facts = self._of_logs()
        if facts is not self._last:
            self._last, self._version = facts, self._version + 1
        return facts

    def _of_logs(self) -> NcclFacts | None:
        """Begin to read them once; None until that is done."""
        if not self._reading:
            self._reading, self._why = True, "Reading the logs of this run …"
            self.run_worker(self._read_logs(), group="nccl-facts", exclusive=True)
        return self._read

    async def _read_logs(self) -> None:
        try:
            facts = await asyncio.to_thread(read_run, self._run, self._stop)
            self._read, self._why = facts if facts is not None and facts.nodes else None, ""
        except RunError as error:
            text = str(error)
            self._why = f"{text[:1].upper()}{text[1:]}."
        if self.panel.frame is not None:
            self._share(self.panel.frame)
        self.again()

    # --- rows

    def cards(self, frame: Frame, width: int) -> list[StatementRow]:
        """Rows of the cards; below them the map, where it does not stand beside."""
        facts = self.facts(frame)
        self.panel.entitle(title(facts))
        if facts is None:
            return [StatementRow(row) for row in wrap(why_empty(frame.state, self._why), width)]
        rows = statement_rows(frame, facts, self._communicator(frame), width)
        return rows if self.map.display else [*rows, StatementRow(()), *self.mapped(frame, width)]

    def mapped(self, frame: Frame, width: int) -> list[StatementRow]:
        """Rows of the map; made anew only where the facts have changed."""
        facts, comm = self.facts(frame), self._communicator(frame)
        self.map.entitle("how the ranks are connected")
        key = (self._version, self.chosen, width)
        if key != self._mapped[0]:
            self._mapped = key, [] if facts is None else map_rows(facts, comm, width)
        return self._mapped[1]

    def choose(self, step: int) -> None:
        """The next or the previous communicator."""
        frame = self.panel.frame
        facts = self.facts(frame) if frame is not None else None
        now = self._communicator(frame) if frame is not None else None
        if facts is not None and now is not None:
            ordered = by_size(facts)
            self.chosen = ordered[(ordered.index(now) + step) % len(ordered)].id
            self.again()
