"""The memory cgroup of this process: its limit and how often the kernel killed in it. Versions 1 and 2."""

from __future__ import annotations

from pathlib import Path

from .proc import KeptFile, number_after

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
    own = _own(root)
    unified, v1 = root / "sys/fs/cgroup", root / "sys/fs/cgroup/memory"
    if "memory" in own and v1.is_dir():
        return _chain(v1, own["memory"], "memory.limit_in_bytes", "memory.oom_control")
    if "" in own:
        return _chain(unified, own[""], "memory.max", "memory.events")
    return [], None


def _own(root: Path) -> dict[str, str]:
    """Path by controller from /proc/self/cgroup, "" for version 2; see cgroups(7)."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return {}
    parts = [line.split(":", 2) for line in lines]
    return {name: part[2] for part in parts if len(part) == 3 for name in part[1].split(",")}


def _chain(mount: Path, path: str, limit: str, events: str) -> tuple[list[Path], Path | None]:
    own = mount / path.lstrip("/")
    if not own.is_dir():  # in a container whose mount shows only its own part
        own = mount
    levels = [level for level in (own, *own.parents) if level.is_relative_to(mount)]
    counted = next((level / events for level in levels if (level / events).exists()), None)
    return [level / limit for level in levels if (level / limit).exists()], counted


def _limit(data: bytes | None) -> int | None:
    text = (data or b"").strip()
    if not text.isdigit():  # "max"
        return None
    return int(text) if int(text) < UNLIMITED else None


def _oom_kills(data: bytes | None) -> int | None:
    return None if data is None else number_after(b"\n" + data, b"\noom_kill ")
