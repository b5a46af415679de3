"""The sampling loop: GPU, host and rank samples, growing log files, and their intervals."""

from __future__ import annotations

import asyncio

from msgspec import structs

from ..run import clock
from ..run.answers import MetricsWindow
from ..run.commands import ReadMetrics
from ..run.finding_ledger import FindingLedger
from ..run.freshness import SAMPLE_S as INTERVAL_S
from ..run.freshness import holds
from ..run.log_files import silence
from ..run.model import Event, GpuTick, HostTick, LogGrew, RankPhase, RankTick
from ..run.samples import Gpu, Host, RankSample, TrainingSample
from ..run.state import Rank
from ..telemetry import curves
from ..telemetry.gpus import GpuSource
from ..telemetry.host import HostSampler
from ..telemetry.metrics import MetricsStore
from ..telemetry.metrics_files import FOLDER
from ..telemetry.rank_samples import RankSampler
from .hook_clients import Hooks
from .log_growth import Growing
from .rank_gpus import Placing
from .run_disk import RunDisk
from .runner_process import ServedRun
from .step_paces import Paces
from .training import Training
from .wait_shares import WaitShares

LATE_S = 0.3
"""Seconds to wait longer for the GPU sampler, which sets the pace of the samples if it runs."""


class Sampling:
    """Samples during the run."""

    def __init__(
        self,
        run: ServedRun,
        hooks: Hooks,
        shares: WaitShares,
        gpu_source: type[GpuSource] = GpuSource,
    ) -> None:
        """`shares`: the ranks' shares of time in collectives."""
        self._run, self._hooks = run, hooks
        self._is_watched = False
        self._shares = shares
        self._host = HostSampler(run.run_dir)
        self._ranks = RankSampler()
        self.growing = Growing(run.run_dir, lambda sizes: run.emit(LogGrew(sizes)))
        self._disk = RunDisk(run)
        self._metrics = MetricsStore(run.run_dir / FOLDER)
        self.gpus = gpu_source(INTERVAL_S, self._gpu_event, node=run.node)
        self._placing = Placing(run.node)
        self._newest: tuple[Gpu, ...] = ()
        self._heard = float("-inf")
        """Monotonic time of the newest GPU values."""
        self._held: GpuTick | None = None
        """A GPU tick that is emitted with the sample that it triggered."""
        self._began = float("-inf")
        self._due = asyncio.Event()
        self._ended = False
        self.paces = Paces()
        self.training = Training(run, hooks)
        self._misplaced = FindingLedger(run.emit)

    async def run(self) -> None:
        """Sample after each GPU sample, or at the fixed interval. A late sample is not repeated."""
        self.growing.begin()
        while True:
            self._began = clock.monotonic()
            self._due.clear()
            self.growing.attend(self._is_watched)
            await self._sample()
            await self._rest()

    async def _rest(self) -> None:
        late = INTERVAL_S + (LATE_S if self.gpus.sampling else 0.0)
        left = self._began + late - clock.monotonic()
        alarm = asyncio.get_running_loop().call_later(max(0.0, left), self._due.set)
        await self._due.wait()
        alarm.cancel()

    def attend(self, is_watched: bool) -> None:
        """Report growth immediately after the first viewer connects, and with samples after the last one leaves."""
        self._is_watched = is_watched
        if is_watched and not self._ended:
            self.growing.welcome()

    def close(self) -> None:
        """Report the last lines and write the last metrics. Call it after cancelling `run`."""
        self._ended = True
        self.grown()
        self.growing.end()
        self._metrics.flush()

    def _gpu_event(self, event: Event) -> None:
        if not isinstance(event, GpuTick):
            self._run.emit(event)
            return
        self._newest = event.gpus
        if event.problem is None:
            self._heard = clock.monotonic()
        if event.problem is None and clock.monotonic() - self._began > INTERVAL_S / 2:
            self._held = event
            self._due.set()
        else:
            self._run.emit(event)

    def _emit_gpus(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._run.emit(held)

    async def curves(self, ask: ReadMetrics) -> MetricsWindow:
        """Return a viewer's requested metrics, including the newest second."""
        store = curves.Store(self._run.run_dir / FOLDER, self._metrics.open_row())
        return await curves.ask_curves({self._run.node: store}, ask)

    def grown(self) -> None:
        """Report growing log files. Also called before the end, so that the last lines are reported."""
        self.growing.check()

    def conclude(self) -> None:
        """Report the last lines and write the newest second, so that receivers of the run's end find them."""
        self.grown()
        self._metrics.flush()

    def collect_last(self) -> tuple[TrainingSample, ...]:
        """Return the last training signals of an ending attempt, and write them to the metrics: no sample follows."""
        self.grown()
        self.training.collect()
        self._metrics.append(clock.now(), training=self.training.last)
        return self.training.last

    async def _sample(self) -> None:
        self._hooks.ask_steps()  # the ranks answer during the other measurements
        running: dict[int, Rank] = {}
        pids: dict[int, int] = {}
        for number, rank in self._run.state.ranks.items():
            if rank.phase is RankPhase.RUNNING and rank.pid is not None:
                running[number], pids[number] = rank, rank.pid
        samples = self._ranks.sample(pids)
        host = self._host.sample()
        placed = self._placing.place(running, self._newest, self._ranks.tree)
        steps = await self._hooks.steps()
        ticks = tuple(
            self._with_steps(sample, steps.get(number))
            for number, sample in sorted(placed.fill(samples).items())
        )
        self._emit_gpus()
        self._run.emit(RankTick(ticks))
        self._run.emit(HostTick(host))
        self.training.collect()
        self.grown()
        self._misplaced.update(placed.findings)
        self._keep(host, ticks)

    def _keep(self, host: Host, ticks: tuple[RankSample, ...]) -> None:
        """Write the sample to disk, and report a failed write."""
        # A hanging driver leaves old values, which do not belong to this second.
        gpus = self._newest if holds(clock.monotonic() - self._heard) else ()
        self._metrics.append(clock.now(), gpus, ticks, host, self._run.state.training.values())
        self._run.journal.flush()
        refused = self._metrics.problem is not None or self._run.journal.blocked
        self._disk.check(host.disk_free, host.disk_total, refused)
        if self._run.findings.holds("disk-full", node=self._run.node):
            self._host.doubt_disks()  # otherwise the next sample might clear it by a cached value

    def _with_steps(self, sample: RankSample, counted: tuple[int | None, float] | None) -> RankSample:
        now, run = clock.now(), self._run
        steps = self.paces.add(sample.rank, sample.pid, counted, now)
        waits = self._shares.percent(sample.rank, sample.pid, now)
        age = silence(run.run_dir, run.node, run.state.attempt, sample.rank, now)
        return structs.replace(
            sample,
            step=steps.so_far,
            step_s=steps.step_s,
            still_s=steps.still_s,
            usual_s=steps.usual_s,
            wait_percent=waits,
            log_age_s=age,
        )
