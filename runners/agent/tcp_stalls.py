"""TCP connections that wait for the other end, from /proc. Formats: the kernel's proc_net_tcp."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import struct
from collections.abc import Iterable, Mapping

from ..run.pulse import Stall

STATES = {"01": "ESTABLISHED", "02": "SYN_SENT"}
MOST_STALLS = 16
"""Most stalls per process to report."""
TABLES = ("tcp", "tcp6")

Table = Mapping[str, Stall]
"""The stalled connections of one network namespace, by their socket's inode."""


def parse(text: str) -> dict[str, Stall]:
    """Return the waiting connections in /proc/net/tcp or tcp6: unanswered, retransmitted, or not acknowledged."""
    by_inode = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 10 or fields[3] not in STATES:
            continue
        unsent, retransmits = int(fields[4].partition(":")[0], 16), int(fields[6], 16)
        if fields[3] == "02" or retransmits or unsent:
            ends = address(fields[1]), address(fields[2])
            by_inode[fields[9]] = Stall(*ends, STATES[fields[3]], retransmits, unsent)
    return by_inode


def address(text: str) -> str:
    """Return "10.0.0.1:29500" for "0100000A:733C": 32-bit words in host byte order, and a hexadecimal port."""
    words, _, port = text.partition(":")
    raw = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    host = ipaddress.ip_address(raw)
    mapped = getattr(host, "ipv4_mapped", None)
    if mapped is not None or host.version == 4:
        return f"{mapped or host}:{int(port, 16)}"
    return f"[{host}]:{int(port, 16)}"


def sockets(pid: int, proc: str = "/proc") -> set[str]:
    """Return the inodes of a process's open sockets. Empty if it has exited or belongs to another user."""
    inodes = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"{proc}/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    return inodes


def stalls(pids: Iterable[int], proc: str = "/proc") -> dict[int, tuple[Stall, ...]]:
    """Return the stalled connections per process, most retransmits first. Each namespace is read once."""
    tables: dict[int, Table] = {}
    by_pid: dict[int, tuple[Stall, ...]] = {}
    for pid in pids:
        try:
            space = os.stat(f"{proc}/{pid}/ns/net").st_ino
        except OSError:
            continue
        if space not in tables:
            tables[space] = _table(pid, proc)
        if not tables[space]:
            continue
        own = [tables[space][inode] for inode in sockets(pid, proc) & tables[space].keys()]
        if own:
            own.sort(key=lambda stall: (-stall.retransmits, stall.state, stall.local, stall.remote))
            by_pid[pid] = tuple(own[:MOST_STALLS])
    return by_pid


def _table(pid: int, proc: str) -> Table:
    table: dict[str, Stall] = {}
    for name in TABLES:
        with contextlib.suppress(OSError), open(f"{proc}/{pid}/net/{name}", encoding="ascii") as file:
            table |= parse(file.read())
    return table
