"""The tables of ranks and of GPUs, and the user's choice of their columns and order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from msgspec import structs
from textual.binding import Binding
from textual.events import Click
from textual.message import Message
from textual.signal import Signal

from ...runners.run.model import RunPhase
from ..keys import bindings
from ..rows.column_choice import ColumnChoice, begin_choice, default_ids
from ..rows.columns import by_id
from ..rows.frame import Frame
from ..rows.glyphs import Row
from ..rows.pane_filters import filter_note
from ..rows.tables import Table, absent, gpu_table, listed_gpus, rank_table, table_sort_keys
from .column_picker import ColumnPicker
from .panes import Pane
from .sort_prompt import SortPrompt


class TablePane(Pane):
    """A table whose rows are built when they become visible; a click on its head sorts."""

    BINDINGS: ClassVar[list[Binding]] = bindings("list")  # type: ignore[assignment]

    name_: ClassVar[str] = ""
    """Name in the settings file."""
    prefix: ClassVar[str] = ""
    """Prefix of its fields in ViewOptions: `columns`, `sort`, `reverse`."""

    def __init__(self, frames: Signal[Frame], *, id: str) -> None:
        super().__init__(frames, id=id, cursor=True)
        self.table = Table()
        self._skip = 0
        """Number of skipped columns."""
        self._is_sorted_anew = False
        """Whether the user chose another order, of which the table then shows the top."""

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
            + (f" · {self.table.shown} of {self.table.of} columns (h/l: more)" if cut else "")
        )
        index = self.table.order.index(current) if current in self.table.order else None
        if self._is_sorted_anew:
            self._is_sorted_anew = False
            self.show_top(index)
        elif index is not None:
            self.stay_on(index)
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
        column = next((column for first, after, column in self.table.areas if first <= at < after), "")
        self._sort_by(column or None)

    # --- the user's choice of columns and order

    def _chosen(self, field: str) -> Any:
        return getattr(self.app.view, self.prefix + field)

    def _change(self, **fields: object) -> dict[str, object]:
        """Change the view of this table; return the changed fields of ViewOptions."""
        changes = {self.prefix + name: value for name, value in fields.items()}
        self.app.change_view(**changes)
        return changes

    def action_sort(self) -> None:
        """Ask for a column; the present one again reverses the order."""
        if self.frame is not None:
            keys = table_sort_keys(self.frame, self.name_)
            self.app.push_screen(SortPrompt(keys, self._chosen("sort")), self._sort_by)

    def _sort_by(self, column: str | None) -> None:
        """Sort by a column, the worst value first; "" is the table's own order."""
        if column is None:
            return
        if column and column == self._chosen("sort"):
            self.action_reverse()
            return
        chosen = by_id(self.name_, column) if column else None
        self._is_sorted_anew = True
        self._change(sort=column, reverse=chosen is not None and chosen.high_is_bad)

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._is_sorted_anew = True
        self._change(reverse=not self._chosen("reverse"))

    def action_columns(self) -> None:
        """Open the dialog that chooses columns."""
        if self.frame is None:
            return
        gone = absent(self.frame, self.name_)
        fitting = self._fitting(self.frame) | (gone & set(default_ids(self.name_)))
        choice = begin_choice(
            self.name_,
            self._chosen("columns"),
            fitting,
            self._chosen("sort"),
            self._chosen("reverse"),
        )
        self.app.push_screen(ColumnPicker(choice, gone, fitting), self._columns_chosen)

    def _fitting(self, frame: Frame) -> set[str]:
        """Return the ids of the columns that the table shows if the user chooses none."""
        table = self.table
        if self._chosen("columns") or self._skip:
            view = structs.replace(frame.view, **{f"{self.prefix}columns": ()})
            rows = self.scroll_offset.y, self.size.height + 1
            table = self.make(replace(frame, view=view), self.columns - 1, *rows, 0)
        return {id for _, _, id in table.areas} or set(default_ids(self.name_))

    def _columns_chosen(self, choice: ColumnChoice | None) -> None:
        """Show the chosen columns, and keep them for later cockpits."""
        if choice is not None:
            changes = self._change(columns=choice.columns, sort=choice.sort, reverse=choice.reverse)
            self.app.choices.choose(**changes)


class GpuTable(TablePane):
    """One row per GPU of the run."""

    name_ = "gpus"
    prefix = "gpu_"

    def make(self, frame: Frame, width: int, first: int, count: int, skip: int) -> Table:
        return gpu_table(frame, width, first, count, skip)

    def heading(self, frame: Frame) -> str:
        if not frame.view.gpu_filter:
            return "GPUs"
        return f"GPUs{filter_note(frame, 'gpus', len(self.table.order), len(listed_gpus(frame)[0]))}"


class RankTable(TablePane):
    """One row per rank."""

    name_ = "ranks"
    beside_gpus = False
    """Whether the GPU table is on the screen."""

    @dataclass
    class Zoomed(Message):
        """The user wants the log of one rank."""

        rank: int

    @dataclass
    class Moved(Message):
        """The user moved the cursor to another rank."""

        rank: int

    def make(self, frame: Frame, width: int, first: int, count: int, skip: int) -> Table:
        return rank_table(frame, width, first, count, skip, self.beside_gpus)

    def heading(self, frame: Frame) -> str:
        ended = frame.state.phase.ended and frame.state.phase is not RunPhase.EXPORTED
        title = "exit status" if ended else "ranks"
        marked = f" · {len(frame.view.marked)} marked" if frame.view.marked else ""
        note = filter_note(frame, "ranks", len(self.table.order), len(frame.state.ranks))
        return f"{title}{marked}{note}"

    def cursor_moved(self) -> None:
        if self.current is not None:
            self.post_message(self.Moved(self.current))

    def action_mark(self) -> None:
        if self.current is not None:
            self.app.change_view(marked=self.app.view.marked ^ {self.current})
            self.action_cursor(1)

    def action_zoom(self) -> None:
        if self.current is not None:
            self.post_message(self.Zoomed(self.current))
