"""The GPU memory that earlier runs took at most, for the next estimate. It reads runs' files and writes nothing.

The curves of a run already have the driver's number per rank, or per GPU if the driver does not list processes, as in
containers. torch's allocator keeps what it has reserved, so samples once per second show the peak.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from ...presets.estimate.workload import GB
from ...presets.request import Request
from ..run import run_directories
from ..run.commands import ReadMetrics
from ..run.errors import RunError
from ..run.run_directories import Entry
from ..run.state import RunState
from ..telemetry import curves
from . import rerun

MOST_RUNS = 200
"""Most runs to read, the newest first."""
BUCKETS = 600
SECTIONS = ("strategy.", "mesh.", "batch.", "precision.", "deepspeed.")
"""Beginnings of the preset's fields that memory depends on."""
SAME_SIZE = 0.01
"""Largest relative difference of the parameters of one model: estimates use round numbers, as 7B."""


class Wanted(NamedTuple):
    """A future launch."""

    preset: str
    overrides: tuple[str, ...]
    adopt: bool
    ranks: int
    script: str | None
    """Absolute path, or None if unknown."""
    args: tuple[str, ...] | None = None
    """None if unknown."""
    parameters: int | None = None
    """Parameters of the model, or None if unknown."""


class MeasuredPeak(Struct, frozen=True):
    """The measured memory of one run."""

    run: str
    at: float
    """Unix time of its launch."""
    bytes: float
    """Bytes of the fullest rank."""
    differs: tuple[str, ...] = ()
    """Differences from the future launch, as phrases."""
    out_of_memory: bool = False
    """True if it ended because it needed more."""

    def text(self, estimate: float | None = None) -> str:
        """Return "measured 41.2 GB in run-3 on 26 Nov (estimate 39.5)"."""
        day = time.localtime(self.at)
        where = f"{self.bytes / GB:.1f} GB in {self.run} on {day.tm_mday} {time.strftime('%b', day)}"
        parts = [*self.differs]
        parts += [f"estimate {estimate / GB:.1f}"] if estimate is not None else []
        more = f" ({', '.join(parts)})" if parts else ""
        return f"{'ran out of memory at' if self.out_of_memory else 'measured'} {where}{more}"


def wanted(request: Request, cwd: str, ranks: int) -> Wanted:
    """Return a launch as runs are compared with it."""
    script = request.script
    return Wanted(
        preset=request.preset,
        overrides=_of_memory(request),
        adopt=request.adopt,
        ranks=ranks,
        script=os.path.join(cwd, script) if script and not request.module else script,
        args=request.args,
    )


def measured(launches: Sequence[Wanted]) -> list[MeasuredPeak | None]:
    """Return the measured peak of the newest run that equals each launch, else of the nearest; None without one."""
    best: list[tuple[tuple[bool, ...], MeasuredPeak] | None] = [None] * len(launches)
    presets = {launch.preset for launch in launches}
    for entry in run_directories.entries()[:MOST_RUNS]:
        try:
            kept = rerun.read(entry)
        except RunError:  # by a version that kept no request, or damaged
            continue
        if kept.request.preset not in presets:
            continue
        run = _Run(entry, kept.request, kept.cwd)
        for number, launch in enumerate(launches):
            near = run.nearness(launch)
            earlier = best[number]
            if near is None or (earlier is not None and earlier[0] >= near):
                continue
            if run.peak is not None:
                best[number] = near, run.compared(launch)
    return [None if found is None else found[1] for found in best]


class _Run:
    """An earlier run. Its state and curves are read when they are needed."""

    def __init__(self, entry: Entry, request: Request, cwd: str) -> None:
        self._entry, self._request, self._cwd = entry, request, cwd
        self._state: RunState | None = None
        self._peak: float | None = None
        self._is_read = False

    @property
    def state(self) -> RunState:
        """The folded journal."""
        if self._state is None:
            self._state = self._entry.state()
        return self._state

    @property
    def peak(self) -> float | None:
        """Bytes of the fullest rank; None if they were not measured."""
        if not self._is_read:
            self._peak, self._is_read = _peak(self._entry, self.state), True
        return self._peak

    def nearness(self, launch: Wanted) -> tuple[bool, ...] | None:
        """Return how well the run fits, as a sort key; None if its memory says nothing on the launch."""
        mine = wanted(self._request, self._cwd, launch.ranks)
        if (mine.preset, mine.adopt) != (launch.preset, launch.adopt):
            return None
        is_script = launch.script is not None and mine.script == launch.script
        if not is_script and not self._is_same_size(launch):
            return None
        plan = self.state.plan
        if plan is None or (plan.nproc_per_node or 0) * plan.nnodes != launch.ranks:
            return None
        return mine.overrides == launch.overrides, launch.args in (None, mine.args), is_script

    def _is_same_size(self, launch: Wanted) -> bool:
        sizes = {None if rank.made is None else rank.made.params for rank in self.state.ranks.values()}
        if launch.parameters is None or len(sizes) != 1:
            return False
        size = sizes.pop()
        return size is not None and abs(size / launch.parameters - 1) <= SAME_SIZE

    def compared(self, launch: Wanted) -> MeasuredPeak:
        """Return the peak, with the options that differ."""
        mine = wanted(self._request, self._cwd, launch.ranks)
        differs: tuple[str, ...] = ()
        if mine.overrides != launch.overrides:
            words = " ".join(f"--set {pair}" for pair in mine.overrides)
            differs = (f"with {words}" if words else "without --set",)
        if launch.args not in (None, mine.args):
            differs += ("other arguments",)
        cause = self.state.first_cause
        return MeasuredPeak(
            run=self._entry.record.name,
            at=self._entry.record.created,
            bytes=self.peak or 0.0,
            differs=differs,
            out_of_memory=cause is not None and cause.kind == "cuda-oom",
        )


def _of_memory(request: Request) -> tuple[str, ...]:
    return tuple(sorted(pair for pair in request.overrides if pair.startswith(SECTIONS)))


def _peak(entry: Entry, state: RunState) -> float | None:
    """Return the most bytes of a rank's process, else of a GPU that has only one rank; None without a sample."""
    found = max(_highest(entry, "rank.gpu_mem", ()), default=None)
    if found is not None:
        return found
    places = [
        (rank.place.node, rank.sample.gpu)
        for rank in state.ranks.values()
        if rank.sample is not None and rank.sample.gpu is not None
    ]
    if not places or len(set(places)) < len(state.ranks):
        return None
    indexes = tuple(sorted({gpu for _, gpu in places}))
    return max(_highest(entry, "gpu.mem", indexes), default=None)


def _highest(entry: Entry, metric: str, indexes: tuple[int, ...]) -> Iterator[float]:
    asked = ReadMetrics("", curves.BEFORE_ALL, curves.DISTANT, BUCKETS, (metric,), "each", indexes)
    for series in curves.read(curves.kept(entry), asked).series:
        yield from curves.finite(series.high or series.mean)
