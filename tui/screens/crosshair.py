"""The crosshair of charts: the time whose values they show, chosen by keys or the mouse."""

from __future__ import annotations

from collections.abc import Callable

from ..rows.charts import GAP, ChartView


class Crosshair:
    """Position of the crosshair of one pane. The mouse moves it, unless keys or a click have pinned it."""

    def __init__(self, show: Callable[[float | None], None]) -> None:
        """Create it; `show` moves the line of all panes to a time, or removes it."""
        self._show = show
        self._at: float | None = None
        self._pinned = False

    def hover(self, view: ChartView | None, columns: int, x: int) -> None:
        """Show the values below the mouse; `x` is counted in the pane, a chart has so many columns."""
        if not self._pinned:
            self._go(_time_at(view, columns, x))

    def click(self, view: ChartView | None, columns: int, x: int) -> None:
        """Keep the crosshair here; a click on it removes it."""
        before = self._at if self._pinned else None
        at = _time_at(view, columns, x)
        self._pinned = at is not None and at != before
        self._go(at if self._pinned else None)

    def unhover(self) -> None:
        if not self._pinned:
            self._go(None)

    def move(self, view: ChartView | None, by: int) -> None:
        """Move it to the next cell (1) or the one before (-1) that has a time; it begins at the newest value."""
        if view is None:
            return
        before = None if self._at is None else view.cell(self._at)
        self._pinned = True
        if before is None:
            self._go(view.time_at(view.newest))
            return
        end = view.newest + 1 if by > 0 else -1
        for cell in range(before + by, end, by):
            at = view.time_at(cell)
            if at is not None and view.cell(at) != before:
                self._go(at)
                return

    def to_begin(self, view: ChartView | None) -> None:
        """Move it to the oldest value."""
        if view is not None:
            self._pinned = True
            self._go(view.time_at(0))

    def remove(self) -> bool:
        """Take it away; False if there is none."""
        if self._at is None:
            return False
        self._pinned = False
        self._go(None)
        return True

    def _go(self, at: float | None) -> None:
        if at != self._at:
            self._at = at
            self._show(at)


def _time_at(view: ChartView | None, columns: int, x: int) -> float | None:
    """Return the time at a column of the pane; None outside the charts."""
    if view is None or columns < 1:
        return None
    cells = view.span.cells
    cell = x % (columns + GAP) - (columns - cells)
    return view.time_at(cell) if 0 <= cell < cells else None
