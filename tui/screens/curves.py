"""Charts as a pane: as many as fit, from a few rows next to the ranks to the whole screen."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import ClassVar

from msgspec.structs import replace
from textual.binding import Binding

from ...runners.run.formatting import duration_short
from ...runners.run.wire.client import LinkError
from ...runners.telemetry.metric_names import METRICS, find_metric
from ...runners.telemetry.quantity import Quantity
from ..background import background
from ..history import Ask, MetricHistory, Shown
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
    marks_of,
    scale,
    side_by_side,
    span_ending,
    strip_rows,
    window_text,
)
from ..rows.frame import Frame, gpu_places, names
from ..rows.glyphs import Row
from ..rows.plot import Axis, Line, Mark, Mode, TimeSpan, Values, finite, sparkline
from ..rows.rank_time import RankSeries, rank_time_rows
from .metric_picker import MetricPicker
from .panes import Pane

TWO_COLUMNS = 150
"""Minimum columns for two columns of charts."""

ROWS = 8
"""Minimum rows of each of two columns of charts."""


def title(view: ChartView) -> str:
    """Return `live 10m · a dot 5s`."""
    dot = "" if view.wide > 1 else f" · a dot {duration_short(view.bucket)}"
    return f"{view.window}{dot}{' · log scale' if view.log else ''}"


def chart_mode(frame: Frame) -> Mode:
    return Mode.ASCII if frame.view.ascii else Mode.BRAILLE


MOST_RANKS = 64
"""Maximum number of ranks with separate rows; with more, rows are nodes."""

Letters = Mapping[int, tuple[str, str]]
"""Letter and style by rank, GPU or node."""

LETTERS = (("A", "ok"), ("B", "warn"), ("C", "bad"), ("D", "head"))
"""Letters of marked ranks, and their styles; a rank keeps its letter while it is marked."""

TREND_CELLS = 8
"""Cells of a sparkline in the header."""

FORMS = ("band", "nodes", "ranks")
"""One band of all ranks, one line per node, ranks × time."""


def label_width(frame: Frame, height: int) -> int:
    """Return the columns of the labels in front of ranks × time."""
    ranks = frame.state.ranks
    if len(ranks) > MOST_RANKS:
        longest = max(map(len, names(frame.state).values()), default=0)
        return 2 + (longest if len(frame.state.nodes) <= height - 2 else 2 * longest + 1)
    digits = len(str(max(ranks, default=0)))
    return digits + 2 if len(ranks) <= height - 2 else 2 * digits + 3


class HistoryPane(Pane):
    """A pane that shows metrics over time. All panes share the run's history; hidden panes request no data.

    Its rows are built every EVERY_S seconds, since most dots and cells cover more time, and immediately after any change
    other than samples.
    """

    EVERY_S = 2.0

    def __init__(self, run: OpenRun, *, id: str) -> None:
        super().__init__(run.frames, id=id)
        self.run = run
        self.history = run.history
        self._built: Hashable = None
        """The inputs of the current rows, except the newest samples."""
        self.followed: set[tuple[Want, int]] = set()
        """Series and seconds per bucket that take every sample even between builds, so that bands show extremes."""

    def again(self) -> None:
        self._built = None
        super().again()

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        now = None if frame.moment is not None else latest(frame) // self.EVERY_S
        built = (width, self.size.height, now, frame.moment, frame.view, frame.state.version)
        if built == self._built:
            if is_live(frame):
                self.history.follow(frame, self.followed)
            return self.rows
        self._built = built
        self.followed.clear()
        return self.made(frame, width, max(1, self.size.height))

    def made(self, frame: Frame, width: int, height: int) -> Sequence[Row]:
        """Build the pane's rows."""
        raise NotImplementedError

    def placed(self, frame: Frame, end: float, span_to: Callable[[float], TimeSpan]) -> TimeSpan:
        """Return the newest span; for a past moment the previous span, or one with the moment in its middle."""
        if frame.moment is None:
            self.history.edge = None
            return span_to(end)
        if self.history.edge is None:
            self.history.edge = end
        span = span_to(self.history.edge)
        at = frame.moment.at
        if not span.begin <= at < span.end:
            self.history.edge = min(end, at + (span.end - span.begin) / 2)
            span = span_to(self.history.edge)
        return span

    def rank_time(self, frame: Frame, width: int, height: int) -> list[Row]:
        """Return ranks × time in this room, and set the title."""
        cells = max(1, width - label_width(frame, height))
        end = latest(frame)
        bucket, _ = scale(window_seconds(frame, end), cells)
        span = self.placed(frame, end, lambda edge: span_ending(edge, cells, bucket, 1, Mode.ASCII))
        by_node = len(frame.state.ranks) > MOST_RANKS
        series = self._rank_series(frame, span, bucket, by_node)
        self.run_asks()
        noun = "nodes" if by_node else "ranks"
        self.entitle(f"{noun} × time · {window_text(time_word(frame), span)}")
        if not series:
            return [(("no sample of a rank yet", "stale"),)]
        return rank_time_rows(
            series,
            span,
            bucket,
            width,
            height,
            chart_mode(frame),
            names=names(frame.state) if by_node else None,
            cursor=moment_at(frame),
        )

    def _rank_series(
        self, frame: Frame, span: TimeSpan, bucket: int, by_node: bool
    ) -> dict[int, RankSeries]:
        fold = "node" if by_node else "each"
        parts: dict[str, dict[int, Values]] = {}
        for metric in ("rank.step", "rank.step_s", "rank.wait"):
            shown = self.history.show(
                frame, Want(metric, fold), bucket, span.begin, span.cells, is_live(frame)
            )
            parts[metric] = {
                number: each.low if metric == "rank.step" else each.mean
                for each in shown
                if (number := each.node if by_node else each.index) is not None
            }
        numbers = sorted(set().union(*parts.values()))
        return {
            number: RankSeries(*(part.get(number, ()) for part in parts.values())) for number in numbers
        }

    def marks(self, frame: Frame) -> tuple[Mark, ...]:
        """Return what happened, including events after the shown moment."""
        kept = self.run.travel.marks() if frame.moment is not None else ()
        return kept or marks_of(frame.state)

    def run_asks(self) -> None:
        """Request missing chart data from the node; the answer triggers a repaint."""
        for ask in self.history.due():
            background(self, "curves", self._answer(ask))

    async def _answer(self, ask: Ask) -> None:
        try:
            self.history.answered(ask, await self.run.follower.read_metrics(ask.read))
        except LinkError as error:
            self.history.refused(ask, str(error))
        self.again()


def is_live(frame: Frame) -> bool:
    """Whether samples of the frame are current."""
    return frame.moment is None and not frame.state.phase.ended


def time_word(frame: Frame) -> str:
    """Return the word for the time that charts show."""
    if frame.moment is not None:
        return "past"
    return "ended" if frame.state.phase.ended else "live"


def moment_at(frame: Frame) -> float | None:
    """Return the time of the hairline."""
    return frame.moment.at if frame.moment is not None else None


def own_indexes(frame: Frame, history: MetricHistory) -> tuple[int, ...]:
    """Return the run's GPUs by their index on their nodes; () if it uses all, or if they are unknown.

    Known indexes are kept, since a moment before the first sample does not contain them.
    """
    own = history.own = frame.state.once(gpu_places) or history.own
    every = sum(len(node.gpus) for node in frame.state.nodes.values())
    used = sum(map(len, own.values()))
    return tuple(sorted(set().union(*own.values()))) if own and used != every else ()


def window_seconds(frame: Frame, end: float) -> float:
    """Return the minimum time span of charts. A young run's span is its age, unless the user chose a window."""
    age = max(60.0, end - frame.state.began)
    seconds = dict(WINDOWS).get(frame.view.window) or age
    return min(seconds, age) if frame.view.window == LIVE_WINDOW else seconds


class CurveStrip(HistoryPane):
    """Charts of one window below each other, newest values at the right; useful from 40×3 cells."""

    def __init__(self, run: OpenRun, metrics: Sequence[str], *, id: str) -> None:
        super().__init__(run, id=id)
        self.metrics = tuple(metrics)
        self.form = FORMS[0]

    def made(self, frame: Frame, width: int, height: int) -> Sequence[Row]:
        if self.form == "ranks":
            return self.rank_time(frame, width, height)
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
        self.form = forms[(forms.index(self.form) + 1) % len(forms)] if self.form in forms else forms[0]
        self.again()

    def action_choose(self) -> None:
        """Open the dialog that chooses the drawn metrics."""
        state = self.frame.state if self.frame is not None else None
        own = (
            {f"train.{name}" for sample in state.training.values() for name in sample.values}
            if state
            else set()
        )
        picker = MetricPicker(self.metrics, sorted(own - set(METRICS)), self.ascii_only)
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


class RankStrip(HistoryPane):
    """Ranks × time: running, waits, stalled, no data; one row per rank, group of ranks, or node."""

    can_focus = False

    def made(self, frame: Frame, width: int, height: int) -> Sequence[Row]:
        return self.rank_time(frame, width, height)
