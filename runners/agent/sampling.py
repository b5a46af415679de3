"""One sample a second of node, ranks and GPUs; log sizes four times a second."""

from __future__ import annotations

import asyncio
import time
import traceback
from typing import TYPE_CHECKING

from msgspec import structs

from ..logs.growth import GrowthWatch
from ..model import (
    Event,
    Finding,
    FindingCleared,
    FindingRaised,
    Gpu,
    GpuTick,
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
from .pace import Paces
from .placing import Placing

if TYPE_CHECKING:
    from .agent import Agent

INTERVAL_S = 1.0
GROWTH_PER_SAMPLE = 4
DISK_LOW = 0.05
"""Share of the file system under which a warning is shown."""
DISK_FULL_BYTES = 1 << 20


class Sampling:
    """Samples for as long as the run lives."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._host = HostSampler(agent.run_dir)
        self._ranks = RankSampler()
        self._growth = GrowthWatch(agent.run_dir)
        self._metrics = MetricsStore(agent.run_dir / "metrics")
        self._gpus = GpuSource(INTERVAL_S, self._gpu_event, node=0)
        self._placing = Placing()
        self._newest: tuple[Gpu, ...] = ()
        self._paces = Paces()
        self._misplaced: dict[health.Key, Finding] = {}
        self._raised: set[str] = set()

    async def run(self) -> None:
        """Sample at a fixed pace; a late sample is not made up for."""
        await self._gpus.start()
        due = time.monotonic()
        while True:
            await self._guarded()
            for _ in range(GROWTH_PER_SAMPLE):
                due = max(due + INTERVAL_S / GROWTH_PER_SAMPLE, time.monotonic())
                await asyncio.sleep(due - time.monotonic())
                self.grown()

    async def _guarded(self) -> None:
        """One of the two borders with a broad except: a sampler's bug must not end the agent, and must be seen."""
        try:
            await self._sample()
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            text = f"a sample failed: {type(error).__name__}: {error}"
            self._raise(
                "sampler-failed", "warn", text, "the traceback stands in agent.log; please report it"
            )

    async def stop(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait({task})
        await self._gpus.stop()
        self.grown()
        self._metrics.flush()

    def _gpu_event(self, event: Event) -> None:
        if isinstance(event, GpuTick):
            self._newest = event.gpus
        self._agent.emit(event)

    def grown(self) -> None:
        """Tell which log files grew; also right before the end, so that nobody misses the last lines."""
        sizes = self._growth.poll(time.monotonic())
        if sizes:
            self._agent.emit(LogGrew(sizes))

    async def _sample(self) -> None:
        running = {
            number: rank
            for number, rank in self._agent.state.ranks.items()
            if rank.phase is RankPhase.RUNNING and rank.pid is not None
        }
        samples = self._ranks.sample(
            {number: rank.pid for number, rank in running.items() if rank.pid is not None}
        )
        steps = await self._agent.hooks.steps()
        placed = self._placing.place(running, self._newest, self._ranks.tree)
        ticks = [
            self._with_steps(sample, steps.get(number))
            for number, sample in sorted(placed.fill(samples).items())
        ]
        self._agent.emit(RankTick(tuple(ticks)))
        host = self._host.sample()
        self._agent.emit(HostTick(host))
        for event in health.changes(self._misplaced, placed.findings):
            self._agent.emit(event)
        self._misplaced = {health.key(finding): finding for finding in placed.findings}
        self._check_disk(host.disk_free, host.disk_total)
        kept = self._metrics.append(time.time(), self._newest, tuple(ticks), host)
        self._agent.journal.flush()
        if not kept or self._agent.journal.blocked:
            self._disk(
                "disk-full",
                "error",
                "the disk of the run directory is full: log lines are lost, the run goes on",
            )

    def _with_steps(self, sample: RankSample, counted: tuple[int, float] | None) -> RankSample:
        step, step_s = self._paces.add(sample.rank, sample.pid, counted)
        return structs.replace(sample, step=step, step_s=step_s)

    # --- findings of the sampler's own -----------------------------------------------------------------------

    def _check_disk(self, free: int | None, total: int | None) -> None:
        if free is None or not total:
            return
        if free < DISK_FULL_BYTES:
            self._disk(
                "disk-full",
                "error",
                "the disk of the run directory is full: log lines are lost, the run goes on",
            )
        elif free < DISK_LOW * total:
            self._clear("disk-full")
            self._disk(
                "disk-low", "warn", f"only {free / 2**30:.1f} GiB are free where the run directory is"
            )
        else:
            self._clear("disk-full")
            self._clear("disk-low")

    def _disk(self, name: str, severity: str, text: str) -> None:
        self._raise(name, severity, text, f"free space on the file system of {self._agent.run_dir}")

    def _raise(self, name: str, severity: str, text: str, remedy: str) -> None:
        if name not in self._raised:
            self._raised.add(name)
            self._agent.emit(FindingRaised(Finding(name, severity, text, remedy=remedy, node=0)))

    def _clear(self, name: str) -> None:
        if name in self._raised:
            self._raised.discard(name)
            self._agent.emit(FindingCleared(name, node=0))
