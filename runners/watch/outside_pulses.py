"""Pulses of ranks without a hook: /proc shows whether a rank is idle, and py-spy reads the stack of an idle one.

A rank that works is never sampled by py-spy. A stack stays valid until its rank uses CPU time or moves bytes.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from ..agent.process_samples import Outside, sample
from ..agent.pulses import with_waits
from ..agent.pyspy import PySpy, PySpyError
from ..agent.work_counters import counters, tcp_bytes
from ..diagnosis import activity, progress
from ..diagnosis.view import PULSES_KEPT
from ..run import clock
from ..run.pulse import Pulse, Site, Work
from .foreign_jobs import RankProcess

IDLE_S = 30.0
"""Seconds without work and without output before py-spy is used."""
FOLLOWS_S = 10.0
"""Seconds for each other rank, as soon as one rank has been idle for IDLE_S."""
SECOND_S, SELDOM_S = 30.0, 300.0
"""Seconds from the first dump of an idle rank to the second one, and between later ones."""
MAIN_SHARE, PROCESS_SHARE = 0.01, 0.05
"""Maximum CPU share of an idle rank, in cores: of its main thread, and of all its threads."""
UNREADABLE = ("T", "t", "Z", "X", None)
"""States of processes that py-spy is not used on: they are stopped, or have ended."""

Read = Callable[[Sequence[int]], Mapping[int, tuple[Outside, Work | None]]]
Waits = Callable[[Sequence[Pulse], Iterable[int]], Sequence[Pulse]]


def read(pids: Sequence[int]) -> dict[int, tuple[Outside, Work | None]]:
    """Sample processes, and count their work."""
    tcp = tcp_bytes()
    seen = {pid: sample(pid) for pid in pids}
    return {pid: (it, counters(it.members, tcp) if it.members else None) for pid, it in seen.items()}


@dataclass(slots=True)
class WatchedRank:
    """What the samples of one process have shown."""

    process: RankProcess
    pulses: deque[Pulse] = field(default_factory=lambda: deque(maxlen=PULSES_KEPT))
    """The newest pulses, oldest first, since the rank's last work."""
    idle_since: float | None = None
    """Unix time of the first sample since the rank's last work; None while it works."""
    stack: tuple[Site, ...] = ()
    """Main thread of an idle rank, innermost frame first; () if unknown."""
    failure: str = ""
    """Why the newest dump failed."""
    dumps: int = 0
    """Number of dumps since the rank is idle."""
    dumped: float = -math.inf
    """Unix time of the newest dump."""

    def idle_s(self, now: float) -> float:
        return 0.0 if self.idle_since is None else now - self.idle_since

    def add(self, pulse: Pulse) -> None:
        """Add a sample. A sign of work makes the earlier samples and the stack invalid."""
        before = self.pulses[-1] if self.pulses else None
        if before is None or moves(before, pulse):
            self.pulses.clear()
            self.idle_since, self.stack, self.failure = None, (), ""
            self.dumps, self.dumped = 0, -math.inf
        elif self.idle_since is None:
            self.idle_since = before.at
        self.pulses.append(self._with_stack(pulse))
        if self.stack:
            self._fill_earlier()

    def _with_stack(self, pulse: Pulse) -> Pulse:
        """Return the pulse as a hook would have answered: what py-spy reads is the main thread's stack, too."""
        if not self.stack:
            return pulse
        return replace(
            pulse,
            hook=True,
            source="py-spy",
            torch=True,
            recorder=False,
            stack=self.stack,
            sites=1,
            samples=1,
        )

    def _fill_earlier(self) -> None:
        """Add the stack to earlier pulses since which the main thread has not run."""
        newest = self.pulses[-1]
        for at, pulse in enumerate(self.pulses):
            if not pulse.hook and _has_not_run(pulse, newest):
                self.pulses[at] = self._with_stack(pulse)

    def is_due(self, now: float, least_s: float) -> bool:
        """Return whether py-spy may read its stack now. `least_s`: seconds that it must have been idle."""
        if self.idle_s(now) < least_s or self.pulses[-1].state in UNREADABLE or self.pulses[-1].frozen:
            return False
        pause = SECOND_S if self.dumps == 1 else SELDOM_S
        return now - self.dumped >= pause


def moves(before: Pulse, after: Pulse) -> bool:
    """Return whether a rank has worked between two samples: it used CPU time, moved bytes, or its children did."""
    if after.state == "R":  # on an overloaded machine it gets little CPU time
        return True
    seconds = after.at - before.at
    if None in (before.cpu_s, after.cpu_s, before.process_s, after.process_s) or seconds <= 0:
        return True
    main, process = _grown(before.cpu_s, after.cpu_s), _grown(before.process_s, after.process_s)
    if main > MAIN_SHARE * seconds or process > PROCESS_SHARE * seconds:
        return True
    return activity.works(before, after) or progress.moved(before, after) is not None


def _grown(before: float | None, after: float | None) -> float:
    return (after or 0.0) - (before or 0.0)


def _has_not_run(before: Pulse, after: Pulse) -> bool:
    if before.work is None or after.work is None or not after.work.main_wakes:
        return False
    return before.work.main_wakes == after.work.main_wakes


class OutsidePulses:
    """Takes the pulses of the ranks of one job."""

    def __init__(self, spy: PySpy, read: Read = read, waits: Waits = with_waits) -> None:
        self._spy, self._read, self._waits = spy, read, waits
        self.ranks: dict[int, WatchedRank] = {}

    async def take(
        self, processes: Mapping[int, RankProcess], quiet_s: float, idle_s: float = IDLE_S
    ) -> None:
        """Sample every rank once, and the stacks of idle ones that are due.

        `quiet_s`: seconds since the last output. `idle_s`: seconds without work and output before a stack is read.
        """
        self._follow(processes)
        pids = [watched.process.pid for watched in self.ranks.values()]
        seen = await asyncio.to_thread(self._read, pids)
        now = clock.now()
        for watched in self.ranks.values():
            watched.add(_pulse(watched.process, now, *seen[watched.process.pid]))
        await self._add_waits(pids)
        if quiet_s >= idle_s:
            for watched in self._due(now, idle_s):
                await self._dump(watched)

    async def _add_waits(self, pids: Sequence[int]) -> None:
        """Add the system calls of the ranks whose stacks are known."""
        known = [watched.pulses[-1] for watched in self.ranks.values() if watched.stack]
        if known:
            for pulse in await asyncio.to_thread(self._waits, known, pids):
                self.ranks[pulse.rank].pulses[-1] = pulse

    def _follow(self, processes: Mapping[int, RankProcess]) -> None:
        """Forget ended processes, and begin with new ones."""
        self._spy.keep(process.pid for process in processes.values())
        before, self.ranks = self.ranks, {}
        for rank, process in sorted(processes.items()):
            known = before.get(rank)
            same = known is not None and _identity(known.process) == _identity(process)
            self.ranks[rank] = known if known is not None and same else WatchedRank(process)

    def idle(self, now: float) -> list[int]:
        """Return the ranks that have not worked since the sample before."""
        return [rank for rank, watched in self.ranks.items() if watched.idle_s(now) > 0.0]

    def _due(self, now: float, idle_s: float) -> list[WatchedRank]:
        """Return the ranks whose stack is to be read."""
        longest = max((watched.idle_s(now) for watched in self.ranks.values()), default=0.0)
        least_s = idle_s if longest < idle_s else min(idle_s, FOLLOWS_S)
        return [watched for watched in self.ranks.values() if watched.is_due(now, least_s)]

    async def _dump(self, watched: WatchedRank) -> None:
        """Read one stack. The next pulse has it, if the rank is still idle then."""
        watched.dumps, watched.dumped = watched.dumps + 1, clock.now()
        try:
            watched.stack = (await self._spy.dump(watched.process.pid)).sites()
        except PySpyError as error:
            watched.failure = str(error)
        else:
            watched.failure = ""


def _identity(process: RankProcess) -> tuple[int, int]:
    return process.pid, process.started


def _pulse(process: RankProcess, now: float, seen: Outside, work: Work | None) -> Pulse:
    master = process.env.get("MASTER_ADDR")
    return Pulse(
        rank=process.rank,
        at=now,
        pid=process.pid,
        state=seen.state,
        cpu_s=seen.cpu_s,
        process_s=seen.process_s,
        read_bytes=seen.read_bytes,
        written_bytes=seen.written_bytes,
        waits_in=seen.waits_in,
        workers_busy=seen.workers_busy,
        frozen=seen.frozen,
        halted_workers=seen.halted_workers,
        work=work,
        world_size=process.env.get("WORLD_SIZE"),
        master=None if master is None else f"{master}:{process.env.get('MASTER_PORT', '')}",
    )
