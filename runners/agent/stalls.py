"""TCP connections of a process that wait for the other end, as /proc tells. Formats: the kernel's proc_net_tcp."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import struct
from collections.abc import Iterable, Mapping

from ..model import Stall

STATES = {"01": "ESTABLISHED", "02": "SYN_SENT"}
MOST = 16
"""Stalls of one process that are told."""
TABLES = ("tcp", "tcp6")

Table = Mapping[str, Stall]
"""The stalled connections of one network namespace, by the inode of their socket."""


def parse(text: str) -> dict[str, Stall]:
    """The connections in the text of /proc/net/tcp or tcp6 that wait: unanswered, sent again, or not acknowledged."""
    found = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 10 or fields[3] not in STATES:
            continue
        unsent, retransmits = int(fields[4].partition(":")[0], 16), int(fields[6], 16)
        if fields[3] == "02" or retransmits or unsent:
            ends = address(fields[1]), address(fields[2])
            found[fields[9]] = Stall(*ends, STATES[fields[3]], retransmits, unsent)
    return found


def address(text: str) -> str:
    """ "10.0.0.1:29500" from "0100000A:733C": 32-bit words in the order of this machine, the port in hexadecimal."""
    words, _, port = text.partition(":")
    raw = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    host = ipaddress.ip_address(raw)
    mapped = getattr(host, "ipv4_mapped", None)
    if mapped is not None or host.version == 4:
        return f"{mapped or host}:{int(port, 16)}"
    return f"[{host}]:{int(port, 16)}"


def sockets(pid: int, proc: str = "/proc") -> set[str]:
    """Inodes of the sockets that a process has open; empty when it is gone or not ours."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"{proc}/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


def stalls(pids: Iterable[int], proc: str = "/proc") -> dict[int, tuple[Stall, ...]]:
    """The stalled connections of each process, those sent again most often first; a namespace is read once."""
    tables: dict[int, Table] = {}
    found: dict[int, tuple[Stall, ...]] = {}
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
            own.sort(key=lambda one: (-one.retransmits, one.state, one.local, one.remote))
            found[pid] = tuple(own[:MOST])
    return found


def _table(pid: int, proc: str) -> Table:
    found: dict[str, Stall] = {}
    for name in TABLES:
        with contextlib.suppress(OSError), open(f"{proc}/{pid}/net/{name}", encoding="ascii") as file:
            found |= parse(file.read())
    return found
