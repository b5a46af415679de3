"""Commands of viewers, with the first lines of a connection: imperatives; `Command` is their union."""

from __future__ import annotations

import enum
from typing import ClassVar

from msgspec import Struct, field

from ...presets.plurals import plural
from ...presets.secrets import mask
from .formatting import duration_text

PROTOCOL = (1, 1)
"""Oldest and newest wire protocol of this code."""


def understood(proto: tuple[int, int]) -> bool:
    """Return whether the peer's range of protocols, oldest and newest, overlaps with this code's."""
    return proto[0] <= PROTOCOL[1] and proto[1] >= PROTOCOL[0]


class Hello(Struct, frozen=True, tag=True):
    """A viewer's first line."""

    proto: tuple[int, int] = PROTOCOL
    after: int = 0
    """Journal seq that the viewer already has."""
    readonly: bool = False
    """True if the agent must refuse commands on this connection."""
    fold: str = ""
    """Id of the viewer's folding code, see `snapshot.fold_id`: if equal, a long history may come as one `Folded`."""


class Destination(enum.Enum):
    """Executor of a command that a hub receives."""

    RANKS = enum.auto()
    """The nodes of the ranks that the command names, or of all ranks."""
    NODES = enum.auto()
    """All nodes."""
    HUB = enum.auto()
    """The hub itself; an agent refuses the command."""
    SERVER = enum.auto()
    """The process that serves the viewers: the hub, or the agent of a run on one node."""


class RunCommand(Struct, frozen=True):
    """A command that is journaled, and answered by a CommandDone with its id."""

    verb: ClassVar[str]
    """Name of the command in the journal."""
    goes_to: ClassVar[Destination] = Destination.RANKS
    after_end: ClassVar[bool] = False
    """Whether the command is valid after the end of the run."""
    changes_group: ClassVar[bool] = False
    """Whether it changes the worker group's settings: an agent executes one such command at a time."""

    id: str

    @property
    def restarts(self) -> bool:
        """Whether it restarts the worker group: a hub executes one such command at a time, on all nodes together."""
        return False

    @property
    def reads(self) -> bool:
        """Whether it only reads kept data: not journaled, and answered after the end, too."""
        return False

    def requested(self) -> str:
        """Return the command's line in the journal, with secrets masked."""
        return f"{self.verb} requested"

    def grace(self, usual_s: float) -> float | None:
        """Return the seconds that the ranks have to end, `usual_s` by the plan; None if it ends none."""
        return usual_s if self.restarts else None


class Restart(RunCommand, frozen=True, tag=True):
    """Restart the worker group in place, with a changed environment."""

    verb: ClassVar[str] = "restart"
    goes_to: ClassVar[Destination] = Destination.NODES
    changes_group: ClassVar[bool] = True

    env: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    reachable: bool = False
    """Continue without nodes that do not answer. If False, name such nodes and restart nothing."""

    @property
    def restarts(self) -> bool:
        return True

    def requested(self) -> str:
        changes = [f"{name}={mask(name, value)}" for name, value in self.env.items()]
        changes += [f"-{name}" for name in self.unset]
        return "restart requested" + (f": {' '.join(changes)}" if changes else "")


class Stop(RunCommand, frozen=True, tag=True):
    """End the run: TERM, grace, KILL, marker sweep."""

    verb: ClassVar[str] = "stop"
    goes_to: ClassVar[Destination] = Destination.NODES

    grace_s: float | None = None

    def grace(self, usual_s: float) -> float | None:
        return usual_s if self.grace_s is None else self.grace_s


class SetNccl(RunCommand, frozen=True, tag=True):
    """Change NCCL_DEBUG, live or by a restart."""

    verb: ClassVar[str] = "nccl"
    changes_group: ClassVar[bool] = True

    level: str
    subsys: str = ""
    ranks: tuple[int, ...] = ()
    """Ranks to change; () means all."""
    seconds: float | None = None
    restart: bool = False
    reachable: bool = False
    """See `Restart.reachable`."""

    @property
    def restarts(self) -> bool:
        return self.restart

    def requested(self) -> str:
        return f"NCCL_DEBUG={self.level} {self.subsys}".rstrip() + " requested"


class Signal(RunCommand, frozen=True, tag=True):
    """Send a signal to ranks."""

    verb: ClassVar[str] = "signal"

    signal: str
    ranks: tuple[int, ...] = ()

    def requested(self) -> str:
        return f"{self.signal} requested"


class Save(RunCommand, frozen=True, tag=True):
    """Ask every rank to save, with the plan's request, and wait for a new complete checkpoint."""

    verb: ClassVar[str] = "save"

    seconds: float = 120.0
    """Seconds to wait for the checkpoint."""
    only: str = ""
    """Part that a hub requests from each node. "check": report whether every rank would accept the request, and send
    nothing. "ask": send the request without waiting for a checkpoint."""
    ranks: tuple[int, ...] = ()
    """In a hub's part: the ranks of the node."""


class Dump(RunCommand, frozen=True, tag=True):
    """Request the stacks, the flight recorder or the memory of ranks."""

    verb: ClassVar[str] = "dump"

    what: str
    """One of "stacks", "flight", "memory", "record" (torch records allocations for later memory snapshots) or "runner"
    (no rank is asked; only check whether the runner answers)."""
    ranks: tuple[int, ...] = ()

    def requested(self) -> str:
        return f"dump of {self.what} requested"


class Profile(RunCommand, frozen=True, tag=True):
    """Let torch.profiler record the same steps on all the ranks."""

    verb: ClassVar[str] = "profile"

    ranks: tuple[int, ...] = ()
    """Ranks to profile; () means all."""
    steps: int = 3
    seconds: float | None = None
    """Seconds to wait for the traces; None: derived from the time per step."""
    part: str = ""
    """Part of a coordinator for each node: "ready", "arm", "wait", "cancel", or "read" (a piece of a trace)."""
    first: int = 0
    """For "arm": the first recorded step, by the hooks' count."""
    folder: str = ""
    """Name of this profile's folder below "profiles" on each node."""
    offset: int = 0
    """For "read": offset in bytes of the piece in the trace of the one rank."""

    @property
    def reads(self) -> bool:
        return self.part in ("ready", "read")

    def requested(self) -> str:
        return f"profile of {plural(self.steps, 'step')} requested"


class Down(RunCommand, frozen=True, tag=True):
    """Take the cluster down, with everything on it."""

    verb: ClassVar[str] = "down"
    goes_to: ClassVar[Destination] = Destination.HUB
    after_end: ClassVar[bool] = True

    cluster: str
    """Name of the cluster, typed by the user: another name is refused."""

    def requested(self) -> str:
        return f"teardown of {self.cluster} requested"


class SetAutostop(RunCommand, frozen=True, tag=True):
    """Let SkyPilot take the cluster down after some idle minutes."""

    verb: ClassVar[str] = "autostop"
    goes_to: ClassVar[Destination] = Destination.HUB
    after_end: ClassVar[bool] = True

    minutes: int | None
    """Idle minutes; None: never."""

    def requested(self) -> str:
        if not self.minutes:
            return "autostop disabled on request"
        return f"autostop after {self.minutes} min requested"


class Share(RunCommand, frozen=True, tag=True):
    """Open a read-only socket for one other user, or one group, of the server's host."""

    verb: ClassVar[str] = "share"
    goes_to: ClassVar[Destination] = Destination.SERVER

    guest: str
    """Words for the journal: "user bob", "group ml"."""
    user: int | None = None
    """Uid of the user; None for a group."""
    group: int | None = None
    """Gid of the group; None for a user."""
    seconds: float | None = None
    """Seconds until the socket is closed; None: at the end of the run."""

    def terms(self) -> str:
        """Return who may read, and for how long."""
        return self.guest if self.seconds is None else f"{self.guest} for {duration_text(self.seconds)}"

    def requested(self) -> str:
        return f"read-only share with {self.terms()} requested"


class Unshare(RunCommand, frozen=True, tag=True):
    """Close read-only sockets, with the connections to them."""

    verb: ClassVar[str] = "unshare"
    goes_to: ClassVar[Destination] = Destination.SERVER

    socket: str = ""
    """Path of the socket to close; "" closes all."""

    def requested(self) -> str:
        return "end of read-only shares requested"


class Via(Struct, frozen=True, tag=True):
    """A hub's first line to the agent of the head node: forward all later lines to another node's agent."""

    node: int


class ReadLog(Struct, frozen=True, tag=True):
    """Ask for one window of a log file; answered by a LogWindow header and that many raw bytes."""

    file: str
    """File id: path relative to the run directory."""
    offset: int = 0
    """Bytes from the start; negative: from the end."""
    limit: int = 65536
    grep: str = ""
    """Regular expression: return only matching lines."""
    at: float = 0.0
    """If positive: begin one line before the first line written at or after this unix time."""
    id: str = ""
    """Set by the link that sends the request."""


class ReadMetrics(Struct, frozen=True, tag=True):
    """Ask for curves from the metrics on disk; answered by a MetricsWindow. Changes nothing."""

    id: str
    begin: float
    """Unix seconds."""
    end: float
    buckets: int = 240
    """Maximum number of buckets: the node chooses the shortest length of 1, 2, 5, 10, 30, 60, … s that fits."""
    metrics: tuple[str, ...] = ()
    """Names ("gpu.util", "rank.step_s", "train.loss"), or their part before the dot; () means all."""
    fold: str = "each"
    """One series per GPU or rank ("each"), per node ("node"), or in total ("all")."""
    indexes: tuple[int, ...] = ()
    """Ranks or GPUs to include; () means all."""
    counts: bool = False
    """Whether to fill `Series.samples`, which a hub needs to fold nodes."""


Action = Restart | Stop | SetNccl | Signal | Save | Dump | Profile | Down | SetAutostop | Share | Unshare
"""Every RunCommand."""

Command = Hello | Via | Action | ReadLog | ReadMetrics
