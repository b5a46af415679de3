"""The hub itself: one journal of all nodes, and the parts that fill and serve it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from ...presets.plan import Plan
from .. import identity
from ..agent.server import Server
from ..chronicle import Chronicle, summarise
from ..diagnosis.judging import Judging
from ..model import (
    HUB,
    AgentStarted,
    AttemptEnded,
    ClusterChanged,
    Event,
    LinkChanged,
    LogGrew,
    RunCreated,
    RunEnded,
    RunPhase,
    Stage,
    Stamped,
)
from ..registry import AGENT_FILE, Entry, RunRecord
from ..state import RunState
from ..wire.link import LinkError
from ..wire.sockets import stem, sweep_sockets
from . import routes as routes_file
from . import windows
from .commands import Commands
from .ending import Whole, ending
from .links import Links
from .nodes import Nodes
from .record import Record
from .routes import Route
from .seam import CANCEL_SECONDS, LAUNCH_FILE, Cloud

TURNS = (RunEnded, LinkChanged, ClusterChanged)
"""Events after which the run may have ended."""
OWN_LOGS = ("agent.log", "launch.log")
LOOK_S = 1.0


class Hub(Nodes):
    """One run on several nodes. Satisfies seam.Hub."""

    def __init__(self, entry: Entry, plan: Plan) -> None:
        super().__init__()
        self.entry, self.plan = entry, plan
        self.run_dir: Path = entry.path
        self.record: RunRecord = entry.record
        self.chronicle = Chronicle(entry.path)
        self.state: RunState = self.chronicle.state
        self.stop_asked = asyncio.Event()
        self.cloud: Cloud | None = None
        self.launching = False
        self.held = False
        """The run's end is not told yet: its cluster is being taken down."""
        self.why_stopped = "stopped"
        self._turn = asyncio.Event()
        self._jobs: set[asyncio.Task[None]] = set()
        self._own_sizes: dict[str, int] = {}
        self.kept = Record(entry.path)
        self.links = Links(self)
        self.commands = Commands(self)
        self.judging = Judging(self.state, plan, self.emit)
        self._socket = Path(stem(entry.record.run8) + ".sock")
        self.server = Server(
            self._socket,
            self.record,
            self.chronicle.journal,
            self.commands.execute,
            partial(windows.read, self),
            windows=windows.AT_ONCE,
        )
        self.chronicle.publish = self.server.publish

    # --- telling ---------------------------------------------------------------------------------------------

    def emit(self, event: Event, *, node: int = HUB, source: int = 0, at: float | None = None) -> None:
        """See seam.Hub; `source`: seq in the journal of the node, `at`: unix time by our clock."""
        self.chronicle.emit(event, node=node, source=source, at=at)
        self._note(event, node, source)
        if isinstance(event, AttemptEnded) and node != HUB:
            self._keep_tails(node, event.attempt)

    def _note(self, event: Event, node: int, source: int) -> None:
        """What is remembered beside the fold."""
        self.note(event, node, source)
        if isinstance(event, TURNS):
            self._turn.set()

    def say(self, text: str) -> None:
        """A line in the hub's own log."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def fail(self, text: str) -> None:
        """See seam.Hub."""
        if not self.state.phase.ended:
            self.emit(RunEnded(RunPhase.FAILED, 1, text))

    def begin_stop(self) -> None:
        """From now on every node that answers is told to stop; those that do not are tried at once."""
        if not self.stop_asked.is_set():
            self.stop_since = time.time()
            self.stop_asked.set()
        self.links.hurry()

    def judge_again(self) -> None:
        """Something may have ended the run."""
        self._turn.set()

    # --- nodes -----------------------------------------------------------------------------------------------

    def set_routes(self, routes: list[Route]) -> None:
        """See seam.Hub."""
        routes_file.write(self.run_dir, routes)
        self.links.use(routes)

    def connected(self, node: int) -> None:
        """A node answers: it hears of a stop that it missed."""
        if self.stop_asked.is_set() and not self.ended(node):
            self.spawn(self.commands.stopping.late(node))

    def _keep_tails(self, node: int, attempt: int) -> None:
        link = self.links.up(node)
        if link is not None:
            self.spawn(windows.keep_tails(self, node, link, attempt))

    def spawn(self, doing: Awaitable[object]) -> None:
        """Do something that may fail with its link, and keep it alive until it is done."""

        async def guarded() -> None:
            with contextlib.suppress(LinkError, OSError, TimeoutError):
                await doing

        task = asyncio.create_task(guarded())
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    # --- life ------------------------------------------------------------------------------------------------

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve the run until it has ended and nobody looks any more; `ready` once the socket answers."""
        resumed = self.chronicle.replay(self._replayed)
        if resumed:
            self.judging.resume()
        else:
            told = RunCreated(
                self.record.run, self.record.name, self.record.host, summarise(self.plan), merged=True
            )
            self.emit(told, at=self.record.created)  # a hub that is made on the spot comes later
        if self.state.phase is RunPhase.STOPPING:
            self.begin_stop()
        self.links.use(routes_file.read(self.run_dir))  # before anybody can ask what needs them
        from importlib.metadata import version  # slow to import: what is known comes first

        known = version("distui")
        await self.server.start(known)
        identity.write(self.run_dir / AGENT_FILE, identity.identify(socket=str(self._socket)))
        ready()
        self.emit(AgentStarted(os.getpid(), known, resumed))
        for node, grown in windows.kept_sizes(self).items():
            self.emit(grown, node=node)
        tasks = [
            asyncio.create_task(self._look()),
            asyncio.create_task(self.judging.run()),
            *self._begin_cloud(),
        ]
        await self._judge()
        await self._leave(tasks)

    def _replayed(self, stamped: Stamped) -> None:
        self._note(stamped.event, stamped.node, stamped.source)

    def _begin_cloud(self) -> list[asyncio.Task[None]]:
        """Launch what is not launched yet, and watch where it lives."""
        if not (self.run_dir / LAUNCH_FILE).exists():
            return []
        from .launching import cloud_of, launch  # only those that launch need it

        self.cloud = cloud_of(self)
        tasks = [asyncio.create_task(self.cloud.watch())] if self.cloud is not None else []
        started = self.state.stages.get((Stage.START, HUB))
        if started is None or started.ended is None or started.failed:
            self.launching = True
            tasks.append(asyncio.create_task(self._launch(launch(self))))
        return tasks

    async def _launch(self, doing: Coroutine[Any, Any, None]) -> None:
        """Until it is done, or has given up because the run was stopped."""
        task = asyncio.create_task(doing)
        stop = asyncio.create_task(self.stop_asked.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await asyncio.wait({task}, timeout=CANCEL_SECONDS)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            if not task.cancelled() and (error := task.exception()) is not None:
                self.fail(f"the launch failed: {error}")
                raise error
        finally:
            task.cancel()
            stop.cancel()
            self.launching = False
            self._turn.set()

    async def _look(self) -> None:
        """How the hub's own logs grow."""
        while True:
            sizes = {}
            for name in OWN_LOGS:
                with contextlib.suppress(OSError):
                    sizes[name] = (self.run_dir / name).stat().st_size
            if grown := {name: size for name, size in sizes.items() if self._own_sizes.get(name) != size}:
                self._own_sizes |= grown
                self.emit(LogGrew(grown))
            await asyncio.sleep(LOOK_S)

    async def _judge(self) -> None:
        """Wait until the run has ended, and say how."""
        while not self.state.phase.ended:
            self._turn.clear()
            end = self._verdict()
            if end is not None and not self.held:
                await self.judging.guarded()
                self.emit(end)
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._turn.wait(), LOOK_S)

    def _verdict(self) -> RunEnded | None:
        if self.launching:
            return None
        state, now = self.state, time.time()
        stopping = state.phase is RunPhase.STOPPING
        if not self.node_numbers():
            return RunEnded(RunPhase.STOPPED, 1, "stopped before any rank started") if stopping else None
        parts = [self.part(node, now) for node in self.node_numbers()]
        whole = Whole(
            name=self.record.name,
            stopping=stopping,
            why=self.why_stopped,
            nnodes_min=self.plan.nnodes_min,
            cause=state.attempts[-1].first_cause if state.attempts else None,
            cluster_down=state.cluster is not None and state.cluster.down,
        )
        return ending(whole, parts)

    async def _leave(self, tasks: list[asyncio.Task[None]]) -> None:
        """The run has ended: stay for those who look, and a moment for those who are about to."""
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await self.links.close()
        if self._jobs:
            await asyncio.wait(self._jobs, timeout=CANCEL_SECONDS)  # a cancel that SkyPilot works at
        await asyncio.sleep(1.0)
        await self.server.idle.wait()
        await self.server.close()
        sweep_sockets(self.record.run8)
        self.chronicle.journal.close()
