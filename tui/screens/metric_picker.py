"""The dialogs that choose the metrics of the curves and find the chart of one metric."""

from __future__ import annotations

from collections.abc import Sequence

from ...presets.sanitize import clean_text
from ...runners.telemetry.metric_names import METRICS, find_metric
from ...runners.telemetry.quantity import Quantity
from ..rows.charts import NAMES, chart_title
from ..rows.glyphs import Row, fit, key_row
from .search_dialog import SearchDialog, pointer


def matching(text: str, names: Sequence[str]) -> list[str]:
    """Return the metrics whose name or title contains every typed word."""
    words = text.lower().split()
    return [
        name
        for name in names
        if all(word in f"{name} {chart_title(find_metric(name))}".lower() for word in words)
    ]


def picker_title(metric: Quantity) -> str:
    """Return the title of a metric's chart, followed by its own name if others have the same title."""
    title = chart_title(metric)
    same = [name for name in METRICS if chart_title(METRICS[name]) == title]
    return f"{title}, {metric.title}" if len(same) > 1 else title


def picker_row(name: str, shown: Sequence[str], width: int) -> Row:
    """Return one metric: its place among the charts, title and name."""
    metric = find_metric(name)
    place = f"[x] {shown.index(name) + 1:>2} " if name in shown else "[ ]    "
    return (
        (place, "accent"),
        (fit(clean_text(picker_title(metric)), 26) + " ", "head" if name in shown else "text"),
        (fit(clean_text(name), max(8, width - 35)), "dim"),
    )


class MetricPicker(SearchDialog[tuple[str, ...]]):
    """Asks for metrics; returns the names of the chosen ones, in order."""

    def __init__(self, shown: Sequence[str], own: Sequence[str] = ()) -> None:
        """Create the dialog; `own` are the script's own metrics."""
        keys = key_row(("Enter", " draw it or not   "), ("↑ ↓", " move   "), ("esc", " done"))
        super().__init__("What the curves show", keys)
        self._shown = list(shown)
        self._names = list(dict.fromkeys((*NAMES, *own, *shown)))

    @property
    def _matches(self) -> list[str]:
        return matching(self.typed, self._names)

    def on_input_submitted(self) -> None:
        if self.list.cursor >= len(self._matches):
            return
        name = self._matches[self.list.cursor]
        if name in self._shown:
            self._shown.remove(name)
        else:
            self._shown.append(name)
        self.show_found()

    def action_close(self) -> None:
        self.dismiss(tuple(self._shown))

    def most_rows(self) -> int:
        return len(self._names)

    def found_rows(self, width: int) -> Sequence[Row]:
        rows = [
            (*pointer(at == self.list.cursor), *picker_row(name, self._shown, width))
            for at, name in enumerate(self._matches)
        ]
        return rows or [(("no metric has these words in its name or title", "stale"),)]


class MetricFinder(SearchDialog[str | None]):
    """Asks for one metric, whose chart is then drawn first; returns its name."""

    def __init__(self, drawn: Sequence[str], own: Sequence[str] = ()) -> None:
        """Create the dialog. It lists the `drawn` metrics first; `own` are the script's own metrics."""
        keys = key_row(("Enter", " show its chart first   "), ("↑ ↓", " move   "), ("esc", " cancel"))
        super().__init__("Find a metric", keys)
        self._drawn = drawn
        self._names = list(dict.fromkeys((*drawn, *NAMES, *own)))

    @property
    def _matches(self) -> list[str]:
        return matching(self.typed, self._names)

    def on_input_submitted(self) -> None:
        if self.list.cursor < len(self._matches):
            self.dismiss(self._matches[self.list.cursor])

    def most_rows(self) -> int:
        return len(self._names)

    def found_rows(self, width: int) -> Sequence[Row]:
        rows: list[Row] = []
        for at, name in enumerate(self._matches):
            title = fit(clean_text(picker_title(find_metric(name))), 26) + " "
            style = "head" if name in self._drawn else "text"
            shown_name = fit(clean_text(name), max(8, width - 29))
            rows.append((*pointer(at == self.list.cursor), (title, style), (shown_name, "dim")))
        return rows or [(("no metric has these words in its name or title", "stale"),)]
