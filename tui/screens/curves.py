"""Charts as a pane: as many as can be read, with a crosshair, over time or over steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace
from textual.binding import Binding
from textual.events import Click, Leave, MouseMove

from ...runners.run.formatting import time_of_day
from ...runners.telemetry.curves import finite
from ...runners.telemetry.metric_names import METRICS
from ...runners.telemetry.quantity_text import count_short
from ..background import after, background
from ..history import Shown
from ..keys import bindings
from ..newest_samples import Want, latest
from ..open_run import OpenRun
from ..rows.charts import (
    GAP,
    MORE,
    STRIP,
    ChartView,
    Panel,
    chart_columns,
    charts_rows,
    gutter,
    held,
    rows_of_charts,
    side_by_side,
)
from ..rows.cycle import following
from ..rows.frame import Frame
from ..rows.glyphs import Row
from ..rows.marks import legend_of_marks
from ..rows.plot import sparkline
from ..rows.time_axis import (
    LIVE_WINDOW,
    WINDOWS,
    BucketRange,
    Unit,
    buckets_of,
    columns,
    folded,
    mean,
    span_of,
)
from ..rows.value_axis import Axis
from .chart_reader import ChartReader, Letters, legend_row, node_letters, rank_letters
from .crosshair import Crosshair
from .history_pane import HistoryPane, chart_mode, is_live, shown_time
from .metric_picker import MetricFinder, MetricPicker
from .rank_strip import rank_time

TREND_CELLS = 8
"""Cells of a sparkline in the header."""

REST_S = 10.0
"""Seconds after its last move for which the mouse shows the values below it."""

FORMS = ("band", "nodes", "ranks")
"""One band of all ranks, one line per node, ranks × time."""


BLANKS = " \u2800"
"""Cells without dots: the blank, and braille's own."""


class CurveStrip(HistoryPane):
    """Charts of one window below each other, newest values at the right; useful from 40×3 cells."""

    def __init__(self, run: OpenRun, metrics: Sequence[str], *, id: str) -> None:
        super().__init__(run, id=id)
        self.metrics = tuple(metrics)
        self.form = FORMS[0]
        self.by_step = False
        """Whether the horizontal axis is one of steps."""
        self.first = 0
        """The first of the charts that are shown, if not all fit."""
        self.found = ""
        """The metric that the user searched for, whose chart is the first."""
        self._view: ChartView | None = None
        """The view of the current rows."""
        self._moment: float | None = None
        """The past moment of the last frame."""
        self._inner = 0
        """Columns of a column of charts."""
        self._count = len(self.metrics)
        """Charts that had values at the last painting."""
        self.cross = Crosshair(self.set_crosshair)
        """Removes the crosshair of a mouse that does not move, so that the values are live again."""

    def made(self, frame: Frame, width: int, height: int) -> Sequence[Row]:
        if self.form == "ranks" and not any(strip.display for strip in self.screen.query("#strip")):
            self._view = None
            return rank_time(self, frame, width, height)
        count = chart_columns(width, height, self._count)
        inner = self._inner = (width - GAP * (count - 1)) // count
        view = self._view = self.view_of(frame, inner)
        reader = ChartReader(frame, view, self.history, self._read)
        foot = 0 if height < 6 else 2 + bool(view.legend)
        fitting = count * rows_of_charts(height - foot)
        read = self._charts(reader, fitting)
        filled = [*read]
        self._count = len(filled)
        self.first = max(0, min(self.first, len(filled) - fitting))
        ranks, nodes = self._letters(frame)
        shown = [
            reader.panel(name, read[name], ranks, nodes)
            for name in filled[self.first : self.first + fitting]
        ]
        self.run_asks()
        self.entitle(self._title(frame, view, len(shown), len(filled)))
        return _in_columns(shown, view, count, inner, height)

    def _charts(self, reader: ChartReader, fitting: int) -> dict[str, list[Shown]]:
        """Return the metrics that have values; without a choice of the user also others if more charts fit."""
        read = {name: reader.series(name) for name in self.metrics}
        filled: dict[str, list[Shown]] = {}
        if self.found:
            filled[self.found] = reader.series(self.found)
        filled |= {name: series for name, series in read.items() if any(map(_has_values, series))}
        if self.metrics == STRIP and filled:
            for name in MORE:
                if len(filled) >= fitting:
                    break
                if name in filled:
                    continue
                series = reader.series(name)
                if any(map(_has_values, series)):
                    filled[name] = series
        if not filled:
            first = self.metrics[0]
            filled[first] = read[first]
        return filled

    def _title(self, frame: Frame, view: ChartView, shown: int, of: int) -> str:
        """Return `live 5m · 22:14:36 step 614 · charts 1–4 of 10 (j/k: more)`."""
        parts = [shown_time(frame, self.window(frame))]
        if view.cursor is not None and view.cursor == self.history.crosshair:
            step = view.steps.at(view.cursor) if view.steps is not None else None
            at = time_of_day(view.cursor)
            parts.append(at if step is None else f"{at} step {count_short(step)}")
        if view.log:
            parts.append("log scale")
        if self.by_step and view.axis.unit is not Unit.STEP:
            parts.append("no steps to show")
        if shown < of:
            last = self.first + shown
            which = f"chart {last}" if shown == 1 else f"charts {self.first + 1}–{last}"
            parts.append(f"{which} of {of} (j/k: more)")
        parts.append(legend_of_marks(view.placed_marks(), view.axis, view.mode))
        parts = [part for part in parts if part]
        return " · ".join(parts)

    def view_of(self, frame: Frame, width: int) -> ChartView:
        """Return the view: the shared window in the cells of this width."""
        mode = chart_mode(frame)
        span = span_of(self.window(frame), max(1, width - gutter(width)))
        self.history.dot = max(1.0, span.cell / mode.across)
        view = ChartView(
            span=span,
            until=latest(frame),
            mode=mode,
            log=frame.view.log_scale,
            marks=self.marks(frame),
            cursor=self.crosshair(frame),
            legend=legend_row(frame, *self._letters(frame)),
        )
        if self.by_step:
            return replace(view, steps=ChartReader(frame, view, self.history, self._read).steps())
        return view

    def _letters(self, frame: Frame) -> tuple[Letters, Letters]:
        """Return the letters of ranks and of nodes."""
        if self.form == "nodes":
            return {}, node_letters(frame)
        return rank_letters(frame, self.history), {}

    def _read(self, frame: Frame, want: Want, buckets: BucketRange) -> list[Shown]:
        self.followed.add((want, buckets.seconds))
        return self.history.show(frame, want, buckets.seconds, buckets.begin, buckets.size, is_live(frame))

    def trend(self, frame: Frame, name: str) -> str:
        """Return a sparkline of a metric, scaled to its minimum and maximum; "" with fewer than two values."""
        mode = chart_mode(frame)
        span = span_of(self.window(frame), TREND_CELLS)
        buckets = buckets_of(span, mode.across)
        shown = self._read(frame, Want(name), buckets)
        self.run_asks()
        if not shown:
            return ""
        values = folded(held(shown[0].mean), columns(span, mode.across, buckets), mean)
        measured = finite(values)
        if len(measured) < 2:
            return ""
        low, high = min(measured), max(measured)
        drawn = sparkline(values, TREND_CELLS, Axis(low, high if high > low else low + 1.0), mode)
        return drawn.strip(BLANKS)

    # --- the crosshair

    def follow_moment(self, frame: Frame) -> None:
        """Remove the crosshair after the screen moved in time, so that all of it shows one time."""
        at = frame.moment.at if frame.moment is not None else None
        if at != self._moment:
            self._moment = at
            self.cross.remove()

    def on_mouse_move(self, event: MouseMove) -> None:
        inside = event.get_content_offset(self)
        if inside is None:
            return
        self.cross.hover(self._view, self._inner, inside.x)
        background(self, "resting", after(REST_S, self.cross.unhover), exclusive=True)

    def on_leave(self, event: Leave) -> None:
        self.cross.unhover()

    def on_click(self, event: Click) -> None:
        inside = event.get_content_offset(self)
        if inside is not None:
            self.cross.click(self._view, self._inner, inside.x)

    # --- keys

    BINDINGS: ClassVar[list[Binding]] = bindings("curves")  # type: ignore[assignment]

    def action_window(self, step: int) -> None:
        """Show a longer or a shorter time; 0 resets to live and the default window."""
        window_names = [name for name, _ in WINDOWS]
        window = LIVE_WINDOW
        if step:
            at = window_names.index(self.app.view.window) + step
            window = window_names[max(0, min(len(window_names) - 1, at))]
        else:
            self.cross.remove()
            self.run.travel.live()
        self.app.change_view(window=window)
        self.app.choices.choose(window="" if window == LIVE_WINDOW else window)

    def action_time(self, dots: int) -> None:
        """Move the whole screen by so many dots."""
        self.run.travel.step(dots * self.history.dot)

    def action_log_scale(self) -> None:
        """Toggle the logarithmic value axis."""
        on = not self.app.view.log_scale
        self.app.change_view(log_scale=on)
        self.app.choices.choose(log_scale=on)

    def action_form(self) -> None:
        """Switch to the next form; one line per node needs several nodes."""
        forms = [
            form for form in FORMS if form != "nodes" or (self.frame and len(self.frame.state.nodes) > 1)
        ]
        self.form = following(forms, self.form)
        self.again()

    def action_axis(self) -> None:
        """Switch between time and steps."""
        self.by_step = not self.by_step
        self.again()

    def action_choose(self) -> None:
        """Open the dialog that chooses the drawn metrics."""
        self.app.push_screen(MetricPicker(self.metrics, self._own_metrics()), self._draw_these)

    def find_metric(self) -> None:
        """Ask for a metric, and draw its chart first."""
        self.app.push_screen(MetricFinder(self.metrics, self._own_metrics()), self._draw_first)

    def _draw_first(self, name: str | None) -> None:
        if name is not None:
            self.found, self.first = name, 0
            self.again()

    def forget_found(self) -> bool:
        """Return to the usual order of the charts; False if it is the current one."""
        if not self.found:
            return False
        self.found = ""
        self.again()
        return True

    def _own_metrics(self) -> list[str]:
        """Return the metrics of the script that distui does not know."""
        names: set[str] = set()
        if self.frame is not None:
            for sample in self.frame.state.training.values():
                names |= {f"train.{name}" for name in sample.values}
        return sorted(names - set(METRICS))

    def _draw_these(self, chosen_names: tuple[str, ...] | None) -> None:
        self.metrics = chosen_names or STRIP
        self.app.choices.choose(metrics=() if self.metrics == STRIP else self.metrics)
        self.again()

    def action_mark(self, by: int) -> None:
        """Move the whole screen to the next mark (1) or the previous (-1)."""
        frame = self.frame
        if frame is None:
            return
        now = frame.moment.at if frame.moment is not None else latest(frame)
        times = [mark.at for mark in self.marks(frame) if (mark.at - now) * by > 0.5]
        if times:
            self.run.travel.go(min(times) if by > 0 else max(times))
        else:
            self.notify(f"nothing is marked {'after' if by > 0 else 'before'} this time")

    def action_cursor(self, by: int) -> None:
        """Show other charts if not all fit."""
        self.first = max(0, self.first + by)
        self.again()

    def action_sideways(self, by: int) -> None:
        """Move the crosshair instead of the columns, since a chart always fits."""
        self.cross.move(self._view, 1 if by > 0 else -1)

    def action_end(self, bottom: bool) -> None:
        """Move the crosshair to the oldest time of the window; or go live, without a crosshair."""
        if not bottom:
            self.cross.to_begin(self._view)
            return
        self.cross.remove()
        self.run.travel.live()


def _in_columns(panels: Sequence[Panel], view: ChartView, count: int, width: int, height: int) -> list[Row]:
    """Return charts in columns; only the first column has the legend."""
    each = max(1, -(-len(panels) // count))
    without_legend = replace(view, legend=())
    columns = [charts_rows(panels[:each], view, width, height)]
    for begin in range(each, len(panels), each):
        part = panels[begin : begin + each]
        columns.append(charts_rows(part, without_legend, width, height - bool(view.legend)))
    return side_by_side(columns, width)


def _has_values(shown: Shown) -> bool:
    return any(value is not None for value in shown.mean)
