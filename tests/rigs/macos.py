"""`distui` where Python has what it has on macOS: `python tests/rigs/macos.py WORDS…`. It does not replace a Mac.

What only Linux has is taken away: functions and constants of the standard library, /proc and /sys, functions of the C
library, and poll(2) on terminals. Packages of others are loaded before, as they choose their parts by the platform.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import os
import resource
import select
import selectors
import signal
import socket
import sys
import time
from typing import Any

OTHERS = (
    "asyncio", "subprocess", "selectors", "multiprocessing", "ssl", "tempfile", "shutil", "sysconfig", "textual.app",
    "textual.widgets", "textual.drivers.linux_driver", "textual.screen", "textual.containers", "rich.console", "msgspec",
    "psutil", "yaml", "tomlkit", "argcomplete",
)  # fmt: skip
LINUX_ONLY: dict[Any, tuple[str, ...]] = {
    os: (
        "O_PATH", "O_TMPFILE", "O_DIRECT", "O_LARGEFILE", "O_NOATIME", "O_RSYNC", "getxattr", "setxattr", "listxattr",
        "removexattr", "pidfd_open", "memfd_create", "eventfd", "posix_fadvise", "posix_fallocate", "fdatasync", "pipe2",
        "getrandom", "copy_file_range", "splice", "setns", "unshare", "getresuid", "getresgid", "setresuid", "setresgid",
        "sched_getaffinity", "sched_setaffinity", "sched_getscheduler", "sched_setscheduler",
    ),
    socket: (
        "SO_PEERCRED", "SO_PASSCRED", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "AF_NETLINK", "AF_PACKET", "SO_DOMAIN",
        "SO_PROTOCOL", "TCP_QUICKACK", "TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "SO_BINDTODEVICE", "MSG_NOSIGNAL", "SO_MARK",
    ),
    select: ("epoll", "EPOLLIN", "EPOLLOUT", "POLLRDHUP"),
    signal: ("SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGSTKFLT", "SIGPOLL", "SIGCLD", "sigtimedwait", "sigwaitinfo"),
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI"),
    resource: ("prlimit", "RUSAGE_THREAD", "RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_SIGPENDING", "RLIMIT_MSGQUEUE"),
    fcntl: ("F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_NOTIFY", "F_ADD_SEALS", "F_GET_SEALS", "F_OFD_SETLK", "F_OFD_GETLK"),
}  # fmt: skip
"""By the module; as CPython's documentation has it under "Availability"."""
ABSENT = ("/proc", "/sys", "/dev/shm")
OF_GLIBC = ("fallocate", "inotify_init1", "inotify_add_watch", "tgkill", "adjtimex", "gettid", "prctl")


class NoTerminals:
    """poll(2) as macOS has it: it refuses terminals."""

    def __init__(self) -> None:
        self._poll = _poll()

    def register(self, descriptor: int, events: int) -> None:
        assert not os.isatty(descriptor), "poll(2) of macOS takes no terminals"
        self._poll.register(descriptor, events)

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        return self._poll.poll(timeout)


class Library(ctypes.CDLL):
    """A C library without what only Linux's has."""

    def __getattr__(self, name: str) -> Any:
        if name in OF_GLIBC:
            raise AttributeError(name)
        return super().__getattr__(name)


_poll = select.poll


def _absent(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and arguments and isinstance(arguments[0], str):
        path = arguments[0]
        if path.startswith(ABSENT):
            raise FileNotFoundError(2, "No such file or directory", path)


def become() -> None:
    """Take it away, in this process."""
    for name in OTHERS:
        importlib.import_module(name)
    for module, names in LINUX_ONLY.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    selectors.DefaultSelector = selectors.SelectSelector  # type: ignore[misc, assignment]
    select.poll = NoTerminals  # type: ignore[misc, assignment]
    ctypes.CDLL = Library  # type: ignore[misc]
    sys.platform = "darwin"
    sys.addaudithook(_absent)


if __name__ == "__main__":
    become()
    cli = importlib.import_module("distui.tui.cli")
    sys.exit(cli.main(sys.argv[1:]))
