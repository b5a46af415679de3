"""The kernel's reasons for the end of a rank: out-of-memory kills and errors of the GPU driver."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ...presets.sanitize import clean_text
from ..run import clock
from ..run.proc import oom_counter
from ..telemetry.gpu_words import XID

_LINE = re.compile(r"(?:Killed process|oom-kill:.*?pid=)\s*(\d+)")
_XID = re.compile(r"NVRM: Xid \([^)]*\): (?P<code>\d+)(?:, pid=(?P<pid>\d+))?")
MOST_RECORDS = 1 << 20
RECENT_S = 60.0
"""Largest age, in seconds, of an Xid without a process that is attributed to an ended rank."""


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


def kernel_log() -> list[KernelMessage]:
    """Return the kernel's messages, oldest first. [] if this user may not read them."""
    records: list[KernelMessage] = []
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return records
    try:
        while len(records) < MOST_RECORDS:
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
        self._kills: dict[Path, int] = {}
        """Counter of a cgroup → its value."""
        self._add("self")

    def follow(self, pid: int | None) -> None:
        """Read the counters of a running rank's cgroup, which may differ from the agent's."""
        if pid is not None:
            self._add(pid)

    def _add(self, pid: int | str) -> None:
        file = oom_counter(pid)
        kills = None if file is None else kills_in(file)
        if file is not None and kills is not None:
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
