"""The agent itself: keeps the journal, tells viewers, and holds its parts together."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from ...presets.plan import Plan
from .. import identity
from ..journal import Journal
from ..logs.clean import clean_text
from ..model import TELEMETRY, AgentStarted, Event, PlanSummary, RunCreated, RunPhase, Stamped
from ..registry import AGENT_FILE, Entry
from ..state import RunState
from ..wire.sockets import stem, sweep_sockets
from .commands import Commands
from .hooks import Hooks
from .runner import Runner
from .sampling import Sampling
from .server import Server
from .supervision import Supervision


def summarise(plan: Plan) -> PlanSummary:
    """The part of a plan that every screen needs."""
    return PlanSummary(
        preset=plan.preset,
        strategy=plan.strategy,
        launcher=plan.launcher,
        command=clean_text(" ".join(plan.command)),
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
        self.stem = stem(entry.record.run8)
        self.state = RunState()
        self.journal = Journal(entry.path)
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._jobs: set[asyncio.Task[object]] = set()
        self.commands = Commands(self)
        self.server = Server(
            self._socket, entry.record.run, entry.path, self.journal, self.commands.execute
        )
        self.supervision = Supervision(self)
        self.hooks = Hooks(entry.path, self.stem, self.emit)
        self.sampling = Sampling(self)

    @property
    def _socket(self) -> Path:
        return Path(self.stem + ".sock")

    @property
    def runner(self) -> Runner | None:
        """The living runner; None while there is none."""
        return self.supervision.runner

    def stopping(self) -> bool:
        """Whether a stop was asked for and has not come to its end."""
        return self.state.phase is RunPhase.STOPPING

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
        adopted = self.supervision.begin(resumed)
        from importlib.metadata import version  # slow to import: the runner comes first

        known = version("distui")
        await self.server.start(known)
        identity.write(self.run_dir / AGENT_FILE, identity.identify(socket=str(self._socket)))
        ready()
        self.emit(AgentStarted(os.getpid(), known, adopted))
        self.supervision.resume_ranks()
        self.commands.resume()
        sampling = asyncio.create_task(self.sampling.run())
        await self.supervision.run()
        await self.sampling.stop(sampling)
        await self._linger()
        await self.server.close()
        sweep_sockets(self.entry.record.run8)
        self.journal.close()

    async def _linger(self) -> None:
        """The run has ended: stay for those who look, and a moment for those who are about to."""
        await asyncio.sleep(1.0)
        await self.server.idle.wait()
