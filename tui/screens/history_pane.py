"""A pane that shows metrics over time, and the time axis of such panes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ...runners.run.wire.client import LinkError
from ..background import background
from ..history import Ask
from ..newest_samples import Want, latest
from ..open_run import OpenRun
from ..rows.frame import Frame
from ..rows.glyphs import Row
from ..rows.marks import Mark, marks_of
from ..rows.plot import Mode
from ..rows.time_axis import WINDOWS, Window, ended_window_text, window_of, window_text
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
        seen = (frame.moment, frame.view, frame.state.version, self.history.crosshair)
        built = (width, self.size.height, now, *seen)
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

    def window(self, frame: Frame) -> Window:
        """Return the time that all panes show: the newest, or around a past moment that it does not contain."""
        end = latest(frame)
        wanted = dict(WINDOWS)[frame.view.window]
        window = window_of(first_sample(frame), end, wanted, growing=not frame.state.phase.ended)
        if frame.moment is None:
            self.history.edge = None
            return window
        if self.history.edge is None:
            self.history.edge = window.end
        shown = Window(self.history.edge, window.seconds)
        at = frame.moment.at
        if not shown.begin <= at < shown.end:
            shown = Window(min(window.end, at + window.seconds / 2), window.seconds)
            self.history.edge = shown.end
        return shown

    def crosshair(self, frame: Frame) -> float | None:
        """Return the time of the vertical line: the crosshair while the window contains it, else the past moment."""
        at = self.history.crosshair
        if at is not None and at >= self.window(frame).begin:
            return at
        return frame.moment.at if frame.moment is not None else None

    def set_crosshair(self, at: float | None) -> None:
        """Move the crosshair of all panes."""
        if at == self.history.crosshair:
            return
        self.history.crosshair = at
        for pane in self.screen.query(HistoryPane):
            pane.again()

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


def shown_time(frame: Frame, window: Window) -> str:
    """Return the time that charts show: "live 5m", "past 5m", or the part of an ended run."""
    if frame.moment is not None:
        return window_text("past", window)
    if frame.state.phase.ended:
        return ended_window_text(first_sample(frame), window)
    return window_text("live", window)


def first_sample(frame: Frame) -> float:
    """Return the time from which a run has samples: the start of its first attempt."""
    attempts = frame.state.attempts
    return attempts[0].began if attempts else frame.state.began


def chart_mode(frame: Frame) -> Mode:
    return Mode.ASCII if frame.view.ascii else Mode.BRAILLE
