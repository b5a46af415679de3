"""Hears the runner, keeps the ledger, and knows what to do when the runner itself dies."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING

from msgspec import structs

from ..inrank.policy import after_failure
from ..logs.clean import clean_text
from ..model import (
    AttemptEnded,
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
from .oom import NOTHING, Evidence, OomWatch
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
        self._evidence: dict[int, Evidence] = {}
        """What the kernel said of the ranks that ended."""
        self._oom_watch = OomWatch()
        self._last_word: tuple[int, Stamped] | None = None

    async def begin(self, resumed: bool) -> bool:
        """Start a runner, or after an agent's death adopt the one that lives; True when adopted."""
        if resumed:
            self.runner = Runner.adopt(self._agent.run_dir)
        else:
            await self._start_runner()
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

    async def _start_runner(self) -> None:
        try:
            self.runner = Runner.start(
                self._agent.plan, self._agent.run_dir, self._agent.stem, self._agent.state.failures
            )
        except OSError as error:
            python = self._agent.plan.python or self._agent.plan.argv[0]
            await self._end(RunPhase.FAILED, 127, f"cannot execute {python}: {error.strerror}")

    async def run(self) -> None:
        """Hear one runner after another until the run has ended."""
        tail = ReportTail(self._agent.run_dir, self._agent.state.source)
        while not self._agent.state.phase.ended:
            if self.runner is None:
                for offset, stamped in tail.read():
                    self._hear(offset, stamped)
            else:
                async with contextlib.aclosing(reports(self.runner, tail)) as told:
                    async for offset, stamped in told:
                        self._hear(offset, stamped)
                        if self._last_word is not None and self._agent.relaying():
                            break  # whoever looks through the relay hears it while the runner carries that
            await self._finish()
            if self._waits_for_runner():
                await self._start_runner()
            elif not self._agent.state.phase.ended:
                await self._runner_lost()

    def _waits_for_runner(self) -> bool:
        """Whether an earlier agent had counted this failure already, and died while it waited."""
        state = self._agent.state
        return self.runner is None and state.delay is not None and not self._agent.stopping()

    async def _finish(self) -> None:
        """The runner said that the run has ended: what it left behind is ended too, and then it has."""
        said, self._last_word = self._last_word, None
        if said is None:
            return
        keep = [self.runner.who.pid] if self.runner is not None else []
        left = await sweep(self._agent.entry.record.run, keep=keep, grace_s=2.0)
        if left:
            self._agent.commands.warn("unkillable", f"these processes would not end: {', '.join(left)}")
        offset, stamped = said
        assert isinstance(stamped.event, RunEnded)
        event = stamped.event
        await self._agent.nccl_logs.finish()
        await self._end(event.phase, event.exit_code, event.text, source=offset, at=stamped.time)

    async def dismiss(self) -> None:
        """A runner that stayed for the relay after its last word goes, too."""
        await sweep(self._agent.entry.record.run, grace_s=2.0)

    # --- hearing the runner ----------------------------------------------------------------------------------

    def _hear(self, offset: int, stamped: Stamped) -> None:
        event = stamped.event
        if isinstance(event, AttemptStarted) and event.attempt > self._agent.state.attempt:
            self._close_attempt(Outcome.RESTARTED if event.cause in ("restart", "membership") else None)
        elif isinstance(event, RestartDelayed):
            self._close_attempt(None)
        elif isinstance(event, RunEnded):
            self._last_word = (offset, stamped)
            return
        elif isinstance(event, RankChanged):
            event = self._rank_changed(event)
        self._agent.emit(event, source=offset, at=stamped.time)
        if isinstance(event, AttemptStarted):
            self._attempt_started(event)
        elif isinstance(event, RankChanged) and event.state is RankPhase.RUNNING:
            self._agent.hooks.follow(event)

    def _attempt_started(self, event: AttemptStarted) -> None:
        self._changes, self._evidence = {}, {}
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
            if event.state in (RankPhase.FAILED, RankPhase.KILLED):
                self._evidence[event.rank] = self._oom_watch.evidence(event.pid, event.signal)
            if self._agent.stopping() and event.state is not RankPhase.SUCCEEDED:
                event = structs.replace(event, state=RankPhase.STOPPED)
        else:
            self._oom_watch.follow(event.pid)
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
                    self._agent.run_dir,
                    change,
                    self._evidence.get(change.rank, NOTHING),
                    self._agent.node,
                ),
            )
        )

    async def _end(
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
        self._agent.sampling.grown()
        if self._agent.judging is not None:
            await self._agent.judging.guarded()
        self._agent.emit(RunEnded(phase, code, clean_text(text)), source=source, at=at)

    async def _runner_lost(self) -> None:
        """The runner died without a word: its ranks have no rendezvous any more, so they are ended."""
        agent = self._agent
        pid = self.runner.who.pid if self.runner else agent.state.runner_pid or 0
        self.runner = None
        if not agent.stopping():
            text = f"the runner (pid {pid}) died: its ranks are ended, their files are kept"
            agent.emit(RunnerLost(pid, text))
        left = await sweep(agent.entry.record.run, grace_s=agent.plan.grace_s)
        await agent.nccl_logs.finish()
        for change in list(self._changes.values()):
            if change.state is RankPhase.RUNNING:
                self._changes[change.rank] = structs.replace(change, state=RankPhase.STOPPED)
                agent.emit(self._changes[change.rank])
        if agent.stopping():
            await self._end(RunPhase.STOPPED, 1, "stopped")
        elif not agent.state.attempts:
            said = ledger.last_lines(agent.run_dir, "runner.log", 1)
            why = " ".join(said) or "see runner.log"
            await self._end(RunPhase.FAILED, 1, f"the runner died before the first attempt: {why}")
        elif left:
            await self._end(
                RunPhase.FAILED, 1, f"the runner (pid {pid}) died, and {', '.join(left)} would not end"
            )
        else:
            await self._replace_runner(pid)

    async def _replace_runner(self, pid: int) -> None:
        """A dead runner counts as a failure: the policy says whether another one starts, and when."""
        agent = self._agent
        last = agent.state.attempts[-1]
        policy = dataclasses.asdict(agent.plan.restart)
        verdict = after_failure(policy, agent.state.failures, time.time() - last.began)
        if last.ended is None:
            text = f"attempt {last.number} lost its runner (pid {pid})"
            agent.emit(AttemptEnded(last.number, Outcome.LOST, None, text))
        if not verdict.restart:
            limit = agent.plan.restart.limit
            await self._end(
                RunPhase.FAILED, 1, f"the runner (pid {pid}) died: failure {limit + 1} of {limit} allowed"
            )
            return
        agent.emit(RestartDelayed(verdict.wait_s, verdict.failures, agent.plan.restart.limit))
        await agent.until(agent.stopping, verdict.wait_s)
        if agent.stopping():
            await self._end(RunPhase.STOPPED, 1, "stopped")
        else:
            await self._start_runner()
