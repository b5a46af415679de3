"""The agent itself: hears runner, hooks and samplers, keeps the journal, tells viewers."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Callable
from importlib.metadata import version

from ...presets.plan import Plan
from .. import identity
from ..errors import RunError
from ..inrank.policy import after_failure
from ..journal import Journal
from ..model import (
    TELEMETRY,
    AgentStarted,
    AttemptStarted,
    Event,
    Outcome,
    PlanSummary,
    RankChanged,
    RankPhase,
    RestartDelayed,
    RunCreated,
    RunEnded,
    RunnerLost,
    RunPhase,
    Stamped,
)
from ..registry import AGENT_FILE, Entry
from ..state import RunState
from ..wire.sockets import stem
from . import commands, ledger
from .hooks import Hooks
from .oom import OomWatch
from .processes import sweep
from .runner import ReportTail, Runner, reports
from .sampling import Sampling
from .server import Server


def summarise(plan: Plan) -> PlanSummary:
    """The part of a plan that every screen needs."""
    return PlanSummary(
        preset=plan.preset,
        strategy=plan.strategy,
        launcher=plan.launcher,
        command=" ".join(plan.command),
        nnodes=plan.nnodes,
        nproc_per_node=plan.nproc_per_node,
        backend=plan.backend,
        obeys=plan.obeys,
        restart_limit=plan.restart.limit,
        grace_s=plan.grace_s,
        notes=plan.notes,
    )


class Agent:
    """One run on one node."""

    def __init__(self, entry: Entry, plan: Plan) -> None:
        self.entry, self.plan = entry, plan
        self.run_dir = entry.path
        self.version = version("distui")
        self.stem = stem(entry.record.run8)
        self.state = RunState()
        self.journal = Journal(entry.path)
        self.runner: Runner | None = None
        self.stopping = False
        self._changes: dict[int, RankChanged] = {}
        """Last change of each rank of the open attempt."""
        self._oom: dict[int, str | None] = {}
        self._oom_watch = OomWatch()
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._jobs: set[asyncio.Task[object]] = set()
        self.commands = commands.Commands(self)
        self.server = Server(
            self._socket, entry.record.run, entry.path, self.journal, self.version, self.commands.execute
        )
        self.hooks = Hooks(entry.path, self.stem, self.emit)
        self.sampling = Sampling(self)

    @property
    def _socket(self) -> os.PathLike[str]:
        from pathlib import Path

        return Path(self.stem + ".sock")

    # --- telling ---------------------------------------------------------------------------------------------

    def emit(self, event: Event, *, source: int = 0, at: float | None = None) -> None:
        """Journal an event (telemetry excepted), fold it, tell the viewers, wake who waits for it."""
        durable = not isinstance(event, TELEMETRY)
        seq = max(self.journal.seq, self.state.seq) + 1 if durable else 0
        stamped = Stamped(time.time() if at is None else at, event, seq, source=source)
        if durable:
            self.journal.append(stamped)
        self.state.apply(stamped)
        self.server.publish(stamped)
        for wanted, future in self._waiting:
            if not future.done() and wanted():
                future.set_result(None)

    async def until(self, wanted: Callable[[], bool], seconds: float) -> bool:
        """Wait for something to become true of the state; False after `seconds`."""
        if wanted():
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        item = (wanted, future)
        self._waiting.append(item)
        try:
            async with asyncio.timeout(seconds):
                await future
            return True
        except TimeoutError:
            return False
        finally:
            self._waiting.remove(item)

    def spawn(self, job: asyncio.Task[object]) -> None:
        """Keep a task alive until it is done."""
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    # --- life ------------------------------------------------------------------------------------------------

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve the run until it has ended and nobody looks any more; `ready` once the socket answers."""
        for stamped in self.journal.replay():
            self.state.apply(stamped)
        resumed = self.state.seq > 0
        if not resumed:
            self.emit(
                RunCreated(
                    self.entry.record.run,
                    self.entry.record.name,
                    self.entry.record.host,
                    summarise(self.plan),
                )
            )
        self.stopping = self.state.phase is RunPhase.STOPPING
        self.runner = Runner.adopt(self.run_dir) if resumed else None
        adopted = self.runner is not None
        if not resumed:
            self._start_runner()
        await self.server.start()
        identity.write(self.run_dir / AGENT_FILE, identity.identify(socket=str(self._socket)))
        ready()
        self.emit(AgentStarted(os.getpid(), self.version, adopted))
        self._resume_ranks()
        sampling = asyncio.create_task(self.sampling.run())
        await self._supervise()
        await self.sampling.stop(sampling)
        await self._linger()
        await self.server.close()
        self.journal.close()

    def _resume_ranks(self) -> None:
        """After an adoption: what was open is open again."""
        for number, rank in self.state.ranks.items():
            change = RankChanged(
                self.state.attempt,
                number,
                rank.phase,
                rank.place.local_rank,
                rank.pid,
                rank.exit_code,
                rank.signal,
            )
            self._changes[number] = change
            if rank.phase is RankPhase.RUNNING and rank.pid is not None:
                self.hooks.follow(change)
        self.commands.resume()

    async def _linger(self) -> None:
        """The run has ended: stay for those who look, and a moment for those who are about to."""
        await asyncio.sleep(1.0)
        await self.server.idle.wait()

    def _start_runner(self) -> None:
        try:
            self.runner = Runner.start(self.plan, self.run_dir, self.stem, self.state.failures)
        except OSError as error:
            python = self.plan.python or self.plan.argv[0]
            self._end(RunPhase.FAILED, 127, f"cannot execute {python}: {error.strerror}")

    async def _supervise(self) -> None:
        """Hear one runner after another until the run has ended."""
        tail = ReportTail(self.run_dir, self.state.source)
        while not self.state.phase.ended:
            if self.runner is None:
                for offset, stamped in tail.read():
                    self._hear(offset, stamped)
            else:
                async for offset, stamped in reports(self.runner, tail):
                    self._hear(offset, stamped)
            if not self.state.phase.ended:
                await self._runner_lost()
        left = await sweep(self.entry.record.run, grace_s=2.0)
        if left:
            self.commands.warn("unkillable", f"these processes would not end: {', '.join(left)}")

    # --- hearing the runner ----------------------------------------------------------------------------------

    def _hear(self, offset: int, stamped: Stamped) -> None:
        event = stamped.event
        if isinstance(event, AttemptStarted) and event.attempt > self.state.attempt:
            self._close_attempt(Outcome.RESTARTED if event.cause in ("restart", "membership") else None)
        elif isinstance(event, RestartDelayed):
            self._close_attempt(None)
        elif isinstance(event, RunEnded):
            self._end(event.phase, event.exit_code, event.text, source=offset, at=stamped.time)
            return
        elif isinstance(event, RankChanged):
            event = self._rank_changed(event)
        self.emit(event, source=offset, at=stamped.time)
        if isinstance(event, AttemptStarted):
            self._attempt_started(event)
        elif isinstance(event, RankChanged) and event.state is RankPhase.RUNNING:
            self.hooks.follow(event)

    def _attempt_started(self, event: AttemptStarted) -> None:
        self._changes, self._oom = {}, {}
        number = str(event.attempt)
        job = sweep(
            self.entry.record.run,
            keep=[self.runner.who.pid] if self.runner else [],
            wanted=lambda env: "DISTUI_RUNNER_PID" in env and env.get("DISTUI_ATTEMPT", number) != number,
        )
        self.spawn(asyncio.create_task(job))

    def _rank_changed(self, event: RankChanged) -> RankChanged:
        if event.state is not RankPhase.RUNNING:
            self.hooks.forget(event.rank)
            self._oom[event.rank] = self._oom_watch.evidence(event.pid, event.signal)
            if self.stopping and event.state is not RankPhase.SUCCEEDED:
                event = _with_state(event, RankPhase.STOPPED)
        self._changes[event.rank] = event
        return event

    def _close_attempt(self, asked: Outcome | None) -> None:
        current = self.state.attempts[-1] if self.state.attempts else None
        if current is None or current.ended is not None:
            return
        self.emit(
            ledger.close_attempt(
                current.number,
                self._changes,
                asked=asked,
                gathered=lambda change: ledger.gather(self.run_dir, change, self._oom.get(change.rank)),
            )
        )

    def _end(
        self, phase: RunPhase, code: int | None, text: str, *, source: int = 0, at: float | None = None
    ) -> None:
        if self.stopping and phase is not RunPhase.SUCCEEDED:
            phase, text = RunPhase.STOPPED, "stopped"
        self._close_attempt(Outcome.STOPPED if phase is RunPhase.STOPPED else None)
        for rank in list(self.hooks.by_rank):
            self.hooks.forget(rank)
        cause = self.state.attempts[-1].first_cause if self.state.attempts else None
        if phase is RunPhase.FAILED and cause is not None and cause.text not in text:
            text = f"{cause.text}; {text}"
        self.emit(RunEnded(phase, code, text), source=source, at=at)

    async def _runner_lost(self) -> None:
        """The runner died without a word: its ranks have no rendezvous any more, so they are ended."""
        pid = self.runner.who.pid if self.runner else self.state.runner_pid or 0
        self.runner = None
        if not self.stopping:
            self.emit(
                RunnerLost(pid, f"the runner (pid {pid}) died: its ranks are ended, their files are kept")
            )
        left = await sweep(self.entry.record.run, grace_s=self.plan.grace_s)
        for change in list(self._changes.values()):
            if change.state is RankPhase.RUNNING:
                gone = _with_state(change, RankPhase.STOPPED)
                self._changes[change.rank] = gone
                self.emit(gone)
        began = self.state.attempts[-1].began if self.state.attempts else time.time()
        if self.stopping:
            self._end(RunPhase.STOPPED, 1, "stopped")
            return
        if not self.state.attempts:
            said = ledger.last_lines(self.run_dir, "runner.log", 1)
            self._end(
                RunPhase.FAILED,
                1,
                f"the runner died before the first attempt: {' '.join(said) or 'see runner.log'}",
            )
            return
        verdict = after_failure(
            dataclasses.asdict(self.plan.restart), self.state.failures, time.time() - began
        )
        self._close_attempt(None)
        if left or not verdict.restart:
            why = (
                f"could not be ended: {', '.join(left)}"
                if left
                else "the restart policy allows no further failure"
            )
            self._end(RunPhase.FAILED, 1, f"the runner (pid {pid}) died, and {why}")
            return
        self.emit(RestartDelayed(verdict.wait_s, verdict.failures, self.plan.restart.limit))
        await self.until(lambda: self.stopping, verdict.wait_s)
        if self.stopping:
            self._end(RunPhase.STOPPED, 1, "stopped")
        else:
            self._start_runner()


def _with_state(change: RankChanged, state: RankPhase) -> RankChanged:
    return RankChanged(
        change.attempt,
        change.rank,
        state,
        change.local_rank,
        change.pid,
        change.exit_code,
        change.signal,
        change.at,
    )


def load(entry: Entry) -> Plan:
    """The plan of a run. Raises RunError."""
    import json

    from ...presets.model import PlanError
    from ...presets.render import plan_from_json
    from ..registry import PLAN_FILE

    try:
        return plan_from_json(json.loads((entry.path / PLAN_FILE).read_text()))
    except (OSError, ValueError, PlanError) as error:
        raise RunError(f"{entry.path / PLAN_FILE} cannot be read: {error}") from None
