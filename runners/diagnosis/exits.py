"""Read exit codes and signals of processes from reports of launchers, schedulers and shells. State across lines."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ..inrank.failure_causes import Death, Failure, classify, signal_of
from ..inrank.tracebacks import of_tool
from .file_names import PROCESS, LocalRanks
from .heads import SOURCES, Head
from .line_formats import EXIT_FORMS, EXITS, PHRASES, SIGNALS

_WORDS = {name: signal.Signals[value] for name, value in SIGNALS.items()}
"""Signals by their names in shells and Slurm."""
RAISED = "terminated with the following error"
"""torch.multiprocessing.spawn writes this above the exception."""
NEEDLES = (*EXITS, RAISED, *_WORDS)
"""Each line that reports an exit contains at least one of these."""
_OTHERS_CODE = (137, 143)
"""Exit codes of nodes that SkyPilot ends because another node has failed."""


class ReportedExit(NamedTuple):
    """A reported exit of a process."""

    failure: Failure | None
    """None for an exit code without a known cause, and for a repeated report."""
    head: Head
    """Rank, host and process that exited."""
    pid: int | None = None
    code: int = 0
    """Exit code as in subprocess: negative for a signal."""


class Endings:
    """State across lines: a table has rank and exit on separate lines, and an exit may be reported twice."""

    def __init__(self) -> None:
        self.hosts: dict[int, str] = {}
        """Host by rank, from torchrun's table."""
        self.locals = LocalRanks()
        """Local ranks and their global ranks, also from exit reports."""
        self.who: dict[int, Head] = {}
        """Rank and host by pid, from all exit reports. One report may name the rank, another the host."""
        self.first: Head | None = None
        """The process that failed first: torchrun's root cause, else the first exit with a rank or host."""
        self.rooted = False
        """Whether `first` is torchrun's root cause."""
        self._host = ""
        self._rank: int | None = None
        """Rank of the current rows of torchrun's table."""
        self._root = False
        """Whether the current rows are of the root cause."""
        self._time = self._root_time = ""
        """Failure time in the current rows, and of the root cause."""

    def reported(self, text: str, head: Head, line: str) -> ReportedExit | None:
        """Return the exit that a line reports; None for other lines. A repeated report has no failure.

        `text`: the line without prefixes.
        """
        listed = PHRASES["torchrun_row"].match(text)
        end = self._listed(listed, head) if listed else _ending(text, _spoken(line, head))
        if end is None:
            return None
        if end.head.node and end.head.rank is not None:
            self.locals.add(end.head.node, end.head.rank)
        repeated = end.pid in self.who
        self._identify(end)
        if self._is_first(end, head):
            self.first, self.rooted, self._root_time = end.head, self._root, self._time
        self._root = self._root and not end.code
        return end._replace(failure=None) if repeated else end

    def _identify(self, end: ReportedExit) -> None:
        """Note rank and host of the process. A repeated report adds to the earlier one."""
        if end.pid is None or (end.pid not in self.who and len(self.who) >= SOURCES):
            return
        whose = _both(self.who[end.pid], end.head) if end.pid in self.who else end.head
        self.who[end.pid] = whose
        if self.first is not None and self.first.pid == end.pid:
            self.first = whose

    def _is_first(self, end: ReportedExit, head: Head) -> bool:
        """Whether the exit of a process with a known rank or host came first. `head`: the writer of the report."""
        if not end.code or not (self.first is None or self._is_root()):
            return False
        ranked = end.head.rank is not None and not end.head.node.startswith(PROCESS)
        return ranked or end.head.host != head.host

    def _is_root(self) -> bool:
        """Whether the process is the root cause. Of the root causes in several nodes' tables, the earliest wins."""
        return self._root and (not self.rooted or self._time < self._root_time)

    def _listed(self, row: re.Match[str], head: Head) -> ReportedExit | None:
        """Read a row of torchrun's table."""
        if row["root"]:
            self._root = True
        elif row["time"]:
            self._time = row["time"]
        elif row["host"]:
            self._host = row["host"]
        elif row["rank"]:
            self._rank = int(row["rank"])
            self.locals.add(self._host or head.source[0], int(row["local"]), self._rank)
            if self._host and len(self.hosts) < SOURCES:
                self.hosts[self._rank] = self._host
        else:
            whose = replace(head, host=self._host or head.host)
            whose = whose if self._rank is None else of_rank(self._rank, whose)
            return _exit(int(row["code"]), int(row["pid"]), whose)
        return None


def _ending(line: str, head: Head) -> ReportedExit | None:
    """Return the exit that a line reports; None for other lines."""
    for pattern in EXIT_FORMS.values():
        if match := pattern.search(line):
            return None if of_tool(line) else _exit_of(match, head)
    if PHRASES["slurm_oom"].search(line):
        return ReportedExit(_OF_SLURM, head, code=-signal.SIGKILL)
    return None


def _spoken(line: str, head: Head) -> Head:
    """Add host and process if the line begins with them."""
    match = PHRASES["speaker"].search(line, 0, 300)
    return head if match is None else replace(head, host=head.host or match["host"], pid=int(match["pid"]))


def _both(before: Head, again: Head) -> Head:
    """Merge two reports of one process. A global rank wins over a local one."""
    surer = (
        again
        if before.rank is None or (before.node and again.rank is not None and not again.node)
        else before
    )
    return replace(surer, host=before.host or again.host, pid=before.pid)


def _exit_of(match: re.Match[str], head: Head) -> ReportedExit | None:
    groups = match.groupdict()
    whose = _named_in(groups, replace(head, host=groups.get("host") or head.host))
    pid = int(groups["pid"]) or None if groups.get("pid") else head.pid
    word = groups.get("word")
    if word and word not in _WORDS:
        return ReportedExit(_OF_SLURM, whose, pid, -signal.SIGKILL)
    if groups.get("list"):
        number, code = _of_list(groups["list"])
        return _exit(code, pid, of_rank(number, whose))
    return _exit(_code(groups), pid, whose)


def _named_in(groups: Mapping[str, Any], whose: Head) -> Head:
    """Add the global or local rank of a report."""
    if groups.get("rank"):
        return of_rank(int(groups["rank"]), whose)
    if groups.get("local") and (whose.rank is None or whose.node):
        node = whose.host or (whose.node if whose.node.startswith("process ") else whose.source[0])
        return replace(whose, rank=int(groups["local"]), node=node)
    return whose


def _code(groups: dict[str, str | None]) -> int:
    if groups.get("raised"):
        return 1
    if groups.get("code"):
        return int(groups["code"] or 0)
    if groups.get("name"):
        return -int(signal.Signals.__members__.get(groups["name"] or "", 0))
    return -int(_WORDS[groups["word"] or ""] if groups.get("word") else groups["signal"] or 0)


def _of_list(text: str) -> tuple[int, int]:
    """Return number and exit code of the first node that SkyPilot did not end."""
    codes = [int(code) for code in text.replace(",", " ").split()]
    failed = [(at, code) for at, code in enumerate(codes) if code]
    own = [(at, code) for at, code in failed if code not in _OTHERS_CODE]
    return next(iter(own or failed), (0, 0))


def _exit(code: int, pid: int | None, head: Head) -> ReportedExit:
    """Classify an exit by its report, without a kernel log. An abort is a symptom: lines before it explain it."""
    number = signal_of(code)
    head = replace(head, pid=pid)
    if number is None:
        return ReportedExit(None, head, pid, code)
    failure = classify(Death(0, -number, {}, pid=pid))
    if number == signal.SIGKILL:
        failure = failure._replace(text=failure.text.removesuffix(" from outside"), remedy=_KILLED)
    elif number in (signal.SIGABRT, signal.SIGTERM):
        failure = failure._replace(symptom=True)
    return ReportedExit(failure, head, pid, -number)


def of_rank(rank: int, head: Head) -> Head:
    return replace(head, rank=rank, node="", source=(head.host or head.source[0], head.source[1], rank))


_OF_SLURM = classify(Death(0, -signal.SIGKILL, {}, oom="Slurm counted it"))
_KILLED = (
    "look in that node's kernel log for an out-of-memory kill (`dmesg -T | grep -i kill`), else for who ends "
    "processes there: the scheduler's limits, preemption, a daemon that guards memory"
)
