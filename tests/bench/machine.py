"""The machine, and what its processes use, read from /proc."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

MIB = 1 << 20


def describe() -> str:
    """One line: CPU, cores, memory, kernel, versions."""
    model = _field("/proc/cpuinfo", "model name")
    memory = int(_field("/proc/meminfo", "MemTotal").split()[0]) / MIB
    found = f"{len(os.sched_getaffinity(0))} cores of {model}, {memory:.0f} GiB, Linux {platform.release()}"
    return f"{found}; Python {platform.python_version()}, " + ", ".join(
        f"{name} {_version(name)}" for name in ("torch", "textual")
    )


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def busy_percent(seconds: float = 1.0) -> float:
    """Percent of all cores in use now: how quiet the machine is."""

    def read() -> tuple[int, int]:
        first = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        numbers = [int(one) for one in first]
        return sum(numbers), numbers[3] + numbers[4]

    total, idle = read()
    time.sleep(seconds)
    after, idle_after = read()
    return 100.0 * (1 - (idle_after - idle) / max(1, after - total))


def pace_ms() -> float:
    """CPU milliseconds of a million additions in Python: how fast this machine is at the moment."""
    began = time.process_time()
    total = 0
    for number in range(1_000_000):
        total += number
    return 1000 * (time.process_time() - began)


def state() -> str:
    """How quiet and how fast the machine is now; what is shared is neither at times."""
    return f"{busy_percent():.0f} % of the cores busy, a million additions in {pace_ms():.0f} ms"


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads a process has now, from the scheduler's nanoseconds."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total += int(path.read_text().split()[0])
        except (OSError, IndexError):
            continue  # the thread has just ended
    return total / 1e9


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. `pss` shares what is shared; `uss` is what would come back if the process ended."""

    rss: int
    pss: int
    uss: int

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.rss + other.rss, self.pss + other.pss, self.uss + other.uss)

    def __str__(self) -> str:
        return f"RSS {self.rss / MIB:.1f}, PSS {self.pss / MIB:.1f}, USS {self.uss / MIB:.1f} MiB"


def memory(pid: int) -> Memory:
    """What a process holds."""
    values: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) * 1024
    return Memory(values["Rss"], values["Pss"], values["Private_Clean"] + values["Private_Dirty"])


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(one) for one in path.read_text().split()]
        except OSError:
            continue
    return found


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    return [pid] + [one for child in children(pid) for one in tree(child)]


def marked(variable: str) -> Iterable[int]:
    """Processes, not this one, whose environment holds `variable` (NAME=VALUE)."""
    needle = variable.encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        pid = int(path.parent.name)
        try:
            if pid != os.getpid() and needle in path.read_bytes().split(b"\0"):
                yield pid
        except OSError:
            continue
