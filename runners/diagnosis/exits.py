"""How processes ended, as launchers, schedulers and shells tell it: exit codes and signals. State across lines."""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from typing import NamedTuple

from ..inrank.failure_causes import Death, Failure, classify, signal_of
from .heads import SOURCES, Head

_LISTED = re.compile(
    r"^\s*(?:host      : (?P<host>\S{1,200})|rank      : (?P<rank>\d{1,9}) \(local_rank: \d+\)"
    r"|exitcode  : (?P<code>-?\d{1,9}) +\(pid: (?P<pid>\d{1,9})\)|(?P<root>Root Cause \(first observed failure\):))"
)
"""In the table at the end of torchrun: a host, a rank on it, and how it ended; that of the root cause comes last."""

_WORDS = {
    "Killed": signal.SIGKILL, "Segmentation fault": signal.SIGSEGV, "Bus error": signal.SIGBUS,
    "Terminated": signal.SIGTERM, "Aborted": signal.SIGABRT, "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE, "Hangup": signal.SIGHUP,
}  # fmt: skip
"""What shells and Slurm call signals."""
_WORD = f"(?P<word>{'|'.join(_WORDS)}|Out [Oo]f [Mm]emory)"

_MPIRUN = (
    r"process rank (?P<rank>\d{1,9}) with PID (?P<pid>\d{1,9})(?: on node (?P<host>\S{1,200}))? exited on "
    r"signal (?P<signal>\d{1,2})\b"
)
_SRUN = r"srun: error: (?P<host>[\w.-]{1,200}): tasks? (?P<rank>\d{1,9})[\d,-]*: "
_FORMS = tuple(
    re.compile(pattern)
    for pattern in (
        # torchrun; DeepSpeed's launcher; subprocess, as Accelerate and torch.distributed.launch use it
        r"failed \(exitcode: (?P<code>-?\d{1,9})\) local_rank: \d+ \(pid: (?P<pid>\d{1,9})\)",
        r"exits with return code = (?P<code>-?\d{1,9})",
        r"died with <Signals\.\w+: (?P<signal>\d{1,2})>|returned non-zero exit status (?P<code>\d{1,3})",
        # torch.multiprocessing.spawn
        r"process (?P<rank>\d{1,9}) terminated with (?:signal (?P<name>SIG\w+)|exit code (?P<code>\d{1,3}))",
        _MPIRUN,
        # with its task number as the rank
        f"{_SRUN}(?:{_WORD}|Exited with exit code (?P<code>\\d{{1,3}}))",
        # pdsh
        r"(?P<host>[\w.-]{1,200}): ssh exited with exit code (?P<code>\d{1,3})",
        # SkyPilot: a list with the code of each node
        r"failed with return code list: \[(?P<list>[-\d, ]{1,4000})\]",
        # shells
        rf"(?:^|: )line \d+: +(?P<pid>\d{{1,9}}) {_WORD}",
        rf"^{_WORD}(?: \(core dumped\))?$",
    )
)
NEEDLES = (
    "failed (exitcode: ", "host      : ", "rank      : ", "exitcode  : ", "Root Cause (first", "exited on signal ",
    "oom_kill event", "oom-kill event", "return code = ", "died with <Signals.", "non-zero exit status ",
    "terminated with signal SIG", "terminated with exit code ", "ssh exited with ", "srun: error: ",
    "return code list: [", *_WORDS,
)  # fmt: skip
"""One stands in each line that tells of an exit."""
_OOM = re.compile(r"Detected \d+ oom[_-]kill event")
"""Slurm's words."""
_OTHERS_CODE = (137, 143)
"""Of nodes that SkyPilot ends because another has failed."""


class ReportedExit(NamedTuple):
    """The exit of a process, as somebody reports it."""

    failure: Failure | None
    """None for an exit code without a cause, or an exit that was reported before."""
    head: Head
    """Whose it is."""
    pid: int | None = None
    code: int = 0
    """As subprocess gives it."""


class Endings:
    """State across lines: a table has rank and exit in separate lines, and an exit may be reported twice."""

    def __init__(self) -> None:
        self.hosts: dict[int, str] = {}
        """Host of a rank, as torchrun's table says."""
        self.first: Head | None = None
        """Who failed first, as somebody says: torchrun's root cause, else the first whose rank or host is told."""
        self._host = ""
        self._rank: int | None = None
        """Whose lines of torchrun's table are being read."""
        self._root = False
        """Whether they are those of the root cause."""
        self._pids: set[int] = set()
        """Processes whose exit was reported."""

    def reported(self, line: str, head: Head) -> ReportedExit | None:
        """The exit that a line reports, without a failure if it was reported before; None for other lines."""
        listed = _LISTED.match(line)
        end = _ending(line, head) if listed is None else self._listed(listed, head)
        if end is None:
            return None
        named = end.head.rank is not None or end.head.host
        if named and end.code and (self.first is None or self._root):
            self.first, self._root = end.head, False
        if end.pid is None:
            return end
        repeated = end.pid in self._pids
        if len(self._pids) < SOURCES:
            self._pids.add(end.pid)
        return end._replace(failure=None) if repeated else end

    def _listed(self, row: re.Match[str], head: Head) -> ReportedExit | None:
        """A row of torchrun's table."""
        if row["root"]:
            self._root = True
        elif row["host"]:
            self._host = row["host"]
        elif row["rank"]:
            self._rank = int(row["rank"])
            if self._host and len(self.hosts) < SOURCES:
                self.hosts[self._rank] = self._host
        else:
            whose = replace(head, host=self._host or head.host)
            whose = whose if self._rank is None else of_rank(self._rank, whose)
            return _exit(int(row["code"]), int(row["pid"]), whose)
        return None


def _ending(line: str, head: Head) -> ReportedExit | None:
    """The exit that a line reports; None for other lines."""
    for pattern in _FORMS:
        if match := pattern.search(line):
            return _exit_of(match, head)
    return ReportedExit(_OF_SLURM, head, code=-signal.SIGKILL) if _OOM.search(line) else None


def _exit_of(match: re.Match[str], head: Head) -> ReportedExit | None:
    groups = match.groupdict()
    whose = replace(head, host=groups["host"]) if groups.get("host") else head
    if groups.get("rank"):
        whose = of_rank(int(groups["rank"]), whose)
    pid = int(groups["pid"]) or None if groups.get("pid") else None
    if groups.get("word", "") and groups["word"] not in _WORDS:
        return ReportedExit(_OF_SLURM, whose, pid, -signal.SIGKILL)
    if groups.get("list"):
        number, code = _of_list(groups["list"])
        return _exit(code, pid, of_rank(number, whose))
    return _exit(_code(groups), pid, whose)


def _code(groups: dict[str, str | None]) -> int:
    if groups.get("code"):
        return int(groups["code"] or 0)
    if groups.get("name"):
        return -int(signal.Signals.__members__.get(groups["name"] or "", 0))
    return -int(_WORDS[groups["word"] or ""] if groups.get("word") else groups["signal"] or 0)


def _of_list(text: str) -> tuple[int, int]:
    """Number and code of the node that failed by itself."""
    codes = [int(code) for code in text.replace(",", " ").split()]
    failed = [(at, code) for at, code in enumerate(codes) if code]
    own = [(at, code) for at, code in failed if code not in _OTHERS_CODE]
    return next(iter(own or failed), (0, 0))


def _exit(code: int, pid: int | None, head: Head) -> ReportedExit:
    """From a report alone: there is no kernel log here, and an abort is explained before it."""
    number = signal_of(code)
    if number is None:
        return ReportedExit(None, head, pid, code)
    failure = classify(Death(0, -number, {}, pid=pid))
    if number == signal.SIGKILL:
        failure = failure._replace(text=failure.text.removesuffix(" from outside"), remedy=_KILLED)
    elif number in (signal.SIGABRT, signal.SIGTERM):
        failure = failure._replace(symptom=True)
    return ReportedExit(failure, head, pid, -number)


def of_rank(rank: int, head: Head) -> Head:
    """The same, told of this rank."""
    return replace(head, rank=rank, node="", source=(head.host or head.source[0], head.source[1], rank))


_OF_SLURM = classify(Death(0, -signal.SIGKILL, {}, oom="Slurm counted it"))
_KILLED = (
    "look in that node's kernel log for an out-of-memory kill (`dmesg -T | grep -i kill`), else for who ends "
    "processes there: the scheduler's limits, preemption, a daemon that guards memory"
)
