"""Measure how long the GPUs of a run have been idle, and the cost. Updated once per round. Unknown is not idle."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

from ...presets.plurals import plural
from ..run.formatting import duration_exact, spans_text
from ..run.freshness import Freshness, freshness
from ..run.state import LIVING, RunState

IDLE_PERCENT, BUSY_PERCENT = 3.0, 10.0
"""A GPU becomes idle below the first percentage, and busy above the second."""


GpuId = tuple[int, int]
"""Node and NVML index."""


class Idle(NamedTuple):
    """GPUs that have been idle for long enough."""

    what: str
    text: str
    ranks: tuple[int, ...]


class IdleGpus:
    """The time since which each GPU of the run has been idle."""

    def __init__(self) -> None:
        self._since: dict[GpuId, float] = {}
        """Monotonic seconds, like `ticks`."""

    def of(self, state: RunState, now: float, ticks: float, seconds: float) -> Idle | None:
        """Return the GPUs that have been idle for `seconds`, or None. `now`, `ticks`: see Rules.judge."""
        users = own_gpus(state)
        self._update(_utilizations(state, now), users.keys(), ticks)
        idle = {gpu: since for gpu, since in self._since.items() if ticks - since >= seconds}
        if not idle:
            return None
        ranks = tuple(sorted({rank for gpu in idle for rank in users[gpu]}))
        for_s = ticks - max(idle.values())
        what = f"{len(idle)} of {plural(len(users), 'GPU')} idle for {duration_exact(for_s)}"
        return Idle(what, _text(state, ticks, idle, ranks), ranks)

    def _update(self, utilizations: Mapping[GpuId, float | None], used: Set[GpuId], ticks: float) -> None:
        """Begin or end the idle time of each GPU. `used`: the GPUs of living ranks."""
        self._since = {gpu: since for gpu, since in self._since.items() if gpu in used}
        for gpu in used & utilizations.keys():
            util = utilizations[gpu]
            if util is None or util > BUSY_PERCENT:
                self._since.pop(gpu, None)
            elif util < IDLE_PERCENT:
                self._since.setdefault(gpu, ticks)


def own_gpus(state: RunState) -> dict[GpuId, list[int]]:
    """Return the used GPUs, each with its living ranks."""
    users: dict[GpuId, list[int]] = {}
    for number, rank in state.ranks.items():
        if rank.phase in LIVING and rank.sample is not None and rank.sample.gpu is not None:
            users.setdefault((rank.place.node, rank.sample.gpu), []).append(number)
    return users


def _utilizations(state: RunState, now: float) -> dict[GpuId, float | None]:
    """Return the current utilization of every GPU, or None if it is unknown."""
    found: dict[GpuId, float | None] = {}
    for number, node in state.nodes.items():
        is_known = freshness(node.gpu_sampled, now) is not Freshness.UNKNOWN and node.gpu_problem is None
        for gpu in node.gpus:
            found[number, gpu.index] = gpu.util if is_known and not gpu.lost else None
    return found


def _text(state: RunState, ticks: float, idle: dict[GpuId, float], ranks: tuple[int, ...]) -> str:
    """Name the ranks of the GPUs, and the cost since each became idle, as a share of all nodes."""
    text, cluster = f"those of {spans_text('rank', ranks)}", state.cluster
    there = sum(len(node.gpus) for node in state.nodes.values())
    if cluster is None or cluster.down or cluster.price_per_hour is None or not there:
        return text
    cost = cluster.price_per_hour * sum(ticks - since for since in idle.values()) / 3600 / there
    return (
        f"{text}; that has cost about ${cost:,.2f} (${cluster.price_per_hour:,.2f} per hour for all nodes)"
    )
