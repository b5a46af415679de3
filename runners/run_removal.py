"""The end of a run's files: what would be removed of a run, why, and its removal. `rm`, `prune` and retention share it.

What is unknown is kept: an age that no clock can tell is not old, a plan that cannot be read may use a checkpoint, and
what another process may hold is held. Only directories of this user below the runs' own are removed, and the
checkpoints of a demo.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import secrets
import socket
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..presets.plurals import plural
from . import clock, directory_trees, file_io, host_processes, journal, run_directories, run_notes
from .checkpoints import folder_option
from .errors import RunError
from .formatting import duration_short, elapsed
from .model import RunPhase
from .run_directories import AGENT_LOCK, RUNNER_LOCK, Entry
from .state import RunState
from .wire.client import stem, sweep_sockets

TRASH = ".removed-"
"""How the name of a directory begins while it is being removed: no list shows it."""

LEAVING_S = 5.0
"""How long the agents of ended runs may take to leave."""

CLOCKS_SET = 1_577_836_800.0
"""Unix time of 2020-01-01. A reading before it is that of a clock that was not set yet."""

UNLOCKABLE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.ELOOP,
    errno.ENOLCK,
    errno.EOPNOTSUPP,
)
"""Why no lock can be had of a run that may be removed nevertheless: a full disk is no reason to keep it."""

REMOVABLE_BY = {
    errno.EBUSY: "`umount` it",
    errno.EPERM: "`chattr -i` it",
    errno.EACCES: "`chmod u+w` its folder",
}
"""What to do about a file that cannot be removed, by the reason."""

FAILED = (RunPhase.FAILED, RunPhase.LOST)


class GoneError(RunError):
    """Somebody else has removed it meanwhile."""


# --- what would be removed, and why ---


class Removal(Struct, frozen=True, dict=True):
    """What the removal of a run takes away, and how old that is."""

    entry: Entry
    parts: tuple[Entry, ...]
    """Of a run on several nodes: its parts that are here."""
    phase: RunPhase
    doubtful: bool
    """Whether a file of the run or of a part cannot be read, or a part has no end."""
    ended: float | None
    """Unix time of its end, as `ls` has it; None where that is unknown."""
    heard: float
    """Unix time of the newest event."""
    checkpoints: Path | None
    """The folder of a demo's checkpoints. It goes with the last run whose plan names it."""
    refusal: str
    """Why it cannot be removed now, in a sentence; "" where it can."""

    @property
    def folders(self) -> list[Path]:
        """The directories of the run and its parts."""
        return [self.entry.path, *(part.path for part in self.parts)]

    @functools.cached_property
    def last(self) -> float | None:
        """Unix time of its end; where that is unknown or doubtful of its newest event or file, if all can be read."""
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
        """Seconds since its end or its last sign of life; None where unknown."""
        return None if self.last is None or self.last < CLOCKS_SET else elapsed(self.last, now)

    def why(self, now: float) -> str:
        """ "ended 40d ago"; where nobody saw its end, its last sign of life."""
        age = self.age(now)
        if age is None:
            return "age unknown"
        verb = "ended" if self.last == self.ended else "last written"
        return f"{verb} {duration_short(age)} ago"


def examine(entry: Entry, wait_s: float | None = None) -> Removal:
    """What would be removed with a run. `wait_s`: for its agents to leave (default: LEAVING_S). Raises RunError."""
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
    """Those of its parts that have directories of their own here. A copy of a part is no part, and has none."""
    if entry.record.kind == "local":
        return ()
    whole = entry.record.whole or entry.record.run
    return tuple(part for part in run_directories.parts(whole) if part.path != entry.path)


def _refusal(entry: Entry, phase: RunPhase, until: float) -> str:
    name = entry.record.name
    if not phase.ended:
        return f"run {name} is live ({phase}): `distui stop {name}` ends it, and only an ended run can be removed"
    if elsewhere := run_directories.elsewhere(entry):
        return f"{elsewhere}, and remove it there; a copy goes with `rm -r {entry.path}`"
    if left := run_directories.orphans(entry):
        pids = ", ".join(map(str, left[:8]))
        return f"{plural(len(left), 'process')} of run {name} still live (pid {pids}): `distui stop {name}` ends them"
    if not _released(entry, until):
        return f"a process still serves run {name}: close the cockpits on it, and try again in some seconds"
    return ""


def _released(entry: Entry, until: float) -> bool:
    """Whether no process holds the run any more; the agent of one that has just ended gets until then."""
    while any(host_processes.locked(entry.path / lock) for lock in (AGENT_LOCK, RUNNER_LOCK)):
        if clock.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _checkpoint_folder(entry: Entry) -> Path | None:
    """The folder that distui chose for the checkpoints of a demo, by its plan; None of any other run, and of a copy."""
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
    """Whether another run than those may go on from them: it names them, or cannot be read."""
    if run_directories.strays():
        return True
    others = [path for path in run_directories.directories() if path not in leaving]
    return any(_may_name(path, checkpoints.name) for path in others)


def _may_name(path: Path, name: str) -> bool:
    """Whether the plan of a run, or a variable that a restart changed, holds a name; so it is where none can be read."""
    entry = run_directories.served(path)
    try:
        plan = file_io.document(path / run_directories.PLAN_FILE, dict[str, Any])
    except file_io.FileError:
        return entry is not None
    changes = [] if entry is None else [attempt.env_diff for attempt in entry.state().attempts]
    return json.dumps(name)[1:-1] in json.dumps([plan, changes])


# --- which of many ---


def candidates(entries: Iterable[Entry], wait_s: float | None = None) -> Iterator[Removal]:
    """What may be removed though nobody named it, one run after the other: nothing that is foreign, a copy, or has the
    tag `keep`. `wait_s`: for the agents of all of them to leave. Raises RunError."""
    until = clock.monotonic() + (LEAVING_S if wait_s is None else wait_s)
    for entry in entries:
        if any(map(_stays, (entry, *_parts(entry)))):
            continue
        removal = examine(entry, max(0.0, until - clock.monotonic()))
        if not removal.refusal:
            yield removal


def _stays(entry: Entry) -> bool:
    """Whether only who names a run, or the run of a part, may remove this directory."""
    return entry.path.is_symlink() or _is_foreign(entry) or run_notes.read(entry.path).keeps


def _is_foreign(entry: Entry) -> bool:
    """Whether a directory is a run by its name alone, or is a copy of one: who names it may remove it."""
    files = (run_directories.RUN_FILE, run_directories.PLAN_FILE, journal.NAME)
    return _is_copy(entry) or not any(os.path.lexists(entry.path / name) for name in files)


def _is_copy(entry: Entry) -> bool:
    """Whether a directory has a name that no launch gives, or the run.json of another one."""
    if entry.record.name == entry.path.name:
        return True
    return (
        bool(entry.problem)
        and file_io.document_or_none(entry.path / run_directories.RUN_FILE, journal.RunRecord) is not None
    )


def pruned(
    runs: Iterable[Removal],
    now: float,
    *,
    older_than_s: float | None = None,
    keep: int | None = None,
    failed: bool = False,
) -> list[Removal]:
    """Which of these to remove: all that every given condition names, the newest first. Pure.

    `older_than_s`: ended so long ago; `keep`: not among the newest so many ended runs, of whatever outcome;
    `failed`: failed or lost. A run without a known age is not old.
    """
    ages = [(run.age(now), run) for run in runs]
    unknown = [run for age, run in ages if age is None]
    aged = sorted([(age, run) for age, run in ages if age is not None], key=lambda pair: pair[0])
    rest = [run for age, run in aged[keep or 0 :] if age >= (older_than_s or 0.0)]
    if not keep and older_than_s is None:
        rest = unknown + rest
    return [run for run in rest if not failed or run.phase in FAILED]


# --- removing ---


class Removed(Struct, frozen=True):
    """What went."""

    folders: list[Path]
    size: int
    """Bytes."""


def remove(entry: Entry, wait_s: float | None = None) -> Removed:
    """Remove a run's directory, those of its parts here, its sockets, and its checkpoints; it is examined anew.

    `wait_s`: see `examine`. Raises RunError.
    """
    removal = examine(entry, wait_s)
    if removal.refusal:
        raise RunError(removal.refusal)
    folders = [*removal.folders[1:], entry.path]  # a run whose parts cannot go stays, and says so
    if removal.checkpoints is not None and not _is_used(removal.checkpoints, folders):
        folders.append(removal.checkpoints)
    sizes = dict[Path, int]()
    for path in folders:
        with contextlib.suppress(GoneError):
            sizes[path] = _checked(path)
    gone = list[Path]()
    for path in sizes:
        try:
            _remove(path, () if path == removal.checkpoints else (AGENT_LOCK, RUNNER_LOCK))
            gone.append(path)
        except GoneError:
            continue
        except RunError as error:
            raise RunError("; ".join([str(error), *(f"{each} was removed" for each in gone)])) from None
    if not gone:
        raise GoneError(f"{entry.path} is gone already: somebody else removed it")
    for each in (entry, *removal.parts):
        _remove_sockets(each.record.run8)
    return Removed(gone, sum(sizes[path] for path in gone))


def _checked(path: Path) -> int:
    """Bytes of a directory that may be removed. Raises RunError."""
    with _parent_of(path) as folder:
        info = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(info.st_mode):
            raise RunError(f"{path} is a link: distui removes only directories; remove the link by hand")
        if not stat.S_ISDIR(info.st_mode):
            raise RunError(f"{path} is no directory: remove it by hand")
        if info.st_uid != os.geteuid():
            raise RunError(f"{path} belongs to another user (uid {info.st_uid})")
        with directory_trees.entered(path.name, folder) as tree:
            return directory_trees.measure(tree).size


def _remove(path: Path, locks: Iterable[str]) -> None:
    """A directory: first renamed, with `locks` in it held, so that nobody meets half of it. Raises RunError."""
    gone = path.with_name(f"{TRASH}{path.name}-{secrets.token_hex(4)}")
    with _parent_of(path) as folder, _alone(path, folder) as run:
        with _held(run, path.name, locks):
            os.rename(path.name, gone.name, src_dir_fd=folder, dst_dir_fd=folder)
        with _parent_of(gone):
            directory_trees.remove(gone.name, folder)


@contextlib.contextmanager
def _parent_of(path: Path) -> Iterator[int]:
    """The directory that a path is in, open; what fails within is a RunError about the path."""
    file_io.check_owner(path.parent)
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield folder
        finally:
            os.close(folder)
    except FileNotFoundError:
        raise GoneError(f"{path} is gone already: somebody else removed it") from None
    except directory_trees.MountedError as error:
        raise RunError(str(error.strerror)) from None
    except directory_trees.LeftError as error:
        raise RunError(_left(path, error)) from None
    except OSError as error:
        raise RunError(f"cannot remove {path} ({error.strerror or error})") from None


def _left(path: Path, error: directory_trees.LeftError) -> str:
    """What is left of a directory, and what to do."""
    others = f" and {plural(error.count - 1, 'other file')}" if error.count > 1 else ""
    remedy = REMOVABLE_BY.get(error.errno or 0, "see to that")
    return (
        f"{path / str(error.filename)}{others} cannot be removed ({error.strerror}), and all else of its run was "
        f"removed: {remedy}, and the next `distui rm` or `distui prune` removes the rest"
    )


@contextlib.contextmanager
def _alone(path: Path, folder: int) -> Iterator[int]:
    """A directory within `folder`, open and locked: no other process removes it. Raises GoneError and OSError."""
    with directory_trees.opened(path.name, folder) as directory:
        if not _lock(directory):
            raise GoneError(f"{path} is being removed by another process")
        yield directory


@contextlib.contextmanager
def _held(run: int, name: str, locks: Iterable[str]) -> Iterator[None]:
    """Hold the locks of agent and runner: whoever would bring the run to life now finds them taken. Raises RunError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.ExitStack() as kept:
        for each in locks:
            try:
                lock = os.open(each, flags, 0o600, dir_fd=run)
            except OSError as error:
                if error.errno not in UNLOCKABLE:
                    raise
                continue
            kept.callback(os.close, lock)
            if not _lock(lock):
                raise RunError(f"run {name} comes to life at this moment: it was not removed")
        yield


def _lock(descriptor: int) -> bool:
    """Lock an open file, unless another process holds it. Raises OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNLOCKABLE:
            raise
    return True


def _remove_sockets(run8: str) -> None:
    """Those that a run has left; none while one answers: a run of the same id in another state directory lives."""
    for path in Path(stem(run8)).parent.glob(f"{run8}.*"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
                return
    sweep_sockets(run8)


def sweep() -> list[str]:
    """Finish removals that were cut off; a sentence for each."""
    said = list[str]()
    for base in (run_directories.runs_dir(), run_directories.checkpoints_dir()):
        for path in sorted(base.glob(f"{TRASH}*")):
            try:
                with _parent_of(path) as folder, _alone(path, folder):
                    directory_trees.remove(path.name, folder)
                said.append(f"finished a removal that was cut off: {path}")
            except GoneError:
                continue
            except RunError as error:
                said.append(str(error))
    return said


def entry_of(run: str) -> Entry:
    """The run of exactly this id, read anew. Raises RunError."""
    entry = run_directories.served(run_directories.runs_dir() / run)
    if entry is None or not entry.path.is_dir():
        raise RunError(f"no run {run!r} is here any more")
    return entry
