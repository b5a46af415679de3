"""What a viewer asks, and how an agent answers. Imperatives; `Command` is their union."""

from __future__ import annotations

from msgspec import Struct, field

PROTOCOL = (1, 1)
"""Oldest and newest wire protocol this code speaks."""


class Hello(Struct, frozen=True, tag=True):
    """A viewer's first line."""

    proto: tuple[int, int] = PROTOCOL
    after: int = 0
    """Journal seq already seen."""
    telemetry: bool = True
    follow: bool = True
    """False: close after the history."""
    readonly: bool = False
    """True: the agent refuses commands on this connection."""


class Restart(Struct, frozen=True, tag=True):
    """Restart the worker group in place, with a changed environment."""

    id: str
    env: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    reachable: bool = False
    """Go on where nodes do not answer; else such nodes are named and nothing is restarted."""


class Stop(Struct, frozen=True, tag=True):
    """End the run: TERM, grace, KILL, marker sweep."""

    id: str
    grace_s: float | None = None


class SetNccl(Struct, frozen=True, tag=True):
    id: str
    level: str
    subsys: str = ""
    ranks: tuple[int, ...] = ()
    """() means all."""
    seconds: float | None = None
    restart: bool = False
    reachable: bool = False
    """As for Restart."""


class Signal(Struct, frozen=True, tag=True):
    id: str
    signal: str
    ranks: tuple[int, ...] = ()


class Dump(Struct, frozen=True, tag=True):
    id: str
    what: str
    """"stacks", "flight", "memory", or "record": torch records allocations for later snapshots of its memory."""
    ranks: tuple[int, ...] = ()


class Down(Struct, frozen=True, tag=True):
    """Take the cluster down, with everything on it. Only a hub can."""

    id: str
    cluster: str
    """Its name, typed by whoever asks: another name is refused."""


class SetAutostop(Struct, frozen=True, tag=True):
    """Have SkyPilot take the cluster down when it was idle for so long. Only a hub can."""

    id: str
    minutes: int | None
    """None: never."""


class Via(Struct, frozen=True, tag=True):
    """A hub's first line to the agent of the head: all that follows is for the agent of another node."""

    node: int


class ReadLog(Struct, frozen=True, tag=True):
    """Ask for one window of a log file; answered by a LogWindow header and that many raw bytes."""

    id: str
    file: str
    """File id: path relative to the run directory."""
    offset: int
    """Bytes from the start; negative: from the end."""
    limit: int = 65536
    grep: str = ""
    """Only lines that match this regular expression."""


Action = Restart | Stop | SetNccl | Signal | Dump | Down | SetAutostop
"""What is answered by a CommandDone of the same id."""

Command = Hello | Via | Action | ReadLog


class LogWindow(Struct, frozen=True, tag=True):
    """Header of a window; `length` raw bytes follow the line."""

    id: str
    file: str
    offset: int
    """Where the window begins, always at the start of a line where the file has one within reach."""
    next: int
    """Offset to ask for next."""
    size: int
    """Size of the file now."""
    length: int
    error: str = ""


class AgentHello(Struct, frozen=True, tag=True):
    """The agent's first line."""

    proto: tuple[int, int]
    version: str
    run: str
    seq: int
    """Newest journal seq."""
    caps: tuple[str, ...] = ()
    readonly: bool = False
    node: int = 0
    """Number of the node it serves; HUB for a hub."""
    now: float = 0.0
    """Unix time there: what a hub corrects clocks with; 0.0 from an agent that does not say."""


Reply = AgentHello | LogWindow
