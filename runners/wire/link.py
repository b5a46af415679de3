"""What a viewer holds for one node of a run: events out of it, commands and log windows through it, link after link."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from ..errors import RunError
from ..model import Command, CommandDone, Stamped

BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before each further try to reach an agent; the last one repeats."""
YIELD_EVERY = 256
"""Events taken before others get a turn: a long history must not freeze keys, nor the links to other nodes."""


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of a log file. Offsets and sizes in bytes."""

    file: str
    offset: int
    next: int
    size: int
    data: bytes
    error: str = ""


class LinkError(Exception):
    """The node cannot be reached; the text is one sentence that says why and what to do."""


class NoListenerError(LinkError):
    """Nothing listens where the socket should be."""


class SilentError(LinkError):
    """What listens there says nothing: it has not greeted in time, or its process is stopped."""


class UnansweredError(LinkError):
    """A command was sent, and the link broke before its answer came."""


class Link(Protocol):
    """One node of a run, wherever it is."""

    @property
    def readonly(self) -> bool:
        """True when commands are refused (a finished run, `--readonly`, a job distui did not start)."""
        ...

    def events(self, after: int = 0) -> AsyncIterator[Stamped]:
        """History after journal seq `after`, then `CaughtUp`, then live events, until the run has ended.

        Raises LinkError when the connection breaks.
        """
        ...

    async def send(self, command: Command) -> CommandDone:
        """Send a command and wait for its answer. Raises LinkError."""
        ...

    async def read_log(self, file: str, offset: int, limit: int = 65536, grep: str = "") -> Window:
        """One window of the log file `file` (path relative to the run directory). Raises LinkError."""
        ...

    async def close(self) -> None: ...


async def paced(events: AsyncIterator[Stamped]) -> AsyncIterator[Stamped]:
    """The same events, with turns for others between them."""
    count = 0
    async for stamped in events:
        yield stamped
        count += 1
        if count % YIELD_EVERY == 0:
            await asyncio.sleep(0)


class LinkFollower(ABC):
    """Follows one agent: when a link to it breaks, another is opened after a pause."""

    def __init__(self, backoff: tuple[float, ...] = BACKOFF_S) -> None:
        self.link: Link | None = None
        self._backoff = backoff
        self._tries = 0
        """In vain, one after another."""
        self._hurry = asyncio.Event()

    async def run(self) -> None:
        """Follow until all was read; cancel to stop earlier."""
        self._tries = 0
        while True:
            await self.drop()
            problem = ""
            try:
                await self._follow()
            except (LinkError, RunError, OSError) as error:
                problem = str(error) or type(error).__name__
            self._hurry.clear()
            delay = await self._settle(problem)
            if delay is None:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), delay)

    def hurry(self) -> None:
        """Do not wait for the back-off to pass."""
        self._hurry.set()

    async def drop(self) -> None:
        """Let go of the link; the run goes on."""
        link, self.link = self.link, None
        if link is not None:
            with suppress(LinkError, OSError):
                await link.close()

    @abstractmethod
    async def _follow(self) -> None:
        """Open `link` and take its events to their end. Raises LinkError, RunError, OSError."""

    @abstractmethod
    async def _settle(self, problem: str) -> float | None:
        """Seconds to wait for the next try, None when all was read. `problem` broke the link; "": it ended by itself."""

    def _count(self, steady: bool) -> float:
        """The back-off after one more try, in seconds; a steady link begins it anew when it breaks."""
        self._tries = 1 if steady else self._tries + 1
        return self._backoff[min(self._tries, len(self._backoff)) - 1]
