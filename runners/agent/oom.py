"""What the kernel says of a rank that ended: was it killed for memory, and did its GPU's driver complain?"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ...presets.sanitize import clean_text
from ..telemetry.gpu_health import XID

_LINE = re.compile(r"(?:Killed process|oom-kill:.*?pid=)\s*(\d+)")
_XID = re.compile(r"NVRM: Xid \([^)]*\): (?P<code>\d+)(?:, pid=(?P<pid>\d+))?")
RECENT_S = 60.0
"""An Xid that names no process is held against a rank that ended at most this long after it."""
CGROUPS = Path("/sys/fs/cgroup")


class KernelMessage(NamedTuple):
    """One message of the kernel."""

    at: float
    """Seconds since the boot, without sleep."""
    text: str


class KernelEvidence(NamedTuple):
    """What the kernel says of one end."""

    oom: str | None = None
    """Where it says that it killed the process for memory."""
    lines: tuple[str, ...] = ()
    """What the driver of the GPUs said of it, a line each."""


NOTHING = KernelEvidence()


def kernel_log(limit: int = 1 << 20) -> list[KernelMessage]:
    """The kernel's messages, oldest first; [] where this user may not read them."""
    records: list[KernelMessage] = []
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return records
    try:
        while len(records) < limit:
            with contextlib.suppress(BrokenPipeError):  # a record was overwritten meanwhile
                records.append(record(os.read(descriptor, 8192)))
    except OSError:
        return records
    finally:
        os.close(descriptor)
    return records


def record(raw: bytes) -> KernelMessage:
    """A record of /dev/kmsg: "priority,number,microseconds,flags;text"."""
    head, _, text = raw.decode("utf-8", "replace").partition(";")
    fields = head.split(",")
    micros = int(fields[2]) if len(fields) > 2 and fields[2].isdigit() else 0
    return KernelMessage(micros / 1e6, text.strip())


def in_kernel_log(pid: int, log: Iterable[KernelMessage]) -> str | None:
    """The newest message that names this pid as killed for memory."""
    newest = None
    for message in log:
        named = _LINE.search(message.text)
        if named and int(named.group(1)) == pid:
            newest = message.text.splitlines()[0]
    return newest


def xids(pid: int, log: Iterable[KernelMessage], now: float) -> tuple[str, ...]:
    """The driver's errors that name this process, or that came just now and name none, in its words and in ours.

    `now` as time.monotonic() has it, which the kernel's log follows.
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


# --- cgroups ---------------------------------------------------------------------------------------------------


def cgroup_kills(pid: int | None = None) -> Mapping[Path, int]:
    """How often the kernel killed for memory in the cgroup of a process (None: of this one), by the file that counts.

    Empty where that cannot be read.
    """
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
        # In a container the path is the host's: its own cgroup is then what is mounted.
        for file in (home / path.lstrip("/") / name, home / name):
            kills = kills_in(file)
            if kills is not None:
                counts[file] = kills
                break
    return counts


def kills_in(file: Path) -> int | None:
    """The counter `oom_kill` of a file of a cgroup; None where there is none."""
    try:
        for line in file.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except (OSError, ValueError):
        return None
    return None


class OomWatch:
    """Remembers the cgroups' counters, so that a kill can be told from an older one."""

    def __init__(self) -> None:
        self._kills = dict(cgroup_kills())

    def follow(self, pid: int | None) -> None:
        """A rank runs: it may be in a cgroup of its own."""
        if pid is not None:
            for file, kills in cgroup_kills(pid).items():
                self._kills.setdefault(file, kills)

    def evidence(self, pid: int | None, signal: str | None) -> KernelEvidence:
        """What the kernel says about a rank that ended by a signal or of an error of its GPU."""
        if pid is None:
            return NOTHING
        log = kernel_log()
        errors = xids(pid, log, time.monotonic())
        if signal == "SIGKILL":
            return KernelEvidence(self._oom(pid, log), errors)
        counted = self._counted()  # a data loader's worker, or another child of it
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
