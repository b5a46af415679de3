"""Charts as a pane: as many as fit, from a few rows beside the ranks to the whole screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from textual.signal import Signal

from ...runners.formatting import duration_short
from ...runners.wire.client import LinkError
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
from ..rows.frame import Frame
from ..rows.glyphs import Row
from ..rows.plot import Line, Mode
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


class CurveStrip(Pane):
    """Charts of the same window below each other, newest at the right; useful from 40×3 on.

    `history` is shared by all charts of a run; what is not on the screen asks for nothing.
    """

    def __init__(
        self,
        frames: Signal[Frame],
        history: MetricHistory,
        *,
        id: str = "curves",
        metrics: Sequence[str] = STRIP,
    ) -> None:
        super().__init__(frames, id=id)
        self.history = history
        self.metrics = tuple(metrics)

    def build(self, frame: Frame, width: int) -> Sequence[Row]:
        height = max(1, self.size.height)
        two = width >= TWO_COLUMNS and height >= 2 * ROWS
        inner = (width - 2) // 2 if two else width
        view = self.view_of(frame, inner)
        panels = [self.panel(frame, name, view) for name in self.metrics]
        self._ask()
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
        end = time_of(frame)
        seconds = dict(WINDOWS).get(frame.view.window, 300.0) or max(60.0, end - frame.state.began)
        bucket, wide = scale(seconds, cells * mode.across)
        span = span_ending(end, cells, bucket, wide, mode)
        word = "ended" if frame.state.phase.ended else "live"
        return ChartView(
            span=span, bucket=bucket, wide=wide, mode=mode, log=frame.view.log_scale,
            window=window_text(word, span), marks=marks_of(frame.state),
        )  # fmt: skip

    def panel(self, frame: Frame, name: str, view: ChartView) -> Panel:
        """One chart's data, as far as it is known."""
        metric, want = metric_of(name), Want(name)
        size = -(-view.span.cells * view.mode.across // view.wide)
        seconds = int(view.bucket)
        begin = view.span.end - size * seconds
        live = not frame.state.phase.ended
        series = self.history.show(frame, want, seconds, begin, size, live)
        curves = tuple(
            Line(each.mean, each.low, each.high) if each.of > 1 or seconds > 1 else Line(each.mean)
            for each in series
        )
        note = "reading …" if self.history.waiting(want, seconds) else self.history.error(want, seconds)
        return Panel(metric, curves, limit_of(frame.state, metric), note)

    def _ask(self) -> None:
        """Ask the node for what charts miss; the answer is painted when it comes."""
        for ask in self.history.due():
            self.run_worker(self._answer(ask), group="curves")

    async def _answer(self, ask: Ask) -> None:
        follower = getattr(self.app, "follower", None)
        try:
            if follower is None:
                raise LinkError("no run is shown")
            self.history.answered(ask, await follower.read_metrics(ask.read))
        except LinkError as error:
            self.history.refused(ask, str(error))
        self.again()
