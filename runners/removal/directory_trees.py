"""Directory trees: measured and removed through directory descriptors, without following links or entering mounts.

A mount is recognized by the kernel's mount id of an open directory. A bind mount has its own id, even if its source
is on this device.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from ..run.proc import SYSTEM

DEEPEST = 100
"""Maximum depth of a tree; distui creates fewer than ten levels."""


class MountedError(OSError):
    """A file system or a directory from elsewhere is mounted in a tree."""


class LeftError(OSError):
    """Some files of a tree could not be removed, all others were. `filename` is the first, relative to the tree."""

    count = 1
    """Number of files that could not be removed."""


class Tree(Struct, frozen=True):
    size: int
    """Bytes."""
    changed: float
    """Unix time of the newest change of a file or directory in it."""


@contextlib.contextmanager
def opened(name: str | Path, parent: int | None = None) -> Iterator[int]:
    """Open a directory within `parent`, but not a link to one. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(name, flags, dir_fd=parent)
    try:
        yield folder
    finally:
        os.close(folder)


def _mount_of(folder: int) -> tuple[int, str]:
    """Device and mount id of an open directory. Raises OSError."""
    device = os.fstat(folder).st_dev
    if SYSTEM != "linux":  # only viewers run there, and no runs exist
        return device, ""
    about = Path(f"/proc/self/fdinfo/{folder}").read_text()
    return device, next((line for line in about.splitlines() if line.startswith("mnt_id:")), "")


def _walk(folder: int, names: tuple[str, ...] = ()) -> Iterator[tuple[int, str, list[os.DirEntry[str]]]]:
    """Yield an open directory and all below, deepest first, each with its path and entries. Raises OSError."""
    if len(names) > DEEPEST:
        raise OSError(errno.ELOOP, f"more than {DEEPEST} directories within each other")
    with os.scandir(folder) as items:
        entries = list(items)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            with entered(entry.name, folder) as inner:
                yield from _walk(inner, (*names, entry.name))
    yield folder, "/".join(names), entries


@contextlib.contextmanager
def entered(name: str, parent: int) -> Iterator[int]:
    """Open a directory within `parent`, unless it is a mount point. Raises MountedError and OSError."""
    with opened(name, parent) as folder:
        if _mount_of(folder) != _mount_of(parent):
            where = os.readlink(f"/proc/self/fd/{folder}")
            raise MountedError(
                errno.EXDEV, f"{where} is mounted there, and would be emptied: `umount` it first"
            )
        yield folder


def measure(folder: int) -> Tree:
    """Measure an open directory's tree. Raises OSError if a part is unreadable or mounted."""
    size, changed = 0, 0.0
    for directory, _, entries in _walk(folder):
        infos = [os.fstat(directory)]
        infos += [
            entry.stat(follow_symlinks=False)
            for entry in entries
            if not entry.is_dir(follow_symlinks=False)
        ]
        size += sum(info.st_blocks for info in infos) * 512
        changed = max(changed, *(info.st_mtime for info in infos))
    return Tree(size, changed)


def remove(name: str, parent: int) -> None:
    """Remove a directory within `parent`, as far as possible. Raises MountedError, LeftError and OSError."""
    left: LeftError | None = None
    with entered(name, parent) as folder:
        for directory, path, entries in _walk(folder):
            for entry in entries:
                take = os.rmdir if entry.is_dir(follow_symlinks=False) else os.unlink
                try:
                    take(entry.name, dir_fd=directory)
                except FileNotFoundError:
                    continue  # another process removes this tree, too
                except OSError as error:
                    if left is None:
                        left = LeftError(error.errno, error.strerror, os.path.join(path, entry.name))
                    elif error.errno != errno.ENOTEMPTY:  # a folder with such a file
                        left.count += 1
    if left is not None:
        raise left
    os.rmdir(name, dir_fd=parent)


def size_of(path: Path) -> int:
    """Bytes on disk of a directory's tree; unreadable parts count as 0."""
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
