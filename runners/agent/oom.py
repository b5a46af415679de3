"""Does the kernel say that it killed a process for memory?"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_LINE = re.compile(r"(?:Killed process|oom-kill:.*?pid=)\s*(\d+)")


def kernel_log(limit: int = 1 << 20) -> list[str]:
    """The kernel's messages, oldest first; [] where this user may not read them."""
    lines: list[str] = []
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return lines
    try:
        while len(lines) < limit:
            with contextlib.suppress(BrokenPipeError):  # a record was overwritten meanwhile
                lines.append(os.read(descriptor, 8192).decode("utf-8", "replace").partition(";")[2].strip())
    except OSError:
        return lines
    finally:
        os.close(descriptor)
    return lines


def in_kernel_log(pid: int, lines: list[str]) -> str | None:
    """The newest line that names this pid as killed for memory."""
    for line in reversed(lines):
        found = _LINE.search(line)
        if found and int(found.group(1)) == pid:
            return line
    return None


def cgroup_kills() -> int | None:
    """oom_kill of this process's own cgroup (v2); None where it cannot be read."""
    try:
        entry = next(
            line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")
        )
        path = Path("/sys/fs/cgroup") / entry[3:].lstrip("/") / "memory.events"
        for line in path.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except (OSError, StopIteration, ValueError):
        return None
    return None


class OomWatch:
    """Remembers the cgroup's counter, so that a kill can be told from an older one."""

    def __init__(self) -> None:
        self._kills = cgroup_kills()

    def evidence(self, pid: int | None, signal: str | None) -> str | None:
        """What the kernel says about a rank that ended by SIGKILL; None when it says nothing."""
        if signal != "SIGKILL" or pid is None:
            return None
        line = in_kernel_log(pid, kernel_log())
        if line is not None:
            return f"kernel log: {line}"
        before, self._kills = self._kills, cgroup_kills()
        if before is not None and self._kills is not None and self._kills > before:
            return f"cgroup memory.events: oom_kill {before} → {self._kills}"
        return None
