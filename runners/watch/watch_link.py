"""Link to a job that distui did not start: events from differences between scans, and samples; no agent."""

from __future__ import annotations

import asyncio
import os
import platform
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from ...presets.plurals import plural
from ..agent.pyspy import PySpy, PySpyError
from ..diagnosis.status import FOREIGN
from ..logs.windows import ask_window
from ..run import clock
from ..run.answers import MetricsWindow
from ..run.commands import Command, Dump, Hello, ReadLog, ReadMetrics, Via
from ..run.finding_ledger import FindingLedger
from ..run.log_files import command_id, file_id, parse_file_id
from ..run.model import (
    AttemptEnded,
    AttemptStarted,
    CaughtUp,
    Clause,
    CommandDone,
    Event,
    FindingCleared,
    FindingRaised,
    GpuTick,
    HostTick,
    LogGrew,
    Outcome,
    PlanSummary,
    RankChanged,
    RankPhase,
    RankPlace,
    RankTick,
    RunCreated,
    RunEnded,
    RunnerLost,
    RunnerStarted,
    RunPhase,
    Stamped,
    sentence,
)
from ..run.parts import Parts, failure
from ..run.samples import Gpu, RankSample
from ..run.wire.client import Window
from ..telemetry.gpu_places import Launched, place, witness
from ..telemetry.gpus import GpuSource
from ..telemetry.host import HostSampler
from ..telemetry.rank_samples import RankSampler
from .foreign_jobs import RankProcess, Scan, WatchedJob, command_of, name_of, scan

# -----------------------------------------------------------------------------------------------------------
# Differences between two scans, as the events that every run emits. Pure.


READ_ONLY = "not started by distui: read-only"
_GONE = "its processes are gone; only their starter knows how they ended"


class Watched(Struct, frozen=True):
    """The state of a job between two scans."""

    job: WatchedJob
    """Last scan of the job; ended ranks keep their last data."""
    attempt: int
    places: tuple[RankPlace, ...]
    gone: frozenset[int] = frozenset()
    """Ranks of this attempt that have ended."""
    left: frozenset[tuple[int, int]] = frozenset()
    """Living children of ranks seen so far, as (pid, start), including earlier attempts'."""
    orphaned: bool = False
    """Whether the launcher ended before its ranks."""
    over: bool = False


def begin(job: WatchedJob, seen: Scan, host: str) -> tuple[Watched, list[Stamped]]:
    """First events of a job; run and attempt have the time of its start."""
    watched = Watched(job, _restarts(job) + 1, places_of(job), left=_children(job))
    events: list[Event] = [
        RunCreated(run=run_id(job), name=name_of(_first(job).argv), host=host, plan=plan_of(job)),
        *(RunnerStarted(pid=pid, kind=job.launcher) for pid, _ in sorted(job.launchers)),
        _attempt_started(watched, "launch"),
    ]
    dated = [Stamped(time=job.began, event=event) for event in events]
    return watched, dated + _stamped(seen, _running(watched, job.ranks.values()))


def advance(watched: Watched, seen: Scan) -> tuple[Watched, list[Stamped]]:
    """Compare with the next scan: emit new, restarted and ended ranks, and the end if nothing is left.

    A data loader worker that outlives its rank has the rank's environment, but is not counted as the rank.
    """
    if watched.over:
        return watched, []
    events: list[Event] = []
    left = watched.left
    now = seen.jobs.get(watched.job.key)
    present = {} if now is None else _present(watched, now)
    fresh = {rank: proc for rank, proc in present.items() if not _same(watched.job.ranks.get(rank), proc)}
    if now is not None and _is_new_attempt(watched, fresh):
        watched, events = _new_attempt(watched, replace(now, ranks=present))
    elif now is not None:
        # Ranks without a launcher are children of init: keep the earlier data about the launcher.
        before = watched.job
        led = now if now.launchers else replace(now, launcher=before.launcher, launchers=before.launchers)
        watched = replace(watched, job=replace(led, ranks={**before.ranks, **present}))
        events += _running(watched, fresh.values())
    watched = replace(watched, left=(left | _children(watched.job)) & seen.alive)
    watched, lost = _lost(watched, seen)
    watched, ended = _end(watched, seen)
    return watched, _stamped(seen, [*events, *lost, *ended])


def run_id(job: WatchedJob) -> str:
    """Id of the watched job: distui's run id, else derived from the oldest process."""
    oldest = min([(f.started, f.pid) for f in job.ranks.values()] + [(t, pid) for pid, t in job.launchers])
    return job.run or f"{FOREIGN}{oldest[1]}"


def plan_of(job: WatchedJob) -> PlanSummary:
    """Plan summary of a job that distui did not plan."""
    local = _number(_first(job), "LOCAL_WORLD_SIZE")
    notes = [READ_ONLY]
    if job.run is not None:
        notes = [f"belongs to run {job.run} of distui: attach to that one to control it"]
    if len(job.ranks) < job.world_size:
        notes.append(f"{len(job.ranks)} of its {job.world_size} ranks were found on this host")
    if not outputs(job, 1):
        notes.append(f"no logs: the ranks write to {_first(job).out.why}, not to files")
    return PlanSummary(
        preset="",
        strategy="",
        launcher=job.launcher,
        command=command_of(_first(job).argv),
        nnodes=job.world_size // local if local and job.world_size % local == 0 else 1,
        nproc_per_node=local,
        notes=tuple(notes),
    )


def places_of(job: WatchedJob) -> tuple[RankPlace, ...]:
    """Return the job's ranks on this host, with those that torchrun (it counts from a base) has yet to start."""
    places: dict[int, RankPlace] = {}
    for proc in job.ranks.values():
        base = proc.rank - proc.local_rank
        for local in range(_number(proc, "LOCAL_WORLD_SIZE") or 0):
            gpu = _gpu(proc) if base + local == proc.rank else None
            places.setdefault(base + local, RankPlace(base + local, local, gpu=gpu))
        places[proc.rank] = RankPlace(proc.rank, proc.local_rank, gpu=_gpu(proc))
    return tuple(places[rank] for rank in sorted(places))


def outputs(job: WatchedJob, attempt: int) -> dict[str, str]:
    """Return the ranks' output files: file id → absolute path.

    A file of only one rank is `rank-<r>.out` or `.err`. A file of several ranks (torchrun without --redirects) appears
    once, as the command's. A file that is both stdout and stderr appears as stdout.
    """
    paths = [(proc, stream) for proc in job.ranks.values() for stream in ("out", "err")]
    users = Counter(p for proc in job.ranks.values() for p in {proc.out.path, proc.err.path} if p)
    files: dict[str, str] = {}
    shared: Counter[str] = Counter()
    for proc, stream in sorted(paths, key=lambda pair: pair[1], reverse=True):
        path = proc.out.path if stream == "out" else proc.err.path
        if path is None or path in files.values():
            continue
        if users[path] == 1:
            files[file_id(0, attempt, proc.rank, stream)] = path
        else:
            files[command_id(attempt, stream, node=shared[stream])] = path
            shared[stream] += 1
    return files


def _present(watched: Watched, now: WatchedJob) -> dict[int, RankProcess]:
    """Return the current ranks, without children of ended ranks."""
    return {rank: proc for rank, proc in now.ranks.items() if (proc.pid, proc.started) not in watched.left}


def _children(job: WatchedJob) -> frozenset[tuple[int, int]]:
    return frozenset(child for proc in job.ranks.values() for child in proc.below)


def _is_new_attempt(watched: Watched, fresh: Mapping[int, RankProcess]) -> bool:
    expected = {place.rank for place in watched.places} - watched.job.ranks.keys()
    return bool(fresh.keys() - expected)


def _new_attempt(watched: Watched, job: WatchedJob) -> tuple[Watched, list[Event]]:
    failed = _restarts(job) > _restarts(watched.job)
    text = "the launcher restarted the ranks" + (" after a failure" if failed else "")
    ended = AttemptEnded(attempt=watched.attempt, outcome=Outcome.RESTARTED, text=text)
    number = max(watched.attempt, _restarts(job)) + 1
    following = Watched(job, number, places_of(job))
    started = _attempt_started(following, "failure" if failed else "membership")
    return following, [ended, started, *_running(following, job.ranks.values())]


def _attempt_started(watched: Watched, cause: str) -> AttemptStarted:
    return AttemptStarted(
        attempt=watched.attempt,
        cause=cause,
        world_size=watched.job.world_size,
        ranks=watched.places,
        failures=_restarts(watched.job),
    )


def _running(watched: Watched, processes: Iterable[RankProcess]) -> list[Event]:
    return [_changed(watched, proc, RankPhase.RUNNING) for proc in processes]


def _lost(watched: Watched, seen: Scan) -> tuple[Watched, list[Event]]:
    ranks = watched.job.ranks
    lost = [
        r
        for r, proc in ranks.items()
        if r not in watched.gone and (proc.pid, proc.started) not in seen.alive
    ]
    events: list[Event] = [_changed(watched, ranks[rank], RankPhase.ENDED) for rank in lost]
    return replace(watched, gone=watched.gone | set(lost)), events


def _end(watched: Watched, seen: Scan) -> tuple[Watched, list[Event]]:
    launchers = watched.job.launchers
    led = bool(launchers & seen.alive)
    if watched.gone < watched.job.ranks.keys():
        if led or not launchers or watched.orphaned:
            return watched, []
        text = f"the launcher ({watched.job.launcher}) is gone, its ranks go on without it"
        return replace(watched, orphaned=True), [RunnerLost(pid=min(launchers)[0], text=text)]
    if led:
        return watched, []
    ended = AttemptEnded(attempt=watched.attempt, outcome=Outcome.ENDED, text=f"the job has ended: {_GONE}")
    over = RunEnded(phase=RunPhase.ENDED, exit_code=None, text=f"the job has ended: {_GONE}")
    return replace(watched, over=True), [ended, over]


def _changed(watched: Watched, proc: RankProcess, state: RankPhase) -> RankChanged:
    return RankChanged(
        attempt=watched.attempt, rank=proc.rank, state=state, local_rank=proc.local_rank, pid=proc.pid
    )


def _stamped(seen: Scan, events: Iterable[Event]) -> list[Stamped]:
    return [Stamped(time=seen.time, event=event) for event in events]


def _first(job: WatchedJob) -> RankProcess:
    return job.ranks[min(job.ranks)]


def _same(proc: RankProcess | None, other: RankProcess) -> bool:
    return proc is not None and (proc.pid, proc.started) == (other.pid, other.started)


def _restarts(job: WatchedJob) -> int:
    """Restarts that torchrun has counted so far; 0 for other launchers."""
    return max((_number(proc, "TORCHELASTIC_RESTART_COUNT") or 0 for proc in job.ranks.values()), default=0)


def _number(proc: RankProcess, name: str) -> int | None:
    text = proc.env.get(name, "")
    return int(text) if text.isdecimal() else None


def _gpu(proc: RankProcess) -> str | None:
    """Return the rank's entry in CUDA_VISIBLE_DEVICES; the only entry if the launcher exposes one GPU."""
    shown = [part.strip() for part in proc.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    at = 0 if len(shown) == 1 else proc.local_rank
    return shown[at] if at < len(shown) else None


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


# -----------------------------------------------------------------------------------------------------------
# Link to a job that distui did not start, without an agent and without commands.


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
        try:
            while not self._closed.is_set():
                for stamped in await self._step():
                    yield stamped
                if self._watched.over:
                    return
                await clock.wait_set(self._closed, self._interval)
        finally:
            await self._parts.stop("gpus")

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
        return numbered

    def _stamp(self, event: Event) -> Stamped:
        stamped = Stamped(time=clock.now(), event=event)
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
        """Why this job has no such file, and where its output goes."""
        named = parse_file_id(file)
        process = self._watched.job.ranks.get(named.rank) if named and named.rank is not None else None
        if named is None or process is None:
            return f"{file} is no log of this job, which distui did not start: choose one that is listed"
        output = process.err if named.stream == "err" else process.out  # NCCL writes to stdout, too
        where = output.path or output.why
        return (
            f"{file} does not exist: distui did not start this job, and rank {named.rank} writes to {where}"
        )
