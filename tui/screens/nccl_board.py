"""The NCCL screen: cards of NCCL's facts, and next to them a map of how the ranks are connected."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.events import Resize
from textual.message import Message
from textual.signal import Signal

from ...runners.diagnosis.nccl_facts import Communicator, FactLine, NcclFacts
from ...runners.run.errors import RunError
from ...runners.run.state import RunState
from ..background import background
from ..keys import bindings
from ..nccl_sources import NodeFacts, read_run
from ..rows.communicators import by_size, chosen_of
from ..rows.cycle import following
from ..rows.frame import Frame
from ..rows.glyphs import Row, wrap
from ..rows.nccl import statement_rows, title, why_empty
from ..rows.nccl_map import map_rows, wanted_width
from ..rows.statements import StatementRow
from .panes import Pane

BESIDE = 120
"""Minimum columns for the map next to the cards."""

CARDS = 60
"""Minimum columns of the cards."""


class StatementRows(Pane):
    """Rows with a cursor; Enter opens the log line that is the source of a row."""

    BINDINGS: ClassVar[list[Binding]] = bindings("statements")  # type: ignore[assignment]

    @dataclass
    class Opened(Message):
        """The user wants the raw log line."""

        line: FactLine | None

    def __init__(
        self, frames: Signal[Frame], id: str, make: Callable[[Frame, int], list[StatementRow]]
    ) -> None:
        super().__init__(frames, id=id, cursor=True)
        self._make = make
        self._statements: list[StatementRow] = []

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        room = self.size.width - 2  # without the cursor and the scrollbar, even if it is hidden
        self._statements = self._make(frame, room)
        return [statement.row for statement in self._statements]

    def action_zoom(self) -> None:
        if 0 <= self.cursor < len(self._statements):
            self.post_message(self.Opened(self._statements[self.cursor].line))


class NcclBoard(Horizontal):
    """Holds the facts and the chosen communicator for both panes."""

    def __init__(self, frames: Signal[Frame], run: str) -> None:
        super().__init__(id="nccl")
        self._frames = frames
        self.chosen: str | None = None
        """Id of the communicator; None for the first that is not ready, else the largest."""
        self.panel = StatementRows(frames, "said", self.cards)
        """The cards."""
        self.map = StatementRows(frames, "nccl-map", self.mapped)
        """The matrix, the rings and the init timeline of the chosen communicator, if there is room for it."""
        self._heard = NodeFacts()
        self._run = run
        self._reading = False
        """Whether distui has begun to read the run's logs."""
        self._read: NcclFacts | None = None
        self._why = ""
        self._columns = -1
        """Columns of the map; 0 if it is below the cards."""
        self._stop = threading.Event()
        self._version = 0
        """Incremented when the facts change."""
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
        """Give the map the matrix's width, and the cards at least CARDS columns."""
        width = self.size.width
        if not self.display or not width:
            return
        comm, columns = self._communicator(frame), 0
        if comm is not None and width >= BESIDE:
            columns = max(min(width - CARDS, 6 + wanted_width(comm)), width // 2)
        if columns != self._columns:
            self._columns = columns
            self.map.display = columns > 0
            self.map.styles.width = columns or 1
            self.call_after_refresh(self.again)

    def _communicator(self, frame: Frame) -> Communicator | None:
        facts = self.facts(frame)
        key = (self._version, self.chosen)
        if facts is None:
            return None
        if self._picked[0] != key:
            self._picked = key, chosen_of(facts, self.chosen)
        return self._picked[1]

    def again(self) -> None:
        """Repaint both panes."""
        self.panel.again()
        self.map.again()

    # --- the facts

    def facts(self, frame: Frame) -> NcclFacts | None:
        """Return the facts that the nodes report, or those in the logs of a run that has ended."""
        facts = self._heard.of(frame.state)
        if facts is None and frame.state.phase.ended:
            facts = self._of_logs(frame.state)
        if facts is not self._last:
            self._last, self._version = facts, self._version + 1
        return facts

    def _of_logs(self, state: RunState) -> NcclFacts | None:
        """Start reading the logs once; return None until that is done."""
        if not self._reading:
            self._reading, self._why = True, "Reading the logs of this run …"
            background(self, "nccl-facts", self._read_logs(state), exclusive=True)
        return self._read

    async def _read_logs(self, state: RunState) -> None:
        try:
            facts = await asyncio.to_thread(read_run, self._run, state, self._stop)
            self._why = ""
            if facts is not None and facts.nodes:
                self._read = facts
        except RunError as error:
            text = str(error)
            self._why = f"{text[:1].upper()}{text[1:]}."
        if self.panel.frame is not None:
            self._share(self.panel.frame)
        self.again()

    # --- rows

    def cards(self, frame: Frame, width: int) -> list[StatementRow]:
        """Return the rows of the cards; below them the map, if it is not next to them."""
        facts = self.facts(frame)
        self.panel.entitle(title(facts))
        if facts is None:
            return [StatementRow(row) for row in wrap(why_empty(frame.state, self._why), width)]
        rows = statement_rows(frame, facts, self._communicator(frame), width)
        if not self.map.display:
            rows += [StatementRow(()), *self.mapped(frame, width)]
        return rows

    def mapped(self, frame: Frame, width: int) -> list[StatementRow]:
        """Return the rows of the map; they are rebuilt only if the facts changed."""
        facts, comm = self.facts(frame), self._communicator(frame)
        self.map.entitle("how the ranks are connected")
        key = (self._version, self.chosen, width)
        if key != self._mapped[0]:
            self._mapped = key, [] if facts is None else map_rows(facts, comm, width)
        return self._mapped[1]

    def action_communicator(self, step: int) -> None:
        """Choose the next or the previous communicator."""
        frame = self.panel.frame
        if frame is None:
            return
        facts, now = self.facts(frame), self._communicator(frame)
        if facts is not None and now is not None:
            self.chosen = following(by_size(facts), now, step).id
            self.again()
