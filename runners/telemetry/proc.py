"""What /proc says of one process, in one read each. Linux; formats: proc_pid_stat(5), proc_pid_io(5)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
"""Clock ticks a second, the unit of /proc's times."""
PAGE = os.sysconf("SC_PAGE_SIZE")
"""Bytes a page."""


class Stat(NamedTuple):
    """One line of /proc/<pid>/stat."""

    pid: int
    name: str
    state: str
    """One letter: R, S, D, Z, …"""
    ppid: int
    cpu_s: float
    """User and system time of the process itself, seconds."""
    threads: int
    started: int
    """Clock ticks after boot; with the pid it names one process for ever."""
    rss_bytes: int


class KeptFile:
    """A file of /proc or /sys that is read again and again: opened once, each read shows it anew.

    A file below /proc/<pid> stays that of the process it was opened for, whoever gets the pid later.
    """

    def __init__(self, path: str, size: int = 4096) -> None:
        self._path = path
        self._size = size
        """Most bytes of one read."""
        self._fd = -1

    def read(self) -> bytes | None:
        """What a file of one record holds; None when it is gone or not ours to read."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._fd, self._size, 0)
        except OSError:
            self.close()
            return None

    def read_all(self) -> bytes | None:
        """The same of a file of many records, of which the kernel hands out a page at a time."""
        data = self.read()
        try:
            while data and (more := os.pread(self._fd, self._size, len(data))):
                data += more
        except OSError:
            self.close()
            return None
        return data

    def close(self) -> None:
        """Let it go; the next read opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


def read_once(path: str) -> bytes | None:
    """At most 4 KiB of a file of /proc; None when it is gone or not ours to read. A third of what `open` costs."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(handle, 4096)
    except OSError:
        return None
    finally:
        os.close(handle)


def read_stat(pid: int, proc: str = "/proc") -> Stat | None:
    """The process now, or None when there is none with this pid."""
    line = read_once(f"{proc}/{pid}/stat")
    return None if line is None else parse_stat(line)


def is_own(pid: int) -> bool:
    """Whether a process is wholly this user's. Only then do its arguments and its environment say anything: another
    account writes what it likes into those of its own processes, and of set-uid programs that it starts.
    """
    fields = (read_once(f"/proc/{pid}/status") or b"").partition(b"\nUid:")[2].partition(b"\n")[0].split()
    return len(fields) == 4 and {int(uid) for uid in fields} == {os.geteuid()}


def parse_stat(line: bytes) -> Stat | None:
    """Parse one line; None when it is cut short. The name may hold blanks and brackets."""
    head, _, tail = line.rpartition(b")")
    pid, _, name = head.partition(b"(")
    fields = tail.split()
    if len(fields) < 22:
        return None
    return Stat(
        pid=int(pid),
        name=name.decode(errors="replace"),
        state=fields[0].decode(),
        ppid=int(fields[1]),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS,
        threads=int(fields[17]),
        started=int(fields[19]),
        rss_bytes=int(fields[21]) * PAGE,
    )


def read_io(pid: int, proc: str = "/proc") -> tuple[int, int] | None:
    """Bytes read from and written to storage so far; None when gone or not ours to read."""
    return parse_io(read_once(f"{proc}/{pid}/io"))


def parse_io(data: bytes | None) -> tuple[int, int] | None:
    """`read_bytes` and `write_bytes` of proc_pid_io(5); None when they are not there."""
    if data is None:
        return None
    # "cancelled_write_bytes" stands at the beginning of a line, too, but not with "\nw".
    read, written = number_after(data, b"\nread_bytes:"), number_after(data, b"\nwrite_bytes:")
    return None if read is None or written is None else (read, written)


def number_after(data: bytes, label: bytes) -> int | None:
    """The number between `label` and the next blank or line end; None when there is none."""
    at = data.find(label)
    if at < 0:
        return None
    at += len(label)
    words = data[at : at + 32].split(None, 1)
    return int(words[0]) if words and words[0].isdigit() else None


def read_nspids(pid: int, proc: str = "/proc") -> tuple[int, ...]:
    """The pids of one process, outermost namespace first (`NSpid:`); () when gone or not told."""
    try:
        with open(f"{proc}/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"NSpid:"):
                    return tuple(int(word) for word in line.split()[1:])
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass
    return ()


def all_stats(proc: str = "/proc") -> Iterator[Stat]:
    """Every process that can be seen, in one pass over /proc (about 10 µs each)."""
    for entry in os.listdir(proc):
        if entry.isdigit() and (stat := read_stat(int(entry), proc)) is not None:
            yield stat


def children(parents: Mapping[int, int]) -> dict[int, list[int]]:
    """The map from pid to parent pid, turned round."""
    by_parent: dict[int, list[int]] = {}
    for pid, ppid in parents.items():
        by_parent.setdefault(ppid, []).append(pid)
    return by_parent


def below(children: Mapping[int, Sequence[int]], root: int) -> tuple[int, ...]:
    """All pids below `root` in a map from pid to its children, nearest first."""
    pids: list[int] = []
    seen = {root}
    level = [root]
    while level:
        level = [pid for parent in level for pid in children.get(parent, ()) if pid not in seen]
        seen.update(level)
        pids += level
    return tuple(pids)
