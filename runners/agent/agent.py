"""The agent: reports what happens on its node, holds its parts together, and how a viewer starts one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...presets.plan import Plan
from .. import file_io
from ..journal import Chronicle, summarise
from ..living import StartMode
from ..logs.follow import ask_window
from ..model import AgentStarted, Event, FindingRaised, RunCreated, RunPhase
from ..registry import AGENT_FILE, Entry
from ..wire import client
from ..wire.client import stem, sweep_sockets
from .commands import AgentCommands
from .hooks import Environment, Hooks
from .nccl_logs import NcclLogs
from .nccl_switch import RasWatch
from .pulses import Pulses
from .relay_client import AgentRelay, read_key
from .runner_process import Runner
from .sampling import Sampling
from .server import AgentServer
from .supervision import Supervision

if TYPE_CHECKING:
    from ..diagnosis.judging import Judging

# -----------------------------------------------------------------------------------------------------------
# The agent itself: tells what happens on its node, and holds its parts together.


HUB_SECONDS = 20.0
"""How long the agent of a part that has ended waits for its hub, whose link may be down just now and which tries again
within 15 s: nobody else can tell it how the part ended. The node's job waits longer."""


class Agent:
    """One run on one node."""

    def __init__(self, entry: Entry, plan: Plan, mode: StartMode = StartMode.START) -> None:
        self.mode = mode
        self.entry, self.plan, self.node = entry, plan, entry.record.node
        self.run_dir = entry.path
        self.stem = stem(entry.record.run8)
        self.chronicle = Chronicle(entry.path)
        self.state, self.journal, self.until = (
            self.chronicle.state,
            self.chronicle.journal,
            self.chronicle.until,
        )
        self._jobs: set[asyncio.Task[object]] = set()
        self.environment = Environment(self)
        self.commands = AgentCommands(self)
        self.server = AgentServer(
            self._socket,
            entry.record,
            self.journal,
            self.commands.execute,
            partial(ask_window, entry.path),
            lambda: self.sampling.attend(),  # noqa: PLW0108 (made below)
        )
        self.chronicle.publish = self.server.publish
        self.supervision = Supervision(self)
        self.hooks = Hooks(entry.path, self.stem, self.emit, self.node)
        self.sampling = Sampling(self)
        self.pulses = Pulses(self)
        self.nccl_logs = NcclLogs(self)
        self.judging: Judging | None = None
        """None before the runner has begun, and for a part of a run on several nodes: its hub judges."""
        self.relay = self._make_relay()

    @property
    def _socket(self) -> Path:
        return Path(self.stem + ".sock")

    def _make_relay(self) -> AgentRelay | None:
        """The way to the other nodes; None where there are none, or no key to tell them by."""
        key = read_key(self.run_dir)
        if key is None or self.plan.nnodes < 2:
            return None
        relay = AgentRelay(
            key,
            self.node,
            self.plan.nnodes,
            self._socket,
            lambda finding: self.emit(FindingRaised(finding)),
        )
        self.server.pass_on = relay.pass_on
        return relay

    def _make_judging(self) -> Judging | None:
        if self.entry.record.kind == "node":
            return None
        from ..diagnosis.judging import Judging  # slow to import: the runner comes first

        return Judging(self.state, self.plan, self.emit)

    def _watchers(self) -> list[asyncio.Task[None]]:
        """Everything that looks at the ranks beside the samples, started."""
        jobs = [self.pulses.run(), self.nccl_logs.run()]
        jobs += [RasWatch(self).run()] if self.node == 0 else []
        jobs += [self.judging.run()] if self.judging is not None else []
        return [asyncio.create_task(job) for job in jobs]

    @property
    def runner(self) -> Runner | None:
        """The living runner; None while there is none."""
        return self.supervision.runner

    def _runner_socket(self) -> str | None:
        return self.runner.who.socket if self.runner is not None else None

    def relaying(self) -> bool:
        """Whether somebody looks at another node through this one's runner, or at this one through another's."""
        return self.relay is not None and self.relay.busy

    def stopping(self) -> bool:
        """Whether a stop was asked for and has not come to its end."""
        return self.state.phase is RunPhase.STOPPING

    # --- telling ---------------------------------------------------------------------------------------------

    def emit(self, event: Event, *, source: int = 0, at: float | None = None) -> None:
        """See Chronicle.emit."""
        self.chronicle.emit(event, node=self.node, source=source, at=at)

    def spawn(self, job: asyncio.Task[object]) -> None:
        """Keep a task alive until it is done."""
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    # --- life ------------------------------------------------------------------------------------------------

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve the run until it has ended and nobody looks any more; `ready` once the socket answers."""
        again = (
            os.environ.pop("DISTUI_AGAIN", "") != ""
        )  # a job that was started again goes on with its part
        resumed = self.chronicle.replay() and not (again and self.state.phase.ended)
        if not resumed or not self.state.run:  # a journal may be lost while its run goes on
            self.emit(
                RunCreated(
                    self.entry.record.run,
                    self.entry.record.name,
                    self.entry.record.host,
                    summarise(self.plan),
                ),
                at=self.entry.record.created if self.mode is StartMode.READ else None,
            )
        adopted = await self.supervision.begin(resumed)
        self.judging = self._make_judging()
        from importlib.metadata import version  # slow to import: the runner comes first

        release = version("distui")
        await self.server.start(release)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.server.missed.set)
        self._name_itself()
        ready()
        self.emit(AgentStarted(os.getpid(), release, adopted))
        self.supervision.resume_ranks()
        self.commands.resume()
        if resumed and self.judging is not None:
            self.judging.resume()
        sampling = asyncio.create_task(self.sampling.run())
        watchers = self._watchers()
        if self.relay is not None:
            self.spawn(asyncio.create_task(self.relay.run(self._runner_socket)))
        await self.supervision.run()
        for watcher in watchers:
            watcher.cancel()
        await asyncio.wait(watchers)
        await self.sampling.stop(sampling)
        await self.server.outstay(HUB_SECONDS if self.entry.record.kind == "node" else 0.0)
        await self.server.close()
        await self.supervision.dismiss()
        sweep_sockets(self.entry.record.run8)
        self.journal.close()

    def _name_itself(self) -> None:
        """Write agent.json; where there is no room, as soon as there is."""
        who = file_io.identify(socket=str(self._socket))
        try:
            file_io.write(self.run_dir / AGENT_FILE, who)
        except OSError:
            self.spawn(asyncio.create_task(file_io.keep(self.run_dir / AGENT_FILE, who)))


# -----------------------------------------------------------------------------------------------------------
# The bridge between stdio and an agent's socket: what `ssh HOST distui agent attach RUN` executes there.


async def bridge(run_dir: Path) -> int:
    """Copy both ways until either side ends; 4 with a sentence when no agent answers."""
    who = file_io.read(run_dir / AGENT_FILE)
    if who is None or not file_io.alive(who):
        sys.stderr.write(f"distui: no agent serves {run_dir}\n")
        return 4
    try:
        reader, writer = await client.connect(who.socket)
    except OSError as error:
        sys.stderr.write(f"distui: {who.socket}: {error.strerror}\n")
        return 4
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    stdout = asyncio.StreamWriter(transport, protocol, None, loop)
    up = asyncio.create_task(_copy(stdin, writer))
    down = asyncio.create_task(_copy(reader, stdout))
    await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
    for task in (up, down):
        task.cancel()
    writer.close()
    return 0


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
