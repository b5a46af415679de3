"""The time that the cockpit shows: live, or a moment in the past that the user moves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing, suppress

from textual.app import App

from ..runners.run.answers import MetricsWindow
from ..runners.run.commands import ReadMetrics
from ..runners.run.errors import RunError
from ..runners.run.formatting import duration_exact
from ..runners.run.model import CaughtUp, Stamped
from ..runners.run.state import RunState
from ..runners.run.wire.client import LinkError, new_id, paced
from .background import background
from .follower import Follower
from .moment_text import MomentError, moment_of
from .newest_samples import time_of
from .past import Timeline, step_of
from .past_samples import averaged_seconds, put_samples
from .rows.frame import Frame, LinkPhase, LinkStatus, Moment
from .rows.marks import Mark

MOST_VALUES = 4000
"""Maximum values per request for samples around a moment: some 20 kB."""
METRICS_OF_ALL = 30
"""Approximate number of metrics of a rank, its GPU and its node together."""
LEAD_S = 15.0
"""Seconds to request before the moment: a training signal may be that old, or be a mean of 10 s."""
LEAD_OF_MANY_S = 5.0
"""Seconds to request before the moment in a run with so many ranks that an answer covers only seconds."""


NO_WINDOW = (0.0, 0.0, MetricsWindow(""))


class Travel:
    """The displayed time. All methods must be called in the app's thread."""

    def __init__(
        self,
        app: App[None],
        follower: Follower,
        latest: Callable[[], float],
        publish: Callable[[], None],
    ) -> None:
        """Create it live. `latest` returns the end of the run's time line; `publish` shows another moment."""
        self._app = app
        self._follower = follower
        self._latest = latest
        self._publish = publish
        self._timeline = Timeline()
        self.at: float | None = None
        """Unix time of the moment; None for live."""
        self._state = RunState()
        self._window = NO_WINDOW
        """Begin and end of the moments that the last answer covers, and the answer."""
        self._asked = NO_WINDOW[:2]
        """Begin and end of the moments that the last request covers, unless it has failed."""
        self._has_failed = False
        """Whether samples of the moment are missing because the last request failed."""

    def frame(self, frame: Frame) -> Frame:
        """Return the live frame, or that of the moment."""
        if self.at is None:
            return frame
        averaged_s = averaged_seconds(self._window[2])
        moment = Moment(self.at, time_of(frame), step_of(self._state), averaged_s)
        link = LinkStatus(LinkPhase.FOLLOWING, self.at)
        return Frame(self._state, link, self.at, self.at, frame.view, moment)

    def marks(self) -> tuple[Mark, ...]:
        """Return the events of the journal, as far as it was read."""
        return self._timeline.marks()

    # --- going there

    def step(self, seconds: float) -> None:
        """Move by so many seconds; from live only backwards."""
        begin = self.at if self.at is not None else self._latest()
        if self.at is None and seconds > 0:
            self._app.notify("this is live: [ goes back in time")
            return
        self.go(begin + seconds)

    def go(self, at: float) -> None:
        """Show the moment; a moment that is not in the past switches to live."""
        if at >= self._latest():
            self.live()
            return
        if self.at is None:
            background(self._app, "travel", self._enter(at), exclusive=True)
        else:
            self._show(at)

    def go_to(self, text: str) -> None:
        """Show the moment that the user typed."""
        background(self._app, "travel", self._go_to(text), exclusive=True)

    async def _go_to(self, text: str) -> None:
        if not await self._load():
            return
        try:
            at = moment_of(text, self._timeline, self._latest())
        except MomentError as error:
            step = text.split()
            made = await self._time_of_step(int(step[1])) if _names_step(step) else None
            if made is None:
                self._app.notify(str(error), severity="error")
                return
            at = made
        self._show(at)

    async def _enter(self, at: float) -> None:
        if await self._load():
            self._show(at)

    def live(self) -> bool:
        """Return to live; False if the screen is live already."""
        if self.at is None:
            return False
        self.at, self._window, self._asked = None, NO_WINDOW, NO_WINDOW[:2]
        self._has_failed = False
        self._publish()
        return True

    def try_again(self) -> None:
        """Read the samples of the moment again if the last request failed."""
        if self.at is not None and self._has_failed:
            self._ask(self.at)

    def _show(self, at: float) -> None:
        if at < self._timeline.begin:
            self._say_begin()
        self.at = max(self._timeline.begin, min(at, self._latest()))
        self._state = self._timeline.state_at(self.at)
        begin, end, window = self._window
        if begin <= self.at < end:
            put_samples(self._state, window, self.at, self._follower.state)
        else:
            put_samples(self._state, MetricsWindow(""), self.at, self._follower.state)
            self._ask(self.at)
        self._publish()

    def _say_begin(self) -> None:
        """Report that the screen moves less than requested, since the run has no earlier time."""
        shown = self._latest() if self.at is None else self.at
        moved_s = shown - self._timeline.begin
        if moved_s < 1:
            self._app.notify("this is the beginning of the run")
        else:
            self._app.notify(f"moved {duration_exact(moved_s)} only: this is the beginning of the run")

    # --- what the node is asked

    async def _load(self) -> bool:
        """Read the journal's new events; False on failure."""
        try:
            self._timeline.add(await self._new_events())
        except (LinkError, RunError) as error:
            self._app.notify(f"the past cannot be read: {error}", severity="error")
            return False
        if not self._timeline.begin:
            self._app.notify("this run has no past yet")
            return False
        return True

    async def _new_events(self) -> list[Stamped]:
        """Read the journal by a separate link. Raises LinkError and RunError."""
        events: list[Stamped] = []
        link = await self._follower.open_link()
        try:
            async with aclosing(paced(link.events(self._timeline.seq))) as stream:
                async for stamped in stream:
                    if isinstance(stamped.event, CaughtUp):
                        break
                    events.append(stamped)
        finally:
            with suppress(LinkError, OSError):
                await link.close()
        return events

    def _ask(self, at: float) -> None:
        begin, end = self._asked
        if begin <= at < end:
            return
        size = max(1, len(self._follower.state.ranks)) * METRICS_OF_ALL
        ahead = max(2.0, min(120.0, MOST_VALUES / size))
        lead = LEAD_OF_MANY_S if ahead <= 2.0 else LEAD_S
        begin, end = float(int(at - lead)), float(int(at + ahead) + 1)
        self._asked = (begin + lead, end)
        ask = ReadMetrics(new_id(), begin, end, buckets=int(end - begin), fold="each")
        background(self._app, "samples", self._answer(ask, self._asked), exclusive=True)

    async def _answer(self, ask: ReadMetrics, asked: tuple[float, float]) -> None:
        try:
            window = await self._follower.read_metrics(ask)
        except LinkError as error:
            window = MetricsWindow(ask.id, error=str(error))
            self._app.notify(f"the samples of that time cannot be read: {error}", severity="error")
        if asked != self._asked:
            return
        self._has_failed = bool(window.error)
        if self._has_failed:
            self._asked = NO_WINDOW[:2]
            return
        self._window = (*asked, window)
        if self.at is not None:
            put_samples(self._state, window, self.at, self._follower.state)
            self._publish()

    async def _time_of_step(self, step: int) -> float | None:
        """Return the time by which a step was made, according to its curve."""
        begin, end = self._timeline.begin, self._latest()
        for _ in range(3):  # three passes of increasing resolution
            if end <= begin:
                return None
            names = ("train.step", "rank.step")
            try:
                window = await self._follower.read_metrics(
                    ReadMetrics(new_id(), begin, end, buckets=240, metrics=names, fold="all")
                )
            except LinkError:
                return None
            place = _first_at(window, step)
            if place is None or window.seconds <= 1:
                return place
            begin, end = place, min(end, place + window.seconds)
        return end


def _names_step(words: list[str]) -> bool:
    return len(words) == 2 and words[0] == "step" and words[1].isdecimal()


def _first_at(window: MetricsWindow, step: int) -> float | None:
    """Return the start of the first bucket whose maximum is this step or more."""
    places = [
        at
        for series in window.series
        for at, value in enumerate(series.high or series.mean)
        if isinstance(value, int | float) and value >= step
    ]
    return window.begin + min(places) * window.seconds if places else None
