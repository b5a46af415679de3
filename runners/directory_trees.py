"""Trees of directories: measured and removed through open directories, so that no link is followed and no mount entered.

A mount is recognised by the mount id that the kernel gives for an open directory: that of a bind mount is its own, also
where its source is on the same device.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from .telemetry.proc import SYSTEM

DEEPEST = 100
"""Directories within each other; distui makes fewer than ten."""


class MountedError(OSError):
    """Another file system, or a directory from elsewhere, is mounted in a tree."""


class LeftError(OSError):
    """Some files of a tree could not be removed, and all others were. `filename`: the first, as seen from the tree."""

    count = 1
    """How many could not."""


class Tree(Struct, frozen=True):
    size: int
    """Bytes."""
    changed: float
    """Unix time of the newest change of a file or directory in it."""


@contextlib.contextmanager
def opened(name: str | Path, parent: int | None = None) -> Iterator[int]:
    """A directory, not a link to one, within `parent`. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(name, flags, dir_fd=parent)
    try:
        yield folder
    finally:
        os.close(folder)


def _mount_of(folder: int) -> tuple[int, str]:
    """Device and mount id of an open directory. Raises OSError."""
    device = os.fstat(folder).st_dev
    if SYSTEM != "linux":  # only viewers run there, and no runs are kept
        return device, ""
    about = Path(f"/proc/self/fdinfo/{folder}").read_text()
    return device, next((line for line in about.splitlines() if line.startswith("mnt_id:")), "")


def _walk(folder: int, names: tuple[str, ...] = ()) -> Iterator[tuple[int, str, list[os.DirEntry[str]]]]:
    """An open directory and all below, the deepest first, each with its path and its entries. Raises OSError."""
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
    """A directory within `parent`, unless it is mounted there. Raises MountedError and OSError."""
    with opened(name, parent) as folder:
        if _mount_of(folder) != _mount_of(parent):
            where = os.readlink(f"/proc/self/fd/{folder}")
            raise MountedError(
                errno.EXDEV, f"{where} is mounted there, and would be emptied: `umount` it first"
            )
        yield folder


def measure(folder: int) -> Tree:
    """All of an open directory. Raises OSError where something of it cannot be read, or is mounted there."""
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
    """A directory within `parent`, and all in it that can be removed. Raises MountedError, LeftError and OSError."""
    left: LeftError | None = None
    with entered(name, parent) as folder:
        for directory, path, entries in _walk(folder):
            for entry in entries:
                take = os.rmdir if entry.is_dir(follow_symlinks=False) else os.unlink
                try:
                    take(entry.name, dir_fd=directory)
                except FileNotFoundError:
                    continue  # another process removes the same tree
                except OSError as error:
                    if left is None:
                        left = LeftError(error.errno, error.strerror, os.path.join(path, entry.name))
                    elif error.errno != errno.ENOTEMPTY:  # of a folder with what is left
                        left.count += 1
    if left is not None:
        raise left
    os.rmdir(name, dir_fd=parent)


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
