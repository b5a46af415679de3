"""The run on the screen: what follows it, which time of it is shown, and the frames of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from textual.app import App
from textual.signal import Signal

from ..runners.run.model import CaughtUp, Event, GpuTick, HostTick, LogGrew, RankTick
from ..runners.run.state import RunState
from .background import OwnedSignal
from .beat import Beat
from .follower import Follower
from .history import MetricHistory
from .newest_samples import time_of
from .past import copied
from .rows.frame import Frame, ViewOptions
from .source import WATCH, LocalSource
from .travel import Travel


class OpenRun:
    """One run, from its opening until the cockpit opens another one."""

    def __init__(
        self,
        app: App[None],
        id: str,
        source: LocalSource,
        clock: Callable[[], float],
        beat: Beat,
        publish: Callable[[], None],
    ) -> None:
        """Open a run. `beat` schedules frames for its news; `publish` shows a frame at once."""
        self.id = id
        self.follower = Follower(lambda: source.open(id), clock=clock, notify=self._received)
        self.frames: Signal[Frame] = OwnedSignal(app, "frames")
        self.grown: Signal[None] = OwnedSignal(app, "grown")
        """A log file has grown."""
        self.travel = Travel(app, self.follower, lambda: time_of(self.live_frame()), publish)
        self.history = MetricHistory(clock)
        """Metrics over time, shared by all charts."""
        self._clock = clock
        self._beat = beat
        self._seen: object = None
        """What `has_news` compared last."""
        self._held: Frame | None = None
        """The frame that is shown while the screen is paused."""

    @property
    def state(self) -> RunState:
        """The live state."""
        return self.follower.state

    @property
    def watched(self) -> bool:
        """Whether this is a job that distui did not start."""
        return self.id.startswith(WATCH)

    def _received(self, event: Event | None) -> None:
        """Schedule a frame for news of the follower."""
        if isinstance(event, CaughtUp):
            self._beat.at_once()
            return
        if isinstance(event, LogGrew):
            self.grown.publish(None)
        self._beat.stir(sample=isinstance(event, GpuTick | HostTick | RankTick | LogGrew))

    def has_news(self) -> bool:
        """Whether anything has changed since the last call, or another second has begun."""
        now = (self.follower.stamp, self.state.telemetry_version, int(self._clock()))
        before, self._seen = self._seen, now
        return now != before

    def live_frame(self, view: ViewOptions | None = None) -> Frame:
        """Return the frame of the live state."""
        link = self.follower
        return Frame(link.state, link.status, self._clock(), link.heard, view or ViewOptions())

    def node_now(self) -> float:
        """Return the unix time by the clock of the run's node."""
        return self.live_frame().node_now(min(self.state.nodes, default=0))

    def frame(self, view: ViewOptions) -> Frame:
        """Return the frame to show: live, held, or of a moment in the past."""
        frame = self.live_frame(view)
        if not view.paused:
            self._held = None
            return self.travel.frame(frame)
        if self._held is None:
            self._held = dataclasses.replace(frame, state=copied(frame.state))
        return self.travel.frame(dataclasses.replace(self._held, view=view, wall=frame.now))
