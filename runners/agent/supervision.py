"""Supervise the runner: attempts, exits, and the ledger of attempts."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable

from msgspec import structs

from ...presets.finding import Finding
from ...presets.sanitize import clean_text
from ..inrank.restart_policy import after_failure
from ..run import clock
from ..run.host_processes import StartMode
from ..run.model import (
    AttemptEnded,
    AttemptStarted,
    EnvironmentRestored,
    Outcome,
    RankChanged,
    RankPhase,
    RestartDelayed,
    RunEnded,
    RunnerLost,
    RunPhase,
    Stamped,
)
from ..run.processes import sweep
from .attempt_ends import close_attempt, first_cause, succeeded
from .checkpoint_watch import CheckpointWatch
from .commands import Restarts
from .ended_ranks import Ended, gather, idle_text, last_lines, last_reported, last_samples, unseen
from .hook_clients import Hooks
from .kernel_evidence import NOTHING, KernelEvidence, OomWatch
from .nccl_logs import NcclLogs
from .runner_process import ReportTail, Runner, ServedRun, SpawnRunner, reports
from .sampling import Sampling


def _before(attempt: str | None, number: int) -> bool:
    """Return True if a rank's attempt came before `number`. An agent that catches up reads later attempts next."""
    return attempt is not None and attempt.isdecimal() and int(attempt) < number


UNKILLABLE = (
    "see which kernel call holds them (NFS, a GPU driver): `ps -eo pid,stat,wchan:32,args | grep ' D'`; "
    "if they stay, reboot the node"
)
FRESH_S = 10.0
"""Largest age, in seconds, of a report that was read when it was written, if late on a busy machine."""


class Supervision:
    """Follows one runner after another until the run has ended."""

    def __init__(
        self,
        run: ServedRun,
        hooks: Hooks,
        restarts: Restarts,
        sampling: Sampling,
        nccl_logs: NcclLogs,
        checkpoints: CheckpointWatch,
        judge: Callable[[], Awaitable[None]],
        relaying: Callable[[], bool],
        spawn_runner: SpawnRunner = Runner.start,
    ) -> None:
        """`judge` runs all detectors once more. `relaying` returns True while the runner carries a viewer's stream."""
        self._spawn_runner, self._relaying = spawn_runner, relaying
        self._run, self._hooks, self._restarts = run, hooks, restarts
        self._sampling, self._nccl_logs, self._judge = sampling, nccl_logs, judge
        self._checkpoints = checkpoints
        self._environment = restarts.environment
        self._mode = StartMode.READ
        """START once this agent has started or adopted a runner, whose end it then sees itself."""
        self._changes: dict[int, RankChanged] = {}
        """Last change of each rank of the open attempt, in the order of the reports. Changes that an earlier agent
        read come first, and have no time."""
        self._evidence: dict[int, KernelEvidence] = {}
        """The kernel's log on the ranks that exited."""
        self._hangs: tuple[Finding, ...] = ()
        """Hang findings when the first rank of the attempt failed."""
        self._oom_watch = OomWatch()
        self._began = (0, 0.0)
        """Number of the attempt whose start this agent saw, and its monotonic time."""
        self._last_word: tuple[int, Stamped] | None = None
        """The runner's report of the end and its offset, until RunEnded is emitted."""
        self._tail = ReportTail(run.run_dir, 0)
        """The runner's reports that are not read yet."""
        self._fresh = False
        """True if the runner has begun no attempt yet."""

    async def begin(self, mode: StartMode, resumed: bool) -> bool:
        """Adopt the living runner, or start the first runner of a new run. Return True if adopted."""
        run, self._mode = self._run, mode
        fresh = self._mode is StartMode.START and not resumed
        run.runner = None if fresh else Runner.adopt(run.entry)
        if fresh:
            self._tail = ReportTail(run.run_dir, ReportTail.end(run.run_dir))
            await self._start_runner()
            if run.runner is not None and run.runner.reports_from is not None:
                # It may have been spawned before this agent was made, and have reported already.
                self._tail = ReportTail(run.run_dir, run.runner.reports_from)
        else:
            self._tail = ReportTail(run.run_dir, run.state.source)
            self._environment.recall()
            if run.runner is not None:
                self._mode = StartMode.START  # this agent sees the runner's end itself
        return not fresh and run.runner is not None

    def resume_ranks(self) -> None:
        """Restore open ranks after an adoption."""
        for number, rank in self._run.state.ranks.items():
            change = RankChanged(
                self._run.state.attempt,
                number,
                rank.phase,
                rank.place.local_rank,
                rank.pid,
                rank.exit_code,
                rank.signal,
            )
            self._changes[number] = change
            if rank.phase is RankPhase.RUNNING and rank.pid is not None:
                self._hooks.follow(change)

    async def _start_runner(self, cause: str = "") -> None:
        forgotten = self._environment.forgotten()
        if forgotten:
            await self._end(RunPhase.FAILED, 2, forgotten)
            return
        try:
            self._run.runner = self._spawn_runner(self._run, self._environment.for_runner(), cause)
            self._fresh = True
        except (OSError, ValueError) as error:
            python = self._run.plan.python or self._run.plan.argv[0]
            why = getattr(error, "strerror", None) or error
            await self._end(RunPhase.FAILED, 127, f"cannot execute {python}: {why}")

    async def run(self) -> None:
        """Follow one runner after another until the run has ended."""
        while not self._run.state.phase.ended:
            if self._run.runner is not None:
                await self._follow(self._run.runner)
            elif self._is_lost():
                if self._mode is StartMode.READ or not await self._revive():
                    return  # reading starts nothing
                continue
            await self._finish()
            if self._waits_for_runner():
                await self._start_runner()
            elif not self._run.state.phase.ended:
                await self._runner_lost()

    async def _follow(self, runner: Runner) -> None:
        """Follow a living runner until it has exited, or has reported the end while it still relays for viewers."""
        async with contextlib.aclosing(reports(runner, self._tail)) as events:
            async for offset, stamped in events:
                await self._environment.noted()
                self._hear(offset, stamped)
                if self._last_word is not None and self._relaying():
                    return

    def _is_lost(self) -> bool:
        """Read the reports of an exited runner. Return True if they lack its end, and this agent did not see it."""
        for offset, stamped in self._tail.read():
            self._hear(offset, stamped)
        return self._mode is not StartMode.START and self._last_word is None

    def _waits_for_runner(self) -> bool:
        """Return True if an earlier agent had counted this failure, and died while it waited."""
        state = self._run.state
        return self._run.runner is None and state.delay is not None and not self._run.stopping()

    async def _finish(self) -> None:
        """Clean up the runner's remaining processes after its report of the end, and emit the end."""
        last_word = self._last_word
        if last_word is None:
            return
        runner = self._run.runner
        if runner is not None:  # otherwise it exited long ago, and a stop cleans up
            left = await sweep(self._run.record.run, keep=[runner.who.pid], grace_s=2.0)
            if left:
                text = f"these processes would not end: {', '.join(left)}"
                self._run.findings.raise_finding(
                    Finding("unkillable", "warning", text, remedy=UNKILLABLE, node=self._run.node)
                )
        offset, stamped = last_word
        assert isinstance(stamped.event, RunEnded)
        event = stamped.event
        await self._read_logs()
        await self._end(event.phase, event.exit_code, event.text, source=offset, at=stamped.time)
        self._last_word = None

    async def _read_logs(self) -> None:
        """Read the rest of the logs before the end is reported."""
        await self._run.parts.guard("logs", self._nccl_logs.finish())

    async def end_runner(self) -> None:
        """End a runner that stayed for the relay after its report of the end."""
        if self._run.runner is not None:
            await sweep(self._run.record.run, grace_s=2.0)

    def _hear(self, offset: int, stamped: Stamped) -> None:
        event = stamped.event
        if isinstance(event, AttemptStarted):
            if event.attempt > self._run.state.attempt:
                restarted = event.cause in ("restart", "membership")
                self._close_attempt(Outcome.RESTARTED if restarted else None, at=stamped.time)
            event = self._environment.begun(event, self._fresh)
            self._fresh = False
        elif isinstance(event, RestartDelayed):
            self._close_attempt(None, at=stamped.time)
        elif isinstance(event, RunEnded):
            self._last_word = (offset, stamped)
            return
        elif isinstance(event, RankChanged):
            event = self._rank_changed(event)
        self._run.emit(event, source=offset, at=stamped.time)
        if isinstance(event, AttemptStarted):
            self._attempt_started(event, stamped.time)
        elif isinstance(event, EnvironmentRestored):
            self._environment.heard(event)
        elif isinstance(event, RankChanged) and event.state is RankPhase.RUNNING:
            self._hooks.follow(event)

    def _attempt_started(self, event: AttemptStarted, at: float) -> None:
        age = clock.now() - at
        if event.attempt != self._began[0]:  # else ranks have joined the attempt
            self._began = (event.attempt, clock.monotonic() - age) if 0.0 <= age < FRESH_S else (0, 0.0)
        self._changes, self._evidence, self._hangs = {}, {}, ()
        self._hooks.keep({place.rank for place in event.ranks})
        if self._run.runner is None:
            return  # a report of the past
        job = sweep(
            self._run.record.run,
            keep=[self._run.runner.who.pid],
            wanted=lambda env: (
                "DISTUI_RUNNER_PID" in env and _before(env.get("DISTUI_ATTEMPT"), event.attempt)
            ),
        )
        self._run.parts.once("sweep", job)

    def _rank_changed(self, event: RankChanged) -> RankChanged:
        if event.state is RankPhase.RUNNING:
            self._oom_watch.follow(event.pid)
        else:
            event = self._rank_ended(event)
        self._changes.pop(event.rank, None)
        self._changes[event.rank] = event
        return event

    def _rank_ended(self, event: RankChanged) -> RankChanged:
        """Return the event with the cause of a failure, or as a stop."""
        self._hooks.forget(event.rank)
        failed = event.state in (RankPhase.FAILED, RankPhase.KILLED)
        if failed:
            if not self._evidence:
                raised = self._run.state.findings.values()
                self._hangs = tuple(each for each in raised if each.id.startswith("hang-"))
            self._evidence[event.rank] = self._oom_watch.evidence(event.pid, event.signal)
        if self._run.stopping() and event.state is not RankPhase.SUCCEEDED:
            return structs.replace(event, state=RankPhase.STOPPED)
        if failed:
            cause = first_cause([self._gather(event)], succeeded(self._changes), self._gather)
            if cause is not None and not cause.symptom:
                return structs.replace(event, cause=cause)
        return event

    def _close_attempt(
        self, requested: Outcome | None, reported: str = "", at: float | None = None
    ) -> None:
        """Close the attempt. `at`: Unix time of the runner's report, which an agent may read much later."""
        current = self._run.state.newest
        if current is None or current.ended is not None:
            return
        closed = close_attempt(
            current.number,
            self._changes,
            requested=requested,
            gather=self._gather,
            reported=reported,
            hangs=self._hangs,
        )
        self._emit_end(closed, at)

    def _gather(self, change: RankChanged) -> Ended:
        return gather(self._run.run_dir, change, self._evidence.get(change.rank, NOTHING), self._run.node)

    def _emit_end(self, event: AttemptEnded, at: float | None = None) -> None:
        run = self._run
        about = (run.run_dir, run.node, event.attempt, run.state.ranks)
        for change in list(unseen(*about)):
            run.emit(change)
        self._checkpoints.close(event.attempt)
        number, began = self._began
        lasted_s = clock.monotonic() - began if number == event.attempt else None
        if event.attempt == run.state.attempt:
            for rank, reported in last_reported(*about):
                self._sampling.training.take(rank, reported)
        training = self._sampling.collect_last()
        event = structs.replace(
            event,
            last=last_samples(*about, self._sampling.paces.last),
            lasted_s=lasted_s,
            training=training if event.attempt == run.state.attempt else (),
        )
        if event.outcome is Outcome.SUCCEEDED and (idle := idle_text(*about)):
            event = structs.replace(event, idle=idle, text=f"{event.text}, but {idle}")
        run.emit(event, at=at)

    async def _end(
        self, phase: RunPhase, code: int | None, text: str, *, source: int = 0, at: float | None = None
    ) -> None:
        if self._run.stopping() and phase is not RunPhase.SUCCEEDED:
            phase, text = RunPhase.STOPPED, "stopped"
        reported = clean_text(text) if phase is RunPhase.FAILED else ""
        self._close_attempt(Outcome.STOPPED if phase is RunPhase.STOPPED else None, reported, at)
        for rank in list(self._hooks.by_rank):
            self._hooks.forget(rank)
        self._sampling.conclude()
        await self._judge()
        text = clean_text(self._end_text(phase, text))
        self._run.emit(RunEnded(phase, code, text), source=source, at=at)

    def _end_text(self, phase: RunPhase, text: str) -> str:
        """Add the end of the last attempt to the text of the run's end."""
        state = self._run.state
        if phase is RunPhase.SUCCEEDED and state.idle:
            return f"{text}, but {state.idle}"
        cause = state.first_cause if phase is RunPhase.FAILED else None
        if cause is None or cause.text in text or text in cause.text:
            return text
        return f"{cause.text}; {text}"

    async def _revive(self) -> bool:
        """Start the next attempt of a lost run on request. Return False if the run has ended instead."""
        run = self._run
        left = await sweep(run.record.run, grace_s=run.plan.grace_s)
        self._end_ranks(RankPhase.LOST)
        last = run.state.newest
        if last is not None and last.ended is None:
            run.emit(AttemptEnded(last.number, Outcome.LOST, None, f"attempt {last.number} was lost"))
        if left:
            await self._end(RunPhase.FAILED, 1, f"lost, and {', '.join(left)} would not end")
            return False
        self._mode = StartMode.START
        self._restarts.revive()
        await self._start_runner("restart")
        return self._run.runner is not None

    def _end_ranks(self, phase: RankPhase) -> None:
        """Emit the end of the ranks whose runner died before it reported it."""
        for change in list(self._changes.values()):
            if change.state is RankPhase.RUNNING:
                self._changes[change.rank] = structs.replace(change, state=phase)
                self._run.emit(self._changes[change.rank])

    async def _runner_lost(self) -> None:
        """End the ranks of a runner that died without a report, because they have no rendezvous any more."""
        run = self._run
        pid = run.runner.who.pid if run.runner else run.state.runner_pid or 0
        run.runner = None
        if not run.stopping():
            text = f"the runner (pid {pid}) died: its ranks are ended, their files are kept"
            run.emit(RunnerLost(pid, text))
        left = await sweep(run.record.run, grace_s=run.plan.grace_s)
        await self._read_logs()
        self._end_ranks(RankPhase.STOPPED)
        if run.stopping():
            await self._end(RunPhase.STOPPED, 1, "stopped")
        elif not run.state.attempts:
            lines = last_lines(run.run_dir, "runner.log", 1)
            why = " ".join(lines) or "see runner.log"
            await self._end(RunPhase.FAILED, 1, f"the runner died before the first attempt: {why}")
        elif left:
            await self._end(
                RunPhase.FAILED, 1, f"the runner (pid {pid}) died, and {', '.join(left)} would not end"
            )
        else:
            await self._replace_runner(pid)

    async def _replace_runner(self, pid: int) -> None:
        """Count a dead runner as a failure. The restart policy decides if and when another one starts."""
        run = self._run
        last = run.state.attempts[-1]
        policy = dataclasses.asdict(run.plan.restart)
        verdict = after_failure(policy, run.state.failures, last.lasted(clock.now()) or 0.0)
        if last.ended is None:
            text = f"attempt {last.number} lost its runner (pid {pid})"
            self._emit_end(AttemptEnded(last.number, Outcome.LOST, None, text))
        if not verdict.restart:
            await self._end(RunPhase.FAILED, 1, f"the runner (pid {pid}) died, and no restart is left")
            return
        run.emit(RestartDelayed(verdict.wait_s, verdict.failures, run.plan.restart.limit))
        await run.until(run.stopping, verdict.wait_s)
        if run.stopping():
            await self._end(RunPhase.STOPPED, 1, "stopped")
        else:
            await self._start_runner()
