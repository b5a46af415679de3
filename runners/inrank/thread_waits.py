"""Report the blocking system call of a rank's main thread, and the stacks and exceptions of its other threads.

A Python stack names the line that waits, but not the object: a file lock, a pipe without a writer, another host,
a child, or a thread. A process may always read its own system call (/proc/self/task/TID/syscall, proc(5)), even if
the kernel hides it from other processes. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
import threading
from typing import Any

from .import_watch import MISTAKES
from .tracebacks import frames_of, shortened

_CALLS = {
    "x86_64": {
        0: "read",
        2: "open",
        7: "poll",
        17: "read",
        23: "poll",
        35: "sleep",
        42: "connect",
        45: "read",
        47: "read",
        61: "wait",
        72: "lock",
        73: "lock",
        202: "futex",
        230: "sleep",
        232: "poll",
        247: "wait",
        257: "open",
        270: "poll",
        271: "poll",
        281: "poll",
    },
    "aarch64": {
        22: "poll",
        25: "lock",
        32: "lock",
        56: "open",
        63: "read",
        67: "read",
        72: "poll",
        73: "poll",
        95: "wait",
        98: "futex",
        101: "sleep",
        115: "sleep",
        203: "connect",
        207: "read",
        212: "read",
        260: "wait",
    },
}
"""Machine → number of a system call → kind of wait; from the kernel's tables (asm/unistd_64.h, asm-generic)."""
_PATH_IN = {2: 0, 257: 1, 56: 1}
"""Number of open or openat → index of the argument that holds the address of the path."""
_SIGNED = 1 << 63
PATH_BYTES = 4096
POLLING, POLLING_FRAMES = os.sep + "filelock" + os.sep, 6
"""Part of the path of filelock, which polls for a lock and sleeps in between; innermost frames to search for it."""
MOST_THREADS, MOST_FRAMES, MOST_DEAD = 8, 6, 4


def main_wait() -> dict[str, Any]:
    """Return the wait of the main thread, as in {"call": "lock", "on": "/data/index.lock"}; {} if it runs or is unknown.

    "on" is the path, pipe or peer of the file descriptor, or the pid of the child.
    """
    calls = _CALLS.get(os.uname().machine, {})
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/task/%d/syscall" % os.getpid()) as file:
            words = file.read().split()
        number, arguments = int(words[0]), [int(word, 16) for word in words[1:7]]
        call = calls.get(number)
        if call is None:
            return {}
        polled = _polled() if call == "sleep" else ""
        if polled:
            return {"call": "lock", "on": polled}
        return {"call": call, "on": _object(call, number, arguments)}
    return {}


def _polled() -> str:
    """Return the path of the lock if the main thread polls for one through filelock, or ""."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    for _ in range(POLLING_FRAMES):
        if frame is None:
            break
        if POLLING in frame.f_code.co_filename:
            with contextlib.suppress(*MISTAKES):
                return os.path.abspath(str(frame.f_locals["self"].lock_file))
        frame = frame.f_back
    return ""


def _object(call: str, number: int, arguments: list[int]) -> str:
    if call in ("read", "connect", "lock"):
        return _behind(arguments[0])
    if call == "open":
        return _path_at(arguments[_PATH_IN[number]])
    if call == "wait":
        child = arguments[1] if number in (247, 95) else arguments[0]
        return str(child) if 0 < child < _SIGNED else ""
    return ""


def _behind(descriptor: int) -> str:
    """Describe a file descriptor: a path, "FIFO PATH", "a pipe", "ADDRESS:PORT", or "a socket" without a peer."""
    kind = os.fstat(descriptor).st_mode
    path = os.readlink("/proc/self/fd/%d" % descriptor)
    if stat.S_ISSOCK(kind):
        with socket.socket(fileno=os.dup(descriptor)) as its, contextlib.suppress(OSError):
            peer = its.getpeername()
            return "%s:%s" % (peer[0], peer[1]) if isinstance(peer, tuple) else str(peer)
        return "a socket"
    if stat.S_ISFIFO(kind):
        return "FIFO " + path if path.startswith("/") else "a pipe"
    return path


def _path_at(address: int) -> str:
    """Read the path that the call got, at an address of this process. Prefix a named pipe with "FIFO "."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        path = os.fsdecode(memory.read(PATH_BYTES).partition(b"\0")[0])
    with contextlib.suppress(OSError):
        if stat.S_ISFIFO(os.stat(path).st_mode):
            return "FIFO " + path
    return path


class Threads:
    """The script's threads except the main one, and those that an exception ended."""

    def __init__(self) -> None:
        self._died: list[list[Any]] = []

    def arm(self) -> None:
        """Record exceptions that end threads from now on; they are printed as before."""
        chained = threading.excepthook

        def noted(ended: Any) -> None:
            try:
                with contextlib.suppress(*MISTAKES):
                    self._keep(ended)
            finally:
                chained(ended)

        threading.excepthook = noted

    def _keep(self, ended: Any) -> None:
        if ended.exc_type is SystemExit or len(self._died) >= MOST_DEAD:
            return
        frames = [list(frame) for frame in frames_of(ended.exc_traceback)][::-1]
        name = ended.thread.name if ended.thread is not None else "a thread"
        error = shortened("%s: %s" % (ended.exc_type.__name__, ended.exc_value))
        self._died.append([name, frames[:MOST_FRAMES], error])

    def sample(self) -> list[list[Any]]:
        """Return [name, frames, error] of each thread: frames innermost first, error "" if the thread is alive."""
        frames = sys._current_frames()
        living: list[list[Any]] = []
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            own = thread.name.startswith("distui-")
            if thread is threading.main_thread() or own or frame is None or len(living) == MOST_THREADS:
                continue
            stack: list[list[Any]] = []
            while frame is not None and len(stack) < MOST_FRAMES:
                stack.append([frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name])
                frame = frame.f_back
            living.append([thread.name, stack, ""])
        return self._died + living
