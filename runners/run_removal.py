"""The end of a run's files: how large they are, which runs may be removed, and their removal.

Only directories below the runs' own are removed, and the checkpoints of the demo; only those of this user, and only
where nothing of the run lives. No link is followed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import clock, file_io, host_processes, journal, run_directories, run_notes
from .checkpoints import folder_option
from .errors import RunError
from .formatting import plural
from .model import RunPhase
from .run_directories import AGENT_LOCK, RUNNER_LOCK, Entry
from .wire.client import stem

TRASH = ".removed-"
"""How the name of a directory begins while it is being removed: no list shows it."""

LEAVING_S = 5.0
"""How long the agent of an ended run may take to leave."""

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

FAILED = (RunPhase.FAILED, RunPhase.LOST)


class GoneError(RunError):
    """Somebody else has removed it meanwhile."""


def size_of(path: Path) -> int:
    """Bytes on disk of a directory and all in it; what cannot be read counts nothing."""
    total, folders = 0, [] if path.is_symlink() else [path]
    while folders:
        folder = folders.pop()
        with contextlib.suppress(OSError):
            total += folder.lstat().st_blocks * 512
            with os.scandir(folder) as items:
                for item in items:
                    if item.is_dir(follow_symlinks=False):
                        folders.append(Path(item.path))
                    else:
                        total += item.stat(follow_symlinks=False).st_blocks * 512
    return total


def refusal(entry: Entry, wait_s: float | None = None) -> str:
    """Why a run cannot be removed now, in a sentence; "" where it can. `wait_s`: for its agent (default: LEAVING_S)."""
    name = entry.record.name
    phase = run_directories.phase(entry)
    if not phase.ended:
        return f"run {name} is live ({phase}): `distui stop {name}` ends it, and only an ended run can be removed"
    if elsewhere := run_directories.elsewhere(entry):
        return f"{elsewhere}, and remove it there"
    if left := run_directories.orphans(entry):
        pids = ", ".join(map(str, left[:8]))
        return f"{plural(len(left), 'process')} of run {name} still live (pid {pids}): `distui stop {name}` ends them"
    if not _released(entry, LEAVING_S if wait_s is None else wait_s):
        return f"a process still serves run {name}: close the cockpits on it, and try again in some seconds"
    return ""


def _released(entry: Entry, wait_s: float) -> bool:
    """Whether no process holds the run any more; the agent of one that has just ended gets a moment."""
    until = clock.monotonic() + wait_s
    while any(host_processes.locked(entry.path / lock) for lock in (AGENT_LOCK, RUNNER_LOCK)):
        if clock.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def remove(entry: Entry, wait_s: float | None = None) -> int:
    """Remove a run's directory, those of its parts here, and its sockets; bytes that were freed. Raises RunError."""
    if why := refusal(entry, wait_s):
        raise RunError(why)
    whole = entry.record.whole or entry.record.run
    parts = [part for part in run_directories.parts(whole) if part.path != entry.path]
    for part in parts:
        if why := refusal(part, wait_s):
            raise RunError(why)
    freed = _remove_checkpoints(entry)
    for each in (*parts, entry):
        freed += _remove(run_directories.runs_dir(), each.path.name, (AGENT_LOCK, RUNNER_LOCK))
        for socket in Path(stem(each.record.run8)).parent.glob(f"{each.record.run8}.*"):
            with contextlib.suppress(OSError):
                if socket.is_socket():
                    socket.unlink()
    return freed


@contextlib.contextmanager
def _held(folder: int, name: str, locks: Iterable[str]) -> Iterator[None]:
    """Hold the locks of agent and runner: whoever would bring the run to life now finds them taken. Raises RunError.

    `folder`: the directory that holds the run's, which is no link.
    """
    with contextlib.ExitStack() as kept:
        run = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        kept.callback(os.close, run)
        for each in locks:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            try:
                lock = os.open(each, flags, 0o600, dir_fd=run)
                kept.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(f"run {name} comes to life at this moment: it was not removed") from None
            except OSError as error:
                if error.errno not in UNLOCKABLE:
                    raise
        yield


def _mounts_below(path: Path) -> list[str]:
    """Where another file system, or a folder from elsewhere, is mounted in a directory."""
    base = os.path.realpath(path)
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return []
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    return [point for point in points if point == base or point.startswith(f"{base}/")]


def _remove_checkpoints(entry: Entry) -> int:
    """Those of a demo, whose folder distui chose, unless another run goes on from them; bytes. Raises RunError."""
    base = run_directories.checkpoints_dir()
    named = _checkpoint_folder(entry)
    others = (other for other in run_directories.entries() if other.path != entry.path)
    if named is None or named.parent != base or not named.exists():
        return 0
    return 0 if any(_checkpoint_folder(other) == named for other in others) else _remove(base, named.name)


def _checkpoint_folder(entry: Entry) -> Path | None:
    """The folder that the command of its plan names."""
    try:
        words = file_io.document(entry.path / run_directories.PLAN_FILE, dict[str, Any]).get("command")
    except file_io.FileError:
        return None
    folder = folder_option(map(str, words)) if isinstance(words, list) else None
    return None if folder is None else Path(folder)


def _remove(base: Path, name: str, locks: Iterable[str] = ()) -> int:
    """A directory: first renamed, with `locks` in it held, so that nobody meets half; its bytes. Raises RunError."""
    file_io.check_owner(base)
    size = size_of(base / name)
    try:
        folder = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RunError(f"cannot open {base} ({error.strerror})") from None
    try:
        _check(folder, base, name)
        gone = f"{TRASH}{name}-{secrets.token_hex(4)}"
        with _held(folder, name, locks):
            os.rename(name, gone, src_dir_fd=folder, dst_dir_fd=folder)
        with contextlib.suppress(FileNotFoundError):  # another removal sweeps it, too
            shutil.rmtree(gone, dir_fd=folder)
    except FileNotFoundError:
        raise GoneError(f"{base / name} is gone already: somebody else removed it") from None
    except OSError as error:
        raise RunError(f"cannot remove {base / name} ({error.strerror or error})") from None
    finally:
        os.close(folder)
    return size


def _check(folder: int, base: Path, name: str) -> None:
    """Whether `name` is a directory of this user in the runs' own. Raises RunError and OSError."""
    if not name or "/" in name or name in (".", ".."):
        raise RunError(f"{name!r} is no directory in {base}")
    info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(info.st_mode):
        raise RunError(f"{base / name} is a link: distui removes only directories; remove the link by hand")
    if not stat.S_ISDIR(info.st_mode):
        raise RunError(f"{base / name} is no directory: remove it by hand")
    if info.st_uid != os.geteuid():
        raise RunError(f"{base / name} belongs to another user (uid {info.st_uid})")
    if mounts := _mounts_below(base / name):
        raise RunError(f"{mounts[0]} is mounted there, and would be emptied: `umount` it first")


def sweep() -> None:
    """Finish removals that were cut off."""
    for base in (run_directories.runs_dir(), run_directories.checkpoints_dir()):
        with contextlib.suppress(OSError):
            for path in base.iterdir():
                if path.name.startswith(TRASH) and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Removable:
    """A run as pruning sees it."""

    entry: Entry
    phase: RunPhase
    ended: float
    """Unix time of its end; of a run whose end is not known, of its beginning."""
    size: int
    """Bytes on disk."""


def removable(entries: Iterable[Entry]) -> list[Removable]:
    """The runs that have ended, the newest first, but for what cannot be removed, is foreign or has the tag `keep`."""
    runs = []
    for entry in entries:
        if entry.path.is_symlink() or _is_foreign(entry):  # somebody's: no list of what goes has it
            continue
        history = entry.history()
        phase = run_directories.phase(entry, history)
        if not phase.ended or run_notes.read(entry.path).keeps or refusal(entry):
            continue
        state = history.state
        ended = state.ended if state.ended is not None else entry.record.created
        runs.append(Removable(entry, phase, ended, size_of(entry.path)))
    return sorted(runs, key=lambda run: -run.ended)


def _is_foreign(entry: Entry) -> bool:
    """Whether a directory is a run by its name alone, or is a copy of one: who names it may remove it."""
    files = (run_directories.RUN_FILE, run_directories.PLAN_FILE, journal.NAME)
    copied = run_directories.at(entry.path) is None and entry.record.name == entry.path.name
    return copied or not any(os.path.lexists(entry.path / name) for name in files)


def pruned(
    runs: Sequence[Removable],
    now: float,
    *,
    older_than_s: float | None = None,
    keep: int | None = None,
    failed: bool = False,
) -> list[Removable]:
    """Which of these to remove: all that every given condition names. Pure.

    `older_than_s`: ended so long ago; `keep`: not among the newest so many ended runs, of whatever outcome;
    `failed`: failed or lost.
    """
    ordered = sorted(runs, key=lambda run: -run.ended)
    rest = ordered if keep is None else ordered[keep:]
    if older_than_s is not None:
        rest = [run for run in rest if now - run.ended >= older_than_s]
    return [run for run in rest if not failed or run.phase in FAILED]


def entry_of(run: str) -> Entry:
    """The run of exactly this id, read anew. Raises RunError."""
    entry = run_directories.served(run_directories.runs_dir() / run)
    if entry is None or not entry.path.is_dir():
        raise RunError(f"no run {run!r} is here any more")
    return entry


def age(run: Removable, now: float | None = None) -> float:
    """Seconds since its end."""
    return max(0.0, (clock.now() if now is None else now) - run.ended)
