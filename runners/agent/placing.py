"""Joins the ranks of this node with its GPUs: gathers what /proc says, and lets `telemetry.mapping` decide."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..model import Gpu
from ..state import Rank
from ..telemetry.mapping import Launched, Pids, Placement, place
from ..telemetry.proc import read_nspids
from .processes import environ_of


def _name(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None


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
        launched = [self._launched(number, rank, tree(number)) for number, rank in sorted(ranks.items())]
        ours = {pid for one in launched for pid in one.pids}
        seen = {pid for gpu in gpus for pid in gpu.pids or ()}
        names = {pid: name for pid in seen if (name := _name(pid)) is not None}
        pids = Pids(
            {pid: read_nspids(pid) for pid in ours}, names, frozenset({os.getpid()}), _initial_namespace()
        )
        return place(launched, gpus, pids, node=0)

    def _launched(self, number: int, rank: Rank, pids: tuple[int, ...]) -> Launched:
        pid = rank.pid or 0
        if pid not in self._known:
            self._known[pid] = environ_of(pid)
        env = self._known[pid]
        return Launched(
            number,
            rank.place.local_rank,
            pids or (pid,),
            env.get("CUDA_VISIBLE_DEVICES"),
            env.get("CUDA_DEVICE_ORDER"),
        )


def _initial_namespace() -> bool:
    """Whether this process sees the pids that the driver names: its own pid is the same in all namespaces."""
    return len(read_nspids(os.getpid())) == 1 and Path("/proc/2/comm").exists() and _name(2) == "kthreadd"
