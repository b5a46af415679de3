"""Report the blocking system call of a rank's main thread.

A Python stack names the line that waits, but not the object: a file lock, a pipe without a writer, another host,
a child, or a thread. A process may always read its own system call (/proc/self/task/TID/syscall, proc(5)), even if
the kernel hides it from other processes. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import sys
import threading
import time
from types import FrameType
from typing import Any

from .awaited_names import wanted
from .import_watch import PATCH_ERRORS

_CALLS = {
    "x86_64": {
        "read": (0, 17, 45, 47),
        "write": (1, 18, 20, 44, 46, 74, 75),
        "open": (2, 257),
        "poll": (7, 23, 232, 270, 271, 281),
        "sleep": (35, 230),
        "connect": (42,),
        "accept": (43, 288),
        "wait": (61, 247),
        "lock": (72, 73),
        "futex": (202,),
    },
    "aarch64": {
        "read": (63, 67, 207, 212),
        "write": (64, 66, 68, 82, 83, 206, 211),
        "open": (56,),
        "poll": (22, 72, 73),
        "sleep": (101, 115),
        "connect": (203,),
        "accept": (202, 242),
        "wait": (95, 260),
        "lock": (25, 32),
        "futex": (98,),
    },
}
"""Machine → kind of wait → numbers of its system calls; from the kernel's tables (asm/unistd_64.h, asm-generic)."""
PATH_IN = {2: 0, 257: 1, 56: 1}
"""Number of open or openat → index of the argument that holds the address of the path."""
_POLL_OF = {"x86_64": (7, 271), "aarch64": (73,)}
"""Machine → numbers of poll and ppoll, whose first two arguments are the descriptors and their count."""
_TIMED = {230: (0, 1, 2), 115: (0, 1, 2), 202: (None, 1, 3), 98: (None, 1, 3)}
"""clock_nanosleep and futex → index of the clock, of the flags, and of the address of the time at which they end."""
_ABSOLUTE, _BITSET, _REALTIME = 1, 9, 256
"""Flag TIMER_ABSTIME of clock_nanosleep; operation of futex with an absolute time, and its flag of the clock."""
SIGNED = 1 << 63
BY_KIND = (247, 95)
"""Numbers of waitid, whose first argument is the kind of the second one."""
PATH_BYTES = 4096
LISTENING = "listening at "
_MAPPED = "::ffff:"
"""Beginning of an address of IPv4 on a socket of IPv6."""
POLLING, POLLING_FRAMES = os.sep + "filelock" + os.sep, 6
"""Part of the path of filelock, which polls for a lock and sleeps in between; innermost frames to search for it."""


def main_wait() -> dict[str, Any]:
    """Return the wait of the main thread, as in {"call": "lock", "on": "/data/index.lock"}; {} if it runs or is unknown.

    "on" is the path, pipe or peer of "descriptor", or the pid of the child. "wanted": see awaited_names.py.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/task/%d/syscall" % os.getpid()) as file:
            words = file.read().split()
        number, arguments = int(words[0]), [int(word, 16) for word in words[1:7]]
        call = kind_of(number)
        if call is None:
            return {}
        polled = _polled() if call == "sleep" else ""
        if polled:
            return {"call": "lock", "on": polled}
        name, until_gone = wanted(_main_frame(), call)
        wait: dict[str, Any] = {"call": call, "on": "", "wanted": name, "until_gone": until_gone}
        until = _until(number, arguments)
        if until is not None:
            wait["until"] = until
        descriptor = _descriptor(call, number, arguments)
        if descriptor is not None:
            wait["descriptor"] = descriptor
        wait["on"] = _object(call, number, arguments, descriptor)
        return wait
    return {}


def _until(number: int, arguments: list[int]) -> float | None:
    """Return the unix time at which a call times out, in tenths of a second; None without a time-out."""
    if number not in _TIMED:
        return None
    clock, flags, end = (None if index is None else arguments[index] for index in _TIMED[number])
    if clock is None:
        has_time = flags is not None and flags & 127 == _BITSET
        clock = time.CLOCK_REALTIME if (flags or 0) & _REALTIME else time.CLOCK_MONOTONIC
    else:
        has_time = flags == _ABSOLUTE
    if not has_time or not end:
        return None
    seconds, nanoseconds = struct.unpack("qq", _memory(end, 16))
    left: float = seconds + nanoseconds / 1e9 - time.clock_gettime(clock)
    return round(time.time() + left, 1)


def _memory(address: int, size: int) -> bytes:
    """Read memory of this process."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(size)


def kind_of(number: int) -> str | None:
    """Return the kind of wait of a system call, by its number; None for any other call."""
    calls = _CALLS.get(os.uname().machine, {})
    return next((kind for kind, numbers in calls.items() if number in numbers), None)


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def _descriptor(call: str, number: int, arguments: list[int]) -> int | None:
    """Return the file descriptor of a call; None if it has none, or polls several."""
    if call in ("read", "write", "connect", "accept", "lock"):
        return arguments[0]
    if number not in _POLL_OF[os.uname().machine] or arguments[1] != 1:
        return None
    polled = int.from_bytes(_memory(arguments[0], 4), sys.byteorder, signed=True)
    return polled if polled >= 0 else None


def _polled() -> str:
    """Return the path of the lock if the main thread polls for one through filelock, or ""."""
    frame = _main_frame()
    for _ in range(POLLING_FRAMES):
        if frame is None:
            break
        if POLLING in frame.f_code.co_filename:
            with contextlib.suppress(*PATCH_ERRORS):
                return os.path.abspath(str(frame.f_locals["self"].lock_file))
        frame = frame.f_back
    return ""


def _object(call: str, number: int, arguments: list[int], descriptor: int | None) -> str:
    if descriptor is not None:
        return _behind(descriptor)
    if call == "open":
        return _path_at(arguments[PATH_IN[number]])
    if call == "wait":
        child = arguments[1] if number in BY_KIND else arguments[0]
        return str(child) if 0 < child < SIGNED else ""
    return ""


def _behind(descriptor: int) -> str:
    """Describe a file descriptor: a path, "FIFO PATH", "a pipe", "ADDRESS:PORT", or "a socket" without a peer.

    A socket that waits for connections is LISTENING and its own address.
    """
    kind = os.fstat(descriptor).st_mode
    path = os.readlink("/proc/self/fd/%d" % descriptor)
    if stat.S_ISSOCK(kind):
        with socket.socket(fileno=os.dup(descriptor)) as its, contextlib.suppress(OSError):
            if its.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return LISTENING + _address_text(its.getsockname())
            return _address_text(its.getpeername())
        return "a socket"
    if stat.S_ISFIFO(kind):
        return "FIFO " + path if path.startswith("/") else "a pipe"
    return path


def _address_text(address: Any) -> str:
    if isinstance(address, tuple):
        return "%s:%s" % (address[0].removeprefix(_MAPPED), address[1])
    return str(address)


def _path_at(address: int) -> str:
    """Read the path that the call got, at an address of this process. Prefix a named pipe with "FIFO "."""
    path = os.fsdecode(_memory(address, PATH_BYTES).partition(b"\0")[0])
    with contextlib.suppress(OSError):
        if stat.S_ISFIFO(os.stat(path).st_mode):
            return "FIFO " + path
    return path
