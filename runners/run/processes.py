"""Find and end the processes of a run by their marker, without races."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from .proc import all_stats, children, is_own, pids, read_once, read_stat

MARKER = "DISTUI_RUN_ID"
AGENTS = (b"distui.runners.agent", b"distui.runners.hub")
"""Modules that serve a run, as in their arguments."""
_CAUGHT = re.compile(rb"^SigCgt:\s+([0-9a-f]+)", re.MULTILINE)
_IGNORED = re.compile(rb"^SigIgn:\s+([0-9a-f]+)", re.MULTILINE)
_BLOCKED = re.compile(rb"^SigBlk:\s+([0-9a-f]+)", re.MULTILINE)


def environ_of(pid: int) -> dict[str, str]:
    """Return the initial environment of a process. {} if it has exited or belongs to another user."""
    try:
        return _variables(Path(f"/proc/{pid}/environ").read_bytes())
    except OSError:
        return {}


def _variables(raw: bytes) -> dict[str, str]:
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0"))
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs if key}


def arguments_of(pid: int) -> list[bytes]:
    """Return the words of a command line with a final empty word. [] if the process has exited."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def marked(run: str, keep: Iterable[int] = ()) -> dict[int, dict[str, str]]:
    """Return this user's living processes with the marker of `run` and their environment, except zombies and `keep`."""
    needle = f"{MARKER}={run}".encode()
    by_pid = {}
    spared = {os.getpid(), *keep}
    for pid in pids():
        if pid in spared:
            continue
        try:
            raw = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if needle in raw.split(b"\0") and is_own(pid):
            by_pid[pid] = _variables(raw)
    return by_pid


def unmarked(run: str) -> dict[int, int]:
    """Return this user's descendants of marked processes without the marker, as pid → start ticks.

    Call it while their parents live, because orphans have no other ancestor. The processes that serve another run,
    which a rank launched, are left out with their descendants.
    """
    carriers = marked(run)
    stats = {stat.pid: stat for stat in all_stats()}
    below = children({pid: stat.ppid for pid, stat in stats.items()})
    unknown: dict[int, int] = {}
    due = [*carriers]
    while due:
        for pid in below.pop(due.pop(), ()):
            if any(module in arguments_of(pid) for module in AGENTS):
                continue
            due.append(pid)
            if pid not in carriers and pid != os.getpid() and is_own(pid):
                unknown[pid] = stats[pid].started
    return unknown


def state_of(pid: int) -> str | None:
    """Return the state in /proc/<pid>/stat ("R", "S", "D", "Z", …), or None if there is no such process."""
    stat = read_stat(pid)
    return None if stat is None else stat.state


def disposition(pid: int, number: int) -> str | None:
    """Return a process's disposition of a signal: "catches", "ignores", "blocks" or "default". None if it has exited."""
    data = read_once(f"/proc/{pid}/status")
    if data is None:
        return None
    for word, pattern in (("catches", _CAUGHT), ("ignores", _IGNORED), ("blocks", _BLOCKED)):
        mask = pattern.search(data)
        if mask is not None and int(mask[1], 16) >> (number - 1) & 1:
            return word
    return "default"


def catches(pid: int, number: int) -> bool:
    """Return True if a process has a handler for a signal. Otherwise the signal may end it."""
    return disposition(pid, number) == "catches"


def send_signal(pid: int, number: int) -> bool:
    """Signal one process. Return False if it has exited."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def send_to_thread(pid: int, thread: int, number: int) -> bool:
    """Signal one thread of a process without interrupting its other threads. Return False if that fails."""
    try:
        tgkill = ctypes.CDLL(None, use_errno=True).tgkill
    except AttributeError:
        return False
    return int(tgkill(pid, thread, number)) == 0


def resume(pids: Iterable[int]) -> None:
    """Continue stopped processes, because they handle SIGTERM only after SIGCONT."""
    for pid in pids:
        if state_of(pid) in ("T", "t"):
            send_signal(pid, signal.SIGCONT)


async def gone(pid: int, seconds: float) -> bool:
    """Wait for the end of a process that is no child. Return False after `seconds`."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(seconds):
            await ended.wait()
        return True
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def sweep(
    run: str,
    *,
    keep: Iterable[int] = (),
    wanted: Callable[[dict[str, str]], bool] = lambda env: True,
    also: Mapping[int, int] = MappingProxyType({}),
    grace_s: float = 2.0,
) -> list[str]:
    """End every marked process: SIGTERM, `grace_s`, SIGKILL. Return a text per process that did not end.

    `also`: more processes, as returned by `unmarked`.
    """
    kept = tuple(keep)

    def living() -> list[int]:
        pids = [pid for pid, env in marked(run, kept).items() if wanted(env)]
        pids += [pid for pid, started in also.items() if _started(pid) == started]
        return [pid for pid in dict.fromkeys(pids) if state_of(pid) not in (None, "Z")]

    for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 3.0)):
        left = living()
        if not left:
            return []
        for pid in left:
            send_signal(pid, number)
        resume(left)
        await asyncio.gather(*(gone(pid, patience) for pid in left))
    return [f"pid {pid} (state {state_of(pid)})" for pid in living()]


def _started(pid: int) -> int | None:
    stat = read_stat(pid)
    return None if stat is None else stat.started
