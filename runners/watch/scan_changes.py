"""Differences between two scans of a job, as the events that every run emits. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from ..diagnosis.status import FOREIGN
from ..run.log_files import command_id, file_id
from ..run.model import (
    AttemptEnded,
    AttemptStarted,
    Event,
    Outcome,
    PlanSummary,
    RankChanged,
    RankPhase,
    RankPlace,
    RunCreated,
    RunEnded,
    RunnerLost,
    RunnerStarted,
    RunPhase,
    Stamped,
)
from .foreign_jobs import RankProcess, Scan, WatchedJob, command_of, name_of

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
