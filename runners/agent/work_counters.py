"""Count the work of a rank that its Python stack does not show: bytes of sockets, pipes and files, and its children.

The kernel counts read() and write() in /proc/PID/io (rchar, wchar), also on pipes and sockets, but not send() and
recv(). The bytes of TCP connections come from sock_diag(7) instead.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..run.proc import TICKS, number_after, read_once
from ..run.pulse import Work
from .tcp_stalls import sockets

SOCK_DIAG, BY_FAMILY = 4, 20
"""Protocol of netlink, and its request for all sockets of a family (linux/sock_diag.h)."""
REQUEST_DUMP, DONE, ERROR = 0x301, 3, 2
INFO = 2
"""Attribute INET_DIAG_INFO, a struct tcp_info (linux/inet_diag.h)."""
STATES = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8
"""ESTABLISHED, FIN_WAIT1, FIN_WAIT2 and CLOSE_WAIT."""
INODE_AT, ATTRIBUTES_AT, BYTES_AT = 68, 72, 120
"""Offsets in a message: the socket's inode and the attributes; in tcp_info: tcpi_bytes_acked and _received."""
ANSWER_S = 0.5
MOST_SCANNED = 16
"""Most processes per rank whose descriptors are read: about 0.2 ms per hundred descriptors."""

TcpBytes = Mapping[int, tuple[int, int]]
"""Inode of a socket → bytes that its peer has acknowledged, and bytes received."""


def tcp_bytes() -> TcpBytes | None:
    """Return the bytes of all TCP connections of this network namespace; None if the kernel does not report them."""
    counted: dict[int, tuple[int, int]] = {}
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            counted.update(_connections(family))
    except (OSError, struct.error):
        return None
    return counted


def _connections(family: int) -> dict[int, tuple[int, int]]:
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, SOCK_DIAG) as kernel:
        kernel.settimeout(ANSWER_S)
        request = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (INFO - 1), 0, STATES)
        kernel.send(struct.pack("=IHHII", 16 + len(request), BY_FAMILY, REQUEST_DUMP, 1, 0) + request)
        counted: dict[int, tuple[int, int]] = {}
        while True:
            data = kernel.recv(1 << 16)
            at = 0
            while at < len(data):
                length, kind_of_message = struct.unpack_from("=IH", data, at)
                if kind_of_message in (DONE, ERROR) or length < 16:
                    return counted
                _add(counted, data[at + 16 : at + length])
                at += (length + 3) & ~3


def _add(counted: dict[int, tuple[int, int]], message: bytes) -> None:
    """Add the connection of one message."""
    (inode,) = struct.unpack_from("=I", message, INODE_AT)
    at = ATTRIBUTES_AT
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if length < 4:
            return
        if kind == INFO and length >= 4 + BYTES_AT + 16:
            counted[inode] = struct.unpack_from("=QQ", message, at + 4 + BYTES_AT)
        at += (length + 3) & ~3


def counters(members: Sequence[int], tcp: TcpBytes | None, proc: str = "/proc") -> Work:
    """Return the counters of a rank. `members`: its process, then its descendants."""
    pid, *children = members
    main = _io(f"{proc}/{pid}/task/{pid}/io")
    read = [io for child in children if (io := _io(f"{proc}/{child}/io")) is not None]
    sent, received = _of_sockets(members, tcp, proc)
    return Work(
        main_read=None if main is None else main.read,
        main_written=None if main is None else main.written,
        main_disk=None if main is None else main.stored,
        main_wakes=_wakes(pid, proc),
        child_bytes=sum(io.read + io.written for io in read) if read or not children else None,
        child_cpu_s=_children_cpu_s(pid, children, proc),
        sent=sent,
        received=received,
    )


class _Io(NamedTuple):
    """Bytes that a thread or process has moved."""

    read: int
    """Bytes that read() returned, from files, pipes and sockets."""
    written: int
    stored: int
    """Bytes from and to storage."""


def _io(path: str) -> _Io | None:
    """Read a file as in proc_pid_io(5); None if the kernel does not have it, or hides it."""
    data = read_once(path)
    if data is None:
        return None
    labels = (b"\nrchar:", b"\nwchar:", b"\nread_bytes:", b"\nwrite_bytes:")
    counts = [count for label in labels if (count := number_after(b"\n" + data, label)) is not None]
    if len(counts) != len(labels):
        return None
    read, written, loaded, stored = counts
    return _Io(read, written, loaded + stored)


def _children_cpu_s(pid: int, children: Sequence[int], proc: str) -> float | None:
    """CPU seconds of living children, and of all descendants that the process has waited for."""
    own = _times(pid, proc)
    if not own:
        return None
    return (sum(own[2:]) + sum(sum(_times(child, proc)) for child in children)) / TICKS


def _times(pid: int, proc: str) -> list[int]:
    """User and system time of a process, and of the children that it has waited for, in ticks; [] if it has ended."""
    fields = (read_once(f"{proc}/{pid}/stat") or b"").rpartition(b")")[2].split()
    return [int(field) for field in fields[11:15]]


def _of_sockets(members: Sequence[int], tcp: TcpBytes | None, proc: str) -> tuple[int | None, int | None]:
    """Bytes sent and received by the TCP sockets of the first processes; a shared socket counts once."""
    if tcp is None:
        return None, None
    inodes = {int(inode) for pid in members[:MOST_SCANNED] for inode in sockets(pid, proc)}
    own = [tcp[inode] for inode in inodes & tcp.keys()]
    return sum(sent for sent, _ in own), sum(received for _, received in own)


def _wakes(pid: int, proc: str) -> int | None:
    """How often the main thread gave up its core to wait."""
    status = read_once(f"{proc}/{pid}/task/{pid}/status") or b""
    return number_after(status, b"\nvoluntary_ctxt_switches:")
