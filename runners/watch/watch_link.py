"""Link to a job that distui did not start: its events and samples, without an agent and without commands."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from msgspec.structs import replace

from ...presets.plurals import plural
from ..agent.pyspy import PySpy, PySpyError
from ..logs.windows import ask_window
from ..run import clock
from ..run.answers import MetricsWindow
from ..run.commands import Command, Dump, Hello, ReadLog, ReadMetrics, Via
from ..run.finding_ledger import FindingLedger
from ..run.log_files import parse_file_id
from ..run.model import (
    CaughtUp,
    Clause,
    CommandDone,
    Event,
    FindingCleared,
    FindingRaised,
    GpuTick,
    HostTick,
    LogGrew,
    RankTick,
    Stamped,
    sentence,
)
from ..run.parts import Parts, failure
from ..run.samples import Gpu, RankSample
from ..run.state import RunState
from ..run.wire.client import Window
from ..telemetry.gpu_places import Launched, place, witness
from ..telemetry.gpus import GpuSource
from ..telemetry.host import HostSampler
from ..telemetry.rank_samples import RankSampler
from .foreign_jobs import RankProcess, Scan, WatchedJob, scan
from .idle_job import IdleJob
from .outside_pulses import OutsidePulses
from .scan_changes import Watched, advance, begin, outputs


class JobRanks:
    """Samples the living ranks of one job; call `sample` about once per second."""

    def __init__(self) -> None:
        self._sampler = RankSampler()
        self._processes: dict[int, RankProcess] = {}
        self._launchers: frozenset[int] = frozenset()
        self._changes: list[Event] = []
        self._ledger = FindingLedger(self._changes.append)

    def watch(self, watched: Watched) -> None:
        """Set the current ranks."""
        job = watched.job
        self._processes = {rank: process for rank, process in job.ranks.items() if rank not in watched.gone}
        self._launchers = frozenset(pid for pid, _ in job.launchers)

    def sample(self, gpus: tuple[Gpu, ...]) -> tuple[tuple[RankSample, ...], list[Event]]:
        """Return one sample per rank, with its GPU if known, and the changes of findings."""
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


INTERVAL_S = 1.0
"""Seconds between two scans."""
REFUSAL = "distui did not start this job: read-only"


class WatchLink:
    """One job on this host, read-only. Satisfies `wire.client.Link`; consume `events` from one task.

    `scanner` returns scans (tests pass their own); without `gpus` no GPU sampler is started.
    """

    readonly = True

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
        self._parts = Parts(self._part_failed)
        self._closed = asyncio.Event()
        self._spy = PySpy()
        self._paths: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self._state = RunState()
        """Fold of the job's events, for the detectors."""
        self._idle = IdleJob(self._state, self._found, self._last_output, OutsidePulses(self._spy))
        self._watched, events = begin(job, Scan(clock.now()), platform.node())
        self._keep(events)

    async def events(self, after: int = 0) -> AsyncIterator[Stamped]:
        """Yield the earlier events, then new ones, until the job ends or the link is closed."""
        for stamped in [stamped for stamped in self._journal if stamped.seq > after]:
            yield stamped
        yield Stamped(time=clock.now(), event=CaughtUp(seq=len(self._journal)))
        self._sizes.clear()
        if self._gpus is not None:
            self._parts.start("gpus", self._gpus.run)
        self._parts.start("idle-job", self._idle.run)
        try:
            while not self._closed.is_set():
                for stamped in await self._step():
                    yield stamped
                if self._watched.over:
                    return
                await clock.wait_set(self._closed, self._interval)
        finally:
            await self._parts.stop("gpus", "idle-job")

    async def send(self, command: Command) -> CommandDone:
        """Answer only requests for stacks: py-spy reads a process without changing it."""
        if isinstance(command, Dump) and command.what == "stacks":
            return await self._stacks(command)
        return CommandDone(
            id="" if isinstance(command, Hello | Via) else command.id, ok=False, text=REFUSAL
        )

    async def _stacks(self, command: Dump) -> CommandDone:
        """Read the ranks one after the other, because each py-spy is a separate process."""
        ranks = self._watched.job.ranks
        living = sorted(ranks.keys() - self._watched.gone)
        data: dict[str, str] = {}
        clauses: dict[str, list[int]] = {}
        for rank in [rank for rank in living if rank in (command.ranks or living)]:
            try:
                data[str(rank)] = (await self._spy.dump(ranks[rank].pid)).text()
            except PySpyError as error:
                clauses.setdefault(f"{{ranks}}: {error}", []).append(rank)
        failed = sentence(Clause(text, tuple(of)) for text, of in clauses.items())
        if data:
            stacks = f"stacks of {plural(len(data), 'rank')}"
            return CommandDone(
                command.id,
                True,
                f"{stacks}; {failed}" if failed else stacks,
                data,
            )
        why = failed or "no rank of it runs"
        return CommandDone(command.id, False, f"no stacks of a job that distui did not start: {why}")

    async def read_log(self, ask: ReadLog) -> Window:
        """Return one window of an output file; file ids are those of `LogGrew`."""
        path = self._paths.get(ask.file)
        if path is None:
            start = max(ask.offset, 0)
            return Window(ask.file, start, start, 0, b"", self._no_log(ask.file))
        below = path.removeprefix("/")
        window = await ask_window("/", replace(ask, file=below))
        return replace(window, file=ask.file, error=window.error.replace(below, path, 1))

    async def read_metrics(self, ask: ReadMetrics) -> MetricsWindow:
        """Return an error: curves are not recorded for a job that distui did not start."""
        return MetricsWindow(ask.id, error="distui did not start this job: no curves of it are recorded")

    async def look(self) -> None:
        """Sample the ranks for some seconds if they are idle. The next events have the findings."""
        self._idle.watch(self._watched)
        await self._idle.look()

    async def close(self) -> None:
        """Stop watching; the job continues."""
        self._closed.set()

    async def _step(self) -> list[Stamped]:
        """Scan in a thread, and return the changes, then samples."""
        seen = await asyncio.to_thread(self._scanner)
        self._watched, changed = advance(self._watched, seen)
        changed = self._keep(changed)
        inbox, self._inbox = self._inbox, []
        self._ranks.watch(self._watched)
        self._idle.watch(self._watched)
        ranks, findings = await asyncio.to_thread(self._ranks.sample, self._newest)
        ticks: list[Event] = [RankTick(ranks), HostTick(await asyncio.to_thread(self._host.sample))]
        grown = self._grown()
        if grown:
            ticks.append(LogGrew(grown))
        return changed + [self._stamp(event) for event in (*findings, *inbox, *ticks)]

    def _heard(self, event: Event) -> None:
        """Queue an event of the GPU sampler; a newer tick replaces an older one."""
        if isinstance(event, GpuTick):
            self._newest = event.gpus
            self._inbox = [queued for queued in self._inbox if not isinstance(queued, GpuTick)]
        self._inbox.append(event)

    def _found(self, event: FindingRaised | FindingCleared) -> None:
        self._inbox.append(event)

    def _part_failed(self, name: str, error: BaseException, follows: str) -> None:
        self._inbox.append(FindingRaised(failure(name, error, follows, 0, "please report it")))

    def _keep(self, events: list[Stamped]) -> list[Stamped]:
        """Assign numbers to the events of the history, so that a viewer that reconnects gets them again."""
        self._paths |= outputs(self._watched.job, self._watched.attempt)
        numbered = [
            Stamped(time=stamped.time, event=stamped.event, seq=len(self._journal) + count)
            for count, stamped in enumerate(events, 1)
        ]
        self._journal += numbered
        self._state.apply_all(numbered)
        return numbered

    def _stamp(self, event: Event) -> Stamped:
        stamped = Stamped(time=clock.now(), event=event)
        if isinstance(event, FindingRaised | FindingCleared):
            return self._keep([stamped])[0]
        self._state.apply(stamped)
        return stamped

    def _grown(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for file, path in self._paths.items():
            with suppress(OSError):
                sizes[file] = os.stat(path).st_size
        grown = {file: size for file, size in sizes.items() if self._sizes.get(file) != size}
        self._sizes |= grown
        return grown

    def _last_output(self) -> float:
        """Unix time at which an output file last grew; -inf if the job writes to no file."""
        newest = float("-inf")
        for path in self._paths.values():
            with suppress(OSError):
                newest = max(newest, os.stat(path).st_mtime)
        return newest

    def _no_log(self, file: str) -> str:
        """Why this job has no such file, and where its output goes."""
        named = parse_file_id(file)
        process = self._watched.job.ranks.get(named.rank) if named and named.rank is not None else None
        if named is None or process is None:
            return f"{file} is not a log of this job, which distui did not start: choose one that is listed"
        output = process.err if named.stream == "err" else process.out  # NCCL writes to stdout, too
        where = output.path or output.why
        return (
            f"{file} does not exist: distui did not start this job, and rank {named.rank} writes to {where}"
        )
