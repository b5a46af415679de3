"""The dialog that chooses the metrics of the curves, with a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from ...presets.sanitize import clean_text
from ...runners.telemetry.metric_names import find_metric
from ..rows.charts import NAMES, chart_title
from ..rows.glyphs import Row, fit, key_row
from .rows_view import StillRows


def matching(text: str, names: Sequence[str]) -> list[str]:
    """Return the metrics whose name or title contains every typed word."""
    words = text.lower().split()
    return [
        name
        for name in names
        if all(word in f"{name} {chart_title(find_metric(name))}".lower() for word in words)
    ]


def picker_row(name: str, shown: Sequence[str], width: int) -> Row:
    """Return one metric: its place among the charts, title and name."""
    metric = find_metric(name)
    place = f"{shown.index(name) + 1:>3} " if name in shown else "    "
    return (
        (place, "accent"),
        (fit(clean_text(chart_title(metric)), 26) + " ", "head" if name in shown else "text"),
        (fit(clean_text(name), max(8, width - 32)), "dim"),
    )


class MetricPicker(ModalScreen[tuple[str, ...]]):
    """Asks for metrics; returns the names of the chosen ones, in order."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape", "close", "done", id="picker.close"),
        Binding("up", "move(-1)", "up", id="picker.up", priority=True),
        Binding("down", "move(1)", "down", id="picker.down", priority=True),
    ]

    def __init__(self, shown: Sequence[str], own: Sequence[str] = ()) -> None:
        """Create the dialog; `own` are the script's own metrics."""
        super().__init__()
        self._shown = list(shown)
        self._names = list(dict.fromkeys((*NAMES, *own, *shown)))
        self._matches = self._names
        self.list = StillRows(id="modal-rows", cursor=True)
        self.foot = StillRows(id="modal-keys")
        self.foot.set_rows(
            [key_row(("Enter", " draw it or not   "), ("↑ ↓", " move   "), ("esc", " done"))]
        )

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static("What the curves show", id="modal-title", markup=False)
            yield Input(placeholder="type to search", compact=True, id="picker-input")
            yield self.list
            yield self.foot

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._paint()

    def on_resize(self, event: Resize) -> None:
        self.list.styles.height = max(3, min(len(self._names), event.size.height - 11))
        self.call_after_refresh(self._paint)  # after the list's width is known

    def on_input_changed(self, event: Input.Changed) -> None:
        self._matches = matching(event.value, self._names)
        self.list.cursor = 0
        self._paint()

    def on_input_submitted(self) -> None:
        if self.list.cursor < len(self._matches):
            name = self._matches[self.list.cursor]
            if name in self._shown:
                self._shown.remove(name)
            else:
                self._shown.append(name)
            self._paint()

    def action_move(self, by: int) -> None:
        self.list.move_to(self.list.cursor + by)
        self._paint()

    def action_close(self) -> None:
        self.dismiss(tuple(self._shown))

    def _paint(self) -> None:
        width = max(40, self.list.size.width - 2)
        rows = [
            ((("›" if at == self.list.cursor else " ") + " ", "key"), *picker_row(name, self._shown, width))
            for at, name in enumerate(self._matches)
        ]
        self.list.set_rows(rows or [(("no metric has these words in its name or title", "stale"),)])
