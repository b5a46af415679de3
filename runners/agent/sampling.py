"""The sampling loop: GPU, host and rank samples, growing log files, and their intervals."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from msgspec import structs

from ...presets.finding import Finding
from ..logs.line_times import LineTimes
from ..run import clock
from ..run.finding_ledger import FindingLedger
from ..run.formatting import size_text
from ..run.freshness import SAMPLE_S as INTERVAL_S
from ..run.freshness import holds
from ..run.log_files import GONE, GrowthWatch, Notifier, silence
from ..run.model import (
    Event,
    Gpu,
    GpuTick,
    Host,
    HostTick,
    LogGrew,
    MetricsWindow,
    RankPhase,
    RankSample,
    RankTick,
    ReadMetrics,
    TrainingSample,
)
from ..run.processes import environ_of
from ..run.state import Rank
from ..telemetry import curves
from ..telemetry.gpu_places import Launched, Placement, place, witness
from ..telemetry.gpus import GpuSource
from ..telemetry.host import HostSampler
from ..telemetry.metrics import MetricsStore
from ..telemetry.metrics_files import FOLDER
from ..telemetry.rank_samples import RankSampler
from .file_limits import FileLimits, limit_of
from .hook_clients import Hooks
from .runner_process import ServedRun
from .training import Training
from .wait_shares import WaitShares

SHORTEST_S = 0.1
"""Shortest time between two checks of the files, in seconds. Applies to ranks that write continuously."""
QUIET_S = 0.25
"""Shortest time without a viewer. The checks continue, because lines get their times from them."""
DEAF_S = 0.25
"""Poll interval in seconds if inotify is unavailable."""


class Growing:
    """Sizes of a run's log files and times of growth. Create and use it in the event loop."""

    def __init__(self, run_dir: Path, report: Callable[[dict[str, int]], None]) -> None:
        self._watch = GrowthWatch(run_dir)
        self._report = report
        self._notifier: Notifier | None = None
        self._attended = False
        self._listened: tuple[str, ...] = ()
        """Folders that inotify watches."""
        self._due: asyncio.TimerHandle | None = None
        self._checked = float("-inf")
        self._times = LineTimes(run_dir)
        self._unreported: dict[str, int] = {}

    def check(self) -> None:
        """Report growth since the last check. Also called before the end, so that the last lines are reported."""
        self._check_files()
        self.flush()
        sizes, self._unreported = self._unreported, {}
        if sizes:
            self._report(sizes)

    def flush(self, file: str | None = None) -> None:
        """Write the recorded times of one log, or of all logs."""
        self._times.flush(file)

    def _check_files(self) -> None:
        before, self._checked = self._checked, clock.monotonic()
        sizes = self._unreported
        while True:
            folders = self._watch.folders
            # Watch before the poll: inotify reports later writes, and the poll finds earlier ones.
            if self._notifier is not None and self._listened != folders:
                self._notifier.listen(folders)
                self._listened = folders
            grown = self._watch.poll(self._checked)
            self._note(grown, before)
            sizes |= grown
            if self._notifier is None or self._watch.folders == folders:
                break

    def _note(self, grown: Mapping[str, int], before: float) -> None:
        """Record line times. `before`: monotonic time of the previous check."""
        now = clock.now()
        then = now - (clock.monotonic() - before) if before > 0 else None
        for file, size in grown.items():
            if size != GONE:
                self._times.note(file, size, self._watch.written[file], then, now)

    def begin(self) -> None:
        """Watch for writes from now on, with or without a viewer."""
        if self._notifier is not None:
            return
        with contextlib.suppress(OSError):
            self._notifier = Notifier()
            asyncio.get_running_loop().add_reader(self._notifier.fd, self._heard)

    def end(self) -> None:
        """Stop watching."""
        self._attended = False
        self._rest()

    def attend(self, wanted: bool) -> None:
        """Report growth immediately while a viewer is connected, otherwise once per sample."""
        if wanted == self._attended:
            return
        self._attended = wanted
        if not wanted:
            return
        self.begin()
        if self._notifier is None and self._due is None:
            self._wait(DEAF_S)
        self.check()

    def welcome(self) -> None:
        """Report earlier growth for a new viewer, even right after a check."""
        if self._attended:
            self.check()
        else:
            self.attend(True)

    def _heard(self) -> None:
        """Check after a write, but not before the shortest time since the last check has passed."""
        assert self._notifier is not None
        if self._notifier.heard():
            self._listened = ()
            left = self._checked + (SHORTEST_S if self._attended else QUIET_S) - clock.monotonic()
            if left <= 0:
                self._check_again_soon()
            elif self._due is None:
                self._wait(left)

    def _check_again_soon(self) -> None:
        if self._attended:
            self.check()
        else:
            self._check_files()

    def _wait(self, seconds: float) -> None:
        self._due = asyncio.get_running_loop().call_later(seconds, self._check_again)

    def _check_again(self) -> None:
        self._due = None
        self._check_again_soon()
        if self._notifier is None and self._attended:
            self._wait(DEAF_S)

    def _rest(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._notifier is not None:
            asyncio.get_running_loop().remove_reader(self._notifier.fd)
            self._notifier.close()
            self._notifier, self._listened = None, ()


class Steps(NamedTuple):
    so_far: int | None = None
    step_s: float | None = None
    """Mean seconds per step since the previous sample. None after the steps have stopped."""
    still_s: float | None = None
    """Seconds since the newest step, after the steps have stopped."""


USUAL_OF = 5
"""Number of samples in the median of step times. A single checkpoint or evaluation does not change it."""


class _Counted:
    def __init__(self, pid: int | None) -> None:
        self.pid = pid
        self.count: int | None = None
        self.last = 0.0
        """Unix time of the newest step. 0 before the first."""
        self.paces = deque[float](maxlen=USUAL_OF)
        """Mean seconds per step of the newest samples with steps."""

    def add(self, count: int, last: float) -> None:
        if self.count is not None and count > self.count and self.last > 0:
            self.paces.append((last - self.last) / (count - self.count))
        self.count, self.last = count, last


class Paces:
    """The steps of each rank, from sample to sample."""

    def __init__(self) -> None:
        self._by_rank: dict[int, _Counted] = {}

    def add(
        self, rank: int, pid: int | None, counted: tuple[int | None, float] | None, now: float
    ) -> Steps:
        """Return a rank's steps for a sample at the Unix time `now`.

        `counted` is (steps, Unix time of the newest), or None if the hook did not answer in time, for example in a busy
        interpreter. It is then unknown if the steps have stopped. Steps are None until the script has an optimizer. A
        new pid is a new process.
        """
        known = self._by_rank.get(rank)
        if known is None or known.pid != pid:
            known = self._by_rank[rank] = _Counted(pid)
        if counted is not None and counted[0] is not None:
            known.add(counted[0], counted[1])
        if not known.paces:
            return Steps(known.count)
        still_s = max(0.0, now - known.last)
        if holds(still_s, median(known.paces)):
            return Steps(known.count, known.paces[-1])
        return Steps(known.count, still_s=None if counted is None else still_s)

    def last(self, rank: int, pid: int | None) -> float | None:
        """Return the newest step time of a process, even after its steps have stopped."""
        known = self._by_rank.get(rank)
        if known is None or known.pid != pid or not known.paces:
            return None
        return known.paces[-1]


class Placing:
    """Caches each rank's launch environment, which cannot change while its process lives, and its placement."""

    def __init__(self, node: int = 0) -> None:
        self._node = node
        self._environments: dict[int, dict[str, str]] = {}
        self._seen: object = None
        self._placement = Placement({})

    def place(
        self, ranks: Mapping[int, Rank], gpus: Sequence[Gpu], tree: Callable[[int], tuple[int, ...]]
    ) -> Placement:
        """Return the GPUs of each rank, and findings on wrong processes. Empty without GPUs."""
        if not gpus:
            return Placement({})
        trees = {number: tree(number) for number in sorted(ranks)}
        seen = (
            [(number, ranks[number].pid, pids) for number, pids in trees.items()],
            [(gpu.index, gpu.uuid, gpu.name, gpu.mig, gpu.pids, gpu.pid_mem) for gpu in gpus],
        )
        if seen != self._seen:
            self._placement = self._place(ranks, gpus, trees)
            # An unreadable environment may be readable at the next sample.
            self._seen = seen if all(self._environments.values()) else None
        return self._placement

    def _place(
        self, ranks: Mapping[int, Rank], gpus: Sequence[Gpu], trees: Mapping[int, tuple[int, ...]]
    ) -> Placement:
        self._environments = {
            rank.pid: self._environment(rank.pid) for rank in ranks.values() if rank.pid is not None
        }
        launched = [self._launched(number, ranks[number], pids) for number, pids in trees.items()]
        return place(launched, gpus, witness(launched, gpus, (os.getpid(),)), self._node)

    def _environment(self, pid: int) -> dict[str, str]:
        return self._environments.get(pid) or environ_of(pid)

    def _launched(self, number: int, rank: Rank, pids: tuple[int, ...]) -> Launched:
        env = self._environments.get(rank.pid or 0, {})
        return Launched(
            rank=number,
            local_rank=rank.place.local_rank,
            pids=pids,
            visible=env.get("CUDA_VISIBLE_DEVICES"),
            order=env.get("CUDA_DEVICE_ORDER"),
        )


LATE_S = 0.3
"""Seconds to wait longer for the GPU sampler, which sets the pace of the samples if it runs."""
DISK_LOW = 0.05
"""Share of free space below which a warning is raised."""
DISK_FULL_BYTES = 1 << 20


class Sampling:
    """Samples during the run."""

    def __init__(
        self,
        run: ServedRun,
        hooks: Hooks,
        shares: WaitShares | None = None,
        gpu_source: type[GpuSource] = GpuSource,
    ) -> None:
        """`shares`: the ranks' shares of time in collectives."""
        self._run, self._hooks = run, hooks
        self._is_watched = False
        self._shares = shares or WaitShares()
        self._host = HostSampler(run.run_dir)
        self._ranks = RankSampler()
        self.growing = Growing(run.run_dir, lambda sizes: run.emit(LogGrew(sizes)))
        self._limits = FileLimits(run)
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
        self._limits.check()

    def conclude(self) -> None:
        """Report the last lines and write the newest second, so that receivers of the run's end find them."""
        self.grown()
        self._metrics.flush()

    def collect_last(self) -> tuple[TrainingSample, ...]:
        """Return the last training signals of an ending attempt, and write them to the metrics: no sample follows."""
        self.training.collect()
        self._metrics.append(clock.now(), training=self.training.last)
        return self.training.last

    async def _sample(self) -> None:
        self._hooks.ask_steps()  # the ranks answer during the other measurements
        running = {
            number: rank
            for number, rank in self._run.state.ranks.items()
            if rank.phase is RankPhase.RUNNING and rank.pid is not None
        }
        self._limits.update((number, rank.pid) for number, rank in running.items() if rank.pid is not None)
        samples = self._ranks.sample(
            {number: rank.pid for number, rank in running.items() if rank.pid is not None}
        )
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
        self._check_disk(host.disk_free, host.disk_total, refused)
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
            wait_percent=waits,
            log_age_s=age,
        )

    # --- findings of the sampler -----------------------------------------------------------------------------

    def _check_disk(self, free: int | None, total: int | None, refused: bool) -> None:
        """Check the free space.

        `refused`: a write failed, which a quota can also cause without a change in the free space.
        """
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
                "warning",
                f"only {size_text(free)} are free where the run directory is",
                _room(free, total),
            )
        else:
            self._clear("disk-full")
            self._clear("disk-low")

    def _disk(self, name: str, severity: str, text: str, evidence: str) -> None:
        remedy, limit = f"free space on the file system of {self._run.run_dir}", limit_of(0)
        if limit is not None:
            remedy += f", or raise the limit on the size of a file, {size_text(limit)} here (`ulimit -f unlimited`)"
        self._raise(name, severity, text, remedy, evidence)

    def _raise(self, name: str, severity: str, text: str, remedy: str, *evidence: str) -> None:
        finding = Finding(name, severity, text, remedy=remedy, node=self._run.node, evidence=evidence)
        self._run.findings.raise_once(finding)

    def _clear(self, name: str) -> None:
        self._run.findings.clear(name, node=self._run.node)


def _room(free: int | None, total: int | None) -> str:
    """Describe the space of the file system."""
    if free is None or not total:
        return "the file system refuses what is written"
    return f"{size_text(free)} of {size_text(total)} are free there"
