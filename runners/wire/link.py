"""What a viewer holds for one node of a run: events out of it, commands and log windows through it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from ..model import Command, CommandDone, Stamped


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
