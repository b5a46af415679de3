"""The asynchronous calls of distui's Python interface.

    from distui.api import aio

    run = await aio.launch("train.py", preset="ddp", nproc_per_node=2)
    await run.wait("healthy", timeout=300)
    async for stamped in run.events(follow=True):
        print(stamped.time, stamped.event)

No call blocks the event loop, except the plan of a rerun. `distui.api` has the same calls in their blocking form, with
the same errors.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ...presets.finding import Finding, PresetError
from ...presets.load import entries, library, load
from ...presets.preset_text import ListedPreset, ShownPreset, list_dict, show_dict
from ..comparison import differences, loading
from ..comparison.differences import ComparedRuns
from ..diagnosis.diagnosis_document import Diagnosis
from ..diagnosis.diagnosis_document import document as diagnosis_of
from ..doctor.examine import examine
from ..hub.sky_process import Candidate
from ..launch import advice, check, linting, sky
from ..launch.advice import AdviceDocument, MemoryQuestion
from ..launch.hosts import list_on, named_ways
from ..removal import removed_runs
from ..removal.removed_runs import Removable, Removed
from ..reports import examination, examination_request, run_diagnosis, run_list, watched_jobs
from ..reports.examination import ExaminationDocument
from ..reports.run_list import RunLine
from ..reports.status_document import WatchedStatus
from ..reports.watched_jobs import ListedJob
from ..run import run_directories
from ..run.errors import NoSuchRunError, RunError, UnreachableError
from ..watch.foreign_jobs import find_job, scan
from .arguments import checked, checked_fields, reading
from .async_run import AsyncRun, RunFacts
from .starting import PlannedLaunch, launched, planned, requested

__all__ = [
    "AsyncRun",
    "advise",
    "attach",
    "candidates",
    "diagnose_files",
    "diff",
    "doctor",
    "execute",
    "jobs",
    "launch",
    "lint",
    "lint_command",
    "lint_files",
    "ls",
    "plan",
    "preset",
    "presets",
    "prunable",
    "prune",
    "runs",
    "watch",
]


# --- start a run, or see before what would start


async def launch(
    script: str | os.PathLike[str],
    *args: str | os.PathLike[str],
    preset: str = "ddp",
    overrides: Sequence[str] = (),
    name: str | None = None,
    nproc_per_node: int | str | None = None,
    nnodes: int | str | None = None,
    hosts: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    nccl: Mapping[str, str] | None = None,
    python: str | os.PathLike[str] | None = None,
    **options: Any,
) -> AsyncRun:
    """Start `script` under a preset on this machine, on `hosts` by ssh, or elsewhere. Raises RunError and TypeError.

    `overrides`: preset fields, "mesh.tp=2"; the other arguments are those of the command line. `options`: its further
    options, by the fields of `presets.request.Request`, as in `adopt=True, grace_s=10, notify=["team:hang"]`.
    """
    asked = requested(
        "launch",
        options,
        script=script,
        args=args,
        preset=preset,
        overrides=overrides,
        name=name,
        nproc_per_node=nproc_per_node,
        nnodes=nnodes,
        hosts=hosts,
        env=env,
        nccl=nccl,
        python=python,
    )
    return AsyncRun(await asyncio.to_thread(launched, asked))


async def execute(
    *command: str | os.PathLike[str],
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> AsyncRun:
    """Start any command on this machine, and supervise it unchanged. `options`: as of `launch`.

    Raises RunError and TypeError.
    """
    asked = requested("exec", options, command=command, name=name, env=env)
    return AsyncRun(await asyncio.to_thread(launched, asked))


async def plan(
    script: str | os.PathLike[str], *args: str | os.PathLike[str], preset: str = "ddp", **options: Any
) -> PlannedLaunch:
    """Return what `launch` would do, without doing it. `options`: the other arguments of `launch`.

    Raises RunError and TypeError.
    """
    asked = requested("plan", options, script=script, args=args, preset=preset)
    return await asyncio.to_thread(planned, asked)


async def lint(
    script: str | os.PathLike[str], *args: str | os.PathLike[str], preset: str = "ddp", **options: Any
) -> list[Finding]:
    """Return the findings of a launch, the worst first. `options`: the other arguments of `launch`.

    Raises RunError and TypeError.
    """
    asked = requested("lint", options, script=script, args=args, preset=preset)
    try:
        return await asyncio.to_thread(linting.findings_of_launch, asked)
    except PresetError as error:
        raise RunError(str(error)) from None


@reading
async def lint_files(*files: str | os.PathLike[str]) -> list[Finding]:
    """Return the findings of shell scripts, SkyPilot tasks, Accelerate, DeepSpeed and preset files.

    Raises RunError and TypeError.
    """
    try:
        return await asyncio.to_thread(linting.findings_of_files, list(map(str, files)))
    except PresetError as error:
        raise RunError(str(error)) from None


@reading
async def lint_command(*command: str | os.PathLike[str]) -> list[Finding]:
    """Return the findings of a command line, as in "torchrun", "train.py". Raises RunError and TypeError."""
    return await asyncio.to_thread(check.command_findings, tuple(map(str, command)))


async def advise(gpus: str, **question: Any) -> AdviceDocument:
    """Return which strategies fit into the memory of GPUs, as in "8xA100-80GB".

    `question`: `params="7B"` or `script="model.py:GPT"`, and further fields of `runners.launch.advice.MemoryQuestion`.
    Sizes are in bytes. Raises RunError and TypeError.
    """
    given = checked_fields(MemoryQuestion, gpus=gpus, **question)
    found = await asyncio.to_thread(advice.advised, MemoryQuestion(**given))
    return advice.document(found)


async def presets() -> list[ListedPreset]:
    """Return the presets that can be used from here. Raises RunError if a file of presets cannot be read."""
    loaded, problems = await asyncio.to_thread(lambda: entries(library()))
    if problems:
        raise RunError(problems[0])
    return list_dict(loaded)


@reading
async def preset(preset: str, overrides: Sequence[str] = ()) -> ShownPreset:
    """Return the fields of a preset, and where each comes from. `overrides`: "mesh.tp=2". Raises RunError, TypeError."""
    try:
        return show_dict(await asyncio.to_thread(load, preset, overrides))
    except PresetError as error:
        raise RunError(str(error)) from None


async def candidates(
    on: str = "sky", *, nnodes: int | str | None = None, **options: Any
) -> list[Candidate]:
    """Return the nodes that SkyPilot would take, in its order, with their prices in US dollars per hour.

    `options`: wishes, as for `launch`: `gpus="H100:8", spot=True`. Raises RunError and TypeError.
    """
    return await sky.candidates(requested("candidates", options, on=on, nnodes=nnodes))


@reading
async def doctor(
    run: str | None = None,
    *,
    hosts: Sequence[str] = (),
    ssh_config: str | None = None,
    python: str | os.PathLike[str] | None = None,
    port: int | None = None,
    pairs: bool = True,
    size_mib: int = examination_request.SIZE_MIB,
) -> ExaminationDocument:
    """Check that this node, the nodes of `run`, or `hosts` can run a job.

    `pairs`: try an all-reduce of `size_mib` between pairs of nodes. Raises RunError and TypeError.
    """
    named = requested("doctor", {}, hosts=hosts) if hosts else None
    request = await asyncio.to_thread(
        examination_request.doctor_request,
        run=run,
        named=named,
        ssh_config=ssh_config,
        python=None if python is None else os.fspath(python),
        port=port,
        try_pairs=pairs,
        size_mib=size_mib,
    )
    outcome = await examine(request, lambda label, done, total: None)
    return examination.document(outcome, [place.name for place in request.places])


# --- runs


async def runs() -> list[AsyncRun]:
    """Return every known run on this machine, newest first. Raises RunError."""
    return [AsyncRun(entry) for entry in await asyncio.to_thread(run_directories.entries)]


@reading
async def attach(run: str | None = None) -> AsyncRun:
    """Return the run of a name, an id or a unique prefix; for None, the only live one, else the newest.

    Raises NoSuchRunError and TypeError.
    """
    if run is not None and not run.strip():
        raise NoSuchRunError(
            "the name of the run is empty: pass one of runs(), or None for the only live one"
        )
    return AsyncRun(await asyncio.to_thread(run_directories.resolve, run))


@reading
async def ls(*, hosts: Sequence[str] = (), ssh_config: str | None = None) -> list[RunLine]:
    """Return the content of `distui ls --json`: the runs of this machine, or of `hosts` by ssh.

    Raises UnreachableError if a host does not answer, RunError and TypeError.
    """
    if not hosts:
        return [read.document() for read in await asyncio.to_thread(run_list.runs_here)]
    found, problems = await list_on(named_ways(hosts, "hosts", ssh_config))
    if problems:
        raise UnreachableError("; ".join(problems))
    return cast("list[RunLine]", found)


async def jobs() -> list[ListedJob]:
    """Return the training jobs of this user on this machine, also those that distui did not start."""
    seen = await asyncio.to_thread(scan)
    return list(map(watched_jobs.listed, seen.jobs.values()))


@reading
async def watch(pid: int | None = None) -> WatchedStatus:
    """Return the state of the job with a process, by default of the only job. `missing` names unknown facts.

    Raises NoSuchRunError, RunError and TypeError.
    """
    job = find_job(await asyncio.to_thread(scan), pid)
    return watched_jobs.watched(await watched_jobs.state_of(job))


async def diff(
    a: str | RunFacts, b: str | RunFacts, *, everything: bool = False, ssh_config: str | None = None
) -> ComparedRuns:
    """Compare two runs: plan, arguments, environment, code, versions, numbers.

    `a`, `b`: runs, or texts as for `distui diff`: a name, "night@2" for an attempt, "gpu1:night" on a host, the file of
    a bundle. `everything`: also equal values. Raises RunError and TypeError.
    """
    names = [each.id if isinstance(each, RunFacts) else each for each in (a, b)]
    given = checked(a=names[0], b=names[1], everything=everything, ssh_config=ssh_config)
    config = given["ssh_config"]
    both = await asyncio.gather(loading.load(given["a"], config), loading.load(given["b"], config))
    return differences.compared_runs(differences.compare(*both, everything=given["everything"]))


@reading
async def diagnose_files(*files: str | os.PathLike[str]) -> Diagnosis:
    """Return the first cause in log files, archives or directories of any job. Raises RunError and TypeError."""
    names = list(map(str, files))
    return diagnosis_of(*await asyncio.to_thread(run_diagnosis.judge_files, names))


@reading
async def prune(
    *, older_than_s: float | None = None, keep: int | None = None, failed: bool = False
) -> Removed:
    """Remove the ended runs that fit all conditions, at least one, except those with the tag "keep".

    `older_than_s`: seconds since their end. `keep`: spare the newest so many. `failed`: only runs that failed or are
    lost. Raises RunError and TypeError.
    """
    return await asyncio.to_thread(
        lambda: removed_runs.remove_all(removed_runs.to_prune(older_than_s, keep, failed))
    )


@reading
async def prunable(
    *, older_than_s: float | None = None, keep: int | None = None, failed: bool = False
) -> Removable:
    """Return what `prune` would remove. Raises RunError and TypeError."""
    return await asyncio.to_thread(
        lambda: removed_runs.removable(removed_runs.to_prune(older_than_s, keep, failed))
    )
