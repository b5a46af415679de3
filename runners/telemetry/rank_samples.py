"""Samples of the ranks' processes with their data loader children: CPU, memory, threads, storage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ..run import clock
from ..run.proc import KeptFile, Limits, Stat, below, children, parse_io, parse_stat, read_io, read_stat
from ..run.samples import RankSample

AGAIN = 12
"""Listings before a complete reread: until then a reused pid may count as the earlier process."""


class ProcessTree:
    """The visible processes and their parents. `refresh` reads only processes that are new in /proc.

    Call it every few seconds: it takes one listing of /proc, and 10 µs per new process.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._processes: dict[int, tuple[int, int]] = {}
        """Pid → parent, start time."""
        self._refreshes = 0

    def refresh(self) -> None:
        """Read new processes, drop ended ones, and reread those with an ended parent."""
        if self._refreshes % AGAIN == 0:
            self._processes.clear()
        self._refreshes += 1
        here = {int(name) for name in os.listdir(self._proc) if name.isdigit()}
        for pid in self._processes.keys() - here:
            del self._processes[pid]
        orphans = [pid for pid, (parent, _) in self._processes.items() if parent and parent not in here]
        for pid in [*orphans, *(here - self._processes.keys())]:
            self._read(pid)

    def _read(self, pid: int) -> None:
        stat = read_stat(pid, self._proc)
        if stat is None:
            self._processes.pop(pid, None)
        else:
            self._processes[pid] = stat.ppid, stat.started

    def below(self, roots: Iterable[int]) -> dict[int, dict[int, int]]:
        """For each of `roots` its descendants: pid → start time."""
        tree = children({pid: parent for pid, (parent, _) in self._processes.items()})
        return {root: {pid: self._processes[pid][1] for pid in below(tree, root)} for root in roots}


LIMITS_S = 2.0
"""Seconds between two samples of the ranks' cgroup limits."""
CHILDREN_S = 5.0
"""Seconds between two scans of /proc for the ranks' children."""


class _Used(NamedTuple):
    """CPU seconds and storage bytes, in total or per second; None if unknown."""

    cpu_s: float | None
    read: float | None
    written: float | None


_UNKNOWN = _Used(None, None, None)


class _Tracked:
    """One rank's process, identified by pid and start time, with its children."""

    def __init__(self, stat: Stat, proc: str) -> None:
        self._stat = KeptFile(f"{proc}/{stat.pid}/stat", 1024)
        self._io = KeptFile(f"{proc}/{stat.pid}/io", 1024)
        self.limits = Limits(stat.pid, proc)
        self.pid = stat.pid
        self.started = stat.started
        self.gone = False
        self.children: dict[int, int] = {}
        """Pid → start time."""
        self.used: dict[int, _Used] = {}
        self.time = 0.0

    def read(self) -> Stat | None:
        """Read the process; None if it has ended, even if the pid was reused."""
        line = self._stat.read()
        stat = None if line is None else parse_stat(line)
        return stat if stat is not None and stat.started == self.started and stat.state != "Z" else None

    def spent(self, stat: Stat) -> _Used:
        """Resources that it has used so far."""
        return _Used(stat.cpu_s, *(parse_io(self._io.read()) or (None, None)))


class RankSampler:
    """Samples every rank of this node; call `sample` about once per second.

    A rank with a reused pid is reported without values, never with those of the other process. `clock` returns monotonic
    seconds.
    """

    def __init__(self, proc: str = "/proc", clock: Callable[[], float] = clock.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._process_tree = ProcessTree(proc)
        self._tracked: dict[int, _Tracked] = {}
        self._scanned = self._limited = float("-inf")

    def sample(self, pids: Mapping[int, int]) -> dict[int, RankSample]:
        """One sample per rank; `pids` maps ranks to pids. A rank with an ended process has no values.

        cpu_percent, read_bps and write_bps include the children; rss_bytes and threads do not (a sum of RSS would count
        pages that forked children share several times). Rates are None in the first sample of a rank.
        """
        now = self._clock()
        for rank in set(self._tracked) - set(pids):
            del self._tracked[rank]
        for rank, pid in pids.items():
            self._track(rank, pid)
        if now - self._scanned >= CHILDREN_S:
            self._scanned = now
            self._scan()
        if now - self._limited >= LIMITS_S:
            self._limited = now
            for tracked in self._tracked.values():
                tracked.limits.sample()
        return {rank: self._sample(rank, pid, now) for rank, pid in pids.items()}

    def tree(self, rank: int) -> tuple[int, ...]:
        """Pids of the rank and its children in the last scan; () for a rank that has ended."""
        tracked = self._tracked.get(rank)
        return (tracked.pid, *tracked.children) if tracked is not None and not tracked.gone else ()

    def _track(self, rank: int, pid: int) -> None:
        earlier = self._tracked.get(rank)
        if earlier is not None and earlier.pid == pid:
            return
        self._tracked.pop(rank, None)
        if (stat := read_stat(pid, self._proc)) is not None:
            self._tracked[rank] = _Tracked(stat, self._proc)
            self._scanned = self._limited = float("-inf")

    def _scan(self) -> None:
        self._process_tree.refresh()
        below = self._process_tree.below([tracked.pid for tracked in self._tracked.values()])
        for tracked in self._tracked.values():
            tracked.children = below[tracked.pid]

    def _sample(self, rank: int, pid: int, now: float) -> RankSample:
        tracked = self._tracked.get(rank)
        own = None if tracked is None or tracked.gone else tracked.read()
        if tracked is None or own is None:
            if tracked is not None:
                tracked.gone = True
            return RankSample(rank=rank, pid=pid)
        used = {pid: tracked.spent(own)} | self._children(tracked)
        before, seconds = tracked.used, now - tracked.time
        tracked.used, tracked.time = used, now
        rates = _rates(before, used, seconds) if pid in before and seconds > 0 else _UNKNOWN
        return RankSample(
            rank=rank,
            pid=pid,
            cpu_percent=None if rates.cpu_s is None else 100 * rates.cpu_s,
            rss_bytes=own.rss_bytes or None,  # 0: it is exiting and has released its memory
            threads=own.threads,
            children=len(tracked.children),
            read_bps=rates.read,
            write_bps=rates.written,
            throttled_percent=tracked.limits.throttled,
            cpus=tracked.limits.cpus,
        )

    def _children(self, tracked: _Tracked) -> dict[int, _Used]:
        """Resources that the living children have used so far; ended children are dropped."""
        used = {}
        for pid, started in list(tracked.children.items()):
            stat = read_stat(pid, self._proc)
            if stat is None or stat.started != started:
                del tracked.children[pid]
            else:
                used[pid] = _Used(stat.cpu_s, *(read_io(pid, self._proc) or (None, None)))
        return used


def _rates(before: Mapping[int, _Used], after: Mapping[int, _Used], seconds: float) -> _Used:
    """Use per second of all processes in both readings; None if a value is missing."""
    pairs = [(before[pid], used) for pid, used in after.items() if pid in before]
    return _Used(*(_grown([(old[k], new[k]) for old, new in pairs], seconds) for k in range(3)))


def _grown(pairs: list[tuple[float | None, float | None]], seconds: float) -> float | None:
    grown = 0.0
    for old, new in pairs:
        if old is None or new is None:
            return None
        grown += max(0.0, new - old)
    return grown / seconds
