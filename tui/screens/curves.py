"""Charts as a pane: as many as fit, from a few rows next to the ranks to the whole screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from msgspec.structs import replace
from textual.binding import Binding

from ...runners.run.formatting import duration_short
from ...runners.telemetry.curves import finite
from ...runners.telemetry.metric_names import METRICS, find_metric
from ...runners.telemetry.quantity import Quantity
from ..history import MetricHistory, Shown
from ..keys import bindings
from ..newest_samples import Want, latest
from ..open_run import OpenRun
from ..rows.charts import (
    LIVE_WINDOW,
    STRIP,
    WINDOWS,
    ChartView,
    Panel,
    chosen,
    gutter,
    held,
    is_young,
    limit_of,
    scale,
    side_by_side,
    span_ending,
    strip_rows,
    window_text,
)
from ..rows.cycle import following
from ..rows.frame import Frame, gpu_places
from ..rows.glyphs import Row
from ..rows.plot import Axis, Line, sparkline
from .history_pane import HistoryPane, chart_mode, is_live, moment_at, time_word, window_seconds
from .metric_picker import MetricPicker
from .rank_strip import rank_time

TWO_COLUMNS = 150
"""Minimum columns for two columns of charts."""

ROWS = 8
"""Minimum rows of each of two columns of charts."""


def title(view: ChartView) -> str:
    """Return `live 10m · 5s per dot`."""
    dot = "" if view.wide > 1 else f" · {duration_short(view.bucket)} per dot"
    return f"{view.window}{dot}{' · log scale' if view.log else ''}"


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

    def made(self, frame: Frame, width: int, height: int) -> Sequence[Row]:
        if self.form == "ranks":
            return rank_time(self, frame, width, height)
        two = width >= TWO_COLUMNS and height >= 2 * ROWS
        inner = (width - 2) // 2 if two else width
        view = self.view_of(frame, inner)
        panels = [self.panel(frame, name, view) for name in self.metrics]
        self.run_asks()
        self.entitle(title(view))
        filled = chosen(panels, len(panels))
        if len(filled) > 1:
            view = replace(view, window="")  # the pane's title already shows it
        if not two or len(filled) < 2:
            return strip_rows(panels, view, width if not two else inner, height)
        half = (len(filled) + 1) // 2
        left, right = (strip_rows(part, view, inner, height) for part in (filled[:half], filled[half:]))
        return side_by_side(left, right, inner)

    def view_of(self, frame: Frame, width: int) -> ChartView:
        """Return the view: the window, in buckets that fill the width."""
        mode = chart_mode(frame)
        cells = max(1, width - gutter(width))
        end = latest(frame)
        seconds = window_seconds(frame, end)
        bucket, wide = scale(seconds, cells * mode.across)
        span = self.placed(frame, end, lambda edge: span_ending(edge, cells, bucket, wide, mode))
        self.history.dot = float(bucket)
        return ChartView(
            span=span,
            bucket=bucket,
            wide=wide,
            mode=mode,
            log=frame.view.log_scale,
            window=window_text(time_word(frame), span),
            marks=self.marks(frame),
            cursor=moment_at(frame),
        )

    def trend(self, frame: Frame, name: str) -> str:
        """Return a sparkline of a metric, scaled to its minimum and maximum; "" with fewer than two values."""
        mode = chart_mode(frame)
        end = frame.moment.at if frame.moment is not None else latest(frame)
        size = TREND_CELLS * mode.across
        bucket, _ = scale(window_seconds(frame, latest(frame)), size)
        begin = float((int(end // bucket) - size + 1) * bucket)
        shown = self.history.show(frame, Want(name), bucket, begin, size, is_live(frame))
        self.run_asks()
        values = held(shown[0].mean) if shown else []
        measured = finite(values)
        if len(measured) < 2:
            return ""
        low, high = min(measured), max(measured)
        return sparkline(values, TREND_CELLS, Axis(low, high if high > low else low + 1.0), mode)

    def panel(self, frame: Frame, name: str, view: ChartView) -> Panel:
        """Return the data of one chart, as far as the history has it."""
        metric = find_metric(name)
        want = Want(name, indexes=own_indexes(frame, self.history) if metric.kind == "gpu" else ())
        size = -(-view.span.cells * view.mode.across // view.wide)
        seconds = int(view.bucket)
        begin = view.span.end - size * seconds
        live = is_live(frame)
        apart = self._apart(frame, metric)
        self.followed |= {(each, seconds) for each in (want, *(more for more, _ in apart))}
        lines = [
            _line(metric, each, seconds)
            for each in self.history.show(frame, want, seconds, begin, size, live)
        ]
        note = self.history.note(want, seconds)
        for more, letters in apart:
            for each in self.history.show(frame, more, seconds, begin, size, live):
                key = each.index if more.fold == "each" else each.node
                letter, style = letters.get(-1 if key is None else key, ("", ""))
                if letter:
                    lines.append(replace(_line(metric, each, 1), style=style, letter=letter))
        young = is_young(frame.state, frame.node_now(0))
        return Panel(metric, tuple(lines), limit_of(frame.state, metric), note, young)

    def _apart(self, frame: Frame, metric: Quantity) -> list[tuple[Want, Letters]]:
        """Return the lines over the band: of marked ranks, of their GPUs, of nodes."""
        parts: list[tuple[Want, Letters]] = []
        marked = self.history.letters_of(frame.view.marked & set(frame.state.ranks))
        letters: Letters = {rank: LETTERS[at] for rank, at in marked.items()}
        if metric.kind == "gpu":
            letters = _letters_of_gpus(frame, letters)
        if letters and metric.kind in ("rank", "train", "gpu"):
            parts.append((Want(metric.name, "each", tuple(sorted(letters))), letters))
        nodes = sorted(frame.state.nodes)[: len(LETTERS)]
        if self.form == "nodes" and len(nodes) > 1:
            parts.append((Want(metric.name, "node"), dict(zip(nodes, LETTERS, strict=False))))
        return parts

    # --- keys

    BINDINGS: ClassVar[list[Binding]] = bindings("curves")  # type: ignore[assignment]

    def action_window(self, step: int) -> None:
        """Show a longer or a shorter time; 0 resets to live and the default window."""
        names = [name for name, _ in WINDOWS]
        window = LIVE_WINDOW
        if step:
            at = names.index(self.app.view.window) + step
            window = names[max(0, min(len(names) - 1, at))]
        else:
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
        now = moment_at(frame) or latest(frame)
        times = [mark.at for mark in self.marks(frame) if (mark.at - now) * by > 0.5]
        if times:
            self.run.travel.go(min(times) if by > 0 else max(times))
        else:
            self.notify(f"nothing is marked {'after' if by > 0 else 'before'} this time")

    def action_sideways(self, by: int) -> None:
        """Move the time instead of the columns, since a chart always fits."""
        self.action_time(1 if by > 0 else -1)

    def action_end(self, bottom: bool) -> None:
        """Go to the oldest time of the window, or live."""
        if bottom:
            self.run.travel.live()
        elif self.frame is not None:
            self.run.travel.go(self.view_of(self.frame, max(1, self.size.width)).span.begin)


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


def _line(metric: Quantity, shown: Shown, seconds: int) -> Line:
    mean = held(shown.mean) if metric.sparse else shown.mean
    if shown.of > 1 or seconds > 1:
        return Line(mean, shown.low, shown.high)
    return Line(mean)
