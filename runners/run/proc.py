"""Processes in /proc, in one read each; and cgroups, versions 1 and 2: limits, use, OOM kills.

Formats: proc_pid_stat(5), proc_pid_io(5), cgroups(7).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .formatting import spans_short

SYSTEM: str = sys.platform
"""Platform name. Runs need "linux"; code that only reads works on other systems, too."""
TICKS = os.sysconf("SC_CLK_TCK")
"""Clock ticks per second, the unit of times in /proc."""
PAGE = os.sysconf("SC_PAGE_SIZE")
"""Bytes per page."""


class Stat(NamedTuple):
    """One line of /proc/<pid>/stat."""

    pid: int
    name: str
    state: str
    """One letter: R, S, D, Z, …"""
    ppid: int
    cpu_s: float
    """User and system time of the process itself, in seconds."""
    threads: int
    started: int
    """Clock ticks after boot; with the pid it identifies a process uniquely."""
    rss_bytes: int


class KeptFile:
    """A file of /proc or /sys that is read repeatedly through one descriptor.

    A file below /proc/<pid> keeps referring to the process at the time of opening, even if the pid is reused.
    """

    def __init__(self, path: str, size: int = 4096) -> None:
        self._path = path
        self._size = size
        """Maximum bytes per read."""
        self._fd = -1

    def read(self) -> bytes | None:
        """Content of a file with one record; None if it is missing or unreadable."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._fd, self._size, 0)
        except OSError:
            self.close()
            return None

    def read_all(self) -> bytes | None:
        """Content of a file with many records, which the kernel returns one page at a time; None as in `read`."""
        data = self.read()
        try:
            while data and (more := os.pread(self._fd, self._size, len(data))):
                data += more
        except OSError:
            self.close()
            return None
        return data

    def close(self) -> None:
        """Close the file; the next read reopens it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


def read_once(path: str) -> bytes | None:
    """At most 4 KiB of a file of /proc; None if missing or unreadable. Takes a third of the time of `open`."""
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
    """Read a process's stat; None if no process has this pid."""
    line = read_once(f"{proc}/{pid}/stat")
    return None if line is None else parse_stat(line)


def is_own(pid: int) -> bool:
    """Whether all uids of a process are this user's.

    Otherwise its arguments and environment prove nothing: another account controls them in its processes, and in
    set-uid programs that it starts.
    """
    fields = (read_once(f"/proc/{pid}/status") or b"").partition(b"\nUid:")[2].partition(b"\n")[0].split()
    return len(fields) == 4 and {int(uid) for uid in fields} == {os.geteuid()}


def parse_stat(line: bytes) -> Stat | None:
    """Parse one line; None if it is cut. The name may contain blanks and brackets."""
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
    """Bytes read from and written to storage so far; None if missing or unreadable."""
    return parse_io(read_once(f"{proc}/{pid}/io"))


def parse_io(data: bytes | None) -> tuple[int, int] | None:
    """Parse `read_bytes` and `write_bytes` of proc_pid_io(5); None if they are missing."""
    if data is None:
        return None
    # "cancelled_write_bytes" is also at the beginning of a line, but does not match "\nw".
    read, written = number_after(data, b"\nread_bytes:"), number_after(data, b"\nwrite_bytes:")
    return None if read is None or written is None else (read, written)


def number_after(data: bytes, label: bytes) -> int | None:
    """Return the number after `label`, up to the next blank or line end; None without one."""
    at = data.find(label)
    if at < 0:
        return None
    at += len(label)
    words = data[at : at + 32].split(None, 1)
    return int(words[0]) if words and words[0].isdigit() else None


def read_nspids(pid: int, proc: str = "/proc") -> tuple[int, ...]:
    """Pids of one process, outermost namespace first (`NSpid:`); () if missing or not reported."""
    try:
        with open(f"{proc}/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"NSpid:"):
                    return tuple(int(word) for word in line.split()[1:])
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass
    return ()


def pids(proc: str = "/proc") -> list[int]:
    """Pids of all visible processes; none on a system without /proc, which has no runs. Raises OSError."""
    try:
        return [int(entry) for entry in os.listdir(proc) if entry.isdigit()]
    except FileNotFoundError:
        if SYSTEM == "linux":
            raise
        return []


def all_stats(proc: str = "/proc") -> Iterator[Stat]:
    """Yield the stat of all visible processes, in one pass over /proc (about 10 µs each)."""
    for pid in pids(proc):
        if (stat := read_stat(pid, proc)) is not None:
            yield stat


def children(parents: Mapping[int, int]) -> dict[int, list[int]]:
    """Invert a map from pid to parent pid."""
    by_parent: dict[int, list[int]] = {}
    for pid, ppid in parents.items():
        by_parent.setdefault(ppid, []).append(pid)
    return by_parent


def below(children: Mapping[int, Sequence[int]], root: int) -> tuple[int, ...]:
    """All descendants of `root` in a map from pid to its children, nearest first."""
    pids: list[int] = []
    seen = {root}
    level = [root]
    while level:
        level = [pid for parent in level for pid in children.get(parent, ()) if pid not in seen]
        seen.update(level)
        pids += level
    return tuple(pids)


UNLIMITED = 1 << 60
"""Upper bound of real limits in bytes: version 1 writes "no limit" as a number near 2^63."""


class CgroupMemory:
    """The lowest memory limit of this process's cgroup and its ancestors at the time of construction."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._levels = _memory_levels(root)

    def read(self) -> tuple[int | None, int | None]:
        """Return the limit, and the bytes that count against it, without page cache; None if not reported."""
        limited = [(limit, level) for level in self._levels if (limit := level.limit()) is not None]
        if not limited:
            return None, None
        limit, level = min(limited, key=lambda pair: pair[0])
        return limit, level.used()


def levels(root: Path, pid: int | str, controller: str) -> list[Path]:
    """Folders of a process's cgroup and its ancestors, nearest first; [] without a cgroup."""
    return above(root, read_once(f"{root}/proc/{pid}/cgroup") or b"", controller)


def oom_counter(pid: int | str) -> Path | None:
    """Return the file that counts the out-of-memory kills in a process's cgroup; None without one."""
    for level in levels(Path("/"), pid, "memory"):
        for name in ("memory.oom_control", "memory.events"):
            if (level / name).exists():
                return level / name
    return None


def above(root: Path, content: bytes, controller: str) -> list[Path]:
    """`levels` for the content of /proc/<pid>/cgroup."""
    parts = [line.split(":", 2) for line in os.fsdecode(content).splitlines()]
    own = {name: part[2] for part in parts if len(part) == 3 for name in part[1].split(",")}
    mount, path = root / "sys/fs/cgroup" / controller, own.get(controller)
    if path is None or not mount.is_dir():
        mount, path = root / "sys/fs/cgroup", own.get("")
    if path is None or not mount.is_dir():
        return []
    start = mount / path.lstrip("/")
    if not start.is_dir():  # in a container whose mount is limited to its own part
        start = mount
    return [level for level in (start, *start.parents) if level.is_relative_to(mount)]


FILE_CACHE = (b"\nactive_file ", b"\ninactive_file ", b"\nslab_reclaimable ")
FILE_CACHE_V1 = (b"\ntotal_active_file ", b"\ntotal_inactive_file ")


class _Memory:
    def __init__(self, level: Path) -> None:
        v1 = (level / "memory.limit_in_bytes").exists()
        names = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes") if v1 else ("memory.max", "memory.current")
        )
        self._limit, self._used = (KeptFile(str(level / name)) for name in names)
        self._stat = KeptFile(str(level / "memory.stat"), 8192)
        self._cache = FILE_CACHE_V1 if v1 else FILE_CACHE

    def limit(self) -> int | None:
        text = (self._limit.read() or b"").strip()
        return int(text) if text.isdigit() and int(text) < UNLIMITED else None

    def used(self) -> int | None:
        text, stat = (self._used.read() or b"").strip(), self._stat.read()
        if not text.isdigit() or stat is None:
            return None
        return max(0, int(text) - sum(number_after(b"\n" + stat, label) or 0 for label in self._cache))


def _memory_levels(root: Path) -> list[_Memory]:
    """Return this process's cgroup and its ancestors that limit memory, nearest first."""
    names = ("memory.limit_in_bytes", "memory.max")
    chain = levels(root, "self", "memory")
    return [_Memory(level) for level in chain if any((level / name).exists() for name in names)]


class Limits:
    """Limits of one process; call `sample` every few seconds. `proc` is the path of /proc."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self._pid, self._root = pid, Path(proc).parent
        self._groups = KeptFile(f"{proc}/{pid}/cgroup")
        self._content: bytes | None = None
        self._stats: list[KeptFile] = []
        self._before: dict[int, tuple[int, int]] = {}
        self.throttled: float | None = None
        """Percent of the quota's periods since the last sample that were throttled; None without a quota."""
        self.cpus: str | None = None
        """CPU affinity, as in "0-3,8"; None after the process has ended."""

    def sample(self) -> None:
        """Read the limits."""
        self._find()
        shares = [self._share(index, file) for index, file in enumerate(self._stats)]
        self.throttled = max((share for share in shares if share is not None), default=None)
        try:
            self.cpus = spans_short(os.sched_getaffinity(self._pid))
        except OSError:
            self.cpus = None

    def _find(self) -> None:
        """Open the files of its cgroups again if it was moved to another cgroup."""
        content = self._groups.read() or b""
        if content == self._content:
            return
        self._content, self._before = content, {}
        files = [level / "cpu.stat" for level in above(self._root, content, "cpu")]
        self._stats = [KeptFile(str(file)) for file in files if file.exists()]

    def _share(self, index: int, file: KeptFile) -> float | None:
        stat = b"\n" + (file.read() or b"")
        periods, throttled = number_after(stat, b"\nnr_periods "), number_after(stat, b"\nnr_throttled ")
        if periods is None or throttled is None:
            return None
        before = self._before.get(index)
        self._before[index] = periods, throttled
        if before is None or periods <= before[0]:  # without a quota nothing is counted
            return None
        return min(100.0, 100.0 * max(0, throttled - before[1]) / (periods - before[0]))
