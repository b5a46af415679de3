"""Removal of a run: its extent, the reason that keeps it, and the removal itself. `rm`, `prune` and retention share it.

Unknown facts prevent a removal: a run of unknown age is not old, an unreadable plan may use a checkpoint, and a file
that another process may hold counts as held. Only directories below the runs' folder are removed, and the checkpoints
of a demo.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import operator
import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ...presets.plurals import plural
from ..run import clock, file_io, file_locks, journal, run_directories, run_notes
from ..run.checkpoints import folder_option
from ..run.errors import RunError
from ..run.formatting import duration_short, elapsed
from ..run.model import RunPhase
from ..run.run_directories import AGENT_LOCK, RUNNER_LOCK, Entry
from ..run.run_record import RunRecord
from ..run.state import RunState
from ..run.wire.client import stem, sweep_sockets
from . import directory_trees
from .directory_removal import GoneError, removable_size, remove_each

LEAVING_S = 5.0
"""Seconds that agents of ended runs have to exit."""
CLOCKS_SET = 1_577_836_800.0
"""Unix time of 2020-01-01. An earlier reading is from a clock that was not set yet."""
FAILED = (RunPhase.FAILED, RunPhase.LOST)


# --- extent and reason ---


class Removal(Struct, frozen=True, dict=True):
    """Extent and age of a run's removal."""

    entry: Entry
    parts: tuple[Entry, ...]
    """For a run on several nodes: its parts on this machine."""
    phase: RunPhase
    doubtful: bool
    """Whether a file of the run or of a part is unreadable, or a part has no end."""
    ended: float | None
    """Unix time of its end, as in `ls`; None if unknown."""
    heard: float
    """Unix time of the newest event."""
    checkpoints: Path | None
    """Folder of a demo's checkpoints, removed with the last run that has it in its plan."""
    refusal: str
    """Why the run cannot be removed now, as a sentence; "" if it can."""

    @property
    def folders(self) -> list[Path]:
        """Directories of the run and its parts."""
        return [self.entry.path, *(part.path for part in self.parts)]

    @functools.cached_property
    def last(self) -> float | None:
        """Unix time of its end; if unknown or doubtful, of its newest event or file; None if not all can be read."""
        if self.ended is not None and not self.doubtful:
            return self.ended
        last = self.heard
        try:
            for path in self.folders:
                with directory_trees.opened(path) as folder:
                    last = max(last, directory_trees.measure(folder).changed)
        except OSError:
            return None
        return last

    def age(self, now: float) -> float | None:
        """Seconds since `last`; None if unknown."""
        return None if self.last is None or self.last < CLOCKS_SET else elapsed(self.last, now)

    def age_text(self, now: float) -> str:
        """Age in words: "ended 40d ago", or "last written …" if its end is unknown."""
        age = self.age(now)
        if age is None:
            return "age unknown"
        verb = "ended" if self.last == self.ended else "last written"
        return f"{verb} {duration_short(age)} ago"


def examine(entry: Entry, wait_s: float | None = None) -> Removal:
    """Find the extent of a run's removal. `wait_s`: for its agents to exit (default: LEAVING_S). Raises RunError."""
    until = clock.monotonic() + (LEAVING_S if wait_s is None else wait_s)
    history = entry.history()
    phase = run_directories.phase(entry, history)
    parts = _parts(entry)
    refusal = _refusal(entry, phase, until)
    ended, doubtful = history.state.end(entry.record.created), bool(history.problems)
    heard = _heard(history.state)
    for part in parts:
        recorded = part.history()
        refusal = refusal or _refusal(part, run_directories.phase(part, recorded), until)
        end = recorded.state.end(part.record.created)
        doubtful = doubtful or end is None or bool(recorded.problems)
        ended = ended if ended is None or end is None else max(ended, end)
        heard = max(heard, _heard(recorded.state))
    return Removal(
        entry,
        parts,
        phase,
        doubtful,
        ended,
        heard,
        _checkpoint_folder(entry),
        refusal,
    )


def _heard(state: RunState) -> float:
    """Unix time of the newest event."""
    return max((node.heard for node in state.nodes.values()), default=0.0)


def _parts(entry: Entry) -> tuple[Entry, ...]:
    """Return the other directories on this machine of a run on several nodes, one per node; () for any other run.

    A copied directory of a node counts as a run on one node (kind "local"), so it has no parts.
    """
    if entry.record.kind == "local":
        return ()
    launched_run = entry.record.whole or entry.record.run
    return tuple(part for part in run_directories.parts(launched_run) if part.path != entry.path)


def _refusal(entry: Entry, phase: RunPhase, until: float) -> str:
    name = entry.record.name
    if not phase.ended:
        return f"run {name} is live ({phase}): `distui stop {name}` ends it, and only an ended run can be removed"
    if elsewhere := run_directories.elsewhere(entry):
        return f"{elsewhere}, and remove it there; remove a copy with `rm -r {entry.path}`"
    if left := run_directories.orphans(entry):
        pids = ", ".join(map(str, left[:8]))
        return f"{plural(len(left), 'process')} of run {name} still live (pid {pids}): `distui stop {name}` ends them"
    if not _released(entry, until):
        return f"a process still serves run {name}: close the cockpits on it, and try again in some seconds"
    return ""


def _released(entry: Entry, until: float) -> bool:
    """Whether no process holds the run; its agent has until `until` to exit."""
    while any(file_locks.locked(entry.path / lock) for lock in (AGENT_LOCK, RUNNER_LOCK)):
        if clock.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _checkpoint_folder(entry: Entry) -> Path | None:
    """Return the folder that distui chose for a demo's checkpoints; None for other runs and for copies."""
    base = run_directories.checkpoints_dir()
    if _is_copy(entry) or not base.is_dir():
        return None
    try:
        words = file_io.document(entry.path / run_directories.PLAN_FILE, dict[str, Any]).get("command")
    except file_io.FileError:
        return None
    named = folder_option(map(str, words)) if isinstance(words, list) else None
    folder = base / Path(named or "").name
    is_chosen = named == str(folder) and folder.name != ".."
    return folder if is_chosen and folder.is_dir() and not folder.is_symlink() else None


def _is_used(checkpoints: Path, leaving: Sequence[Path]) -> bool:
    """Whether a run other than `leaving` may resume from the checkpoints: its plan names them, or is unreadable."""
    if run_directories.strays():
        return True  # a live run whose directory and plan are gone may use them
    others = [path for path in run_directories.directories() if path not in leaving]
    return any(_may_name(path, checkpoints.name) for path in others)


def _may_name(path: Path, name: str) -> bool:
    """Whether a run's plan, or a variable that a restart changed, contains `name`; True if the plan is unreadable."""
    entry = run_directories.served(path)
    try:
        plan = file_io.document(path / run_directories.PLAN_FILE, dict[str, Any])
    except file_io.FileError:
        return entry is not None
    changes = [] if entry is None else [attempt.env_diff for attempt in entry.state().attempts]
    return json.dumps(name)[1:-1] in json.dumps([plan, changes])


# --- selection among many ---


def candidates(entries: Iterable[Entry], wait_s: float | None = None) -> Iterator[Removal]:
    """Yield the runs that may be removed without their name: no copies, none with the tag `keep`.

    `wait_s`: seconds for the agents of all of them to exit. Raises RunError.
    """
    until = clock.monotonic() + (LEAVING_S if wait_s is None else wait_s)
    for entry in entries:
        if any(map(_needs_name, (entry, *_parts(entry)))):
            continue
        removal = examine(entry, max(0.0, until - clock.monotonic()))
        if not removal.refusal:
            yield removal


def _needs_name(entry: Entry) -> bool:
    """Whether only a command that names this run, or the run of this part, may remove this directory."""
    return entry.path.is_symlink() or _is_foreign(entry) or run_notes.read(entry.path).keeps


def _is_foreign(entry: Entry) -> bool:
    """Whether no launch made this directory: it is a copy, or has the name of a run but none of its files."""
    files = (run_directories.RUN_FILE, run_directories.PLAN_FILE, journal.NAME)
    return _is_copy(entry) or not any(os.path.lexists(entry.path / name) for name in files)


def _is_copy(entry: Entry) -> bool:
    """Whether a directory is a copy of a run: renamed, or with the run.json of another run."""
    if entry.record.name == entry.path.name:
        return True  # a launch names directories TIME-NAME-ID; a renamed one gives its run the whole name
    has_problem = bool(entry.problem)
    run_file = entry.path / run_directories.RUN_FILE
    return has_problem and file_io.document_or_none(run_file, RunRecord) is not None


def pruned(
    runs: Iterable[Removal],
    now: float,
    *,
    older_than_s: float | None = None,
    keep: int | None = None,
    failed: bool = False,
) -> list[Removal]:
    """Return the runs that satisfy every given condition, newest first. Pure.

    `older_than_s`: minimum seconds since the end; `keep`: spare so many newest ended runs, whatever their outcome;
    `failed`: only failed or lost runs. A run without a known age is not old.
    """
    unknown: list[Removal] = []
    aged: list[tuple[float, Removal]] = []
    for run in runs:
        age = run.age(now)
        if age is None:
            unknown.append(run)
        else:
            aged.append((age, run))
    aged.sort(key=operator.itemgetter(0))
    rest = [run for age, run in aged[keep or 0 :] if age >= (older_than_s or 0.0)]
    if not keep and older_than_s is None:
        rest = unknown + rest
    return [run for run in rest if run.phase in FAILED] if failed else rest


# --- removal ---


class Removed(Struct, frozen=True):
    """Result of a removal."""

    folders: list[Path]
    size: int
    """Bytes of the folders."""


def remove(entry: Entry, wait_s: float | None = None) -> Removed:
    """Examine a run again, then remove its parts' directories here, its own, its checkpoints, and its sockets.

    `wait_s`: see `examine`. Raises RunError.
    """
    removal = examine(entry, wait_s)
    if removal.refusal:
        raise RunError(removal.refusal)
    folders = [*removal.folders[1:], entry.path]  # after its parts: if one cannot be removed, the run stays
    if removal.checkpoints is not None and not _is_used(removal.checkpoints, folders):
        folders.append(removal.checkpoints)
    sizes = dict[Path, int]()
    for path in folders:
        with contextlib.suppress(GoneError):
            sizes[path] = removable_size(path)
    removed = remove_each(sizes, removal.checkpoints)
    if not removed:
        raise GoneError(f"{entry.path} was already removed")
    for each in (entry, *removal.parts):
        _remove_sockets(each.record.run8)
    return Removed(removed, sum(sizes[path] for path in removed))


def _remove_sockets(run8: str) -> None:
    """Remove a run's sockets unless one answers: a run of the same id in another state directory then lives."""
    for path in Path(stem(run8)).parent.glob(f"{run8}.*"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
                return
    sweep_sockets(run8)


def entry_of(run: str) -> Entry:
    """Read the run of exactly this id. Raises RunError."""
    entry = run_directories.served(run_directories.runs_dir() / run)
    if entry is None or not entry.path.is_dir():
        raise RunError(f"no run {run!r} exists any more")
    return entry
