"""Living processes of runs on this host, by environment and arguments; and the link to a run's server."""

from __future__ import annotations

import asyncio
import enum
import fcntl
import os
import signal
import time
from pathlib import Path

from msgspec import Struct, field

from ..inrank import own_folders
from . import clock, file_io
from .proc import is_own, pids, read_stat
from .processes import AGENTS, MARKER, arguments_of, environ_of, send_signal, state_of
from .wire.client import LinkError, NoListenerError, SilentError, SocketLink

RUNNER = b"/inrank/launch.py"
CAUSES = (b"restart", b"failure")
"""Reasons in the last argument of a runner that is not the first one of its run."""
UNSEEN_TRIES, UNSEEN_S = 5, 0.05
"""Number of tries, and seconds between them, for a lock without a visible holder."""
FRESH_S = 0.2
"""Lifetime of one scan of /proc in seconds."""
_surveys: dict[Path, tuple[float, dict[str, Living]]] = {}


class StartMode(enum.StrEnum):
    """Processes that a new agent or hub may start; its starter passes this."""

    READ = enum.auto()
    """None: it serves files, and adopts a living runner."""
    START = enum.auto()
    """The runner of a new run; for a run that had begun, the next runner by the restart policy."""
    RESTART = enum.auto()
    """The next attempt of a lost run, immediately."""


class Living(Struct):
    """The living processes of one run directory, by pid."""

    agents: list[int] = field(default_factory=list)
    """Its agent or hub."""
    runners: list[int] = field(default_factory=list)
    marked: list[int] = field(default_factory=list)
    """All processes with the run's marker: the runner, ranks, and their children."""
    original: Path | None = None
    """Another directory of this run, with the living processes: the examined directory is a copy of it."""

    @property
    def orphans(self) -> list[int]:
        """Processes of the run without a runner that supervises them."""
        return [] if self.runners else self.marked


def survey(base: Path) -> dict[str, Living]:
    """Living processes of the runs below `base`, and of no other state directory, by name of the run directory."""
    by_run: dict[str, Living] = {}
    for pid in pids():
        if pid != os.getpid():
            _sort(pid, base, by_run)
    return by_run


def living_of(run_dir: Path) -> Living:
    """Living processes of one run; one scan of /proc serves all runs of a list."""
    base, now = run_dir.parent, clock.monotonic()
    when, by_run = _surveys.get(base, (-FRESH_S, {}))
    if now - when > FRESH_S:
        by_run = survey(base)
        _surveys[base] = now, by_run
    return by_run.get(run_dir.name, Living())


def serves(pid: int, run_dir: Path, kind: str) -> bool:
    """Whether a process of this user is the "agent" or the "runner" of exactly this run directory.

    A pid in a file proves nothing, because the directory may be a copy and the file forged. Check before each signal.
    """
    path, served = _started_for(arguments_of(pid))
    if served != kind or not is_own(pid):
        return False
    try:
        return path == os.fsencode(run_dir) or os.path.samefile(path, run_dir)
    except (OSError, ValueError):
        return False


def named(run_dir: Path, file: str, kind: str) -> file_io.Identity | None:
    """Return the process that a file names if it lives here and serves exactly this directory; else None."""
    who = file_io.read(run_dir / file)
    if who is None or not file_io.alive(who) or not serves(who.pid, run_dir, kind):
        return None
    return who


def held_unseen(path: Path) -> bool:
    """Whether the holder of a file's lock is not visible here: in another PID namespace, or on another host.

    /proc/locks does not list such a lock, so this briefly takes it; call it only if no process is about to lock the
    file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return False
    try:
        for _ in range(UNSEEN_TRIES):  # a process that was just killed may still hold it
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if locked(path):
                    return False
            else:
                return False
            time.sleep(UNSEEN_S)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def holders(path: Path) -> list[int]:
    """Pids of the visible processes that hold a lock on a file."""
    return [int(words[4]) for words in _locks(path) if words[4].isdecimal() and int(words[4])]


def _sort(pid: int, base: Path, by_run: dict[str, Living]) -> None:
    words, root = arguments_of(pid), os.fsencode(base) + b"/"
    path, kind = _started_for(words)
    run = os.fsdecode(path[len(root) :]) if path.startswith(root) else ""
    if not run or "/" in run:
        run = kind = ""
    where = ""
    if not kind:
        environ = environ_of(pid)
        run = environ.get(MARKER, "")
        where = environ.get("DISTUI_RANK_FILES") or environ.get("DISTUI_RUN_DIR") or os.fsdecode(path)
        if not run or not (where.startswith(f"{base}/") or (base / run).is_dir()):
            return
    stat = read_stat(pid)
    if stat is None or stat.state in "ZX" or not is_own(pid):
        return
    living = by_run.setdefault(run, Living())
    original = None if kind else _original(base / run, where)
    if original is not None:
        living.original = original
        return
    (living.agents if kind == "agent" else living.marked).append(pid)
    if kind == "runner":
        living.runners.append(pid)


def _original(run_dir: Path, where: str) -> Path | None:
    """Return the directory in a process's environment if it is not `run_dir`; None also if it was moved."""
    told = next((path for path in (Path(where), *Path(where).parents) if path.name == run_dir.name), None)
    try:
        return None if told is None or told.samefile(run_dir) else told
    except OSError:
        return None


def _started_for(words: list[bytes]) -> tuple[bytes, str]:
    """Run directory of an agent, a hub or a runner, and "agent" or "runner"; else (b"", "")."""
    for at, word in enumerate(words[:7]):
        if at > 1 and words[at - 1] == b"run" and words[at - 2] in AGENTS:
            return word, "agent"
        if at and words[at - 1].endswith(RUNNER) and _is_outermost(words[at + 1 :]):
            return word, "runner"
    return b"", ""


def _is_outermost(words: list[bytes]) -> bool:
    """Return whether the arguments are of the run's own runner; a nested runner has torchrun's arguments.

    The run's own runner has the number of failures and, unless it is the first, the reason of its start.
    """
    return len(words) <= 2 or (len(words) == 3 and words[1] in CAUSES)


def locked(path: Path) -> bool:
    """Whether a process holds a lock on a file, from /proc/locks: a try would take it from a process about to lock."""
    return bool(_locks(path))


def _locks(path: Path) -> list[list[str]]:
    """Lines of /proc/locks about a file, as words, without waiting ones."""
    try:
        info = path.stat()
        held = Path("/proc/locks").read_text()
    except OSError:
        return []
    name = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    return [line.split() for line in held.splitlines() if name in line.split() and "->" not in line]


# --- link to the server of a run; without an answer, its pid and a command to type ---

SILENT_S = {"T": 1.0, "t": 1.0, "D": 4.0}
"""Maximum seconds of silence by process state; in other states the limit of `SocketLink.greet` applies."""
EVERY_S, RESTORE_S = 0.25, 4.0
"""Seconds between two checks of the process; seconds for it to bind its socket again."""
STATES = {
    "T": "stopped",
    "t": "stopped by a debugger",
    "D": "waits in the kernel, mostly for a disk or a network file system",
}


async def connect(who: file_io.Identity, readonly: bool = False) -> SocketLink:
    """Open a link to an agent or hub, after asking it to bind a removed socket again. Raises LinkError.

    A request that waits on the link fails if the process is stopped.
    """
    link = await _connected(who, readonly)
    link.silent = Silence(who)
    return link


class Silence:
    """Reason why an agent or hub does not answer, polled repeatedly; "" while it may still answer."""

    def __init__(self, who: file_io.Identity) -> None:
        self._who = who
        self._since: float | None = None

    def __call__(self) -> str:
        if state_of(self._who.pid) not in ("T", "t"):
            self._since = None
            return ""
        now = clock.monotonic()
        self._since = now if self._since is None else self._since
        return f"{unanswered(self._who)}: {remedy(self._who)}" if now - self._since > SILENT_S["T"] else ""


async def _connected(who: file_io.Identity, readonly: bool) -> SocketLink:
    try:
        return await _greeted(who, readonly)
    except NoListenerError:
        if not file_io.alive(who):
            raise
    send_signal(who.pid, signal.SIGHUP)
    deadline = asyncio.get_running_loop().time() + RESTORE_S
    while file_io.alive(who):
        try:
            return await _greeted(who, readonly)
        except NoListenerError as error:
            if asyncio.get_running_loop().time() > deadline:
                raise LinkError(_unbound(who, error)) from None
        await asyncio.sleep(0.1)
    raise LinkError(f"the agent (pid {who.pid}) has ended")


def _unbound(who: file_io.Identity, error: LinkError) -> str:
    folder = os.path.dirname(own_folders.place_of(who.socket))
    why = own_folders.unfit(folder)
    if why:
        mend = "remove it" if os.path.lexists(folder) else f"`mkdir -p -m 700 {folder}`"
        return f"the agent (pid {who.pid}) lives, but {folder} {why}: {mend}, and it opens its socket there again"
    return f"{error}, though its process (pid {who.pid}) lives: {remedy(who)}"


async def _greeted(who: file_io.Identity, readonly: bool) -> SocketLink:
    """Connect. Raises LinkError, early if the process cannot answer."""
    connecting = asyncio.ensure_future(SocketLink.connect(Path(who.socket), readonly))
    silent_s = 0.0
    while not (await asyncio.wait({connecting}, timeout=EVERY_S))[0]:
        limit = SILENT_S.get(state_of(who.pid) or "")
        silent_s = 0.0 if limit is None else silent_s + EVERY_S
        if limit is not None and silent_s >= limit:
            connecting.cancel()
            await asyncio.wait({connecting})
            raise LinkError(f"{unanswered(who)}: {remedy(who)}")
    try:
        return connecting.result()
    except SilentError:
        raise LinkError(f"{unanswered(who)}: {remedy(who)}") from None


def unanswered(who: file_io.Identity) -> str:
    """Sentence about the process that does not answer, with its state in the kernel."""
    state = state_of(who.pid)
    about = STATES.get(state or "", "it sends nothing")
    return f"the agent (pid {who.pid}) does not answer: {about} (state {state or 'n/a'})"


def remedy(who: file_io.Identity) -> str:
    """Command to type; the ranks do not notice the end of an agent."""
    end = f"`kill -KILL {who.pid}` ends it without harm to the ranks, and the next command starts another"
    if state_of(who.pid) in ("T", "t"):
        return f"`kill -CONT {who.pid}` has it go on; {end}"
    return end
