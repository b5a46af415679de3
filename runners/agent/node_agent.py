"""All parts of the agent of one node: they follow the runner, measure, judge, execute commands, and serve viewers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...presets.plan import Plan
from ..logs.windows import ask_window
from ..notify.notifier import RunNotices
from ..run.commands import ReadLog
from ..run.host_processes import StartMode
from ..run.model import RunCreated
from ..run.run_directories import Entry
from ..run.run_record import summarise
from ..run.wire.client import Window, sweep_sockets
from ..telemetry.gpus import GpuSource
from .checkpoint_watch import CheckpointWatch
from .commands import AgentCommands, Restarts
from .hook_clients import Hooks
from .log_caps import LogCaps
from .metrics_push import MetricsPush
from .metrics_writer import MetricsWriter
from .nccl_flood import Guard
from .nccl_logs import NcclLogs
from .nccl_switch import NcclSwitch
from .pulses import Pulses
from .rank_environments import Environment
from .rank_lines import RankLines
from .reclaim_watch import ReclaimWatch
from .relay_client import AgentRelay
from .runner_process import Runner, ServedRun, SpawnRunner
from .sampling import Sampling
from .server import AgentServer, refuse_relay
from .sharing import Sharing
from .supervision import Supervision

if TYPE_CHECKING:
    from ..diagnosis.detectors import Judging

HUB_SECONDS = 20.0
"""Seconds that the agent of a node waits, after the end, for the hub of a run on several nodes.

The hub's connection to this node may be down; the hub retries it within 15 s. Only the agent can report how the ranks
of the node ended. The process that started the agent (runners/node/job.py) waits longer.
"""


def never_relaying() -> bool:
    """Return False: a run on one node has no relay, so its runner carries no streams."""
    return False


class Agent:
    """One run on one node."""

    def __init__(
        self,
        entry: Entry,
        plan: Plan,
        mode: StartMode = StartMode.START,
        *,
        spawn_runner: SpawnRunner = Runner.start,
        gpu_source: type[GpuSource] = GpuSource,
    ) -> None:
        """`spawn_runner` and `gpu_source` start the processes of a run."""
        self._mode = mode
        self._has_hub = entry.record.kind == "node"
        """True on each node of a run on several nodes, whose hub judges and sends the notifications."""
        self.served = run = ServedRun(entry, plan)
        self._socket = Path(run.stem + ".sock")
        hooks = Hooks(run.run_dir, run.stem, run.emit, run.parts, run.node)
        launched = self.launched = Environment(run, hooks)
        restarts = Restarts(run, launched)
        self.relay = self._make_relay()
        relaying = self.relay.busy if self.relay is not None else never_relaying
        self.pulses = Pulses(
            run.state, hooks, run.emit, RankLines(run.run_dir, run.node, self._flush_times)
        )
        self.sampling = Sampling(run, hooks, self.pulses.shares, gpu_source)
        self.nccl = NcclSwitch(run, hooks, restarts)
        self.nccl_logs = NcclLogs(run, self.sampling.training.heard)
        self.sharing = Sharing(run.record.run8, self._serve_guest)
        self.commands = AgentCommands(
            run, hooks, self.pulses.spy, restarts, self.nccl.switch, self.sharing, relaying
        )
        self.checkpoints = CheckpointWatch(run)
        self.supervision = Supervision(
            run,
            hooks,
            restarts,
            self.sampling,
            self.nccl_logs,
            self.checkpoints,
            self._judge,
            relaying,
            spawn_runner,
        )
        self.notifier = None if self._has_hub else RunNotices(run, launched.value)
        """None if the hub sends the notifications."""
        self.judging: Judging | None = None
        """None before the runner has begun, and if the hub judges."""
        self.server = AgentServer(
            self._socket,
            entry.record,
            run.chronicle,
            run.parts,
            self.commands.execute,
            self._window,
            self.sampling.curves,
            self.sampling.attend,
            pass_on=self.relay.pass_on if self.relay is not None else refuse_relay,
        )

    async def _serve_guest(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.server.serve_guest(reader, writer)

    async def _window(self, ask: ReadLog) -> Window:
        """Return a part of a log with the line times recorded so far."""
        self._flush_times(ask.file)
        return await ask_window(self.served.run_dir, ask)

    def _flush_times(self, file: str) -> None:
        """Write the recorded line times of a log."""
        self.sampling.growing.flush(file)

    def _make_relay(self) -> AgentRelay | None:
        """Return the relay to the other nodes, or None for a single node."""
        run = self.served
        return AgentRelay(run.node, run.plan.nnodes, self._socket) if run.plan.nnodes > 1 else None

    def _runner_socket(self) -> str | None:
        return self.served.runner.who.socket if self.served.runner is not None else None

    def _make_judging(self) -> Judging | None:
        if self._has_hub:
            return None
        from ..diagnosis.detectors import Judging  # slow to import: the runner comes first

        return Judging(self.served.state, self.served.plan, self.served.emit)

    async def _judge(self) -> None:
        if self.judging is not None:
            await self.served.parts.guard("diagnosis", self.judging.judge_now())

    def _watchers(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the background tasks that run until the run has ended, by name."""
        run = self.served
        watchers = {
            "sampling": self.sampling.run,
            "gpus": self.sampling.gpus.run,
            "pulses": self.pulses.run,
            "py-spy": self.pulses.spy.run,
            "logs": self.nccl_logs.run,
            "log-flood": Guard(run, self.nccl.lower).run,
            "checkpoints": self.checkpoints.run,
            "spot-notice": ReclaimWatch(run).run,
            "metrics-export": MetricsWriter(run).run,
            "metrics-push": MetricsPush(run, self.launched.value).run,
        }
        if run.plan.signals:
            watchers["signal-patterns"] = self.sampling.training.patterns.run
        if run.plan.log_cap:
            watchers["log-cap"] = LogCaps(run, run.plan.log_cap).run
        if self.judging is not None:
            watchers["diagnosis"] = self.judging.run
        return watchers

    def _resume(self) -> bool:
        """Replay the journal, and create the run if it is new. Return True if the run continues."""
        # The scheduler has started this node's job again: its journal ends with RunEnded, and new attempts follow.
        job_restarted = os.environ.pop("DISTUI_AGAIN", "") != ""
        run, record = self.served, self.served.record
        resumed = run.chronicle.replay() and not (job_restarted and run.state.phase.ended)
        if not resumed or not run.state.run:  # a journal may be lost while its run continues
            created = RunCreated(record.run, record.name, record.host, summarise(run.plan))
            # The runner may already have started. After a restart of the job, the record is of its first start.
            run.emit(created, at=None if job_restarted else record.created)
        return resumed

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve the run until it has ended and no viewer is connected. `ready` is called when the socket answers."""
        run = self.served
        resumed = self._resume()
        adopted = await self.supervision.begin(self._mode, resumed)
        self.judging = self._make_judging()
        await self.server.announce(run, ready, adopted)
        self.supervision.resume_ranks()
        self.nccl.resume()
        self.commands.resume()
        if resumed and self.judging is not None:
            self.judging.resume()
        if self.notifier is not None:
            self.notifier.begin(self._mode)
        watchers = self._watchers()
        for name, watch in watchers.items():
            run.parts.start(name, watch)
        if self.relay is not None:
            run.parts.start("relay", partial(self.relay.run, self._runner_socket))
        await run.parts.start("supervision", self.supervision.run)
        await run.parts.stop(*watchers)
        self.sampling.close()
        if self.notifier is not None:
            await self.notifier.finish()
        await self.server.wait_for_viewers(HUB_SECONDS if self._has_hub else 0.0)
        self.sharing.close()
        await self.server.close()
        await self.supervision.end_runner()
        sweep_sockets(run.record.run8)
        run.journal.close()
