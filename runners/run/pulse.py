"""A rank at one moment: its stack, its collectives, its process."""

from __future__ import annotations

from msgspec import Struct


class Site(Struct, frozen=True, array_like=True):
    """One frame of a Python stack."""

    file: str
    line: int
    name: str
    """Name of the function."""


class Collective(Struct, frozen=True, omit_defaults=True):
    """One entry of torch's flight recorder."""

    group: str
    """Name of the process group, as the entries have it: "0" is the default group. If a group has NCCL and gloo,
    "0/gloo" is its gloo part, with its own sequence numbers."""
    seq: int
    """Sequence number in its group, from 1; equal on all ranks for one collective."""
    op: str
    """Name without the backend: "all_reduce"."""
    what: str = ""
    """Inputs as dtype and shape: "Float[20]"; "" without inputs."""
    created: float = 0.0
    """Unix time of the rank's call, by its node's clock."""
    done: bool = False
    started: bool | None = None
    """Whether its kernel runs; None if the backend does not report it (gloo)."""
    sites: tuple[Site, ...] = ()
    """Stack of the call, innermost first, without torch's own frames."""
    duration_ms: float | None = None
    p2p: bool = False


class ProcessGroup(Struct, frozen=True, omit_defaults=True):
    """A process group from its flight recorder, or from torch's own counts (`completed` is then -1).

    `backend` is "nccl2", …; "" if unknown.
    """

    name: str
    ranks: tuple[int, ...] = ()
    """Global ranks; () for the default group, which has all, or if the recorder does not list them."""
    enqueued: int = 0
    """Sequence number of the last enqueued collective; 0: none yet."""
    completed: int = 0
    desc: str = ""
    backend: str = ""


class Stall(Struct, frozen=True, omit_defaults=True):
    """A TCP connection of the rank that waits for its peer, from /proc/net/tcp."""

    local: str
    """Address and port, as "address:port"."""
    remote: str
    state: str
    """Either "SYN_SENT" or "ESTABLISHED"."""
    retransmits: int = 0
    unsent: int = 0
    """Bytes that the peer has not acknowledged."""


class RankThread(Struct, frozen=True, array_like=True):
    """A thread of a rank other than its main thread."""

    name: str
    stack: tuple[Site, ...]
    error: str = ""
    """Exception that ended the thread, raised at the first frame of `stack`; "" while it lives."""
    loops: int = 0
    """Samples in a loop without calls of C code; see `Pulse.loops`."""
    turns: int = 0
    """Samples in which its innermost loop has no end; see `EndlessLoop`."""
    cpu_s: float | None = None
    """CPU seconds so far; None if unknown."""


class ProcessWait(Struct, frozen=True, array_like=True):
    """What the main thread of a child process waits for in the kernel."""

    pid: int
    name: str
    """Its program."""
    call: str
    """System call of its main thread, as in `Pulse.call`."""
    on: str = ""
    is_unread: bool = False
    """Whether a thread of it writes into a pipe that the rank has open for reading."""
    is_fork: bool = False
    """Whether it is a fork of the rank that runs no other program."""


class LockWait(Struct, frozen=True, array_like=True):
    """A lock of `threading` that the main thread waits for."""

    name: str
    """Its expression in the source."""
    holder: str = ""
    """Name of the thread that holds it; "" if unknown."""
    further: str = ""
    """Expression of the lock that the holder waits for; "" if it waits for none."""
    is_circle: bool = False
    """Whether the main thread holds that one, so that the two threads wait for each other."""


class EndlessLoop(Struct, frozen=True, array_like=True):
    """A `while` loop of the script, or a `for` loop over an endless iterator, that its main thread is in."""

    file: str
    line: int
    """First line."""
    samples: int
    """Samples of the pulse in it and in no loop inside of it."""
    state: str | None = None
    """What its condition reads; None until the main thread has been in it for some pulses."""


class Work(Struct, frozen=True, omit_defaults=True):
    """Counters of a rank's work that its Python stack does not show. All of them only grow, from any origin.

    None if the kernel does not report one, or hides it.
    """

    main_read: int | None = None
    """Bytes that read() returned to the main thread: from files, pipes and sockets, but not by recv()."""
    main_written: int | None = None
    """Bytes that the main thread passed to write(), its printed output included."""
    main_disk: int | None = None
    """Bytes that the main thread moved from and to storage."""
    main_wakes: int | None = None
    """How often the main thread was blocked."""
    child_bytes: int | None = None
    """Bytes of read() and write() of those child processes for which the kernel reports them."""
    child_cpu_s: float | None = None
    """CPU seconds of its child processes, also of those that have exited."""
    sent: int | None = None
    """Bytes that peers have acknowledged on TCP connections, of all threads and children."""
    received: int | None = None


class OwnLine(Struct, frozen=True, array_like=True):
    """A line of a rank's stdout or stderr, cut, with secrets masked."""

    text: str
    at: float | None = None
    """Unix time by which it was written; None if not known to within some seconds."""


class Pulse(Struct, frozen=True, omit_defaults=True):
    """One sample of a rank through its hook, every few seconds."""

    rank: int
    at: float
    """Unix time of the sample, by the node's clock."""
    pid: int | None = None
    hook: bool = False
    """Whether the hook answered; otherwise the values come from outside the process."""
    state: str | None = None
    """State letter of the process in /proc: "R", "S", "D", "T" (stopped), "Z"; None if it has ended."""
    stack: tuple[Site, ...] = ()
    """Stack of the main thread, innermost first; () if unknown."""
    sites: int | None = None
    """Number of different innermost frames (function and line) among the `samples` stacks of this pulse."""
    samples: int = 0
    cpu_s: float | None = None
    """CPU seconds of the main thread so far."""
    process_s: float | None = None
    """CPU seconds of all threads so far."""
    read_bytes: int | None = None
    """Bytes read from storage so far, as the kernel counts them; None if it does not report them."""
    written_bytes: int | None = None
    torch: bool | None = None
    """Whether torch.distributed is imported."""
    step: int | None = None
    last_step: float | None = None
    """Unix time of the newest optimizer step; None before the first."""
    groups: tuple[ProcessGroup, ...] = ()
    active: tuple[Collective, ...] = ()
    """Incomplete collectives, oldest first; at most 16."""
    recent: tuple[Collective, ...] = ()
    """Newest completed collectives, oldest first; at most 64, only the last 8 with sites."""
    recorder: bool | None = None
    """Whether torch has a readable flight recorder."""
    whole: bool = False
    """Whether this pulse read every collective; if not, `active` and `recent` are empty, because each group moved since
    the previous pulse or waits for nothing. True at least every 15 s, and while a rank waits."""
    stalls: tuple[Stall, ...] = ()
    """Read only while the rank waits."""
    world_size: str | None = None
    """WORLD_SIZE in the rank's environment."""
    master: str | None = None
    """MASTER_ADDR:MASTER_PORT in the rank's environment."""
    source: str = ""
    """Source of a stack that is not from the hook: "signal" (SIGUSR2 to the hook's own thread) or "py-spy"."""
    waits_in: str | None = None
    """Kernel function that the main thread waits in ("hrtimer_nanosleep"); None if it runs or the kernel hides it."""
    call: str | None = None
    """System call that the main thread waits in, by inrank/thread_waits.py; None if it runs or the kernel hides it."""
    on: str = ""
    """Object that `call` waits for: a path, "FIFO PATH", "a pipe", "ADDRESS:PORT", a pid, or "listening at …"."""
    descriptor: int | None = None
    """File descriptor of `call`."""
    holder: int | None = None
    """Pid of the process that holds the awaited file lock, or that has the other end of the pipe that `call` reads or
    writes; `holder_name` is its program if it is no rank of the run."""
    holder_name: str = ""
    until: float | None = None
    """Unix time at which `call` ends: the end of a sleep, or a time-out; None without one, or if unknown."""
    child: ProcessWait | None = None
    """The child process that the main thread waits for; None without one, or if it runs or the kernel hides it."""
    lock: LockWait | None = None
    """The lock of the script that its main thread waits for; None without one, or if unknown."""
    threads: tuple[RankThread, ...] = ()
    """Read only while the main thread waits for something that a thread may provide, but not in a collective. Threads
    that died always come, and first."""
    loops: int | None = None
    """Samples with the innermost frame at a backward jump or its beginning: in a loop without calls of C code."""
    endless: EndlessLoop | None = None
    """The endless loop that the main thread was in most often; None without one, or if only one stack was sampled."""
    handles: str = ""
    """The exception that the main thread is handling, in an `except` or `finally` block, with its class and place."""
    workers_busy: int | None = None
    """Workers of its data loaders that do not wait for a task; None without workers, or if the kernel hides it."""
    wrote: tuple[OwnLine, ...] = ()
    """Last output that may say why, only while the rank waits or makes no progress; oldest first, at most 2 lines."""
    work: Work | None = None
    """Read only while a rank of this node waits, is silent, or makes no progress."""
    leaving: bool = False
    """Whether its interpreter is shutting down, so that its hook does not answer any more."""
    frozen: bool = False
    """Whether the kernel's cgroup freezer has stopped it (docker pause, systemctl freeze)."""
    halted_workers: tuple[int, ...] = ()
    """Pids of workers of its data loaders that a signal or the freezer has stopped."""
    until_gone: bool = False
    """Whether it polls until the file `wanted` is removed."""
    wanted: str = ""
    """What its main thread polls or asks for, from its source line: the key of a store, or the path of a file."""
