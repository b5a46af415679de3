"""The hub: one run on several nodes, from the events of every node's agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ...presets.plan import Plan
from .. import file_io
from ..agent.commands import LOST
from ..agent.server import AgentServer
from ..diagnosis.judging import Judging
from ..journal import Chronicle, summarise
from ..living import StartMode
from ..model import (
    HUB,
    AgentStarted,
    AttemptEnded,
    ClusterChanged,
    CommandDone,
    Event,
    Finding,
    FindingCleared,
    FindingRaised,
    LinkChanged,
    LinkState,
    LogGrew,
    RunCreated,
    RunEnded,
    RunPhase,
    Stage,
    Stamped,
    Stop,
)
from ..registry import AGENT_FILE, Entry, RunRecord
from ..state import RunState
from ..wire.client import new_id, stem, sweep_sockets
from ..wire.link import LinkError
from . import record
from . import routes as routes_file
from .commands import HubCommands
from .ending import NodeEnding, Whole, ending
from .links import Links
from .record import Record
from .routes import Route
from .seam import CANCEL_SECONDS, LAUNCH_FILE, Cloud

# -----------------------------------------------------------------------------------------------------------
# What a hub knows of each of its nodes, beside the fold.


class HubNodes:
    """The part of a hub that answers for nodes."""

    state: RunState
    links: Links
    stop_since: float = 0.0
    """When the run was asked to stop, in unix seconds."""

    def __init__(self) -> None:
        self._sources: dict[int, int] = {}
        self._ends: dict[int, RunEnded] = {}

    def note(self, event: Event, node: int, source: int) -> None:
        """What is remembered beside the fold."""
        if source:
            self._sources[node] = source
        if isinstance(event, RunEnded) and node != HUB:
            self._ends[node] = event
        elif isinstance(event, RunCreated) and node != HUB:
            self._ends.pop(node, None)  # a job that was started again goes on with its part

    def source(self, node: int) -> int:
        """The newest seq of a node's own journal that was taken over."""
        return self._sources.get(node, 0)

    def ended(self, node: int) -> bool:
        """Whether a node's part has ended."""
        return node in self._ends

    def end_of(self, node: int) -> RunEnded | None:
        """How a node's part ended; None while it goes on."""
        return self._ends.get(node)

    def read_to_the_end(self, node: int) -> bool:
        """Whether nothing more is wanted of a node."""
        status = self.state.nodes.get(node)
        return self.ended(node) and status is not None and status.link is LinkState.ENDED

    def node_numbers(self) -> list[int]:
        """All nodes that there are routes to."""
        return sorted(self.links.by_node.keys() | self._ends.keys())

    def all_read(self) -> bool:
        """Whether nothing more is wanted of any node."""
        return all(self.read_to_the_end(node) for node in self.node_numbers())

    def some_ended(self) -> bool:
        """Whether any node's part has ended."""
        return bool(self._ends)

    def link(self, node: int) -> LinkState | None:
        """How the hub stands to a node; None where it was never reached for."""
        status = self.state.nodes.get(node)
        return None if status is None else status.link

    def alive(self) -> list[int]:
        """Nodes whose parts have not ended."""
        return [node for node in self.node_numbers() if not self.ended(node)]

    def name(self, node: int) -> str:
        """ "node 1 (host)"."""
        status = self.state.nodes.get(node)
        return f"node {node} ({status.host})" if status is not None and status.host else f"node {node}"

    def describe_link(self, node: int) -> str:
        """Why a node does not answer, and for how long."""
        status = self.state.nodes.get(node)
        if status is None or not status.link_since:
            return f"{self.name(node)} was never reached"
        why = f": {status.link_text}" if status.link_text else ""
        return f"{self.name(node)} does not answer for {time.time() - status.link_since:.0f} s{why}"

    def part(self, node: int, now: float) -> NodeEnding:
        """What is known of a node's part; `now`: unix time."""
        status = self.state.nodes.get(node)
        if status is None:
            return NodeEnding(node, "")
        silent_s = now - max(status.link_since, self.stop_since)
        return NodeEnding(
            node, status.host, self._ends.get(node), self.read_to_the_end(node), status.link, silent_s
        )


# -----------------------------------------------------------------------------------------------------------
# The hub itself: one journal of all nodes, and the parts that fill and serve it.


TURNS = (RunEnded, LinkChanged, ClusterChanged)
"""Events after which the run may have ended."""
OWN_LOGS = ("agent.log", "launch.log")
CHECK_S = 1.0
HEAD_GONE_S = 10.0
"""How long nodes may take to find out that the first one, with the rendezvous, has failed."""


class Hub(HubNodes):
    """One run on several nodes. Satisfies seam.Hub."""

    def __init__(self, entry: Entry, plan: Plan, mode: StartMode = StartMode.START) -> None:
        """`mode`: whether it may go on with a launch that an earlier hub had begun."""
        super().__init__()
        self._mode = mode
        self.entry, self.plan = entry, plan
        self.run_dir: Path = entry.path
        self.record: RunRecord = entry.record
        self.chronicle = Chronicle(entry.path)
        self.state: RunState = self.chronicle.state
        self.stop_asked = asyncio.Event()
        self.cloud: Cloud | None = None
        self.launching = False
        self._holds = 0
        self.why_stopped = "stopped"
        self.interrupted = False
        """A launch was cut off, and nobody has asked yet to go on with it."""
        self.go_on = asyncio.Event()
        """Set to go on with it."""
        self._dismissing = False
        """Nodes that wait for a first node which has failed are being stopped."""
        self._turn = asyncio.Event()
        self._jobs: set[asyncio.Task[None]] = set()
        self._own_sizes: dict[str, int] = {}
        self.kept = Record(entry.path)
        self.links = Links(self)
        self.commands = HubCommands(self)
        self.judging = Judging(self.state, plan, self.emit)
        self._socket = Path(stem(entry.record.run8) + ".sock")
        self.server = AgentServer(
            self._socket,
            self.record,
            self.chronicle.journal,
            self.commands.execute,
            partial(record.read, self),
            windows=record.AT_ONCE,
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

    @property
    def held(self) -> bool:
        """Whether the run's end is not told yet."""
        return self._holds > 0

    @contextlib.contextmanager
    def hold_end(self) -> Iterator[None]:
        """While its cluster is being taken down, or a part is being ended without its agent, the run has not ended."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self.judge_again()

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
            self.spawn(record.keep_tails(self, node, link, attempt))

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
            created = RunCreated(
                self.record.run, self.record.name, self.record.host, summarise(self.plan), merged=True
            )
            self.emit(created, at=self.record.created)  # a hub that is made on the spot comes later
        if self.state.phase is RunPhase.STOPPING:
            self.begin_stop()
        self.links.use(routes_file.read(self.run_dir))  # before anybody can ask what needs them
        from importlib.metadata import version  # slow to import: what is known comes first

        release = version("distui")
        await self.server.start(release)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.server.missed.set)
        self._name_itself()
        ready()
        self.emit(AgentStarted(os.getpid(), release, resumed))
        for asked in [*self.state.open_commands]:
            self.emit(CommandDone(asked, False, LOST))  # the journals of the nodes have more
        for node, grown in record.kept_sizes(self).items():
            self.emit(grown, node=node)
        tasks = [
            asyncio.create_task(self._watch_logs()),
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
        from .cluster_launch import cloud_of, launch, submitted  # only those that launch need it

        self.cloud = cloud_of(self)
        tasks = [asyncio.create_task(self.cloud.watch())] if self.cloud is not None else []
        started = self.state.stages.get((Stage.START, HUB))
        if started is None or started.ended is None or started.failed:
            read_only = self._mode is StartMode.READ and not submitted(self.run_dir)
            self.launching = not read_only
            tasks.append(
                asyncio.create_task(self._resume(launch) if read_only else self._launch(launch(self)))
            )
        return tasks

    async def _resume(self, launch: Callable[[Hub], Coroutine[Any, Any, None]]) -> None:
        """Go on with a launch that was cut off when somebody asks for it; also to give it up in order."""
        name = self.record.name
        text = f"the launch of {name} was cut off when its hub died"
        remedy = f"`distui restart {name}` goes on with it, `distui stop {name}` gives it up"
        self.interrupted = True
        self.emit(FindingRaised(Finding("launch-cut-off", "error", text, remedy=remedy)))
        asked = {asyncio.create_task(self.go_on.wait()), asyncio.create_task(self.stop_asked.wait())}
        try:
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in asked:
                task.cancel()
        self.interrupted, self.launching = False, True
        self.emit(FindingCleared("launch-cut-off"))
        await self._launch(launch(self))

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

    async def _watch_logs(self) -> None:
        """How the hub's own logs grow."""
        while True:
            sizes = {}
            for name in OWN_LOGS:
                with contextlib.suppress(OSError):
                    sizes[name] = (self.run_dir / name).stat().st_size
            if grown := {name: size for name, size in sizes.items() if self._own_sizes.get(name) != size}:
                self._own_sizes |= grown
                self.emit(LogGrew(grown))
            await asyncio.sleep(CHECK_S)

    async def _judge(self) -> None:
        """Wait until the run has ended, and say how."""
        while not self.state.phase.ended:
            self._turn.clear()
            end = self._verdict()
            if end is None and self._head_failed() and not self._dismissing:
                self._dismissing = True
                self.spawn(self._dismiss())
            if end is not None and not self.held:
                await self.judging.guarded()
                self.emit(end)
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._turn.wait(), CHECK_S)

    def _head_failed(self) -> bool:
        """Whether the rendezvous has gone with the first node's part, and others are left that wait for it."""
        end = self.end_of(0)
        failed = end is not None and end.phase is RunPhase.FAILED and self.plan.launcher == "torchrun"
        return failed and bool(self.alive()) and self.state.phase is not RunPhase.STOPPING

    async def _dismiss(self) -> None:
        """The others mostly find out for themselves, and say more; those that have not after a while are stopped."""
        await asyncio.sleep(HEAD_GONE_S)
        await asyncio.gather(*(self.commands.ask(Stop(new_id()), node) for node in self.alive()))

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
            idle=state.attempts[-1].idle if state.attempts else "",
        )
        return ending(whole, parts)

    def _name_itself(self) -> None:
        """Write agent.json; where there is no room, as soon as there is."""
        who = file_io.identify(socket=str(self._socket))
        try:
            file_io.write(self.run_dir / AGENT_FILE, who)
        except OSError:
            self.spawn(file_io.keep(self.run_dir / AGENT_FILE, who))

    async def _leave(self, tasks: list[asyncio.Task[None]]) -> None:
        """The run has ended: stay for those who look, and a moment for those who are about to."""
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await self.links.close()
        if self._jobs:
            await asyncio.wait(self._jobs, timeout=CANCEL_SECONDS)  # a cancel that SkyPilot works at
        await self.server.outstay(0.0)
        await self.server.close()
        sweep_sockets(self.record.run8)
        self.chronicle.journal.close()
