"""Find and end the processes of a run by their marker without races, and read the kernel's reason for their end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ...presets.sanitize import clean_text
from .. import clock
from ..telemetry.gpu_words import XID
from ..telemetry.proc import all_stats, children, is_own, pids, read_once, read_stat

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


_LINE = re.compile(r"(?:Killed process|oom-kill:.*?pid=)\s*(\d+)")
_XID = re.compile(r"NVRM: Xid \([^)]*\): (?P<code>\d+)(?:, pid=(?P<pid>\d+))?")
RECENT_S = 60.0
"""Largest age, in seconds, of an Xid without a process that is attributed to an ended rank."""
CGROUPS = Path("/sys/fs/cgroup")


class KernelMessage(NamedTuple):
    at: float
    """Seconds since boot, without suspend."""
    text: str


class KernelEvidence(NamedTuple):
    oom: str | None = None
    """The kernel's message on an out-of-memory kill of the process."""
    lines: tuple[str, ...] = ()
    """Lines of the GPU driver on the process."""


NOTHING = KernelEvidence()


def kernel_log(limit: int = 1 << 20) -> list[KernelMessage]:
    """Return the kernel's messages, oldest first. [] if this user may not read them."""
    records: list[KernelMessage] = []
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return records
    try:
        while len(records) < limit:
            with contextlib.suppress(BrokenPipeError):  # the record was overwritten
                records.append(record(os.read(descriptor, 8192)))
    except OSError:
        return records
    finally:
        os.close(descriptor)
    return records


def record(raw: bytes) -> KernelMessage:
    """Parse a record of /dev/kmsg: "priority,number,microseconds,flags;text"."""
    head, _, text = raw.decode("utf-8", "replace").partition(";")
    fields = head.split(",")
    micros = int(fields[2]) if len(fields) > 2 and fields[2].isdigit() else 0
    return KernelMessage(micros / 1e6, text.strip())


def in_kernel_log(pid: int, log: Iterable[KernelMessage]) -> str | None:
    """Return the newest message on an out-of-memory kill of this pid."""
    newest = None
    for message in log:
        named = _LINE.search(message.text)
        if named and int(named.group(1)) == pid:
            newest = message.text.splitlines()[0]
    return newest


def xids(pid: int, log: Iterable[KernelMessage], now: float) -> tuple[str, ...]:
    """Return the driver's errors that name this process, or recent ones without a process, with an explanation.

    `now`: clock.monotonic(), which the kernel's log also uses.
    """
    lines: list[str] = []
    for message in log:
        match = _XID.search(message.text)
        if match is None or not _about(match, pid, now - message.at):
            continue
        words = XID.get(int(match["code"]))
        line = clean_text(f"kernel log: {message.text.splitlines()[0]}")
        lines.append(f"{line} ({words[1]})" if words else line)
    return tuple(lines[-4:])


def _about(match: re.Match[str], pid: int, age_s: float) -> bool:
    return int(match["pid"]) == pid if match["pid"] else -1 <= age_s <= RECENT_S


def cgroup_kills(pid: int | None = None) -> Mapping[Path, int]:
    """Return the out-of-memory kills in the cgroup of a process (None: this one), by counter file. {} if unreadable."""
    who = "self" if pid is None else str(pid)
    try:
        lines = Path(f"/proc/{who}/cgroup").read_text().splitlines()
    except OSError:
        return {}
    counts = {}
    for line in lines:
        number, names, path = line.split(":", 2)
        if number == "0":
            home, name = CGROUPS, "memory.events"
        elif names == "memory":
            home, name = CGROUPS / "memory", "memory.oom_control"
        else:
            continue
        # In a container the path is the host's. Its own cgroup is then at the mount point.
        for file in (home / path.lstrip("/") / name, home / name):
            kills = kills_in(file)
            if kills is not None:
                counts[file] = kills
                break
    return counts


def kills_in(file: Path) -> int | None:
    """Return the counter `oom_kill` of a cgroup's file, or None."""
    try:
        for line in file.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except (OSError, ValueError):
        return None
    return None


class OomWatch:
    """Remembers the cgroups' counters, so that a new kill differs from an older one."""

    def __init__(self) -> None:
        self._kills = dict(cgroup_kills())

    def follow(self, pid: int | None) -> None:
        """Read the counters of a running rank's cgroup, which may differ from the agent's."""
        if pid is not None:
            for file, kills in cgroup_kills(pid).items():
                self._kills.setdefault(file, kills)

    def evidence(self, pid: int | None, signal: str | None) -> KernelEvidence:
        """Return the kernel's messages on a rank that ended by a signal or a GPU error."""
        if pid is None:
            return NOTHING
        log = kernel_log()
        errors = xids(pid, log, clock.monotonic())
        if signal == "SIGKILL":
            return KernelEvidence(self._oom(pid, log), errors)
        counted = self._counted()  # a child of the rank, such as a data loader worker
        return KernelEvidence(None, (*errors, counted) if counted else errors)

    def _oom(self, pid: int, log: list[KernelMessage]) -> str | None:
        counted = self._counted()
        line = in_kernel_log(pid, log)
        return f"kernel log: {clean_text(line)}" if line is not None else counted

    def _counted(self) -> str | None:
        text = None
        for file, before in self._kills.items():
            now = kills_in(file)
            if now is not None and now > before:
                self._kills[file] = now
                text = text or f"cgroup {file.name}: oom_kill {before} → {now}"
        return text
