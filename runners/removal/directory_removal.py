"""Removal of a run's directories: renamed with their locks held, so that no process sees half of one.

Only this user's directories are removed. A disk that cannot lock files does not prevent it (UNLOCKABLE).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...presets.plurals import plural
from ..run import file_io, run_directories
from ..run.errors import RunError
from ..run.run_directories import AGENT_LOCK, RUNNER_LOCK
from . import directory_trees

TRASH = ".removed-"
"""Prefix of a directory's name during its removal: no list shows it."""
UNLOCKABLE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.ELOOP,
    errno.ENOLCK,
    errno.EOPNOTSUPP,
)
"""Errors of locking that do not prevent a removal, e.g. of a full disk. There agents and runners hold no lock either."""
REMOVABLE_BY = {
    errno.EBUSY: "`umount` it",
    errno.EPERM: "`chattr -i` it",
    errno.EACCES: "`chmod u+w` its folder",
}
"""Error of a file's removal → its remedy."""


class GoneError(RunError):
    """Another process removed the path first."""


def remove_each(paths: Iterable[Path], checkpoints: Path | None) -> list[Path]:
    """Remove directories, and return those that no other process removed first. Raises RunError."""
    removed = list[Path]()
    for path in paths:
        locks = () if path == checkpoints else (AGENT_LOCK, RUNNER_LOCK)
        try:
            _remove(path, locks)
            removed.append(path)
        except GoneError:
            continue
        except RunError as error:
            raise RunError("; ".join([str(error), *(f"{each} was removed" for each in removed)])) from None
    return removed


def removable_size(path: Path) -> int:
    """Bytes of a removable directory. Raises RunError."""
    with _parent_of(path) as folder:
        info = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(info.st_mode):
            raise RunError(f"{path} is a link: distui removes only directories; remove the link by hand")
        if not stat.S_ISDIR(info.st_mode):
            raise RunError(f"{path} is not a directory: remove it by hand")
        if info.st_uid != os.geteuid():
            raise RunError(f"{path} belongs to another user (uid {info.st_uid})")
        with directory_trees.entered(path.name, folder) as tree:
            return directory_trees.measure(tree).size


def _remove(path: Path, locks: Iterable[str]) -> None:
    """Rename a directory, with `locks` in it held, then remove it: no process sees half of it. Raises RunError."""
    renamed = path.with_name(f"{TRASH}{path.name}-{secrets.token_hex(4)}")
    with _parent_of(path) as folder, _alone(path, folder) as run:
        with _held(run, path.name, locks):
            os.rename(path.name, renamed.name, src_dir_fd=folder, dst_dir_fd=folder)
        with _errors_about(renamed):
            directory_trees.remove(renamed.name, folder)


@contextlib.contextmanager
def _parent_of(path: Path) -> Iterator[int]:
    """Open the directory that contains a path; errors within become a RunError about the path."""
    file_io.check_owner(path.parent)
    with _errors_about(path):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield folder
        finally:
            os.close(folder)


@contextlib.contextmanager
def _errors_about(path: Path) -> Iterator[None]:
    """Turn errors within into a RunError about the path."""
    try:
        yield
    except FileNotFoundError:
        raise GoneError(f"{path} was already removed") from None
    except directory_trees.MountedError as error:
        raise RunError(str(error.strerror)) from None
    except directory_trees.LeftError as error:
        raise RunError(_left(path, error)) from None
    except OSError as error:
        raise RunError(f"cannot remove {path} ({error.strerror or error})") from None


def _left(path: Path, error: directory_trees.LeftError) -> str:
    """Text about the rest of a directory, with a remedy."""
    others = f" and {plural(error.count - 1, 'other file')}" if error.count > 1 else ""
    remedy = REMOVABLE_BY.get(error.errno or 0, "make it removable")
    return (
        f"{path / str(error.filename)}{others} cannot be removed ({error.strerror}); the rest of the run was "
        f"removed: {remedy}, then the next `distui rm` or `distui prune` removes it, too"
    )


@contextlib.contextmanager
def _alone(path: Path, folder: int) -> Iterator[int]:
    """Open and lock a directory within `folder` against another removal. Raises GoneError and OSError."""
    with directory_trees.opened(path.name, folder) as directory:
        if not _lock(directory):
            raise GoneError(f"{path} is being removed by another process")
        yield directory


@contextlib.contextmanager
def _held(run: int, name: str, locks: Iterable[str]) -> Iterator[None]:
    """Hold the locks of agent and runner, so that no process can revive the run. Raises RunError."""
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
                raise RunError(f"run {name} has just started: it was not removed")
        yield


def _lock(descriptor: int) -> bool:
    """Lock an open file; return False if another process holds it, True also after an error of UNLOCKABLE.

    Raises OSError for any other error.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNLOCKABLE:
            raise
    return True


def sweep() -> list[str]:
    """Finish removals that were cut off, and return a sentence for each."""
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
