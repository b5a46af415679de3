"""What the cockpit is handed, and the one task that follows a run.

`RunSource` is the border to the registry: it lists runs, opens a Link to one, and turns the launch form
into a plan. `Follower` consumes one Link into one RunState and reconnects with back-off when it breaks.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..runners.model import Command, CommandDone, Down, Event, SetAutostop, Stop
from ..runners.state import RunState
from ..runners.wire.link import Link, LinkError, Window

if TYPE_CHECKING:  # the first picture of a run needs neither
    from ..presets.model import Loaded
    from ..runners.hub.skypilot_client import Candidate
    from ..runners.launch.launch_form import LaunchForm, LaunchPreview
    from .terminal import Shell

BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before each further try to reach the agent; the last one repeats."""

YIELD_EVERY = 256
"""Events folded before the screen gets a turn: a long history must not freeze the keys."""


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


class Follower:
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
        self.state = RunState()
        self.status = LinkStatus(LinkPhase.CONNECTING, clock())
        self.readonly = False
        self.heard = 0.0
        """When the last event arrived, by this machine's clock; 0.0 before the first."""
        self._open_link = open_link
        self._clock = clock
        self._notify = notify
        self._backoff = backoff
        self._link: Link | None = None
        self._hurry = asyncio.Event()

    @property
    def stamp(self) -> tuple[int, int, bool, LinkStatus]:
        """Changes whenever something has happened; samples are counted by `state.telemetry_version`."""
        return (id(self.state), self.state.version, self.state.live, self.status)

    async def run(self) -> None:
        """Follow until the run has ended; cancel to stop earlier."""
        tries = 0
        while True:
            self._set(LinkPhase.CONNECTING if not tries else LinkPhase.LOST, text=self.status.text)
            try:
                begun = self.state.seq
                await self._follow()
                if self.state.phase.ended:
                    self._set(LinkPhase.ENDED)
                    return
                problem = "the agent closed the connection"
            except (LinkError, OSError) as error:
                problem = str(error) or type(error).__name__
            tries = 1 if self.state.seq > begun else tries + 1
            await self._wait(self._backoff[min(tries, len(self._backoff)) - 1], problem)

    async def _follow(self) -> None:
        await self._drop()
        link = self._link = await self._open_link()
        self.readonly = link.readonly
        count = 0
        async for stamped in link.events(self.state.seq):
            if self.status.phase is not LinkPhase.FOLLOWING:
                self._set(LinkPhase.FOLLOWING)
            self.state.apply(stamped)
            self.heard = self._clock()
            self._notify(stamped.event)
            count += 1
            if count % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def _wait(self, delay: float, problem: str) -> None:
        self._hurry.clear()
        self.status = LinkStatus(LinkPhase.LOST, self._clock(), self._clock() + delay, problem)
        self._notify(None)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), delay)

    def reconnect_now(self) -> None:
        """Do not wait for the back-off to pass."""
        self._hurry.set()

    async def send(self, command: Command) -> CommandDone:
        """Send a command and wait for its answer. Raises LinkError, also while not connected."""
        return await self._connected().send(command)

    async def read_log(self, file: str, offset: int, limit: int = 65536, grep: str = "") -> Window:
        """One window of a log file. Raises LinkError, also while not connected."""
        return await self._connected().read_log(file, offset, limit, grep)

    async def close(self) -> None:
        """Let go of the link; the run goes on."""
        await self._drop()

    def _connected(self) -> Link:
        if self._link is None or self.status.phase is LinkPhase.LOST:
            raise LinkError("not connected to the agent; reconnecting")
        return self._link

    async def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            with suppress(LinkError, OSError):
                await link.close()

    def _set(self, phase: LinkPhase, text: str = "") -> None:
        self.status = LinkStatus(phase, self._clock(), None, text)
        self._notify(None)
