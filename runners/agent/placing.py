"""Joins the ranks of this node with its GPUs: the launch environment of each, and what driver and /proc say."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from ..model import Gpu
from ..state import Rank
from ..telemetry.mapping import Launched, Placement, place
from ..telemetry.witness import witness
from .processes import environ_of


class Placing:
    """Remembers each rank's launch environment, which cannot change while its process lives, and where it was placed."""

    def __init__(self, node: int = 0) -> None:
        self._node = node
        self._known: dict[int, dict[str, str]] = {}
        self._seen: object = None
        self._placement = Placement({})

    def place(
        self, ranks: Mapping[int, Rank], gpus: Sequence[Gpu], tree: Callable[[int], tuple[int, ...]]
    ) -> Placement:
        """Where each rank computes, and what is on a GPU that should not be there; nothing without GPUs."""
        if not gpus:
            return Placement({})
        trees = {number: tree(number) for number in sorted(ranks)}
        seen = (
            [(number, ranks[number].pid, pids) for number, pids in trees.items()],
            [(gpu.index, gpu.uuid, gpu.name, gpu.mig, gpu.pids, gpu.pid_mem) for gpu in gpus],
        )
        if seen != self._seen:
            self._placement = self._place(ranks, gpus, trees)
            # An environment that could not be read now may be read the next time.
            self._seen = seen if all(self._known.values()) else None
        return self._placement

    def _place(
        self, ranks: Mapping[int, Rank], gpus: Sequence[Gpu], trees: Mapping[int, tuple[int, ...]]
    ) -> Placement:
        self._known = {
            rank.pid: self._environment(rank.pid) for rank in ranks.values() if rank.pid is not None
        }
        launched = [self._launched(number, ranks[number], pids) for number, pids in trees.items()]
        return place(launched, gpus, witness(launched, gpus, (os.getpid(),)), self._node)

    def _environment(self, pid: int) -> dict[str, str]:
        return self._known.get(pid) or environ_of(pid)

    def _launched(self, number: int, rank: Rank, pids: tuple[int, ...]) -> Launched:
        env = self._known.get(rank.pid or 0, {})
        return Launched(
            rank=number,
            local_rank=rank.place.local_rank,
            pids=pids,
            visible=env.get("CUDA_VISIBLE_DEVICES"),
            order=env.get("CUDA_DEVICE_ORDER"),
        )
