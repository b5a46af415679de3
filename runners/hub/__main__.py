"""`python -m distui.runners.hub run RUN_DIR [READY_FD [MODE]]`: the hub of one run on several nodes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from ...presets.finding import Finding
from ...presets.plan import Plan
from ..agent.server import AgentServer
from ..agent.sharing import Sharing
from ..diagnosis.detectors import Judging
from ..node import routes as routes_file
from ..node.routes import Route
from ..notify.notifier import RunNotices
from ..run import clock, daemon, run_directories
from ..run.commands import Stop
from ..run.errors import OUTCOME_UNKNOWN
from ..run.host_processes import StartMode
from ..run.model import (
    HUB,
    CommandDone,
    FindingCleared,
    FindingRaised,
    LogGrew,
    RunCreated,
    RunEnded,
    RunPhase,
    Stage,
)
from ..run.parts import first_of, in_background
from ..run.run_directories import Entry
from ..run.run_record import summarise
from ..run.wire.client import Link, new_id, stem, sweep_sockets
from .clouds import CANCEL, CANCEL_SECONDS
from .commands import HubCommands
from .kept_curves import NodeCurves
from .links import Links
from .merged_run import LAUNCH_FILE, MergedRun
from .node_logs import AT_ONCE, NodeLogs
from .run_ending import WholeRun, ending

OWN_LOGS = ("agent.log", "launch.log")
CHECK_S = 1.0
HEAD_GONE_S = 10.0
"""Seconds for nodes to detect the failure of the first node, which has the rendezvous."""


class Hub:
    """Serves one run on several nodes: creates the parts, and decides when the run has ended."""

    def __init__(self, entry: Entry, plan: Plan, mode: StartMode = StartMode.START) -> None:
        """`mode`: whether it may continue a launch that an earlier hub began."""
        self._mode = mode
        self.run = MergedRun(entry, plan)
        self.logs = NodeLogs(self.run)
        self.links = Links(self.run, self.logs, self._connected)
        self.sharing = Sharing(entry.record.run8, self._serve_guest)
        self._commands = HubCommands(self.run, self.links, self.sharing)
        self._judging = Judging(self.run.state, plan, self.run.emit)
        self._notifier = RunNotices(self.run, os.environ.get)
        self._dismissing = False
        """Whether nodes that wait for a failed first node are being stopped."""
        self._own_sizes: dict[str, int] = {}
        self._server = AgentServer(
            Path(stem(entry.record.run8) + ".sock"),
            entry.record,
            self.run.chronicle,
            self.run.parts,
            self._commands.execute,
            partial(self.logs.read, self.links.up),
            NodeCurves(self.run, self._reached).read,
            windows=AT_ONCE,
        )

    async def _serve_guest(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._server.serve_guest(reader, writer)

    def _reached(self, node: int) -> tuple[Link, float] | None:
        """Return the link to a node, if it is up, and the seconds to add to its times."""
        link = self.links.up(node)
        return None if link is None else (link, self.links.by_node[node].shift)

    def _set_routes(self, routes: list[Route]) -> None:
        """See SetRoutes."""
        routes_file.write(self.run.run_dir, routes)
        self.links.use(routes)

    def _connected(self, node: int) -> None:
        """Stop a node that answers and missed an earlier stop."""
        if self.run.stop_asked.is_set() and not self.run.nodes.ended(node):
            self.run.parts.once("late-stop", self._commands.stopping.late(node))

    async def serve(self, ready: Callable[[], None]) -> None:
        """Serve until the run has ended and no viewer is connected; call `ready` once the socket answers."""
        run = self.run
        resumed = run.replay()
        if resumed:
            self._judging.resume()
        else:
            record = run.record
            created = RunCreated(record.run, record.name, record.host, summarise(run.plan), merged=True)
            run.emit(created, at=record.created)  # the hub may be made later than the run
        if run.state.phase is RunPhase.STOPPING:
            self._commands.stopping.begin()
        self.links.use(routes_file.read(run.run_dir))  # before any command needs the links
        await self._server.announce(run, ready, resumed)
        for asked in [*run.state.open_commands]:
            run.emit(CommandDone(asked, False, OUTCOME_UNKNOWN))  # the nodes' journals have the details
        for node, grown in self.logs.kept_sizes().items():
            run.emit(grown, node=node)
        self._notifier.begin(self._mode)
        run.parts.start("own-logs", self._watch_logs)
        run.parts.start("diagnosis", self._judging.run)
        self._begin_cloud()
        await run.parts.start("verdict", self._judge)
        await self._leave()

    def _begin_cloud(self) -> None:
        """Launch the run unless that is done, and watch its cloud."""
        run = self.run
        if not (run.run_dir / LAUNCH_FILE).exists():
            return
        from .cluster_launch import cloud_of, launch, submitted  # needed only for launches

        run.cloud = cloud_of(run)
        if run.cloud is not None:
            run.parts.start("cloud", run.cloud.watch)
        started = run.state.stages.get((Stage.START, HUB))
        if started is None or started.ended is None or started.failed:
            read_only = self._mode is StartMode.READ and not submitted(run.run_dir)
            run.launching = not read_only
            begin = partial(launch, run, self._set_routes)
            run.parts.once("launch", self._resume(begin) if read_only else self._launch(begin()))

    async def _resume(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Continue a launch that was cut off after a command requests it, even if only to cancel it properly."""
        run, name = self.run, self.run.record.name
        text = f"the launch of {name} was cut off when its hub died"
        remedy = f"`distui restart {name}` goes on with it, `distui stop {name}` gives it up"
        run.interrupted = True
        run.emit(FindingRaised(Finding("launch-cut-off", "error", text, remedy=remedy)))
        await first_of(run.go_on.wait(), run.stop_asked.wait())
        run.interrupted, run.launching = False, True
        run.emit(FindingCleared("launch-cut-off"))
        await self._launch(begin())

    async def _launch(self, doing: Coroutine[Any, Any, None]) -> None:
        """Wait until the launch is complete, or has given up because the run was stopped."""
        try:
            async with in_background(doing) as task:
                if not await self.run.done_or_stopped(task):
                    await asyncio.wait({task}, timeout=CANCEL_SECONDS)
                if task.done() and (error := task.exception()) is not None:
                    self.run.fail(f"the launch failed: {error}")
                    raise error
        finally:
            self.run.launching = False
            self.run.turn.set()

    async def _watch_logs(self) -> None:
        """Emit the growth of the hub's own logs."""
        while True:
            sizes = {}
            for name in OWN_LOGS:
                with contextlib.suppress(OSError):
                    sizes[name] = (self.run.run_dir / name).stat().st_size
            if grown := {name: size for name, size in sizes.items() if self._own_sizes.get(name) != size}:
                self._own_sizes |= grown
                self.run.emit(LogGrew(grown))
            await asyncio.sleep(CHECK_S)

    async def _judge(self) -> None:
        """Wait until the run has ended, and emit its end."""
        run = self.run
        while not run.state.phase.ended:
            run.turn.clear()
            end = self._verdict()
            if end is None and self._head_failed() and not self._dismissing:
                self._dismissing = True
                run.parts.once("dismissal", self._dismiss())
            if end is not None and not run.held:
                await run.parts.guard("diagnosis", self._judging.judge_now())
                run.emit(end)
                return
            await clock.wait_set(run.turn, CHECK_S)

    def _head_failed(self) -> bool:
        """Whether the first node's part failed, with the rendezvous, and other nodes still wait for it."""
        run = self.run
        end = run.nodes.end_of(0)
        failed = end is not None and end.phase is RunPhase.FAILED and run.plan.launcher == "torchrun"
        return failed and bool(run.nodes.alive()) and run.state.phase is not RunPhase.STOPPING

    async def _dismiss(self) -> None:
        """Stop the other nodes, after a time to detect the failure themselves, because they then report more."""
        await asyncio.sleep(HEAD_GONE_S)
        stops = (self._commands.ask(Stop(new_id()), node) for node in self.run.nodes.alive())
        await asyncio.gather(*stops)

    def _verdict(self) -> RunEnded | None:
        run, state, now = self.run, self.run.state, clock.now()
        if run.launching:
            return None
        stopping = state.phase is RunPhase.STOPPING
        numbers = run.nodes.numbers()
        if not numbers:
            return RunEnded(RunPhase.STOPPED, 1, "stopped before any rank started") if stopping else None
        whole = WholeRun(
            name=run.record.name,
            stopping=stopping,
            stop_text=run.why_stopped,
            nnodes_min=run.plan.nnodes_min,
            cause=state.first_cause,
            cluster_down=state.cluster is not None and state.cluster.down,
            idle=state.idle,
        )
        return ending(whole, [run.nodes.part(node, now, run.stop_since) for node in numbers])

    async def _leave(self) -> None:
        """Leave after the run's end: wait for connected viewers, and briefly for new ones."""
        await self.run.parts.stop("own-logs", "diagnosis", "cloud", "launch")
        await self.links.close()
        await self._notifier.finish()
        await self.run.parts.wait(CANCEL, CANCEL_SECONDS)
        await self._server.wait_for_viewers(0.0)
        self.sharing.close()
        await self._server.close()
        sweep_sockets(self.run.record.run8)
        self.run.journal.close()


async def serve(entry: run_directories.Entry, plan: Plan, ready: daemon.Ready, mode: StartMode) -> None:
    """Serve one run until it has ended and no viewer is connected."""
    hub = Hub(entry, plan, mode)
    hub.run.parts.watch_loop(asyncio.get_running_loop())
    try:
        await hub.serve(ready)
    except asyncio.CancelledError:
        await hub.links.close()
        hub.run.journal.flush()  # the nodes continue; the next viewer starts another hub
        raise


def main(argv: list[str]) -> int:
    """Run the hub as a daemon: the internal entry point, see the module."""
    return daemon.main(argv, serve, "hub run RUN_DIR [READY_FD [MODE]]")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
