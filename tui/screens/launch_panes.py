"""The panes next to the launch form: plan, YAML, lint, memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.binding import Binding
from textual.events import Resize

from ..rows.glyphs import Row
from .rows_view import RowsView

PANES = ("plan", "YAML", "lint", "memory")

Make = Callable[[int], list[Row]]
"""Returns the rows of a pane for a number of columns."""


class Details(RowsView):
    """One pane with a title that lists all panes."""

    BINDINGS: ClassVar[list[Binding]] = [
        Binding("enter", "screen.zoom", "whole height", id="launch.zoom"),
        Binding("tab", "screen.onward(1)", "next pane", id="launch.next"),
        Binding("shift+tab", "screen.onward(-1)", "pane before", id="launch.previous"),
        *(
            Binding(str(number), f"screen.pane({number})", name, id=f"launch.pane_{number}")
            for number, name in enumerate(PANES, 1)
        ),
    ]

    def __init__(self) -> None:
        super().__init__(id="details")
        self.pane = PANES[0]
        self._makes: dict[str, Make] = {name: lambda width: [] for name in PANES}
        self._titles = {name: name for name in PANES}

    def put(self, pane: str, make: Make, title: str = "") -> None:
        """Set a pane's content; `title` replaces its name."""
        self._makes[pane], self._titles[pane] = make, title or pane
        self._rename()
        if pane == self.pane:
            self._draw()

    def show(self, pane: str) -> None:
        if pane != self.pane:
            self.pane = pane
            self.left = 0
            self._scroll_row(0)
        self._rename()
        self._draw()

    def _rename(self) -> None:
        names = (f"F{number} {self._titles[name]}" for number, name in enumerate(PANES, 2))
        self.entitle(
            " · ".join(f"[{text}]" if PANES[at] == self.pane else text for at, text in enumerate(names))
        )

    def _draw(self) -> None:
        self.set_rows(self._makes[self.pane](max(20, self.scrollable_content_region.width)))

    def on_mount(self) -> None:
        self._rename()

    def watch_has_focus(self, value: bool) -> None:
        super().watch_has_focus(value)
        self.border_subtitle = "Enter: whole height, and back" if value else ""

    def on_resize(self, event: Resize) -> None:
        self._draw()
