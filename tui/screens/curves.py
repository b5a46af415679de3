"""Charts as a pane: as many as fit, from a few rows beside the ranks to the whole screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from textual.signal import Signal

from ...runners.formatting import duration_short
from ...runners.wire.client import LinkError
from ..cockpit_commands import CommandingApp
from ..history import Ask, MetricHistory, Want, time_of
from ..rows.charts import (
    STRIP,
    WINDOWS,
    ChartView,
    Panel,
    chosen,
    gutter,
    limit_of,
    marks_of,
    metric_of,
    scale,
    side_by_side,
    span_ending,
    strip_rows,
    window_text,
)
from ..rows.frame import Frame, names
from ..rows.glyphs import Row
from ..rows.plot import Line, Mark, Mode, TimeSpan, Values
from ..rows.rank_time import RankSeries, rank_time_rows
from .panes import Pane

TWO_COLUMNS = 150
"""Columns from which charts stand in two columns."""

ROWS = 8
"""Of a column of charts at least, where there are two."""


def title(view: ChartView) -> str:
    """`live 10m · a dot 5s`."""
    dot = "" if view.wide > 1 else f" · a dot {duration_short(view.bucket)}"
    return f"{view.window}{dot}{' · log scale' if view.log else ''}"


def chart_mode(frame: Frame) -> Mode:
    """What curves are drawn with."""
    return Mode.ASCII if frame.view.ascii else Mode.BRAILLE


class HistoryPane(Pane):
    """A pane that shows metrics over time; `history` is shared by all of a run, and what is hidden asks for nothing."""

    def __init__(self, frames: Signal[Frame], history: MetricHistory, *, id: str) -> None:
        super().__init__(frames, id=id)
        self.history = history

    def placed(self, frame: Frame, end: float, span_to: Callable[[float], TimeSpan]) -> TimeSpan:
        """The newest span; of a moment in the past the one that was shown, or one with the moment in its middle."""
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

    def marks(self, frame: Frame) -> tuple[Mark, ...]:
        """What happened, also after the moment that is shown."""
        app = self.app
        kept = app.past_marks() if frame.moment is not None and isinstance(app, CommandingApp) else ()
        return kept or marks_of(frame.state)

    def run_asks(self) -> None:
        """Ask the node for what charts miss; the answer is painted when it comes."""
        for ask in self.history.due():
            self.run_worker(self._answer(ask), group="curves")

    async def _answer(self, ask: Ask) -> None:
        follower = self.app.follower if isinstance(self.app, CommandingApp) else None
        try:
            if follower is None:
                raise LinkError("no run is shown")
            self.history.answered(ask, await follower.read_metrics(ask.read))
        except LinkError as error:
            self.history.refused(ask, str(error))
        self.again()


def is_live(frame: Frame) -> bool:
    """Whether samples of the frame are those of now."""
    return frame.moment is None and not frame.state.phase.ended


def latest(frame: Frame) -> float:
    """Where the time axis ends: now, or the end of the run."""
    return frame.moment.latest if frame.moment is not None else time_of(frame)


def time_word(frame: Frame) -> str:
    """Which time charts show."""
    if frame.moment is not None:
        return "past"
    return "ended" if frame.state.phase.ended else "live"


def moment_at(frame: Frame) -> float | None:
    """Where the hairline is."""
    return frame.moment.at if frame.moment is not None else None


def window_seconds(frame: Frame, end: float) -> float:
    """How much time charts show at least."""
    return dict(WINDOWS).get(frame.view.window, 300.0) or max(60.0, end - frame.state.began)


class CurveStrip(HistoryPane):
    """Charts of the same window below each other, newest at the right; useful from 40×3 on."""

    def __init__(
        self,
        frames: Signal[Frame],
        history: MetricHistory,
        *,
        id: str = "curves",
        metrics: Sequence[str] = STRIP,
    ) -> None:
        super().__init__(frames, history, id=id)
        self.metrics = tuple(metrics)

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        height = max(1, self.size.height)
        two = width >= TWO_COLUMNS and height >= 2 * ROWS
        inner = (width - 2) // 2 if two else width
        view = self.view_of(frame, inner)
        panels = [self.panel(frame, name, view) for name in self.metrics]
        self.run_asks()
        self.entitle(title(view))
        filled = chosen(panels, len(panels))
        if len(filled) > 1:
            view = replace(view, window="")  # the pane's title has it
        if not two or len(filled) < 2:
            return strip_rows(panels, view, width if not two else inner, height)
        half = (len(filled) + 1) // 2
        left, right = (strip_rows(part, view, inner, height) for part in (filled[:half], filled[half:]))
        return side_by_side(left, right, inner)

    def view_of(self, frame: Frame, width: int) -> ChartView:
        """The window, in buckets that fill the width."""
        mode = chart_mode(frame)
        cells = max(1, width - gutter(width))
        end = latest(frame)
        seconds = window_seconds(frame, end)
        bucket, wide = scale(seconds, cells * mode.across)
        span = self.placed(frame, end, lambda edge: span_ending(edge, cells, bucket, wide, mode))
        self.history.dot = float(bucket)
        return ChartView(
            span=span, bucket=bucket, wide=wide, mode=mode, log=frame.view.log_scale,
            window=window_text(time_word(frame), span), marks=self.marks(frame),
            cursor=moment_at(frame),
        )  # fmt: skip

    def panel(self, frame: Frame, name: str, view: ChartView) -> Panel:
        """One chart's data, as far as it is known."""
        metric, want = metric_of(name), Want(name)
        size = -(-view.span.cells * view.mode.across // view.wide)
        seconds = int(view.bucket)
        begin = view.span.end - size * seconds
        series = self.history.show(frame, want, seconds, begin, size, is_live(frame))
        curves = tuple(
            Line(each.mean, each.low, each.high) if each.of > 1 or seconds > 1 else Line(each.mean)
            for each in series
        )
        note = "reading …" if self.history.waiting(want, seconds) else self.history.error(want, seconds)
        return Panel(metric, curves, limit_of(frame.state, metric), note)


MOST_RANKS = 64
"""That are asked for one by one; of more the nodes are rows."""


class RankStrip(HistoryPane):
    """Ranks × time: running, waits, stalled, no data; a row a rank, a group of ranks, or a node."""

    can_focus = False

    def __init__(self, frames: Signal[Frame], history: MetricHistory, *, id: str = "rank-time") -> None:
        super().__init__(frames, history, id=id)

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        height = max(1, self.size.height)
        mode = chart_mode(frame)
        end = latest(frame)
        seconds = window_seconds(frame, end)
        cells = max(1, width - 8)
        bucket, _ = scale(seconds, cells)
        span = self.placed(frame, end, lambda edge: span_ending(edge, cells, bucket, 1, Mode.ASCII))
        by_node = len(frame.state.ranks) > MOST_RANKS
        series = self._series(frame, span, bucket, by_node)
        self.run_asks()
        noun = "nodes" if by_node else "ranks"
        self.entitle(f"{noun} × time · {window_text(time_word(frame), span)}")
        if not series:
            return [(("no sample of a rank yet", "stale"),)]
        return rank_time_rows(
            series, span, bucket, width, height, mode,
            names=names(frame.state) if by_node else None, cursor=moment_at(frame),
        )  # fmt: skip

    def _series(self, frame: Frame, span: TimeSpan, bucket: int, by_node: bool) -> dict[int, RankSeries]:
        parts: dict[str, dict[int, Values]] = {}
        fold = "node" if by_node else "each"
        for metric in ("rank.step", "rank.step_s", "rank.wait"):
            shown = self.history.show(
                frame, Want(metric, fold), bucket, span.begin, span.cells, is_live(frame)
            )
            slowest = metric == "rank.step"
            parts[metric] = {
                number: each.low if slowest else each.mean
                for each in shown
                if (number := each.node if by_node else each.index) is not None
            }
        numbers = set().union(*parts.values())
        return {
            number: RankSeries(*(part.get(number, ()) for part in parts.values()))
            for number in sorted(numbers)
        }
