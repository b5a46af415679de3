"""What /proc says of one process, in one read each. Linux; formats: proc_pid_stat(5), proc_pid_io(5)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
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


def read_stat(pid: int, proc: str = "/proc") -> Stat | None:
    """The process now, or None when there is none with this pid."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return parse_stat(line)


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
    try:
        with open(f"{proc}/{pid}/io", "rb") as file:
            pairs = dict(line.split(b": ", 1) for line in file.read().splitlines())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    if b"read_bytes" not in pairs or b"write_bytes" not in pairs:
        return None
    return int(pairs[b"read_bytes"]), int(pairs[b"write_bytes"])


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


def descendants(parents: Mapping[int, int], root: int) -> tuple[int, ...]:
    """All pids below `root` in a map from pid to parent pid, nearest first."""
    below: dict[int, list[int]] = {}
    for pid, ppid in parents.items():
        below.setdefault(ppid, []).append(pid)
    found: list[int] = []
    seen = {root}
    level = [root]
    while level:
        level = [pid for parent in level for pid in below.get(parent, ()) if pid not in seen]
        seen.update(level)
        found += level
    return tuple(found)
