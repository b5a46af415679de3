"""The GPUs of each rank, computed again only if something has changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from ..run.processes import environ_of
from ..run.samples import Gpu
from ..run.state import Rank
from ..telemetry.gpu_places import Launched, Placement, place, witness


class Placing:
    """Caches each rank's launch environment, which cannot change while its process lives, and its placement."""

    def __init__(self, node: int) -> None:
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
