"""The processes of the ranks: find them among the children of this process, signal them, and wait for their exits.

torch starts and reaps them. This module only looks at /proc and peeks at exit codes.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any


def signal_name(exit_code: int | None) -> str | None:
    """Return the name of the signal of a negative exit code, else None."""
    if exit_code is None or exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return "signal %d" % -exit_code


def kill_group(pid: int, number: int) -> None:
    """Send a signal to the process group of a rank, if it exists."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def children() -> list[int]:
    """Return the pids of this process's children, oldest first, including zombies."""
    pids: list[int] = []
    try:
        for task in os.listdir("/proc/self/task"):
            with open("/proc/self/task/%s/children" % task) as file:
                pids.extend(int(pid) for pid in file.read().split())
    except OSError:
        pids = _children_by_scan()
    return sorted(pids, key=lambda pid: (start_ticks(pid), pid))


def _children_by_scan() -> list[int]:
    """Find the children by their parent, field 4 of /proc/<pid>/stat, for kernels without CONFIG_PROC_CHILDREN."""
    me = str(os.getpid())
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and stat_of(int(name))[1:2] == [me]]


def stat_of(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the third (state) on; [] if the process does not exist."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def start_ticks(pid: int) -> int:
    """Return the clock ticks from boot to the start of a process (field 22 of stat); 0 if it does not exist."""
    return int((stat_of(pid) or ["0"] * 20)[19])


def is_zombie(pid: int) -> bool:
    """Return whether a process has exited and was not reaped; its environment can then no longer be read."""
    return stat_of(pid)[:1] == ["Z"]


def environ_of(pid: int) -> dict[str, str]:
    """Return the initial environment of a process; {} if it has exited or belongs to another user."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            raw = file.read()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, _, value in pairs}


def local_rank_of(pid: int) -> int | None:
    """Return the local rank from a process's environment; None before its exec."""
    env = environ_of(pid)
    local = env.get("LOCAL_RANK", "")
    return int(local) if local.isdigit() and env.get("DISTUI_RUNNER_PID") == str(os.getpid()) else None


def identified(pids: list[int], order: list[int]) -> Iterator[tuple[int, int]]:
    """Yield pid and local rank of each known rank. `order`: the local ranks in the order of their spawns."""
    for position, pid in enumerate(pids):
        local = local_rank_of(pid)
        if local is None and position < len(order) and is_zombie(pid):
            local = order[position]  # it exited before its environment was read
        if local is not None:
            yield pid, local


_codes: dict[int, tuple[int, float]] = {}
"""Exit codes that a Popen of this process has reaped: pid → code and monotonic time."""


def note_exit_codes() -> None:
    """Patch Popen.poll and Popen.wait to note the exit codes that they reap from now on."""

    def noting(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def noted(process: Any, *args: Any, **named: Any) -> Any:
            code = plain(process, *args, **named)
            if code is not None:
                _codes[process.pid] = code, time.monotonic()
            return code

        return noted

    kind: Any = subprocess.Popen
    if not hasattr(kind.poll, "__wrapped__"):
        kind.poll, kind.wait = noting(kind.poll), noting(kind.wait)


def wait_peeking(pid: int, since: float = 0.0) -> int | None:
    """Block until a child exits and return its exit code (negative: signal) without reaping it.

    If its Popen was quicker, return the code that it noted (see `note_exit_codes`), or None. `since`: ignore codes from
    before this monotonic time, when another process had the pid.
    """
    try:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except OSError:
        return _reaped(pid, since)
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def _reaped(pid: int, since: float, seconds: float = 2.0) -> int | None:
    """Wait at most `seconds` for the exit code that the process's Popen notes."""
    deadline = time.monotonic() + seconds
    while True:
        code, at = _codes.get(pid, (0, -1.0))
        if at >= since:
            return code
        if time.monotonic() > deadline:
            return None
        time.sleep(0.01)
