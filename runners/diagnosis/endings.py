"""How launchers say that a rank ended: torchrun where it happens and in a table at its end, mpirun, Slurm."""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from typing import NamedTuple

from ..inrank.classes import Death, Failure, classify
from .grammar import Head
from .tally import SOURCES

_ENDED = re.compile(r"failed \(exitcode: (-?\d{1,9})\) local_rank: \d+ \(pid: (\d{1,9})\)")
_LISTED = re.compile(
    r"^\s*(?:rank      : (\d{1,9}) \(local_rank: \d+\)|exitcode  : (-?\d{1,9}) +\(pid: (\d{1,9})\))"
)
"""In the table at the end of torchrun: a rank, and below it how it ended."""
_SIGNALLED = re.compile(
    r"process rank (\d{1,9}) with PID (\d{1,9})(?: on node (\S{1,200}))? exited on signal (\d{1,2})\b"
)
_OOM = re.compile(r"Detected \d+ oom[_-]kill event")
"""torchrun's, mpirun's and Slurm's words."""


class End(NamedTuple):
    """The end of a rank, in a launcher's words."""

    failure: Failure | None
    """None for an exit code that says nothing more, or an end that was told before."""
    head: Head
    """Whose it is."""
    pid: int | None = None


class Endings:
    """What was said so far: a table has a rank and its end in lines of their own, and an end may be said twice."""

    def __init__(self) -> None:
        self._rank: int | None = None
        """Whose lines of torchrun's table are being read."""
        self._pids: set[int] = set()
        """Processes whose end was told."""

    def told(self, line: str, head: Head) -> End | None:
        """What a line says that was not told yet; None for one that says no end. `head`: whose line it is."""
        listed = _LISTED.match(line)
        if listed is None:
            end = _ending(line, head)
        elif listed[1]:
            self._rank = int(listed[1])
            return None
        else:
            end = _listed(int(listed[2]), int(listed[3]), head, self._rank)
        if end is None or end.pid is None:
            return end
        known = end.pid in self._pids
        if len(self._pids) < SOURCES:
            self._pids.add(end.pid)
        return end._replace(failure=None) if known else end


def _ending(line: str, head: Head) -> End | None:
    """What a line says; None for one that says no such thing."""
    if told := _ENDED.search(line):
        return _listed(int(told[1]), int(told[2]), head, None)
    if told := _SIGNALLED.search(line):
        pid = int(told[2]) or None
        whose = _of(int(told[1]), replace(head, host=told[3] or head.host))
        return End(_ended_by_signal(-int(told[4]), pid), whose, pid)
    return End(_OF_SLURM, head) if _OOM.search(line) else None


def _listed(code: int, pid: int, head: Head, rank: int | None) -> End:
    """What torchrun says of a process."""
    failure = _ended_by_signal(code, pid) if code < 0 else None
    return End(failure, head if rank is None else _of(rank, head), pid)


def _of(rank: int, head: Head) -> Head:
    return replace(head, rank=rank, source=(*head.source[:2], rank))


def _ended_by_signal(code: int, pid: int | None) -> Failure:
    """What a launcher's word alone tells: no kernel's log is here, and an abort says why before it."""
    failure = classify(Death(0, code, {}, pid=pid))
    if code == -signal.SIGKILL:
        return failure._replace(text=failure.text.removesuffix(" from outside"), remedy=_KILLED)
    return failure._replace(symptom=code in (-signal.SIGABRT, -signal.SIGTERM))


_OF_SLURM = classify(Death(0, -signal.SIGKILL, {}, oom="Slurm counted it"))
_KILLED = (
    "look in that node's kernel log for an out-of-memory kill (`dmesg -T | grep -i kill`), else for who ends "
    "processes there: the scheduler's limits, preemption, a daemon that guards memory"
)
