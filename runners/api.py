"""distui from Python: launch runs, find them, wait for them, read their logs, profile, restart and stop them.

    from distui.runners import api

    run = api.launch("train.py", "--lr", "1e-3", preset="ddp", nproc_per_node=2)
    run.wait("running")
    run.restart(env={"NCCL_DEBUG": "INFO"})
    for line in run.logs(ranks=[0]):
        print(line)
    run.stop()

Every call blocks until it is complete. A wrong argument type raises TypeError, every other problem a
`distui.runners.run.errors.RunError`; both have a text of one sentence. A run outlives the program that launched it.
If an event loop is already running (a notebook), the calls work in a thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..presets.finding import PlanError, PresetError
from ..presets.plurals import plural
from ..presets.request import REQUEST_OPTIONS, Named, Request
from .api_arguments import UNTIL, check_changes, checked, shown
from .launch.hosts import check_hosts
from .launch.prepare import prepare
from .logs.choice import check_there, choose
from .logs.merging import MergedLogs, prefixes
from .node import agentless, local_agent, run_following
from .node.local_agent import open_link
from .reports import profile_report
from .reports.profile_report import Profiled
from .reports.status_document import RunStatus, status_json
from .run import run_directories
from .run.commands import Profile, Restart, Stop
from .run.errors import NoSuchRunError, RunError, UnknownOutcomeError, UnreachableError
from .run.log_files import parse_file_id
from .run.model import CommandDone, RankPhase, RunPhase
from .run.opened_logs import LogError
from .run.wire.client import Link, LinkError, UnansweredError, new_id

__all__ = ["RefusedError", "Run", "attach", "execute", "launch", "runs"]

T = TypeVar("T")


class RefusedError(RunError):
    """The run refused the command or could not execute it; the text is its answer."""

    code = 1


# -----------------------------------------------------------------------------------------------------------
# The calls.


def launch(
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
) -> Run:
    """Start `script` under a preset on this machine, on `hosts` by ssh, or elsewhere. Raises RunError and TypeError.

    `overrides`: preset fields, "mesh.tp=2"; the other arguments are those of the command line. `options`: its further
    options, by the fields of `presets.request.Request`, as in `adopt=True, grace_s=10, notify=["team:hang"]`.
    """
    given = checked(
        script=script,
        args=args,
        name=name,
        python=python,
        nnodes=nnodes,
        nproc_per_node=nproc_per_node,
        env=env,
        nccl=nccl,
        preset=preset,
        overrides=overrides,
        **_options("launch", options),
    )
    named = [Named(host) for host in checked(hosts=hosts)["hosts"]]
    return _started(Request(hosts=tuple(check_hosts(named, "hosts")) if named else (), **given))


def execute(
    *command: str | os.PathLike[str],
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Run:
    """Start any command on this machine, and supervise it unchanged. `options`: as of `launch`.

    Raises RunError and TypeError.
    """
    further = _options("exec", options)
    return _started(Request(**checked(command=command, name=name, env=env, **further)))


def _options(verb: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return `given` if each name is an option of the verb. Raises TypeError."""
    for name in given:
        option = REQUEST_OPTIONS.get(name)
        if option is None or verb not in option.verbs or option.alone:
            raise TypeError(f"{name} is no option of {verb}: pass fields of distui.presets.request.Request")
    return given


def _started(asked: Request) -> Run:
    """Prepare and start a run. Raises RunError."""

    def start() -> run_directories.Entry:
        try:
            prepared = prepare(asked)
        except (PresetError, PlanError) as error:
            raise RunError(str(error)) from None
        except OSError as error:
            if error.filename is None:
                raise
            why = f"cannot be used ({error.strerror}): pass another path"
            raise RunError(f"{shown(error.filename)} {why}") from None
        return prepared.start()

    return Run(_apart(start))


def runs() -> list[Run]:
    """Every known run on this machine, newest first. Raises RunError."""
    return [Run(entry) for entry in run_directories.entries()]


def attach(run: str | None = None) -> Run:
    """Return the run of a name, an id or a unique prefix; for None, the only live one, else the newest.

    Raises NoSuchRunError and TypeError.
    """
    text: str | None = checked(run=run)["run"]
    if text is not None and not text.strip():
        raise NoSuchRunError(
            "the name of the run is empty: pass one of runs(), or None for the only live one"
        )
    return Run(run_directories.resolve(text))


@dataclass(frozen=True, slots=True)
class Run:
    """A run, live or ended."""

    entry: run_directories.Entry

    @property
    def id(self) -> str:
        return self.entry.record.run

    @property
    def name(self) -> str:
        return self.entry.record.name

    @property
    def path(self) -> Path:
        """Run directory: logs, journal, plan."""
        return self.entry.path

    @property
    def phase(self) -> RunPhase:
        """Phase from its files and processes."""
        return run_directories.phase(self.entry)

    def status(self) -> RunStatus:
        """Return the content of `distui status --json`; docs/cli.md has the fields. Raises RunError."""
        return status_json(self._linked(run_following.snapshot))

    def wait(self, until: str = "done", timeout: float | None = None) -> RunPhase:
        """Wait until the run reaches a goal or ends, and return its phase.

        `until`: "running" (every rank has a process), "healthy" (each has made a step), "done". Raises RunError and
        TypeError, and TimeoutError after `timeout` seconds.
        """
        given = checked(until=until, timeout=timeout)

        async def use(link: Link) -> RunPhase:
            async with asyncio.timeout(given["timeout"]):
                state = await run_following.follow_until(link, given["until"])
            if not state.phase.ended and (until == "done" or not run_following.reached(state, until)):
                whys = [finding.text for finding in state.findings.values() if finding.id == "no-agent"]
                raise UnreachableError(whys[0] if whys else f"no agent serves {self.name}")
            return state.phase

        try:
            return self._linked(use)
        except TimeoutError:
            far = f"{self.name} is not {until} ({UNTIL[until]}) after {given['timeout']:g} s"
            raise TimeoutError(f"{far}: {self._standing()}") from None

    def _standing(self) -> str:
        """Its state from its files, as the end of a sentence."""
        state = self.entry.state()
        if not state.attempts:
            return f"it is {self.phase}, and no rank was started yet"
        running = sum(rank.phase is RankPhase.RUNNING for rank in state.ranks.values())
        return f"it is {self.phase}, attempt {state.attempt}, {running} of {plural(len(state.ranks), 'rank')} running"

    def logs(
        self, ranks: Sequence[int] = (), streams: Sequence[str] = ("out", "err"), attempt: int | None = None
    ) -> Iterator[str]:
        """Iterate over the current log lines, without terminal control codes, of the newest attempt or of `attempt`.

        Lines of several files are in order of time, prefixed: "[rank 0] …". `streams`: "out", "err", "nccl", "log" (of
        runner and agent). Raises RunError, also for a rank or an attempt that the run does not have, and TypeError.
        """
        given = checked(ranks=ranks, streams=streams, attempt=attempt)

        async def use(link: Link) -> list[str]:
            state = await run_following.history(link)
            files = [file for name in state.log_sizes if (file := parse_file_id(name)) is not None]
            check_there(state, files, given["ranks"], given["attempt"])
            chosen = choose(files, **given)
            merged, prefix = MergedLogs(), prefixes(chosen)
            for file in chosen:
                merged.add(file, dated=len(chosen) > 1)
                merged.grow(file, state.log_sizes[file.id])
            lines = [line async for ready in merged.read(link) for line in ready]
            for name, problem in merged.problems.items():
                raise RunError(f"{name}: {problem}")
            return [f"{prefix(file)}{line.text}" for line, file in lines + merged.last_words(chosen)]

        try:
            return iter(self._linked(use))
        except LogError as error:
            raise RunError(str(error)) from None

    def restart(
        self, env: Mapping[str, str] | None = None, unset: Sequence[str] = (), reachable: bool = False
    ) -> str:
        """Restart every rank in place with a changed environment, wait until all run, and return the answer.

        `reachable`: continue without nodes that do not answer. Raises RefusedError, RunError and TypeError.
        """
        given = checked(env=env, unset=unset, reachable=reachable)
        check_changes(given["env"], given["unset"])
        command = Restart(new_id(), **given)
        return _accepted(self._linked(lambda link: link.send(command)))

    def profile(
        self,
        ranks: Sequence[int] = (),
        steps: int = 3,
        timeout: float | None = None,
        out: str | os.PathLike[str] | None = None,
    ) -> Profiled:
        """Record the same steps of `ranks` (all by default) with torch.profiler, as `distui profile --json` does.

        `timeout`: seconds; None: derived from the time per step. `out`: directory for the traces, instead of the run's.
        Raises RefusedError without a trace, RunError and TypeError.
        """
        given = checked(ranks=ranks, steps=steps, timeout=timeout, out=out)
        folder = None if given["out"] is None else Path(given["out"])
        asked = Profile(new_id(), tuple(sorted({*given["ranks"]})), given["steps"], given["timeout"])
        command = profile_report.checked(asked, folder)

        async def use(entry: run_directories.Entry, link: Link) -> Profiled:
            done, answered, fetched = await profile_report.profiled(entry, link, command, folder)
            if not done.ok:
                raise RefusedError(done.text)
            return profile_report.report(done, answered, fetched)

        return _apart(lambda: asyncio.run(local_agent.with_link(self.id, use)))

    def stop(self, grace_s: float | None = None) -> str:
        """End the run, even if its agent does not answer: SIGTERM, then SIGKILL after `grace_s` seconds.

        Raises RefusedError if a process is left, RunError and TypeError.
        """
        command = Stop(new_id(), **checked(grace_s=grace_s))

        async def stop() -> CommandDone:
            return await agentless.stop_run(self.entry, command, lambda text: None, open_link)

        try:
            return _accepted(_apart(lambda: asyncio.run(stop())))
        except UnansweredError as error:
            raise UnknownOutcomeError(f"{self.name}: {error}") from None
        except LinkError as error:
            raise UnreachableError(f"{self.name}: {error}") from None

    def _linked(self, use: Callable[[Link], Awaitable[T]]) -> T:
        return _apart(lambda: asyncio.run(local_agent.with_link(self.id, lambda entry, link: use(link))))


def _accepted(done: CommandDone) -> str:
    if not done.ok:
        raise RefusedError(done.text)
    return done.text


def _apart(do: Callable[[], T]) -> T:
    """Return `do()`. Call it in another thread if the current thread has a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return do()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(do).result()
