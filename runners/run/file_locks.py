"""The kernel's file locks and their holders, from /proc/locks: see proc_locks(5).

A try to lock would take a lock from a process that is about to lock the file; reading the list does not.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

UNSEEN_TRIES, UNSEEN_S = 5, 0.05
"""Number of tries, and seconds between them, for a lock without a visible holder."""


class Lock(NamedTuple):
    number: str
    """Number of the lock, also of those that wait for it."""
    waits: bool
    """Whether the process waits for the lock instead of holding it."""
    pid: int
    """The process; 0 or less if it is not visible."""
    file: str
    """Device and inode of the file."""
    writes: bool = True
    """Whether no other process may hold the lock, too."""


def read(proc: str = "/proc") -> list[Lock]:
    """All locks; [] if the list is not readable."""
    try:
        text = Path(proc, "locks").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    locks: list[Lock] = []
    for line in text.splitlines():
        words = line.split()
        waits = "->" in words
        if waits:
            words.remove("->")
        if len(words) > 5:
            locks.append(Lock(words[0], waits, _pid(words[4]), words[5], words[3] == "WRITE"))
    return locks


def _pid(word: str) -> int:
    return int(word) if word.isdecimal() else 0


def name_of(path: Path | str) -> str:
    """Return a file's name in the list; "" if it cannot be read."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return ""
    return f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"


def _held(path: Path) -> list[Lock]:
    name = name_of(path)
    return [lock for lock in read() if lock.file == name and not lock.waits]


def locked(path: Path) -> bool:
    """Whether a process holds a lock on a file."""
    return bool(_held(path))


def holders(path: Path) -> list[int]:
    """Pids of the visible processes that hold a lock on a file."""
    return [lock.pid for lock in _held(path) if lock.pid > 0]


def held_unseen(path: Path) -> bool:
    """Whether the holder of a file's lock is not visible here: in another PID namespace, or on another host.

    The list lacks such a lock, so this briefly takes it; call it only if no process is about to lock the file.
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


def holder(locks: Sequence[Lock], pid: int, path: str) -> int | None:
    """Return the holder of the lock that a process waits for, in the kernel or by polling; None if it is unknown."""
    held = [lock for lock in locks if lock.pid > 0 and not lock.waits]
    numbers = [lock.number for lock in locks if lock.waits and lock.pid == pid]
    name = name_of(path)
    of_number = [lock.pid for lock in held if lock.number in numbers]
    of_file = [lock.pid for lock in held if lock.file == name]
    return next(iter(of_number + of_file), None)
