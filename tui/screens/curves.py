"""Charts as a pane: as many as can be read, with a crosshair, over time or over steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from msgspec.structs import replace
from textual.binding import Binding
from textual.events import Click, Leave, MouseMove

from ...presets.sanitize import clean_text
from ...runners.comparison.account_numbers import STEPS
from ...runners.run.formatting import time_of_day
from ...runners.telemetry.curves import finite
from ...runners.telemetry.metric_names import METRICS, find_metric
from ...runners.telemetry.quantity import Quantity
from ...runners.telemetry.quantity_text import count_short
from ..history import MetricHistory, Shown
from ..keys import bindings
from ..newest_samples import Want, header_value, latest, newest_values
from ..open_run import OpenRun
from ..rows.charts import (
    GAP,
    STRIP,
    ChartView,
    Panel,
    chart_columns,
    charts_rows,
    gutter,
    held,
    is_young,
    limit_of,
    newest,
    rows_of_charts,
    side_by_side,
)
from ..rows.cycle import following
from ..rows.frame import Frame, gpu_places, names
from ..rows.glyphs import Cell, Row
from ..rows.plot import Line, sparkline
from ..rows.step_axis import Steps, counted
from ..rows.time_axis import (
    LIVE_WINDOW,
    WINDOWS,
    BucketRange,
    buckets_of,
    columns,
    folded,
    mean,
    span_of,
    window_text,
)
from ..rows.value_axis import Axis, Value, Values
from .history_pane import HistoryPane, chart_mode, is_live, time_word
from .metric_picker import MetricPicker
from .rank_strip import rank_time

Letters = Mapping[int, tuple[str, str]]
"""Letter and style by rank, GPU or node."""

LETTERS = (("A", "ok"), ("B", "warn"), ("C", "bad"), ("D", "head"))
"""Letters of marked ranks, and their styles; a rank keeps its letter while it is marked."""

TREND_CELLS = 8
"""Cells of a sparkline in the header."""

FORMS = ("band", "nodes", "ranks")
"""One band of all ranks, one line per node, ranks × time."""


def own_indexes(frame: Frame, history: MetricHistory) -> tuple[int, ...]:
    """Return the run's GPUs by their index on their nodes; () if it uses all, or if they are unknown.

    Known indexes are kept, since a moment before the first sample does not contain them.
    """
    own = history.own = frame.state.once(gpu_places) or history.own
    every = sum(len(node.gpus) for node in frame.state.nodes.values())
    used = sum(map(len, own.values()))
    return tuple(sorted(set().union(*own.values()))) if own and used != every else ()


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
        self._view: ChartView | None = None
        """The view of the current rows."""
        self._inner = 0
        """Columns of a column of charts."""
        self._pinned = False
        """Whether the crosshair stays after the mouse has left the pane."""

    def made(self, frame: Frame, width: int, height: int) -> Sequence[Row]:
        if self.form == "ranks":
            self._view = None
            return rank_time(self, frame, width, height)
        count = chart_columns(width, height, len(self.metrics))
        inner = self._inner = (width - GAP * (count - 1)) // count
        view = self._view = self.view_of(frame, inner)
        reader = _Reader(frame, view, self._read)
        read = {name: reader.series(self._want(frame, name)) for name in self.metrics}
        filled = [name for name, series in read.items() if any(map(_has_values, series))] or [*read][:1]
        foot = 0 if height < 6 else 2 + bool(view.legend)
        fitting = count * rows_of_charts(height - foot)
        self.first = max(0, min(self.first, len(filled) - fitting))
        names = filled[self.first : self.first + fitting]
        shown = [self._panel(frame, name, read[name], reader) for name in names]
        self.run_asks()
        self.entitle(self._title(frame, view, len(shown), len(filled)))
        if count == 1:
            return charts_rows(shown, view, inner, height)
        half = (len(shown) + 1) // 2
        right = charts_rows(shown[half:], replace(view, legend=()), inner, height - bool(view.legend))
        return side_by_side(charts_rows(shown[:half], view, inner, height), right, inner)

    def _title(self, frame: Frame, view: ChartView, shown: int, of: int) -> str:
        """Return `live 5m · 22:14:36 step 614 · charts 1–4 of 10 (j/k: more)`."""
        parts = [window_text(time_word(frame), self.window(frame))]
        if self.history.crosshair is not None:
            step = view.steps.at(self.history.crosshair) if view.steps is not None else None
            at = time_of_day(self.history.crosshair)
            parts.append(at if step is None else f"{at} step {count_short(step)}")
        if view.log:
            parts.append("log scale")
        if self.by_step and not view.axis.in_steps:
            parts.append("no steps to show")
        if shown < of:
            last = self.first + shown
            which = f"chart {last}" if shown == 1 else f"charts {self.first + 1}–{last}"
            parts.append(f"{which} of {of} (j/k: more)")
        return " · ".join(parts)

    def view_of(self, frame: Frame, width: int) -> ChartView:
        """Return the view: the shared window in the cells of this width."""
        mode = chart_mode(frame)
        span = span_of(self.window(frame), max(1, width - gutter(width)))
        self.history.dot = max(1.0, span.cell / mode.across)
        view = ChartView(
            span=span,
            mode=mode,
            log=frame.view.log_scale,
            marks=self.marks(frame),
            cursor=self.crosshair(frame),
            legend=self._legend(frame),
        )
        if self.by_step:
            return replace(view, steps=_Reader(frame, view, self._read).steps())
        return view

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
        return sparkline(values, TREND_CELLS, Axis(low, high if high > low else low + 1.0), mode)

    def _want(self, frame: Frame, name: str) -> Want:
        """Return what the history has to show for a metric."""
        indexes: tuple[int, ...] = ()
        if find_metric(name).kind == "gpu":
            indexes = own_indexes(frame, self.history)
        return Want(name, indexes=indexes)

    def _panel(self, frame: Frame, name: str, series: Sequence[Shown], reader: _Reader) -> Panel:
        """Return the data of one chart: one curve or band of all, and those of marked ranks or of nodes."""
        metric, want = find_metric(name), self._want(frame, name)
        lines = [reader.line(metric, each, want) for each in series]
        for more, letters in self._apart(frame, metric):
            for each in reader.series(more):
                key = each.index if more.fold == "each" else each.node
                letter, style = letters.get(-1 if key is None else key, ("", ""))
                if letter:
                    line = reader.line(metric, each, more)
                    lines.append(replace(line, low=(), high=(), style=style, letter=letter))
        note = self.history.note(want, reader.buckets.seconds)
        young = is_young(frame.state, frame.node_now(0))
        return Panel(metric, tuple(lines), limit_of(frame.state, metric), note, young)

    # --- curves of ranks and nodes

    def _apart(self, frame: Frame, metric: Quantity) -> list[tuple[Want, Letters]]:
        """Return the lines over the band: of marked ranks, of their GPUs, of nodes."""
        parts: list[tuple[Want, Letters]] = []
        letters = self._rank_letters(frame)
        if metric.kind == "gpu":
            letters = _letters_of_gpus(frame, letters)
        if letters and metric.kind in ("rank", "train", "gpu"):
            parts.append((Want(metric.name, "each", tuple(sorted(letters))), letters))
        nodes = self._node_letters(frame)
        if nodes:
            parts.append((Want(metric.name, "node"), nodes))
        return parts

    def _rank_letters(self, frame: Frame) -> Letters:
        if self.form == "nodes":
            return {}
        marked = self.history.letters_of(frame.view.marked & set(frame.state.ranks))
        return {rank: LETTERS[at] for rank, at in marked.items()}

    def _node_letters(self, frame: Frame) -> Letters:
        """Return the letters of the nodes of marked ranks, then of the first nodes."""
        nodes = sorted(frame.state.nodes)
        if self.form != "nodes" or len(nodes) < 2:
            return {}
        ranks = frame.state.ranks
        marked = {ranks[rank].place.node for rank in frame.view.marked if rank in ranks}
        ordered = [*sorted(marked), *(node for node in nodes if node not in marked)]
        return dict(zip(ordered, LETTERS, strict=False))

    def _legend(self, frame: Frame) -> Row:
        """Return `A n12  B n13 of 128 nodes`, or the ranks."""
        cells: list[Cell] = []
        called = names(frame.state)
        nodes = self._node_letters(frame)
        for node, (letter, style) in nodes.items():
            cells += [(letter, style), (f" {clean_text(called.get(node, str(node)))}  ", "dim")]
        for rank, (letter, style) in sorted(self._rank_letters(frame).items()):
            cells += [(letter, style), (f" rank {rank}  ", "dim")]
        if 0 < len(nodes) < len(frame.state.nodes):
            cells.append((f"of {len(frame.state.nodes)} nodes", "dim"))
        return tuple(cells)

    # --- the crosshair

    def _cell_at(self, x: int) -> int | None:
        """Return the cell of a chart at a column of the pane."""
        if self._view is None:
            return None
        cells = self._view.span.cells
        edge = self._inner - cells
        cell = x % (self._inner + GAP) - edge
        return cell if 0 <= cell < cells else None

    def _point_at(self, x: int | None) -> None:
        cell = self._cell_at(x) if x is not None else None
        view = self._view
        self.set_crosshair(view.time_at(cell) if view is not None and cell is not None else None)

    def on_mouse_move(self, event: MouseMove) -> None:
        """Show the values under the mouse."""
        inside = event.get_content_offset(self)
        if inside is not None and not self._pinned:
            self._point_at(inside.x)

    def on_leave(self, event: Leave) -> None:
        if not self._pinned:
            self.set_crosshair(None)

    def on_click(self, event: Click) -> None:
        """Keep the crosshair here; a click on it takes it away."""
        inside = event.get_content_offset(self)
        if inside is None:
            return
        before = self.history.crosshair if self._pinned else None
        self._point_at(inside.x)
        self._pinned = self.history.crosshair is not None and self.history.crosshair != before
        if not self._pinned:
            self.set_crosshair(None)

    def move_crosshair(self, cells: int) -> None:
        """Move the crosshair; it begins at the newest value."""
        view, frame = self._view, self.frame
        if view is None or frame is None:
            return
        at = self.history.crosshair
        cell = view.cell(latest(frame) if at is None else at)
        if cell is None:
            cell = view.span.cells - 1
        if at is not None:
            cell = max(0, min(view.span.cells - 1, cell + cells))
        self._pinned = True
        self.set_crosshair(view.time_at(cell))

    def leave_crosshair(self) -> bool:
        """Take the crosshair away; False if there is none."""
        if self.history.crosshair is None:
            return False
        self._pinned = False
        self.set_crosshair(None)
        return True

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
            self.leave_crosshair()
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
        state = self.frame.state if self.frame is not None else None
        own = (
            {f"train.{name}" for sample in state.training.values() for name in sample.values}
            if state
            else set()
        )
        picker = MetricPicker(self.metrics, sorted(own - set(METRICS)))
        self.app.push_screen(picker, self._draw_these)

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
        self.move_crosshair(1 if by > 0 else -1)

    def action_end(self, bottom: bool) -> None:
        """Move the crosshair to the oldest time of the window; or go live, without a crosshair."""
        if bottom:
            self.leave_crosshair()
            self.run.travel.live()
        else:
            self.move_crosshair(0)
            self.move_crosshair(-(10**6))


class _Reader:
    """Makes lines in the columns of a view from the series of the history."""

    def __init__(
        self, frame: Frame, view: ChartView, read: Callable[[Frame, Want, BucketRange], list[Shown]]
    ) -> None:
        self._frame, self._view, self._read = frame, view, read
        self.buckets = buckets_of(view.span, view.mode.across)
        self._parts = columns(view.span, view.mode.across, self.buckets)

    def series(self, want: Want) -> list[Shown]:
        return self._read(self._frame, want, self.buckets)

    def line(self, metric: Quantity, shown: Shown, want: Want) -> Line:
        """Return the curve of a series, with the value for the title."""
        values = held(shown.mean) if metric.sparse else shown.mean
        line = Line(folded(values, self._parts, mean), now=self._now(metric, values, shown, want))
        if shown.of > 1 or self.buckets.seconds > 1:
            low, high = folded(shown.low, self._parts, min), folded(shown.high, self._parts, max)
            return replace(line, low=low, high=high)
        return line

    def steps(self) -> Steps | None:
        """Return the steps of the window, as the script counts them, or else the hook."""
        for name in STEPS:
            for shown in self.series(Want(name)):
                counts = folded(counted(shown.mean), self._parts, max)
                if any(count is not None for count in counts):
                    return Steps(self._view.span, counts)
        return None

    def _now(self, metric: Quantity, values: Values, shown: Shown, want: Want) -> Value:
        """Return the value at the crosshair, else the newest one."""
        if self._view.cursor is not None:
            at = self.buckets.at(self._view.cursor)
            return None if at is None else values[at]
        if is_live(self._frame):
            if want.fold == "all" and not want.indexes:
                in_header = header_value(self._frame, want.metric)
                if in_header is not None:
                    return in_header
            node = None if want.fold == "all" else shown.node
            index = shown.index if want.fold == "each" else None
            current = newest_values(self._frame, want).get((node, index))
            if current:
                return math.fsum(current) / len(current)
        until = self.buckets.at(latest(self._frame))
        end = self.buckets.size if until is None else until + 1
        return newest(values[:end], self.buckets.seconds, metric)


def _has_values(shown: Shown) -> bool:
    return any(value is not None for value in shown.mean)


def _letters_of_gpus(frame: Frame, ranks: Letters) -> Letters:
    """Return the letters of marked ranks by their GPU; none in a run of several nodes, whose GPUs have equal indexes."""
    letters: dict[int, tuple[str, str]] = {}
    if len(frame.state.nodes) != 1:
        return letters
    for number, letter in ranks.items():
        sample = frame.state.ranks[number].sample
        if sample is not None and sample.gpu is not None:
            letters[sample.gpu] = letter
    return letters
