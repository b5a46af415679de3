"""Samples of a watched job's ranks, and the GPUs they are on: from /proc, their environment and NVML."""

from __future__ import annotations

from ..model import Event, Finding, Gpu, RankSample
from ..telemetry import gpu_health
from ..telemetry.rank_samples import Launched, RankSampler, place
from ..telemetry.sampler_watch import witness
from .discover import RankProcess
from .job_changes import Watched


class JobRanks:
    """Samples the living ranks of one job; call `sample` about once a second."""

    def __init__(self) -> None:
        self._sampler = RankSampler()
        self._processes: dict[int, RankProcess] = {}
        self._launchers: frozenset[int] = frozenset()
        self._raised: dict[gpu_health.Key, Finding] = {}

    def watch(self, watched: Watched) -> None:
        """Which ranks there are now."""
        job = watched.job
        self._processes = {rank: process for rank, process in job.ranks.items() if rank not in watched.gone}
        self._launchers = frozenset(pid for pid, _ in job.launchers)

    def sample(self, gpus: tuple[Gpu, ...]) -> tuple[tuple[RankSample, ...], list[Event]]:
        """One sample a rank, on its GPU where that is known, and what changed among the findings."""
        samples = self._sampler.sample({rank: process.pid for rank, process in self._processes.items()})
        launched = [self._launched(process) for process in self._processes.values()]
        placement = place(launched, gpus, witness(launched, gpus, self._launchers), node=0)
        changes = gpu_health.changes(self._raised, placement.findings)
        self._raised = {gpu_health.key(finding): finding for finding in placement.findings}
        filled = placement.fill(samples)
        return tuple(filled[rank] for rank in sorted(filled)), changes

    def _launched(self, process: RankProcess) -> Launched:
        return Launched(
            rank=process.rank,
            local_rank=process.local_rank,
            pids=self._sampler.tree(process.rank),
            visible=process.env.get("CUDA_VISIBLE_DEVICES"),
            order=process.env.get("CUDA_DEVICE_ORDER"),
        )
