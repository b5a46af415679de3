"""One run and all that can be done with it, asynchronously."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ...presets.finding import PresetError
from ...presets.plurals import plural
from ..hub import cluster_commands
from ..launch import rerun
from ..logs.log_stream import LogLine, LogRequest, LogStream, log_line
from ..node import agentless, local_agent, run_following, shares
from ..removal import removed_runs
from ..removal.removed_runs import Removed
from ..reports import bundle_content, curve_report, dump_report, profile_report, run_diagnosis, run_status
from ..reports.bundle_files import Manifest
from ..reports.curve_report import CurveRequest, Curves
from ..reports.dump_report import Dumped
from ..reports.profile_report import Profiled
from ..reports.run_diagnosis import RunDiagnosis
from ..reports.status_document import MarkedStatus
from ..run import checked_commands, journal, run_directories, run_notes, saving
from ..run.commands import Command, Profile, Stop, Unshare
from ..run.errors import RefusedError, RunError, UnknownOutcomeError, UnreachableError
from ..run.model import CommandDone, RankPhase, RunPhase, Stamped
from ..run.opened_logs import LogError
from ..run.run_notes import RunNotes
from ..run.wire.client import YIELD_EVERY, Link, LinkError, UnansweredError, new_id
from .arguments import UNTIL, reading
from .run_card import run_card
from .starting import started

T = TypeVar("T")
Use = Callable[[run_directories.Entry, Link], Awaitable[T]]


@dataclass(frozen=True, slots=True, repr=False)
class RunFacts:
    """Facts of a run, live or ended, that its files tell at once."""

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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} ({self.id}): {self.phase}>"

    def _repr_html_(self) -> str:
        """Return a table and a curve, which notebooks show."""
        return run_card(self.entry)


@dataclass(frozen=True, slots=True, repr=False)
class AsyncRun(RunFacts):
    """A run, live or ended."""

    async def status(self) -> MarkedStatus:
        """Return the content of `distui status --json`; docs/cli.md has the fields. Raises RunError."""

        async def read(entry: run_directories.Entry, link: Link) -> MarkedStatus:
            state = await run_following.snapshot(link)
            run_status.complete(state, entry, link)
            return run_status.marked(state, run_notes.read(entry.path))

        return await self._linked(read)

    @reading
    async def wait(self, until: str = "done", timeout: float | None = None) -> RunPhase:
        """Wait until the run reaches a goal or ends, and return its phase.

        `until`: "running" (every rank has a process), "healthy" (each has made a step), "done". Raises RunError and
        TypeError, and TimeoutError after `timeout` seconds.
        """

        async def follow(entry: run_directories.Entry, link: Link) -> RunPhase:
            async with asyncio.timeout(timeout):
                state = await run_following.follow_until(link, until)
            if not state.phase.ended and (until == "done" or not run_following.reached(state, until)):
                whys = [finding.text for finding in state.findings.values() if finding.id == "no-agent"]
                raise UnreachableError(whys[0] if whys else f"no agent serves {self.name}")
            return state.phase

        try:
            return await self._linked(follow)
        except TimeoutError:
            goal = f"{self.name} is not {until} ({UNTIL[until]}) after {timeout:g} s"
            raise TimeoutError(f"{goal}: {self._standing()}") from None

    def _standing(self) -> str:
        """Its state from its files, as the end of a sentence."""
        state = self.entry.state()
        if not state.attempts:
            return f"it is {self.phase}, and no rank was started yet"
        running = sum(rank.phase is RankPhase.RUNNING for rank in state.ranks.values())
        ranks = plural(len(state.ranks), "rank")
        return f"it is {self.phase}, attempt {state.attempt}, {running} of {ranks} running"

    # --- what it did

    @reading
    def logs(
        self,
        ranks: Sequence[int] = (),
        streams: Sequence[str] = ("out", "err"),
        attempt: int | None = None,
        *,
        node: int | None = None,
        grep: str = "",
        since: float | None = None,
        tail: int | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[LogLine]:
        """Iterate over the log lines of all attempts, or of `attempt`, in order of time.

        `streams`: "out", "err", "nccl", "log" (of distui's runner and agent). `grep`: a regular expression. `since`:
        unix seconds. `tail`: only so many lines of those that are there. `follow`: also new lines, until the run ends.
        Raises RunError, also for a rank, an attempt or a node that the run does not have, and TypeError.
        """
        asked = LogRequest(
            ranks=tuple(ranks),
            streams=tuple(streams),
            attempt=attempt,
            node=node,
            grep=grep,
            since=since,
            tail=tail,
            follow=follow,
            dated=True,
        )
        return self._lines(asked)

    async def _lines(self, asked: LogRequest) -> AsyncGenerator[LogLine]:
        try:
            async with local_agent.linked(self.id) as (entry, link):
                stream = LogStream(link, asked, entry.path)
                async for lines in stream.portions():
                    for line in lines:
                        yield log_line(line)
                for file, problem in stream.problems.items():
                    raise RunError(f"{file}: {problem}")
        except LogError as error:
            raise RunError(str(error)) from None

    @reading
    def events(self, follow: bool = False) -> AsyncGenerator[Stamped]:
        """Iterate over the journal: what happened, each with its time in unix seconds and its number.

        `follow`: also new events, until the run ends. Types of events are in `runners.run.model`. Raises RunError and
        TypeError.
        """
        return self._new_events() if follow else self._recorded_events()

    async def _recorded_events(self) -> AsyncGenerator[Stamped]:
        problems: list[str] = []
        for number, stamped in enumerate(journal.read(self.path, problems=problems)):
            if journal.is_of_run(stamped):
                yield stamped
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        if problems:
            raise RunError(f"{self.name}: {problems[0]}")

    async def _new_events(self) -> AsyncGenerator[Stamped]:
        async with local_agent.linked(self.id) as (_, link):
            async for stamped in link.events():
                if stamped.seq and journal.is_of_run(stamped):
                    yield stamped

    @reading
    async def metrics(
        self,
        *metrics: str,
        last: float | None = None,
        begin: float | None = None,
        end: float | None = None,
        ranks: Sequence[int] = (),
        gpu_indexes: Sequence[int] = (),
        fold: bool = False,
    ) -> Curves:
        """Return the curves of a run, all of them or those named, as "train.loss" or "gpu".

        `last`: seconds before now, or before the end of a run that has ended. `begin`, `end`: unix seconds, instead of
        `last`. `fold`: one curve per metric, of all ranks and GPUs. Raises RefusedError if they cannot be read,
        RunError and TypeError.
        """
        curve_report.check_names(metrics)
        asked = CurveRequest(
            metrics=metrics,
            last=last,
            since=begin,
            until=end,
            ranks=ranks,
            gpus=gpu_indexes,
            fold=fold,
        )
        return await self._linked(lambda entry, link: curve_report.read_curves(entry, link, asked))

    async def diagnose(self) -> RunDiagnosis:
        """Return the content of `distui diagnose --json`: why it hangs, is slow or failed. Raises RunError."""
        return (await asyncio.to_thread(run_diagnosis.judge_run, self.entry)).document()

    @reading
    async def dump(self, what: str = "stacks", ranks: Sequence[int] = ()) -> Dumped:
        """Return the "stacks", "flight" recorders or "memory" of the ranks, () for all, and the merged answers.

        "record" has torch record allocations for later dumps of the memory. Raises RefusedError if no rank answered,
        RunError and TypeError.
        """

        async def ask(entry: run_directories.Entry, link: Link) -> CommandDone:
            done, _ = await dump_report.ask(link, what, ranks)
            return done

        done = await self._linked(ask)
        _accepted(done)
        return dump_report.document(what, done)

    @reading
    async def profile(
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
        folder = None if out is None else Path(out)
        asked = Profile(new_id(), tuple(sorted({*ranks})), steps, timeout)
        command = profile_report.checked(asked, folder)

        async def record(entry: run_directories.Entry, link: Link) -> Profiled:
            done, answered, fetched = await profile_report.profiled(entry, link, command, folder)
            _accepted(done)
            return profile_report.report(done, answered, fetched)

        return await self._linked(record)

    @reading
    async def export(
        self, file: str | os.PathLike[str], *, log_mib: int = 4, force: bool = False
    ) -> Manifest:
        """Write the run without its secrets into one file, which `distui replay` opens. Return what it contains.

        `log_mib`: MiB kept of the end of each log. `force`: replace the file. Raises RunError and TypeError.
        """

        async def write(entry: run_directories.Entry, link: Link) -> Manifest:
            return await bundle_content.write_bundle(
                entry, link, Path(file), force=force, log_bytes=log_mib << 20
            )

        return await self._linked(write)

    # --- what changes it

    @reading
    async def restart(
        self,
        env: Mapping[str, str] | None = None,
        unset: Sequence[str] = (),
        reachable: bool = False,
        *,
        save_first: bool = False,
        save_timeout: float | None = None,
    ) -> str:
        """Restart every rank in place with a changed environment, wait until all run, and return the answer.

        `reachable`: continue without nodes that do not answer. `save_first`: restart only after a new checkpoint, which
        may take `save_timeout` seconds (120 by default). Raises RefusedError, RunError and TypeError.
        """
        command = checked_commands.restart_command(env or {}, unset, reachable)
        if not save_first:
            return await self._send(command)
        seconds = checked_commands.save_seconds(self.entry.state(), save_timeout, reachable)
        done = await self._linked(lambda _, link: saving.saved_then(command, seconds, link.send))
        return _accepted(done)

    @reading
    async def nccl(
        self,
        level: str,
        subsys: str = "",
        ranks: Sequence[int] = (),
        *,
        seconds: float | None = None,
        restart: bool = False,
        reachable: bool = False,
    ) -> str:
        """Set NCCL_DEBUG of `ranks`, () for all, live if their NCCL allows that, and return the answer.

        `subsys`: NCCL_DEBUG_SUBSYS, as in "COLL,NET". `seconds`: until the earlier level returns. `restart`: by a
        restart. `reachable`: see `restart`. Raises RefusedError, RunError and TypeError.
        """
        command = checked_commands.nccl_command(level, subsys, ranks, seconds, restart, reachable)
        return await self._send(command, ranks)

    @reading
    async def signal(self, signal: str, ranks: Sequence[int] = ()) -> str:
        """Send a signal, as in "USR1", to `ranks`, () for all, and return the answer. It is not confirmed first.

        Raises RefusedError, RunError and TypeError.
        """
        return await self._send(checked_commands.signal_command(signal, ranks), ranks)

    @reading
    async def stop(self, grace_s: float | None = None) -> str:
        """End the run, even if its agent does not answer: SIGTERM, then SIGKILL after `grace_s` seconds.

        Raises RefusedError if a process is left, RunError and TypeError.
        """
        command = Stop(new_id(), grace_s)
        try:
            done = await agentless.stop_run(self.entry, command, lambda text: None, local_agent.open_link)
        except UnansweredError as error:
            raise UnknownOutcomeError(f"{self.name}: {error}") from None
        except LinkError as error:
            raise UnreachableError(f"{self.name}: {error}") from None
        return _accepted(done)

    @reading
    async def rerun(
        self,
        name: str | None = None,
        *,
        overrides: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        unset: Sequence[str] = (),
    ) -> AsyncRun:
        """Repeat the launch as a new run, with changes; of a live run it needs another `name`.

        `overrides`: preset fields, "mesh.tp=2". The event loop stops while the launch is planned. Raises RunError and
        TypeError.
        """
        wanted = rerun.LaunchChanges(name, tuple(overrides), env or {}, tuple(unset))
        rerun.check_name(self.entry, wanted)
        # Not in a thread: it changes the directory and the environment of this process for a moment.
        try:
            prepared = rerun.again(self.entry, wanted)
        except PresetError as error:
            raise RunError(str(error)) from None
        return AsyncRun(await asyncio.to_thread(started, prepared))

    async def remove(self) -> Removed:
        """Remove a run that has ended: logs, metrics, journal, and return its directories. Raises RunError."""

        def remove() -> Removed:
            return removed_runs.remove_all(removed_runs.checked([self.entry]))

        removed = await asyncio.to_thread(remove)
        if removed.failed:
            raise RunError(removed.failed[0])
        return removed

    @reading
    async def autostop(self, minutes: int | None) -> str:
        """Set the idle minutes after which the run's cluster is torn down; None: never. Return the outcome.

        Raises RefusedError, RunError and TypeError.
        """
        return _accepted(await cluster_commands.set_autostop(self.entry, minutes))

    @reading
    async def down(self, cluster: str) -> str:
        """Tear down the run's cluster, with everything on it. Its name is the confirmation. Return the outcome.

        Raises RefusedError, RunError and TypeError.
        """
        return _accepted(await cluster_commands.tear_down(self.entry, cluster))

    @reading
    async def share(
        self, user: str | None = None, group: str | None = None, *, for_s: float | None = None
    ) -> str:
        """Let another user, or a group, of this host read the run. Return the path for their `distui attach`.

        `user`, `group`: one of them, by name or number. `for_s`: seconds; None: until the run ends. Raises
        RefusedError, RunError and TypeError.
        """
        done = await shares.shared(self.entry, shares.share_command(user, group, for_s))
        if not done["ok"]:
            raise RefusedError(done["text"])
        return done["socket"]

    async def unshare(self) -> str:
        """End all shares of the run, and return the outcome. Raises RefusedError and RunError."""
        done = await shares.shared(self.entry, Unshare(new_id()))
        if not done["ok"]:
            raise RefusedError(done["text"])
        return done["text"]

    # --- the user's words about it

    async def notes(self) -> RunNotes:
        """Return its notes, oldest first with their times in unix seconds, and its tags."""
        return run_notes.read(self.path)

    @reading
    async def note(self, text: str) -> None:
        """Write a note, which takes the place of the one before in lists. Raises RunError and TypeError."""
        run_notes.note(self.path, text)

    async def clear_notes(self) -> int:
        """Remove all notes, and return their number. Raises RunError."""
        return run_notes.clear(self.path)

    @reading
    async def tag(self, *add: str, remove: Sequence[str] = ()) -> tuple[str, ...]:
        """Add and remove tags, and return all of them in alphabetical order. Raises RunError and TypeError."""
        if add or remove:
            run_notes.tag(self.path, add, remove)
        return run_notes.read(self.path).tags

    async def _linked(self, use: Use[T]) -> T:
        return await local_agent.with_link(self.id, use)

    async def _send(self, command: Command, ranks: Sequence[int] = ()) -> str:
        """Send a command after a check of the ranks, and return the answer. Raises RefusedError and RunError."""
        return _accepted(await self._linked(lambda _, link: local_agent.send(link, command, ranks)))


def _accepted(done: CommandDone) -> str:
    """Return the answer to a command. Raises RefusedError."""
    if not done.ok:
        raise RefusedError(done.text)
    return done.text
