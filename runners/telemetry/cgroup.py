"""Where the cgroups of a process are; of the own one its memory limit and OOM kills. Versions 1 and 2, cgroups(7)."""

from __future__ import annotations

import os
from pathlib import Path

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
