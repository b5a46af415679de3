"""Who a process is: host, boot, pid and start time together, so that neither a reused pid nor a shared home fools us."""

from __future__ import annotations

import os
import platform
import tempfile
from pathlib import Path

import msgspec
from msgspec import Struct

from .telemetry.proc import read_stat


class Identity(Struct, frozen=True):
    """A process, recognisable later and from another host that shares the file system."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/<pid>/stat: clock ticks after boot."""
    boot_id: str
    host: str
    socket: str = ""
    kind: str = ""


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks after boot; None when there is none, or it is a zombie."""
    stat = read_stat(pid)
    return None if stat is None or stat.state in ("Z", "X") else stat.started


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int | None = None, socket: str = "", kind: str = "") -> Identity:
    """Identity of a living process, this one by default."""
    pid = os.getpid() if pid is None else pid
    return Identity(pid, start_ticks(pid) or 0, boot_id(), platform.node(), socket, kind)


def alive(who: Identity) -> bool:
    """Whether exactly that process still lives on this host."""
    return who.boot_id == boot_id() and start_ticks(who.pid) == who.start_ticks


def elsewhere(who: Identity) -> bool:
    """Whether it belongs to another host (a shared home): nothing can be said about it from here."""
    return who.host != platform.node()


def read(path: Path) -> Identity | None:
    """The identity in a file; None when there is none or it is not whole."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Identity)
    except (OSError, msgspec.MsgspecError):
        return None


def write(path: Path, who: Identity) -> None:
    """Write atomically. Raises OSError."""
    write_atomically(path, msgspec.json.encode(who))


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file whole or not at all; several nodes may do so at once where they share a home. Raises OSError."""
    number, name = tempfile.mkstemp(".tmp", f".{path.name}.", path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
