"""The processes that the launcher spawned: whose they are, and how they ended, without taking them from their owner."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any


def signal_name(exit_code: int | None) -> str | None:
    """Name of the signal behind a negative exit code, else None."""
    if exit_code is None or exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return "signal %d" % -exit_code


def kill_group(pid: int, number: int) -> None:
    """Signal the process group that a rank leads; nothing when it is gone."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def children() -> list[int]:
    """Pids of this process's children, oldest first, zombies included."""
    pids: list[int] = []
    try:
        for task in os.listdir("/proc/self/task"):
            with open("/proc/self/task/%s/children" % task) as file:
                pids.extend(int(pid) for pid in file.read().split())
    except OSError:
        pids = _children_by_scan()
    return sorted(pids, key=lambda pid: (start_ticks(pid), pid))


def _children_by_scan() -> list[int]:
    """For kernels without CONFIG_PROC_CHILDREN: field 4 of /proc/<pid>/stat is the parent."""
    me = str(os.getpid())
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and stat_of(int(name))[1:2] == [me]]


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third (state) on; [] when the process is gone."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def start_ticks(pid: int) -> int:
    """Clock ticks between boot and the start of a process (field 22 of stat); 0 when it is gone."""
    return int((stat_of(pid) or ["0"] * 20)[19])


def is_zombie(pid: int) -> bool:
    """Whether a process has ended and was not reaped: its environment can no longer be read."""
    return stat_of(pid)[:1] == ["Z"]


def environ_of(pid: int) -> dict[str, str]:
    """Environment with which a process was started, as a dict of str; {} when it is gone or not ours."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            raw = file.read()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, _, value in pairs}


def local_rank_of(pid: int) -> int | None:
    """Local rank by environment; None while the process is still a copy of its parent."""
    env = environ_of(pid)
    local = env.get("LOCAL_RANK", "")
    return int(local) if local.isdigit() and env.get("DISTUI_RUNNER_PID") == str(os.getpid()) else None


_codes: dict[int, tuple[int, float]] = {}
"""Exit codes that a Popen of this process has taken: pid → code, and the monotonic time."""


def note_exit_codes() -> None:
    """Have every Popen of this process tell the exit code that it reaps from now on: a Popen is gone soon after."""

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
    """Block until a child ends; its exit code (negative: signal), left for its owner to reap.

    None when the owner was quicker and its exit code is not known either; see `note_exit_codes`. `since`: a monotonic
    time before which the pid was another process's.
    """
    try:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except OSError:
        return _reaped(pid, since)
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def _reaped(pid: int, since: float, seconds: float = 2.0) -> int | None:
    """The exit code that the process's owner has taken, or is about to tell."""
    deadline = time.monotonic() + seconds
    while True:
        code, at = _codes.get(pid, (0, -1.0))
        if at >= since:
            return code
        if time.monotonic() > deadline:
            return None
        time.sleep(0.01)
