"""A link to a job that distui did not start, without agent and commands; its ranks are sampled from /proc and NVML."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace

from ..finding_ledger import FindingLedger
from ..logs.follow import ask_window
from ..logs.log_files import parse_file_id
from ..model import (
    CaughtUp,
    Command,
    CommandDone,
    Event,
    FindingCleared,
    FindingRaised,
    Gpu,
    GpuTick,
    Hello,
    HostTick,
    LogGrew,
    RankSample,
    RankTick,
    Stamped,
    Via,
)
from ..telemetry.driver_watchdog import GpuSource, witness
from ..telemetry.host import HostSampler
from ..telemetry.rank_samples import Launched, RankSampler, place
from ..wire.link import Window
from .discover import RankProcess, Scan, WatchedJob, scan
from .job_changes import Watched, advance, begin, outputs


class JobRanks:
    """Samples the living ranks of one job; call `sample` about once a second."""

    def __init__(self) -> None:
        self._sampler = RankSampler()
        self._processes: dict[int, RankProcess] = {}
        self._launchers: frozenset[int] = frozenset()
        self._changes: list[Event] = []
        self._ledger = FindingLedger(self._changes.append)

    def watch(self, watched: Watched) -> None:
        """Which ranks there are now."""
        job = watched.job
        self._processes = {rank: process for rank, process in job.ranks.items() if rank not in watched.gone}
        self._launchers = frozenset(pid for pid, _ in job.launchers)

    def sample(self, gpus: tuple[Gpu, ...]) -> tuple[tuple[RankSample, ...], list[Event]]:
        """One sample a rank, on its GPU where that is known, and what changed among the findings."""
        samples = self._sampler.sample({rank: process.pid for rank, process in self._processes.items()})
        launched = [self._launched(process) for process in self._processes.values()]
        placement = place(launched, gpus, witness(launched, gpus, self._launchers), node=0)
        self._ledger.update(placement.findings)
        changes = self._changes.copy()
        self._changes.clear()
        filled = placement.fill(samples)
        return tuple(filled[rank] for rank in sorted(filled)), changes

    def _launched(self, process: RankProcess) -> Launched:
        return Launched(
            rank=process.rank,
            local_rank=process.local_rank,
            pids=self._sampler.tree(process.rank),
            visible=process.env.get("CUDA_VISIBLE_DEVICES"),
            order=process.env.get("CUDA_DEVICE_ORDER"),
        )


# -----------------------------------------------------------------------------------------------------------
# A link to a job that distui did not start: as any run's link, without an agent and without commands.


INTERVAL_S = 1.0
"""Seconds between two looks."""
REFUSAL = "distui did not start this job: read-only"


class WatchLink:
    """One job on this host, read-only. Satisfies `wire.link.Link`; consume `events` from one task.

    `scanner` gives scans (tests hand in their own); without `gpus` no sampler is started.
    """

    def __init__(
        self,
        job: WatchedJob,
        *,
        scanner: Callable[[], Scan] = scan,
        interval: float = INTERVAL_S,
        gpus: bool = True,
    ) -> None:
        self._scanner = scanner
        self._interval = interval
        self._ranks = JobRanks()
        self._host = HostSampler(job.cwd or "/")
        self._journal: list[Stamped] = []
        self._inbox: list[Event] = []
        self._newest: tuple[Gpu, ...] = ()
        self._gpus = GpuSource(interval, self._heard, node=0) if gpus else None
        self._closed = asyncio.Event()
        self._paths: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self._watched, events = begin(job, Scan(time.time()), platform.node())
        self._keep(events)

    @property
    def readonly(self) -> bool:
        """Always True."""
        return True

    async def events(self, after: int = 0) -> AsyncIterator[Stamped]:
        """What was seen so far, then what is seen, until the job is gone or the link is closed."""
        for stamped in [stamped for stamped in self._journal if stamped.seq > after]:
            yield stamped
        yield Stamped(time=time.time(), event=CaughtUp(seq=len(self._journal)))
        self._sizes.clear()
        if self._gpus is not None:
            await self._gpus.start()
        try:
            while not self._closed.is_set():
                for stamped in await self._step():
                    yield stamped
                if self._watched.over:
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), self._interval)
        finally:
            if self._gpus is not None:
                await self._gpus.stop()

    async def send(self, command: Command) -> CommandDone:
        """Refuses."""
        return CommandDone(
            id="" if isinstance(command, Hello | Via) else command.id, ok=False, text=REFUSAL
        )

    async def read_log(self, file: str, offset: int, limit: int = 65536, grep: str = "") -> Window:
        """One window of an output file; file ids are those of `LogGrew`."""
        path = self._paths.get(file)
        if path is None:
            at = max(offset, 0)
            return Window(file, at, at, 0, b"", self._no_log(file))
        below = path.removeprefix("/")
        window = await ask_window("/", below, offset, limit, grep)
        return replace(window, file=file, error=window.error.replace(below, path, 1))

    async def close(self) -> None:
        """Stop watching; the job goes on."""
        self._closed.set()

    async def _step(self) -> list[Stamped]:
        """One look, off the event loop: what changed, then samples."""
        seen = await asyncio.to_thread(self._scanner)
        self._watched, changed = advance(self._watched, seen)
        changed = self._keep(changed)
        inbox, self._inbox = self._inbox, []
        self._ranks.watch(self._watched)
        ranks, findings = await asyncio.to_thread(self._ranks.sample, self._newest)
        ticks: list[Event] = [RankTick(ranks), HostTick(await asyncio.to_thread(self._host.sample))]
        grown = self._grown()
        if grown:
            ticks.append(LogGrew(grown))
        return changed + [self._stamp(event) for event in (*findings, *inbox, *ticks)]

    def _heard(self, event: Event) -> None:
        """From the GPU sampler; of its ticks the newest wins."""
        if isinstance(event, GpuTick):
            self._newest = event.gpus
            self._inbox = [queued for queued in self._inbox if not isinstance(queued, GpuTick)]
        self._inbox.append(event)

    def _keep(self, events: list[Stamped]) -> list[Stamped]:
        """Number what is history, so that a viewer that comes back gets it again."""
        self._paths |= outputs(self._watched.job, self._watched.attempt)
        numbered = [
            Stamped(time=stamped.time, event=stamped.event, seq=len(self._journal) + count)
            for count, stamped in enumerate(events, 1)
        ]
        self._journal += numbered
        return numbered

    def _stamp(self, event: Event) -> Stamped:
        stamped = Stamped(time=time.time(), event=event)
        return self._keep([stamped])[0] if isinstance(event, FindingRaised | FindingCleared) else stamped

    def _grown(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for file, path in self._paths.items():
            with suppress(OSError):
                sizes[file] = os.stat(path).st_size
        grown = {file: size for file, size in sizes.items() if self._sizes.get(file) != size}
        self._sizes |= grown
        return grown

    def _no_log(self, file: str) -> str:
        """Why this job has no such file, and where that output goes."""
        named = parse_file_id(file)
        process = self._watched.job.ranks.get(named.rank) if named and named.rank is not None else None
        if named is None or process is None:
            return f"{file} is no output of this job, which distui did not start: choose one that is listed"
        output = process.err if named.stream == "err" else process.out  # where NCCL writes, too
        where = output.path or output.why
        return (
            f"{file} does not exist: distui did not start this job, and rank {named.rank} writes to {where}"
        )
