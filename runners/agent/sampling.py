"""One sample a second of node, ranks, GPUs and log sizes: all at one moment, so that agent and viewers wake up once."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from msgspec import structs

from ..diagnosis import bugs
from ..model import (
    Event,
    Finding,
    FindingCleared,
    FindingRaised,
    Gpu,
    GpuTick,
    Host,
    HostTick,
    LogGrew,
    RankPhase,
    RankSample,
    RankTick,
)
from ..telemetry import health
from ..telemetry.host import HostSampler
from ..telemetry.metrics import MetricsStore
from ..telemetry.ranks import RankSampler
from ..telemetry.watchdog import GpuSource
from .growing import Growing
from .pace import Paces
from .placing import Placing

if TYPE_CHECKING:
    from .agent import Agent

INTERVAL_S = 1.0
LATE_S = 0.3
"""How much longer than the interval is waited for the GPU sampler, whose samples set the pace where there is one."""
DISK_LOW = 0.05
"""Share of the file system under which a warning is shown."""
DISK_FULL_BYTES = 1 << 20


class Sampling:
    """Samples for as long as the run lives."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._host = HostSampler(agent.run_dir)
        self._ranks = RankSampler()
        self._growing = Growing(agent.run_dir, lambda sizes: agent.emit(LogGrew(sizes)))
        self._metrics = MetricsStore(agent.run_dir / "metrics")
        self._gpus = GpuSource(INTERVAL_S, self._gpu_event, node=agent.node)
        self._placing = Placing(agent.node)
        self._newest: tuple[Gpu, ...] = ()
        self._held: GpuTick | None = None
        """What came from the GPU sampler and is told with the sample that it sets off."""
        self._began = float("-inf")
        self._due = asyncio.Event()
        self._ended = False
        self._paces = Paces()
        self._misplaced: dict[health.Key, Finding] = {}
        self._raised: set[str] = set()

    async def run(self) -> None:
        """Sample when the GPU sampler has, else at a pace of its own; a late sample is not made up for."""
        await self._gpus.start()
        while True:
            self._began = time.monotonic()
            self._due.clear()
            self._growing.attend(self._agent.server.viewers > 0)
            await self._guarded()
            self._tell_gpus()  # also after a sample that failed
            await self._rest()

    async def _rest(self) -> None:
        late = INTERVAL_S + (LATE_S if self._gpus.sampling else 0.0)
        left = self._began + late - time.monotonic()
        alarm = asyncio.get_running_loop().call_later(max(0.0, left), self._due.set)
        await self._due.wait()
        alarm.cancel()

    def attend(self) -> None:
        """A viewer has come: what is written from now on is told at once."""
        if not self._ended:
            self._growing.attend(True)

    async def _guarded(self) -> None:
        """One of the two borders with a broad except: a sampler's bug must not end the agent, and must be seen."""
        try:
            await self._sample()
        except Exception as error:  # noqa: BLE001
            found = bugs.told(error, "sampler-failed", "a sample failed")
            self._raise(found.id, found.severity, found.text, found.remedy)

    async def stop(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait({task})
        await self._gpus.stop()
        self._ended = True
        self.grown()
        self._growing.attend(False)
        self._metrics.flush()

    def _gpu_event(self, event: Event) -> None:
        if not isinstance(event, GpuTick):
            self._agent.emit(event)
            return
        self._newest = event.gpus
        if event.problem is None and time.monotonic() - self._began > INTERVAL_S / 2:
            self._held = event
            self._due.set()
        else:
            self._agent.emit(event)

    def _tell_gpus(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._agent.emit(held)

    def grown(self) -> None:
        """Tell which log files grew; also right before the end, so that nobody misses the last lines."""
        self._growing.look()

    async def _sample(self) -> None:
        self._agent.hooks.ask_steps()  # the ranks count while node and processes are looked at
        running = {
            number: rank
            for number, rank in self._agent.state.ranks.items()
            if rank.phase is RankPhase.RUNNING and rank.pid is not None
        }
        samples = self._ranks.sample(
            {number: rank.pid for number, rank in running.items() if rank.pid is not None}
        )
        host = self._host.sample()
        placed = self._placing.place(running, self._newest, self._ranks.tree)
        steps = await self._agent.hooks.steps()
        ticks = tuple(
            self._with_steps(sample, steps.get(number))
            for number, sample in sorted(placed.fill(samples).items())
        )
        self._tell_gpus()
        self._agent.emit(RankTick(ticks))
        self._agent.emit(HostTick(host))
        self.grown()
        for event in health.changes(self._misplaced, placed.findings):
            self._agent.emit(event)
        self._misplaced = {health.key(finding): finding for finding in placed.findings}
        self._keep(host, ticks)

    def _keep(self, host: Host, ticks: tuple[RankSample, ...]) -> None:
        """Write to disk what belongs there, and say when that cannot be."""
        self._metrics.append(time.time(), self._newest, ticks, host)
        self._agent.journal.flush()
        refused = self._metrics.problem is not None or self._agent.journal.blocked
        self._check_disk(host.disk_free, host.disk_total, refused)
        if "disk-full" in self._raised:
            self._host.doubt_disks()  # else the next sample might clear it by what is remembered from before

    def _with_steps(self, sample: RankSample, counted: tuple[int, float] | None) -> RankSample:
        step, step_s = self._paces.add(sample.rank, sample.pid, counted)
        return structs.replace(sample, step=step, step_s=step_s)

    # --- findings of the sampler's own -----------------------------------------------------------------------

    def _check_disk(self, free: int | None, total: int | None, refused: bool) -> None:
        """`refused`: something was not written. A quota does that, too, and free space says nothing of it."""
        if refused or (free is not None and free < DISK_FULL_BYTES):
            self._disk(
                "disk-full",
                "error",
                "the disk of the run directory is full: log lines are lost, the run goes on",
                "the journal or the metrics could not be written" if refused else _room(free, total),
            )
        elif free is None or not total:
            return
        elif free < DISK_LOW * total:
            self._clear("disk-full")
            self._disk(
                "disk-low",
                "warn",
                f"only {free / 2**30:.1f} GiB are free where the run directory is",
                _room(free, total),
            )
        else:
            self._clear("disk-full")
            self._clear("disk-low")

    def _disk(self, name: str, severity: str, text: str, evidence: str) -> None:
        remedy = f"free space on the file system of {self._agent.run_dir}"
        self._raise(name, severity, text, remedy, evidence)

    def _raise(self, name: str, severity: str, text: str, remedy: str, *evidence: str) -> None:
        if name not in self._raised:
            self._raised.add(name)
            self._agent.emit(
                FindingRaised(
                    Finding(name, severity, text, remedy=remedy, node=self._agent.node, evidence=evidence)
                )
            )

    def _clear(self, name: str) -> None:
        if name in self._raised:
            self._raised.discard(name)
            self._agent.emit(FindingCleared(name, node=self._agent.node))


def _room(free: int | None, total: int | None) -> str:
    """What the file system tells of its space."""
    if free is None or not total:
        return "the file system refuses what is written"
    return f"{free / 2**20:.0f} MiB of {total / 2**20:.0f} MiB are free there"
