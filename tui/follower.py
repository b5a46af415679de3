"""What the cockpit is handed, and the one task that follows a run.

`RunSource` is the border to the registry: it lists runs, opens a Link to one, and turns the launch form
into a plan. `Follower` consumes one Link into one RunState and reconnects with back-off when it breaks.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..runners.model import Command, CommandDone, Down, Event, SetAutostop, Stop
from ..runners.state import RunState
from ..runners.wire.link import BACKOFF_S, Link, LinkError, LinkFollower, Window, paced

if TYPE_CHECKING:  # the first picture of a run needs neither
    from ..presets.model import Loaded
    from ..runners.hub.sky_process import Candidate
    from ..runners.launch.launch_form import LaunchForm, LaunchPreview
    from .terminal import Shell

WATCH = "watch:"
"""Before the pid in the id of a job that distui did not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """One line of the run list."""

    id: str
    name: str
    phase: str
    """A RunPhase value, or a word of the source's own ("watched")."""
    age_s: float | None
    """Seconds since the run began; None when unknown."""
    live: bool
    readonly: bool
    preset: str
    problem: str = ""
    """What is damaged of it, and names the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetEntry:
    """One line of the preset list."""

    name: str
    title: str
    summary: str
    """When to take it."""
    strategy: str = ""
    origin: str = ""
    """"" shipped, "yours" or "project"."""
    problem: str = ""
    """Why it cannot be loaded, a sentence; "" where it can."""


class RunSource(Protocol):
    """Where runs come from."""

    def runs(self) -> list[RunEntry]:
        """Every run known here, newest first. Cheap: asked once a second while the list is shown."""
        ...

    async def open(self, run_id: str) -> Link:
        """A link to the run, starting an agent for it if none is there. Raises LinkError."""
        ...

    def presets(self) -> list[PresetEntry]:
        """The presets there are, also those that cannot be loaded; read anew."""
        ...

    def preset(self, name: str, overrides: Sequence[str] = ()) -> Loaded:
        """One of them with some fields changed. Cheap. Raises LaunchError."""
        ...

    def save(self, name: str, form: LaunchForm, replace: bool = False) -> str:
        """Write the form's preset with its changes as a preset of the user's own; the path of its file.

        Raises FileExistsError where there is one and `replace` is not said, and LaunchError.
        """
        ...

    def plan(self, form: LaunchForm, ask: bool = False) -> LaunchPreview:
        """What launching this form would do. Changes nothing; called in a thread; never raises.

        `ask`: hosts that the user named are asked what they are; else that is left open.
        """
        ...

    async def candidates(self, form: LaunchForm) -> list[Candidate]:
        """The nodes that SkyPilot would take for this form. Raises LaunchError."""
        ...

    async def launch(self, form: LaunchForm) -> str:
        """Start it and return the run's id. Raises LaunchError."""
        ...

    def shell(self, run_id: str, node: int) -> Shell | None:
        """A shell on a node of a run on several; None for other runs. Raises LaunchError."""
        ...

    async def stop(self, run_id: str, command: Stop, say: Callable[[str], None]) -> CommandDone:
        """End a run, also where its agent or hub does not answer, after `say` was told so. Raises LinkError."""
        ...

    async def afterwards(self, run_id: str, command: Down | SetAutostop) -> CommandDone:
        """What is still to be done with the cluster of a run that has ended. Raises LinkError."""
        ...


class LinkPhase(enum.StrEnum):
    """Where the connection to the agent stands."""

    CONNECTING = "connecting"
    FOLLOWING = "following"
    LOST = "lost"
    """Broken; the next try is at `LinkStatus.retry_at`."""
    ENDED = "ended"
    """The run has ended and everything was read."""


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """The connection as the screen shows it; times are unix seconds."""

    phase: LinkPhase
    since: float
    retry_at: float | None = None
    text: str = ""
    """Why it broke, one sentence."""


class Follower(LinkFollower):
    """Follows one run: folds its events into `state`, reconnects, and carries commands and log windows."""

    def __init__(
        self,
        open_link: Callable[[], Awaitable[Link]],
        *,
        clock: Callable[[], float] = time.time,
        backoff: tuple[float, ...] = BACKOFF_S,
        notify: Callable[[Event | None], None] = lambda event: None,
    ) -> None:
        """`notify` is called after each event, and with None when the connection has changed."""
        super().__init__(backoff)
        self.state = RunState()
        self.status = LinkStatus(LinkPhase.CONNECTING, clock())
        self.readonly = False
        self.heard = 0.0
        """When the last event arrived, by this machine's clock; 0.0 before the first."""
        self._open_link = open_link
        self._clock = clock
        self._notify = notify
        self._begun = 0
        """The newest event when the link was opened."""

    @property
    def stamp(self) -> tuple[int, int, bool, LinkStatus]:
        """Changes whenever something has happened; samples are counted by `state.telemetry_version`."""
        return (id(self.state), self.state.version, self.state.live, self.status)

    async def _follow(self) -> None:
        self._set(LinkPhase.LOST if self._tries else LinkPhase.CONNECTING, text=self.status.text)
        self._begun = self.state.seq
        link = self.link = await self._open_link()
        self.readonly = link.readonly
        async for stamped in paced(link.events(self.state.seq)):
            if self.status.phase is not LinkPhase.FOLLOWING:
                self._set(LinkPhase.FOLLOWING)
            self.state.apply(stamped)
            self.heard = self._clock()
            self._notify(stamped.event)

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

    async def read_log(self, file: str, offset: int, limit: int = 65536, grep: str = "") -> Window:
        """One window of a log file. Raises LinkError, also while not connected."""
        return await self._connected().read_log(file, offset, limit, grep)

    def _connected(self) -> Link:
        if self.link is None or self.status.phase is LinkPhase.LOST:
            raise LinkError("not connected to the agent; reconnecting")
        return self.link

    def _set(self, phase: LinkPhase, text: str = "", retry_at: float | None = None) -> None:
        self.status = LinkStatus(phase, self._clock(), retry_at, text)
        self._notify(None)
