"""Living processes of runs on this host, by environment and arguments."""

from __future__ import annotations

import enum
import os
from pathlib import Path

from msgspec import Struct, field

from . import clock, file_io
from .proc import is_own, pids, read_stat
from .processes import AGENTS, MARKER, arguments_of, environ_of

RUNNER = b"/inrank/launch.py"
CAUSES = (b"restart", b"failure")
"""Reasons in the last argument of a runner that is not the first one of its run."""
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

    def add(self, pid: int, kind: str) -> None:
        """Add an "agent", or a "runner", which also has the marker."""
        if kind == "agent":
            self.agents.append(pid)
        else:
            self.marked.append(pid)
            self.runners.append(pid)

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


def _sort(pid: int, base: Path, by_run: dict[str, Living]) -> None:
    """Add a process to the run that it belongs to, if any."""
    path, kind = _started_for(arguments_of(pid))
    run = _run_below(base, path)
    if run:
        if _lives(pid):
            by_run.setdefault(run, Living()).add(pid, kind)
        return
    environ = environ_of(pid)
    run = environ.get(MARKER, "")
    where = environ.get("DISTUI_RANK_FILES") or environ.get("DISTUI_RUN_DIR") or os.fsdecode(path)
    if not run or not (where.startswith(f"{base}/") or (base / run).is_dir()) or not _lives(pid):
        return
    living, original = by_run.setdefault(run, Living()), _original(base / run, where)
    if original is None:
        living.marked.append(pid)
    else:
        living.original = original


def _run_below(base: Path, path: bytes) -> str:
    """Return the run of a run directory directly below `base`; "" for any other path."""
    folder, _, run = path.rpartition(b"/")
    return os.fsdecode(run) if folder == os.fsencode(base) else ""


def _lives(pid: int) -> bool:
    """Whether a process of this user has not exited."""
    stat = read_stat(pid)
    return stat is not None and stat.state not in "ZX" and is_own(pid)


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
