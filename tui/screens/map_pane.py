"""The map of GPUs: a cursor that moves cell by cell, the metric, the filter, and the way to a node and to a rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding
from textual.events import Click
from textual.message import Message
from textual.signal import Signal

from ..keys import bindings
from ..rows.cycle import following
from ..rows.frame import Frame
from ..rows.glyphs import Row
from ..rows.gpu_map import GpuMap, Spot, gpu_map
from ..rows.map_cells import cell_of
from ..rows.map_filter import node_filter
from ..rows.map_metrics import METRICS
from ..rows.pane_filters import filter_changes
from .panes import Pane


class MapPane(Pane):
    """A cell per GPU; Enter shows the node of the cell, then the log of its rank."""

    BINDINGS: ClassVar[list[Binding]] = bindings("map")  # type: ignore[assignment]

    @dataclass
    class Zoomed(Message):
        """The user wants the log of one rank."""

        rank: int

    def __init__(self, frames: Signal[Frame], *, id: str) -> None:
        super().__init__(frames, id=id)
        self._spot: Spot | None = None
        """The cell that the cursor was moved to."""
        self._map = GpuMap("")

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        cursor = (self._spot or (-1, 0)) if self.has_focus else None
        self._map = gpu_map(frame, width, self.size.height, cursor)
        self.entitle(self._map.title)
        return self._map.rows

    def action_metric(self) -> None:
        """Show the next metric."""
        if not self.display:
            self.notify("no map here: the tables show these values; it appears with more GPUs")
            return
        self.app.change_view(metric=following(tuple(METRICS), self.app.view.metric))

    # --- the cursor

    def on_focus(self) -> None:
        self.again()

    def on_blur(self) -> None:
        self.again()

    def _to(self, spot: Spot | None) -> None:
        if spot is not None:
            self._spot = spot
            self.again()

    def _move(self, right: int, down: int) -> None:
        if self._map.cursor is None:
            self.again()  # the key came before the event of the focus
        self._to(self._map.moved(right, down))

    def action_cursor(self, by: int) -> None:
        self._move(0, by)

    def action_sideways(self, by: int) -> None:
        self._move(1 if by > 0 else -1, 0)

    def action_page(self, by: int) -> None:
        self._move(0, by * max(1, self.size.height // 2))

    def action_end(self, bottom: bool) -> None:
        self._to(self._map.end(bottom))

    def on_click(self, event: Click) -> None:
        """Move the cursor to a cell or an entry of the list; a click on the cell under the cursor opens it."""
        inside = event.get_content_offset(self)
        spot = None if inside is None else self._map.spot_under(inside.x, inside.y)
        if spot is None:
            return
        if spot == self._map.spot:
            self.action_zoom()
        else:
            self._to(spot)

    # --- to a node, to a rank

    def action_zoom(self) -> None:
        """Show only the node under the cursor; if it is the only one, the log of the rank."""
        if self._map.cursor is None or self.frame is None:
            return
        at, cell = self._map.cursor
        node = self._map.nodes[at]
        if len(self._map.nodes) > 1:
            self._spot = self._map.spot
            wanted = node_filter(self.frame, node.node.node)
            self.app.change_view(**filter_changes(self.app.view, "map", wanted))
            return
        ranks = cell_of(self.frame, node, cell).ranks if node.values else ()
        if ranks:
            self.post_message(self.Zoomed(ranks[0].place.rank))
        else:
            self.notify("no rank of this run uses this GPU")
