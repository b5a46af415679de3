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
    """Remembers each rank's launch environment, which cannot change while its process lives."""

    def __init__(self) -> None:
        self._known: dict[int, dict[str, str]] = {}

    def place(
        self, ranks: Mapping[int, Rank], gpus: Sequence[Gpu], tree: Callable[[int], tuple[int, ...]]
    ) -> Placement:
        """Where each rank computes, and what is on a GPU that should not be there; nothing without GPUs."""
        if not gpus:
            return Placement({})
        self._known = {
            rank.pid: self._environment(rank.pid) for rank in ranks.values() if rank.pid is not None
        }
        launched = [self._launched(number, rank, tree(number)) for number, rank in sorted(ranks.items())]
        return place(launched, gpus, witness(launched, gpus, (os.getpid(),)), node=0)

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
