"""The NCCL screen: what NCCL says of nodes and communicators, and beside it, or below, how the ranks are connected."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.events import Resize
from textual.message import Message
from textual.signal import Signal

from ...runners.errors import RunError
from ..actions import bindings
from ..rows.cells import Row, wrap
from ..rows.frame import Frame
from .diagnosis import Inner

if (
    TYPE_CHECKING
):  # what is said is looked at when the screen is: the first picture of a run needs none of it
    from ...runners.diagnosis.facts import Communicator, Facts, Line
    from ..nccl_facts import NodeFacts
    from ..rows.statements import Told

BESIDE = 120
"""Columns from which the map stands beside."""

CARDS = 60
"""Columns that the cards keep."""


class Said(Inner):
    """Rows with a cursor: Enter opens the line that a row rests on."""

    BINDINGS: ClassVar[list[Binding]] = bindings("statements")  # type: ignore[assignment]

    class Opened(Message):
        """The user wants the raw line."""

        def __init__(self, line: Line | None) -> None:
            super().__init__()
            self.line = line

    def __init__(self, frames: Signal[Frame], id: str, make: Callable[[Frame, int], list[Told]]) -> None:
        super().__init__(frames, id=id, cursor=True)
        self._make = make
        self._told: list[Told] = []

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        self._told = self._make(frame, width - 2)  # the cursor and the scrollbar
        return [told.row for told in self._told]

    def action_zoom(self) -> None:
        if 0 <= self.cursor < len(self._told):
            self.post_message(self.Opened(self._told[self.cursor].line))


class NcclBoard(Horizontal):
    """Knows the facts and the chosen communicator; both panes ask here."""

    def __init__(self, frames: Signal[Frame]) -> None:
        super().__init__(id="nccl")
        self._frames = frames
        self.chosen: str | None = None
        """Id of the communicator; None takes the one most worth a look."""
        self.panel = Said(frames, "said", self.said)
        """The cards."""
        self.map = Said(frames, "map", self.mapped)
        """The matrix, the rings and the timeline of the chosen communicator, where there is room beside."""
        self._heard: NodeFacts | None = None
        self._run = ""
        """Whose logs were read here."""
        self._read: Facts | None = None
        self._why = ""
        self._columns = -1
        """Of the map; 0 where it stands below the cards."""
        self._stop = threading.Event()
        self._version = 0
        """Grows whenever there are other facts."""
        self._last: Facts | None = None
        self._picked: tuple[object, Communicator | None] = (None, None)
        self._mapped: tuple[object, list[Told]] = (None, [])

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
        from ..rows.matrix import wanted_width

        one = self._one(frame)
        beside = one is not None and width >= BESIDE
        wanted = min(width - CARDS, 6 + wanted_width(one)) if one is not None and beside else 0
        columns = max(wanted, width // 2) if beside else 0
        if columns != self._columns:
            self._columns = columns
            self.map.display = beside
            self.map.styles.width = columns or 1
            self.call_after_refresh(self.again)

    def _one(self, frame: Frame) -> Communicator | None:
        """The chosen communicator."""
        from ..rows.statements import chosen_of

        facts = self.facts(frame)
        key = (self._version, self.chosen)
        if facts is None:
            return None
        if self._picked[0] != key:
            self._picked = key, chosen_of(facts, self.chosen)
        return self._picked[1]

    def again(self) -> None:
        """Paint both panes as they are now."""
        for pane in (self.panel, self.map):
            if pane.frame is not None:
                pane.show(pane.frame)

    # --- the facts

    def facts(self, frame: Frame) -> Facts | None:
        """What the nodes tell, or what was read of the logs of a run that has ended."""
        from ..nccl_facts import NodeFacts

        self._heard = self._heard or NodeFacts()
        told = self._heard.of(frame.state)
        if told is None and frame.state.phase.ended:
            told = self._of_logs()
        if told is not self._last:
            self._last, self._version = told, self._version + 1
        return told

    def _of_logs(self) -> Facts | None:
        """Begin to read them once; None until that is done."""
        run = str(getattr(self.app, "run_id", ""))
        if run != self._run:
            self._run, self._read, self._why = run, None, "Reading the logs of this run …"
            self.run_worker(self._read_logs(run), group="nccl-facts", exclusive=True)
        return self._read

    async def _read_logs(self, run: str) -> None:
        from ..nccl_facts import read_run

        try:
            facts = await asyncio.to_thread(read_run, run, self._stop)
            self._read, self._why = facts if facts is not None and facts.nodes else None, ""
        except RunError as error:
            text = str(error)
            self._why = f"{text[:1].upper()}{text[1:]}."
        if self.panel.frame is not None:
            self._share(self.panel.frame)
        self.again()

    # --- rows

    def said(self, frame: Frame, width: int) -> list[Told]:
        """Rows of the cards; below them the map, where it does not stand beside."""
        from ..rows.nccl_screen import said_rows, title, why_empty
        from ..rows.statements import Told

        facts = self.facts(frame)
        self.panel.entitle(title(facts))
        if facts is None:
            return [Told(row) for row in wrap(why_empty(frame.state, self._why), width)]
        rows = said_rows(frame, facts, self._one(frame), width)
        return rows if self.map.display else [*rows, Told(()), *self.mapped(frame, width)]

    def mapped(self, frame: Frame, width: int) -> list[Told]:
        """Rows of the map; made anew only where something new was said."""
        from ..rows.nccl_screen import map_rows

        facts, one = self.facts(frame), self._one(frame)
        self.map.entitle("how the ranks are connected")
        key = (self._version, self.chosen, width)
        if key != self._mapped[0]:
            self._mapped = key, [] if facts is None else map_rows(facts, one, width)
        return self._mapped[1]

    def choose(self, step: int) -> None:
        """The next or the previous communicator."""
        from ..rows.statements import by_size

        frame = self.panel.frame
        facts = self.facts(frame) if frame is not None else None
        now = self._one(frame) if frame is not None else None
        if facts is not None and now is not None:
            ordered = by_size(facts)
            self.chosen = ordered[(ordered.index(now) + step) % len(ordered)].id
            self.again()
