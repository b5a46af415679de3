"""Find the processes that a waiting rank depends on: the other end of a pipe, the holder of a database's lock."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from ..run import file_locks, proc

SQLITE = b"SQLite format 3\0"
"""First bytes of a database of SQLite."""
WAL = ("-wal", "-shm")
"""Suffixes of the files of its write-ahead log, which has the locks of the database."""
ACCESS = 0o3
WRITES = os.O_WRONLY


class LockedDatabase(NamedTuple):
    path: str
    holder: int
    """Pid of the process that has locked it."""


def locked_database(pid: int) -> LockedDatabase | None:
    """Return a database of SQLite that a process has open, and that is locked by another process.

    SQLite sleeps and tries again, so the kernel does not see that it waits for the lock.
    """
    locks = [lock for lock in file_locks.read() if lock.pid not in (0, pid) and not lock.waits]
    if not locks:
        return None
    names = {lock.file: lock.pid for lock in locks if lock.pid > 0 and lock.writes}
    inodes = {name.rpartition(":")[2] for name in names}
    for number, path in _open_files(pid):
        # A file system that does not answer would block stat().
        if _info(pid, number, "ino:") not in inodes:
            continue
        holder = names.get(file_locks.name_of(path))
        if holder is not None and _is_database(path):
            return LockedDatabase(_without_suffix(path), holder)
    return None


def _without_suffix(path: str) -> str:
    return next((path.removesuffix(end) for end in WAL if path.endswith(end)), path)


def _is_database(path: str) -> bool:
    with contextlib.suppress(OSError), open(_without_suffix(path), "rb") as file:
        return file.read(len(SQLITE)) == SQLITE
    return False


def other_end(pid: int, descriptor: int, *, writes: bool) -> int | None:
    """Return another process that has a pipe open for writing, or for reading; None if there is none."""
    try:
        pipe = os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return None
    for other in proc.pids():
        if other == pid:
            continue
        for number, target in _open_files(other):
            if target == pipe and _is_for_writing(other, number) == writes:
                return other
    return None


def _open_files(pid: int) -> Iterator[tuple[str, str]]:
    """Yield descriptor and target of a process's open files; none of another user's process."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield entry.name, os.readlink(entry.path)


def _is_for_writing(pid: int, number: str) -> bool:
    return int(_info(pid, number, "flags:") or "0", 8) & ACCESS == WRITES


def _info(pid: int, number: str, label: str) -> str:
    """Return a value of /proc/PID/fdinfo, or ""."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/fdinfo/{number}") as file:
        return next((line.split()[1] for line in file if line.startswith(label)), "")
    return ""
