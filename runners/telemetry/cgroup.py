"""cgroups of a process, version 1 and 2, cgroups(7): where they are, what they allow, what they hold, OOM kills."""

from __future__ import annotations

import os
from pathlib import Path

from ..formatting import spans_short
from .proc import KeptFile, number_after, read_once

UNLIMITED = 1 << 60
"""Version 1 says "no limit" by a number near 2^63; no machine has this many bytes."""


class Cgroup:
    """Reads the cgroup that the process was in when this was made."""

    def __init__(self, root: Path = Path("/")) -> None:
        limits, events = _files(root)
        self._limits = [KeptFile(str(path)) for path in limits]
        self._events = None if events is None else KeptFile(str(events))

    def read(self) -> tuple[int | None, int | None]:
        """Bytes that the tightest limit above allows, and OOM kills so far; None where not told."""
        limits = [limit for file in self._limits if (limit := _limit(file.read())) is not None]
        return min(limits, default=None), None if self._events is None else _oom_kills(self._events.read())


def _files(root: Path) -> tuple[list[Path], Path | None]:
    """The limit files from the own cgroup upwards, and the file that counts OOM kills."""
    chain = levels(root, "self", "memory")
    limits = [level / name for level in chain for name in ("memory.limit_in_bytes", "memory.max")]
    events = [level / name for level in chain for name in ("memory.oom_control", "memory.events")]
    return [file for file in limits if file.exists()], next(filter(Path.exists, events), None)


def levels(root: Path, pid: int | str, controller: str) -> list[Path]:
    """The folders of a process's cgroup and of those above it, nearest first; [] where it is in none."""
    return above(root, read_once(f"{root}/proc/{pid}/cgroup") or b"", controller)


def above(root: Path, content: bytes, controller: str) -> list[Path]:
    """`content`: what /proc/<pid>/cgroup holds."""
    parts = [line.split(":", 2) for line in os.fsdecode(content).splitlines()]
    own = {name: part[2] for part in parts if len(part) == 3 for name in part[1].split(",")}
    mount, path = root / "sys/fs/cgroup" / controller, own.get(controller)
    if path is None or not mount.is_dir():
        mount, path = root / "sys/fs/cgroup", own.get("")
    if path is None or not mount.is_dir():
        return []
    start = mount / path.lstrip("/")
    if not start.is_dir():  # in a container whose mount shows only its own part
        start = mount
    return [level for level in (start, *start.parents) if level.is_relative_to(mount)]


def _limit(data: bytes | None) -> int | None:
    text = (data or b"").strip()
    if not text.isdigit():  # "max"
        return None
    return int(text) if int(text) < UNLIMITED else None


def _oom_kills(data: bytes | None) -> int | None:
    return None if data is None else number_after(b"\n" + data, b"\noom_kill ")


# -----------------------------------------------------------------------------------------------------------
# What the cgroups of a process allow and hold: processor quota, cores, memory in use. Versions 1 and 2, cgroups(7).


FILE_CACHE = (b"\nactive_file ", b"\ninactive_file ", b"\nslab_reclaimable ")
FILE_CACHE_V1 = (b"\ntotal_active_file ", b"\ntotal_inactive_file ")


class MemoryUse:
    """Bytes that count against the tightest memory limit above this process, page cache left out."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._levels = [_Memory(level) for level in levels(root, "self", "memory") if _Memory.there(level)]

    def read(self) -> int | None:
        """Bytes now; None where no level has a limit, or where the kernel does not tell."""
        limited = [(limit, level) for level in self._levels if (limit := level.limit()) is not None]
        return min(limited, key=lambda pair: pair[0])[1].used() if limited else None


class _Memory:
    """The memory files of one level."""

    def __init__(self, level: Path) -> None:
        v1 = (level / "memory.limit_in_bytes").exists()
        names = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes") if v1 else ("memory.max", "memory.current")
        )
        self._limit, self._used = (KeptFile(str(level / name)) for name in names)
        self._stat = KeptFile(str(level / "memory.stat"), 8192)
        self._cache = FILE_CACHE_V1 if v1 else FILE_CACHE

    @staticmethod
    def there(level: Path) -> bool:
        return any((level / name).exists() for name in ("memory.limit_in_bytes", "memory.max"))

    def limit(self) -> int | None:
        text = (self._limit.read() or b"").strip()
        return int(text) if text.isdigit() and int(text) < UNLIMITED else None

    def used(self) -> int | None:
        text, stat = (self._used.read() or b"").strip(), self._stat.read()
        if not text.isdigit() or stat is None:
            return None
        return max(0, int(text) - sum(number_after(b"\n" + stat, label) or 0 for label in self._cache))


class Limits:
    """What holds one process back; call `look` every few seconds. `proc` is where /proc is."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self._pid, self._root = pid, Path(proc).parent
        self._groups = KeptFile(f"{proc}/{pid}/cgroup")
        self._content: bytes | None = None
        self._stats: list[KeptFile] = []
        self._before: dict[int, tuple[int, int]] = {}
        self.throttled: float | None = None
        """Percent of the quota's periods between the last two looks in which it was held back; None without a quota."""
        self.cpus: str | None = None
        """Cores that it may run on, as in "0-3,8"; None when it is gone."""

    def sample(self) -> None:
        """Read anew."""
        self._find()
        shares = [self._share(index, file) for index, file in enumerate(self._stats)]
        self.throttled = max((share for share in shares if share is not None), default=None)
        try:
            self.cpus = spans_short(os.sched_getaffinity(self._pid))
        except OSError:
            self.cpus = None

    def _find(self) -> None:
        """The files of its cgroups; it may be moved to another while it runs."""
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
        if before is None or periods <= before[0]:  # no quota: nothing is counted
            return None
        return min(100.0, 100.0 * max(0, throttled - before[1]) / (periods - before[0]))
