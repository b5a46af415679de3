"""What a rank is doing at one moment: its stack, its collectives, its process. Unknown is `None`, never 0."""

from __future__ import annotations

from msgspec import Struct


class Site(Struct, frozen=True, array_like=True):
    """One frame of a Python stack."""

    file: str
    line: int
    name: str
    """Of the function."""


class Collective(Struct, frozen=True, omit_defaults=True):
    """One entry of torch's flight recorder."""

    group: str
    """Name of the process group, as the entries have it: "0" is the default one. Where a group has NCCL and gloo,
    "0/gloo" is that of gloo, which counts for itself."""
    seq: int
    """Number of this collective in its group, from 1: the same on every rank that does the same."""
    op: str
    """Without the backend: "all_reduce"."""
    what: str = ""
    """Inputs as dtype and shape: "Float[20]"; "" where there are none."""
    created: float = 0.0
    """Unix time at which the rank called it, by its node's clock."""
    done: bool = False
    started: bool | None = None
    """Whether its kernel runs; None where the backend does not tell (gloo)."""
    sites: tuple[Site, ...] = ()
    """Who called it, innermost first, torch's own frames left out."""
    duration_ms: float | None = None
    p2p: bool = False


class Group(Struct, frozen=True, omit_defaults=True):
    """A process group as its flight recorder tells of it."""

    name: str
    ranks: tuple[int, ...] = ()
    """Global ranks; () for the default group, which has all, and where the recorder does not say."""
    enqueued: int = 0
    """Number of the collective that was called last; 0: none yet."""
    completed: int = 0
    desc: str = ""


class Stall(Struct, frozen=True, omit_defaults=True):
    """A TCP connection of the rank that waits for the other end: from /proc/net/tcp."""

    local: str
    """ "address:port"."""
    remote: str
    state: str
    """ "SYN_SENT" or "ESTABLISHED"."""
    retransmits: int = 0
    unsent: int = 0
    """Bytes that the other end has not acknowledged."""


class Pulse(Struct, frozen=True, omit_defaults=True):
    """One look at a rank, every few seconds, through its hook."""

    rank: int
    at: float
    """Unix time of the look, by the node's clock."""
    pid: int | None = None
    hook: bool = False
    """Whether the hook answered; else what is here comes from outside, and the stack from a signal."""
    state: str | None = None
    """The kernel's letter of the process: "R", "S", "D", "T" (stopped), "Z"; None when it is gone."""
    stack: tuple[Site, ...] = ()
    """Of the main thread, innermost first; () when unknown."""
    sites: int | None = None
    """How many different innermost places (function and line) the samples of this look saw; of `samples`."""
    samples: int = 0
    cpu_s: float | None = None
    """Processor seconds of the main thread so far."""
    process_s: float | None = None
    """Processor seconds of all threads so far."""
    read_bytes: int | None = None
    """Read from storage so far, as the kernel counts it; None where it does not tell."""
    written_bytes: int | None = None
    torch: bool | None = None
    """Whether torch.distributed is imported."""
    step: int | None = None
    last_step: float | None = None
    """Unix time of the newest optimizer step; None before the first."""
    groups: tuple[Group, ...] = ()
    active: tuple[Collective, ...] = ()
    """Not completed, oldest first; at most 16."""
    recent: tuple[Collective, ...] = ()
    """Newest completed ones, oldest first; at most 64, without sites but for the last 8."""
    recorder: bool | None = None
    """Whether torch has a flight recorder that could be read."""
    whole: bool = False
    """Whether this look saw every collective; else `active` and `recent` are empty, because each group moved since the
    look before, or waits for nothing. At least every 15 s, and while somebody waits."""
    stalls: tuple[Stall, ...] = ()
    """Looked for only while the rank waits."""
    world_size: str | None = None
    """WORLD_SIZE in the rank's environment."""
    master: str | None = None
    """MASTER_ADDR:MASTER_PORT there."""
    loops: int | None = None
    """Samples that found the innermost frame at a jump backwards: in a loop that calls nothing."""
