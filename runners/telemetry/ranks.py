"""Samples of the ranks' processes: processor, memory, threads, storage; data loader children included."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..model import RankSample
from .kin import Kin
from .limits import Limits
from .proc import KeptFile, Stat, parse_io, parse_stat, read_io, read_stat

LIMITS_S = 2.0
"""Seconds between two looks at what a rank's cgroups hold back."""
CHILDREN_S = 5.0
"""Seconds between two passes over /proc for the ranks' children."""


class _Used(NamedTuple):
    """Seconds of processor time and bytes of storage, so far or a second; None is unknown."""

    cpu_s: float | None
    read: float | None
    written: float | None


_UNKNOWN = _Used(None, None, None)


class _Tracked:
    """One rank's process, known by pid and start time, and the children found below it."""

    def __init__(self, stat: Stat, proc: str) -> None:
        self._stat = KeptFile(f"{proc}/{stat.pid}/stat", 1024)
        self._io = KeptFile(f"{proc}/{stat.pid}/io", 1024)
        self.limits = Limits(stat.pid, proc)
        self.pid = stat.pid
        self.started = stat.started
        self.gone = False
        self.children: dict[int, int] = {}
        """pid → start time."""
        self.used: dict[int, _Used] = {}
        self.time = 0.0

    def read(self) -> Stat | None:
        """The process now; None when it has ended, or the pid is another's."""
        line = self._stat.read()
        stat = None if line is None else parse_stat(line)
        return stat if stat is not None and stat.started == self.started and stat.state != "Z" else None

    def spent(self, stat: Stat) -> _Used:
        """What it used so far."""
        return _Used(stat.cpu_s, *(parse_io(self._io.read()) or (None, None)))


class RankSampler:
    """Samples every rank of this node; call `sample` about once a second.

    A pid that the kernel has given to another process since is reported without values, never with that
    process's. `clock` gives monotonic seconds.
    """

    def __init__(self, proc: str = "/proc", clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._kin = Kin(proc)
        self._tracked: dict[int, _Tracked] = {}
        self._scanned = self._limited = float("-inf")

    def sample(self, pids: Mapping[int, int]) -> dict[int, RankSample]:
        """One sample by rank, for `pids` from rank to pid. A rank whose process is gone has no values.

        cpu_percent, read_bps and write_bps cover the process and its children; rss_bytes and threads are
        the rank's own (a sum of RSS would count pages that forked children share several times over).
        Rates are None in the first sample of a rank.
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
                tracked.limits.look()
        return {rank: self._one(rank, pid, now) for rank, pid in pids.items()}

    def tree(self, rank: int) -> tuple[int, ...]:
        """The rank's pid and those of its children as last seen; () for a rank that is gone."""
        tracked = self._tracked.get(rank)
        return (tracked.pid, *tracked.children) if tracked is not None and not tracked.gone else ()

    def _track(self, rank: int, pid: int) -> None:
        known = self._tracked.get(rank)
        if known is not None and known.pid == pid:
            return
        self._tracked.pop(rank, None)
        if (stat := read_stat(pid, self._proc)) is not None:
            self._tracked[rank] = _Tracked(stat, self._proc)
            self._scanned = self._limited = float("-inf")

    def _scan(self) -> None:
        self._kin.look()
        below = self._kin.below([tracked.pid for tracked in self._tracked.values()])
        for tracked in self._tracked.values():
            tracked.children = below[tracked.pid]

    def _one(self, rank: int, pid: int, now: float) -> RankSample:
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
            rss_bytes=own.rss_bytes,
            threads=own.threads,
            children=len(tracked.children),
            read_bps=rates.read,
            write_bps=rates.written,
            throttled_percent=tracked.limits.throttled,
            cpus=tracked.limits.cpus,
        )

    def _children(self, tracked: _Tracked) -> dict[int, _Used]:
        """What the living children used so far; those that are gone are forgotten."""
        used = {}
        for pid, started in list(tracked.children.items()):
            stat = read_stat(pid, self._proc)
            if stat is None or stat.started != started:
                del tracked.children[pid]
            else:
                used[pid] = _Used(stat.cpu_s, *(read_io(pid, self._proc) or (None, None)))
        return used


def _rates(before: Mapping[int, _Used], after: Mapping[int, _Used], seconds: float) -> _Used:
    """Use per second over all processes seen at both times; None where one of them does not tell."""
    pairs = [(before[pid], used) for pid, used in after.items() if pid in before]
    return _Used(*(_grown([(old[k], new[k]) for old, new in pairs], seconds) for k in range(3)))


def _grown(pairs: list[tuple[float | None, float | None]], seconds: float) -> float | None:
    grown = 0.0
    for old, new in pairs:
        if old is None or new is None:
            return None
        grown += max(0.0, new - old)
    return grown / seconds
