"""Report what the main threads of idle ranks wait for in the kernel: a file lock, a pipe, a peer, a child.

It needs the same right as py-spy: /proc/PID/syscall is hidden from processes that may not trace PID (proc(5)).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import Any

from ..inrank.thread_waits import BY_KIND, LISTENING, PATH_BYTES, PATH_IN, SIGNED, kind_of
from ..run.proc import read_once
from ..run.pulse import ProcessWait
from .awaited_files import other_end
from .process_samples import program
from .tcp_stalls import TABLES, address

_ON_DESCRIPTOR = ("read", "write", "connect", "accept", "lock")
"""Calls whose first argument is a file descriptor."""
LISTEN = "0A"
"""State of a socket that waits for connections, in /proc/net/tcp."""


def child_wait(child: int, parent: int) -> ProcessWait | None:
    """Return what a child waits for in the kernel; None if it runs, has ended, or the kernel hides it."""
    wait = wait_of(child)
    if "call" not in wait:
        return None
    is_unread = any(_writes_to(child, thread, parent) for thread in _threads(child))
    is_fork = read_once(f"/proc/{child}/cmdline") == read_once(f"/proc/{parent}/cmdline")
    return ProcessWait(child, program(child), wait["call"], wait.get("on", ""), is_unread, is_fork)


def _threads(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def _writes_to(pid: int, thread: int, reader: int) -> bool:
    """Whether a thread waits to write into a pipe that another process reads."""
    wait = wait_of(pid, thread=thread)
    if wait.get("call") != "write" or wait.get("on") != "a pipe":
        return False
    return other_end(pid, wait["descriptor"], writes=False) == reader


def wait_of(pid: int, proc: str = "/proc", thread: int | None = None) -> dict[str, Any]:
    """Return the fields `call`, `on` and `descriptor` of a pulse; {} if the thread runs or the kernel hides it.

    `thread`: by default the main thread.
    """
    words = (read_once(f"{proc}/{pid}/task/{thread or pid}/syscall") or b"").split()
    if len(words) < 2 or not words[0].isdigit():
        return {}
    call, first = kind_of(int(words[0])), int(words[1], 16)
    if call is None:
        return {}
    if call == "wait":
        child = int(words[2], 16) if int(words[0]) in BY_KIND else first
        return {"call": call, "on": str(child) if 0 < child < SIGNED else ""}
    if call == "open":
        return {"call": call, "on": _path_at(pid, int(words[1 + PATH_IN[int(words[0])]], 16), proc)}
    if call not in _ON_DESCRIPTOR:
        return {"call": call}
    return {"call": call, "descriptor": first, "on": _behind(pid, first, proc)}


def _path_at(pid: int, address: int, proc: str) -> str:
    """Read the path that a process opens, from its memory; "" if it may not be read."""
    try:
        with open(f"{proc}/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            return os.fsdecode(memory.read(PATH_BYTES).partition(b"\0")[0])
    except (OSError, ValueError):
        return ""


def _behind(pid: int, descriptor: int, proc: str) -> str:
    """Describe a file descriptor, as thread_waits.py does it inside of a rank."""
    link = f"{proc}/{pid}/fd/{descriptor}"
    try:
        target, mode = os.readlink(link), os.stat(link).st_mode
    except OSError:
        return ""
    if stat.S_ISSOCK(mode):
        return next(_peers(pid, target[len("socket:[") : -1], proc), "a socket")
    if stat.S_ISFIFO(mode):
        return f"FIFO {target}" if target.startswith("/") else "a pipe"
    return target


def _peers(pid: int, inode: str, proc: str) -> Iterator[str]:
    """Yield the peer of a TCP socket, or the own address of one that waits for connections."""
    for table in TABLES:
        with contextlib.suppress(OSError), open(f"{proc}/{pid}/net/{table}", encoding="ascii") as file:
            for line in file:
                fields = line.split()
                if len(fields) > 9 and fields[9] == inode:
                    is_listening = fields[3] == LISTEN
                    yield LISTENING + address(fields[1]) if is_listening else address(fields[2])
