"""The processes of a run, found by their marker and ended without a race."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from ..telemetry.proc import read_once, read_stat

MARKER = "DISTUI_RUN_ID"
_CAUGHT = re.compile(rb"^SigCgt:\s+([0-9a-f]+)", re.MULTILINE)


def environ_of(pid: int) -> dict[str, str]:
    """The environment a process was started with; {} when it is gone or not ours."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0"))
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs if key}


def marked(run: str, keep: Iterable[int] = ()) -> dict[int, dict[str, str]]:
    """Living processes that carry the marker of `run`, with their environment; without zombies and `keep`."""
    needle = f"{MARKER}={run}".encode()
    found = {}
    spared = {os.getpid(), *keep}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in spared:
            continue
        try:
            raw = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if needle in raw.split(b"\0"):
            found[int(name)] = environ_of(int(name))
    return found


def state_of(pid: int) -> str | None:
    """One letter of /proc/<pid>/stat ("R", "S", "D", "Z", …); None when there is no such process."""
    stat = read_stat(pid)
    return None if stat is None else stat.state


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal now: others may end it."""
    caught = _CAUGHT.search(read_once(f"/proc/{pid}/status") or b"")
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def send_signal(pid: int, number: int) -> bool:
    """Signal one process; False when it is gone."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


async def gone(pid: int, seconds: float) -> bool:
    """Wait for a process to end, without being its parent; False after `seconds`."""
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
    grace_s: float = 2.0,
) -> list[str]:
    """End every marked process: TERM, `grace_s`, KILL. What would not end is returned, a text each."""
    kept = tuple(keep)
    for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 3.0)):
        found = [pid for pid, env in marked(run, kept).items() if wanted(env) and state_of(pid) != "Z"]
        if not found:
            return []
        for pid in found:
            send_signal(pid, number)
        await asyncio.gather(*(gone(pid, patience) for pid in found))
    left = [pid for pid, env in marked(run, kept).items() if wanted(env)]
    return [f"pid {pid} (state {state_of(pid)})" for pid in left if state_of(pid) not in (None, "Z")]
