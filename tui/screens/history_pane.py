"""A pane that shows metrics over time, and the time axis of such panes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from ...runners.run.wire.client import LinkError
from ..background import background
from ..history import Ask
from ..newest_samples import Want, latest
from ..open_run import OpenRun
from ..rows.charts import LIVE_WINDOW, WINDOWS, marks_of
from ..rows.frame import Frame
from ..rows.glyphs import Row
from ..rows.plot import Mark, Mode, TimeSpan
from .panes import Pane


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


def window_seconds(frame: Frame, end: float) -> float:
    """Return the minimum time span of charts. A young run's span is its age, unless the user chose a window."""
    age = max(60.0, end - frame.state.began)
    seconds = dict(WINDOWS).get(frame.view.window) or age
    return min(seconds, age) if frame.view.window == LIVE_WINDOW else seconds


def chart_mode(frame: Frame) -> Mode:
    return Mode.ASCII if frame.view.ascii else Mode.BRAILLE
