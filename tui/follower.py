"""Follows one run: folds its events, reconnects, and carries commands and windows of logs and metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..runners.node.run_following import folded_batches
from ..runners.run import clock
from ..runners.run.answers import MetricsWindow
from ..runners.run.commands import Command, ReadLog, ReadMetrics
from ..runners.run.model import CommandDone, Event
from ..runners.run.state import RunState
from ..runners.run.wire.client import BACKOFF_S, Link, LinkError, LinkFollower, Window
from .rows.frame import LinkPhase, LinkStatus


class Follower(LinkFollower):
    """Follows one run: folds its events into `state`, reconnects, and carries commands and log windows."""

    def __init__(
        self,
        open_link: Callable[[], Awaitable[Link]],
        *,
        clock: Callable[[], float] = clock.now,
        backoff: tuple[float, ...] = BACKOFF_S,
        notify: Callable[[Event | None], None] = lambda event: None,
    ) -> None:
        """Create the follower.

        `notify` is called after each batch of events, once per type of event, and with None if the connection has
        changed.
        """
        super().__init__(backoff)
        self.state = RunState()
        self.status = LinkStatus(LinkPhase.CONNECTING, clock())
        self.readonly = False
        self.heard = 0.0
        """This machine's clock when the last event arrived; 0.0 before the first."""
        self.open_link = open_link
        self._clock = clock
        self._notify = notify
        self._begun = 0
        """Sequence number of the newest event when the link was opened."""

    @property
    def stamp(self) -> tuple[int, int, bool, LinkStatus]:
        """A value that changes with every event except samples, which `state.telemetry_version` counts."""
        return (id(self.state), self.state.version, self.state.live, self.status)

    async def _follow(self) -> None:
        self._set(LinkPhase.LOST if self._tries else LinkPhase.CONNECTING, text=self.status.text)
        self._begun = self.state.seq
        link = self.link = await self.open_link()
        self.readonly = link.readonly
        async for batch in folded_batches(link, self.state):
            if self.status.phase is not LinkPhase.FOLLOWING:
                self._set(LinkPhase.FOLLOWING)
            self.heard = self._clock()
            for event in {type(stamped.event): stamped.event for stamped in batch}.values():
                self._notify(event)

    async def _settle(self, problem: str) -> float | None:
        if not problem and self.state.phase.ended:
            self._set(LinkPhase.ENDED)
            return None
        delay = self._count(steady=self.state.seq > self._begun)
        self._set(LinkPhase.LOST, problem or "the agent closed the connection", self._clock() + delay)
        return delay

    async def send(self, command: Command) -> CommandDone:
        """Send a command and wait for its answer. Raises LinkError, also while not connected."""
        return await self._connected().send(command)

    async def read_log(self, ask: ReadLog) -> Window:
        """Return one window of a log file. Raises LinkError, also while not connected."""
        return await self._connected().read_log(ask)

    async def read_metrics(self, ask: ReadMetrics) -> MetricsWindow:
        """Return curves from the metrics on disk. Raises LinkError, also while not connected."""
        return await self._connected().read_metrics(ask)

    def _connected(self) -> Link:
        if self.link is None or self.status.phase is LinkPhase.LOST:
            raise LinkError("not connected to the agent; reconnecting")
        return self.link

    def _set(self, phase: LinkPhase, text: str = "", retry_at: float | None = None) -> None:
        self.status = LinkStatus(phase, self._clock(), retry_at, text)
        self._notify(None)
