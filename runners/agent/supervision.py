"""Hears the runner, keeps the ledger, and knows what to do when the runner itself dies."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import TYPE_CHECKING

from msgspec import structs

from ..inrank.policy import after_failure
from ..model import (
    AttemptStarted,
    Outcome,
    RankChanged,
    RankPhase,
    RestartDelayed,
    RunEnded,
    RunnerLost,
    RunPhase,
    Stamped,
)
from . import ledger
from .oom import OomWatch
from .processes import sweep
from .runner import ReportTail, Runner, reports

if TYPE_CHECKING:
    from .agent import Agent


class Supervision:
    """One runner after another, until the run has ended."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.runner: Runner | None = None
        self._changes: dict[int, RankChanged] = {}
        """Last change of each rank of the open attempt."""
        self._oom: dict[int, str | None] = {}
        self._oom_watch = OomWatch()

    def begin(self, resumed: bool) -> bool:
        """Start a runner, or after an agent's death adopt the one that lives; True when adopted."""
        if resumed:
            self.runner = Runner.adopt(self._agent.run_dir)
        else:
            self._start_runner()
        return resumed and self.runner is not None

    def resume_ranks(self) -> None:
        """After an adoption: what was open is open again."""
        for number, rank in self._agent.state.ranks.items():
            change = RankChanged(
                self._agent.state.attempt,
                number,
                rank.phase,
                rank.place.local_rank,
                rank.pid,
                rank.exit_code,
                rank.signal,
            )
            self._changes[number] = change
            if rank.phase is RankPhase.RUNNING and rank.pid is not None:
                self._agent.hooks.follow(change)

    def _start_runner(self) -> None:
        try:
            self.runner = Runner.start(
                self._agent.plan, self._agent.run_dir, self._agent.stem, self._agent.state.failures
            )
        except OSError as error:
            python = self._agent.plan.python or self._agent.plan.argv[0]
            self._end(RunPhase.FAILED, 127, f"cannot execute {python}: {error.strerror}")

    async def run(self) -> None:
        """Hear one runner after another until the run has ended."""
        tail = ReportTail(self._agent.run_dir, self._agent.state.source)
        while not self._agent.state.phase.ended:
            if self.runner is None:
                for offset, stamped in tail.read():
                    self._hear(offset, stamped)
            else:
                async for offset, stamped in reports(self.runner, tail):
                    self._hear(offset, stamped)
            if not self._agent.state.phase.ended:
                await self._runner_lost()
        left = await sweep(self._agent.entry.record.run, grace_s=2.0)
        if left:
            self._agent.commands.warn("unkillable", f"these processes would not end: {', '.join(left)}")

    # --- hearing the runner ----------------------------------------------------------------------------------

    def _hear(self, offset: int, stamped: Stamped) -> None:
        event = stamped.event
        if isinstance(event, AttemptStarted) and event.attempt > self._agent.state.attempt:
            self._close_attempt(Outcome.RESTARTED if event.cause in ("restart", "membership") else None)
        elif isinstance(event, RestartDelayed):
            self._close_attempt(None)
        elif isinstance(event, RunEnded):
            self._end(event.phase, event.exit_code, event.text, source=offset, at=stamped.time)
            return
        elif isinstance(event, RankChanged):
            event = self._rank_changed(event)
        self._agent.emit(event, source=offset, at=stamped.time)
        if isinstance(event, AttemptStarted):
            self._attempt_started(event)
        elif isinstance(event, RankChanged) and event.state is RankPhase.RUNNING:
            self._agent.hooks.follow(event)

    def _attempt_started(self, event: AttemptStarted) -> None:
        self._changes, self._oom = {}, {}
        number = str(event.attempt)
        job = sweep(
            self._agent.entry.record.run,
            keep=[self.runner.who.pid] if self.runner else [],
            wanted=lambda env: "DISTUI_RUNNER_PID" in env and env.get("DISTUI_ATTEMPT", number) != number,
        )
        self._agent.spawn(asyncio.create_task(job))

    def _rank_changed(self, event: RankChanged) -> RankChanged:
        if event.state is not RankPhase.RUNNING:
            self._agent.hooks.forget(event.rank)
            self._oom[event.rank] = self._oom_watch.evidence(event.pid, event.signal)
            if self._agent.stopping() and event.state is not RankPhase.SUCCEEDED:
                event = structs.replace(event, state=RankPhase.STOPPED)
        self._changes[event.rank] = event
        return event

    def _close_attempt(self, asked: Outcome | None) -> None:
        current = self._agent.state.attempts[-1] if self._agent.state.attempts else None
        if current is None or current.ended is not None:
            return
        self._agent.emit(
            ledger.close_attempt(
                current.number,
                self._changes,
                asked=asked,
                gathered=lambda change: ledger.gather(
                    self._agent.run_dir, change, self._oom.get(change.rank)
                ),
            )
        )

    def _end(
        self, phase: RunPhase, code: int | None, text: str, *, source: int = 0, at: float | None = None
    ) -> None:
        if self._agent.stopping() and phase is not RunPhase.SUCCEEDED:
            phase, text = RunPhase.STOPPED, "stopped"
        self._close_attempt(Outcome.STOPPED if phase is RunPhase.STOPPED else None)
        for rank in list(self._agent.hooks.by_rank):
            self._agent.hooks.forget(rank)
        cause = self._agent.state.attempts[-1].first_cause if self._agent.state.attempts else None
        if phase is RunPhase.FAILED and cause is not None and cause.text not in text:
            text = f"{cause.text}; {text}"
        self._agent.emit(RunEnded(phase, code, text), source=source, at=at)

    async def _runner_lost(self) -> None:
        """The runner died without a word: its ranks have no rendezvous any more, so they are ended."""
        pid = self.runner.who.pid if self.runner else self._agent.state.runner_pid or 0
        self.runner = None
        if not self._agent.stopping():
            self._agent.emit(
                RunnerLost(pid, f"the runner (pid {pid}) died: its ranks are ended, their files are kept")
            )
        left = await sweep(self._agent.entry.record.run, grace_s=self._agent.plan.grace_s)
        for change in list(self._changes.values()):
            if change.state is RankPhase.RUNNING:
                gone = structs.replace(change, state=RankPhase.STOPPED)
                self._changes[change.rank] = gone
                self._agent.emit(gone)
        began = self._agent.state.attempts[-1].began if self._agent.state.attempts else time.time()
        if self._agent.stopping():
            self._end(RunPhase.STOPPED, 1, "stopped")
            return
        if not self._agent.state.attempts:
            said = ledger.last_lines(self._agent.run_dir, "runner.log", 1)
            self._end(
                RunPhase.FAILED,
                1,
                f"the runner died before the first attempt: {' '.join(said) or 'see runner.log'}",
            )
            return
        verdict = after_failure(
            dataclasses.asdict(self._agent.plan.restart), self._agent.state.failures, time.time() - began
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
        self._agent.emit(RestartDelayed(verdict.wait_s, verdict.failures, self._agent.plan.restart.limit))
        await self._agent.until(self._agent.stopping, verdict.wait_s)
        if self._agent.stopping():
            self._end(RunPhase.STOPPED, 1, "stopped")
        else:
            self._start_runner()
