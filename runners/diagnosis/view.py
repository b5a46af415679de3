"""The input of the detectors: a run at one moment, the arrival of its ranks in collectives, and memory over time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypedDict

from ...presets.finding import Finding
from ...presets.plan import Plan
from ..run.formatting import spans_text
from ..run.model import Collective, Gpu, ProcessGroup, Pulse
from ..run.state import Attempt, RunState

# Arrival times of ranks in the same collective: the last rank keeps the others waiting. Bounded, fed per pulse.
# With gloo the time of the call counts. NCCL's calls return at once, so the time of the kernel counts there:
# on an early rank the kernel spins, and on the last rank it is shortest.

ASYMMETRIC = ("broadcast", "scatter", "gather", "reduce", "send", "recv")
"""Collectives that do not make every rank wait for every other."""
COLLECTIVES_KEPT = 256
BUDGET = 16384
"""Maximum number of entries read per round of pulses over all ranks, but at least FEWEST per rank."""
FEWEST = 16
OPEN = 128
"""Collectives per group that may be incomplete, because not all ranks have reported them."""
PIECE_S = 2.0
"""Seconds per piece if steps are unknown."""


class Met(NamedTuple):
    """One collective that every member has called."""

    seq: int
    first: float
    """Unix time of the earliest call."""
    last: float
    """Unix time of the latest call."""
    values: list[float]
    """Per member: Unix time of its call, or minus its kernel's seconds. The last member has the greatest value."""
    late: float
    """The greatest of `values`."""
    who: int
    """Index of the member with the value `late`."""


class Piece(NamedTuple):
    """Consecutive collectives that make up a step, or a fixed time if steps are unknown."""

    seconds: float
    waits: tuple[Met, ...]
    """The collectives that made members wait."""
    calls: int
    ends: float
    """Unix time of the end."""


class _OpenCollective:
    """A collective that not every member has reported."""

    __slots__ = ("at", "left", "values")

    def __init__(self, members: int) -> None:
        self.values: list[float | None] = [None] * members
        self.left = members
        self.at = 0.0
        """Unix time of one call."""


@dataclass(slots=True)
class GroupArrivals:
    name: str
    members: Sequence[int]
    index: Mapping[int, int]
    timed: bool = False
    """Whether `values` are kernel times."""
    met: deque[Met] = field(default_factory=lambda: deque(maxlen=COLLECTIVES_KEPT))
    opened: dict[int, _OpenCollective | None] = field(default_factory=dict)
    """Collectives that not all members have reported; None for an asymmetric one."""
    passed: deque[int] = field(default_factory=lambda: deque(maxlen=COLLECTIVES_KEPT))
    """Numbers of asymmetric collectives, which do not count as gaps between the others."""
    closed: int = 0
    """Number of the newest collective that all members have called."""
    counts: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=8))
    """Optimizer steps and calls of the first member so far."""
    progress: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Calls and completions in each member's newest pulse, to skip a pulse without progress."""

    def add(self, entries: Iterable[Collective], member: int) -> None:
        """Add the calls that a member reports, oldest first. Hot loop: 1,024 ranks report at once."""
        opened, closed = self.opened, self.closed
        for entry in entries:
            seq = entry.seq
            if seq <= closed or entry.p2p:
                continue
            open_call = opened[seq] if seq in opened else self._open(entry)
            if open_call is None or open_call.values[member] is not None:
                continue
            value = entry.created if not self.timed else _kernel(entry)
            if value is None:
                continue
            open_call.values[member] = value
            open_call.left -= 1
            if not open_call.left:
                open_call.at = entry.created
                self._close(seq, open_call)

    def _open(self, entry: Collective) -> _OpenCollective | None:
        """Open a collective at its first report."""
        if len(self.opened) >= OPEN:
            del self.opened[min(self.opened)]
        self.timed = entry.started is not None
        made = _OpenCollective(len(self.members)) if _mutual(entry.op) else None
        if made is None:
            self.passed.append(entry.seq)
        self.opened[entry.seq] = made
        return made

    def _close(self, seq: int, open_call: _OpenCollective) -> None:
        """Close a collective that all members have reported."""
        del self.opened[seq]
        values = [value for value in open_call.values if value is not None]
        late = max(values)
        first, last = (open_call.at, open_call.at) if self.timed else (min(values), late)
        self.met.append(Met(seq, first, last, values, late, values.index(late)))
        self.closed = max(self.closed, seq)

    def restart(self) -> None:
        """Forget everything: the group was created again and counts from 1."""
        self.met.clear()
        self.passed.clear()
        self.opened.clear()
        self.counts.clear()
        self.progress.clear()
        self.closed = 0

    @property
    def a_step(self) -> int | None:
        """Number of collectives per optimizer step; None if steps are unknown."""
        if len(self.counts) < 2:
            return None
        (steps, calls), (later, more) = self.counts[0], self.counts[-1]
        return max(1, round((more - calls) / (later - steps))) if later > steps and more > calls else None

    def pieces(self, margin: float) -> list[Piece]:
        """Return the steps, oldest first, or pieces of time if steps are unknown or too long.

        `margin`: maximum clock difference in seconds.
        """
        size = self.a_step
        pieces: list[Piece] = []
        for run in _runs(sorted(self.met), frozenset(self.passed)):
            pieces += self._cut(run, size, margin)
        return pieces

    def _cut(self, run: list[Met], size: int | None, margin: float) -> Iterable[Piece]:
        waits = frozenset(self._waits(run, margin))
        begin = 0
        for at in range(1, len(run)):
            seconds = run[at].last - run[begin].last
            calls = run[at].seq - run[begin].seq
            full = seconds >= PIECE_S if size is None else calls >= size
            rest = at == len(run) - 1 and begin == 0 and (size is None or size > calls)
            if (full or rest) and seconds > 0:
                own = run[begin + 1 : at + 1]
                chosen = tuple(met for met in own if met.seq in waits)
                yield Piece(seconds, chosen, len(own), run[at].last)
                begin = at

    def _waits(self, run: list[Met], margin: float) -> Iterable[int]:
        """Yield the numbers of the collectives that really made members wait.

        If a rank calls the next collective before the last rank has called this one, it does not wait for this one.
        Gradient buckets are such calls: ranks wait only for the last bucket.
        """
        for met, following in pairwise(run):
            if self.timed or following.first >= met.last - margin:
                yield met.seq
        yield run[-1].seq


def _runs(met: list[Met], passed: frozenset[int]) -> Iterable[list[Met]]:
    """Split collectives at gaps in their numbers. `passed`: numbers that are no gap."""
    run: list[Met] = []
    for current in met:
        if run and not passed.issuperset(range(run[-1].seq + 1, current.seq)):
            yield run
            run = []
        run.append(current)
    if run:
        yield run


class Arrivals:
    """The collective calls in an attempt's pulses. Add every pulse once."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int, int, int], GroupArrivals] = {}

    @property
    def groups(self) -> Iterable[GroupArrivals]:
        return self._groups.values()

    def add(self, pulse: Pulse, world: int) -> None:
        """Add a pulse. `world`: number of ranks of the attempt."""
        if not pulse.recent:
            return
        most = max(FEWEST, BUDGET // max(1, world))
        for group in pulse.groups:
            if (placed := self._of(group, pulse, world)) is not None:
                entries = (*pulse.recent[-most:], *pulse.active)
                alone = len(pulse.groups) == 1
                own = entries if alone else [entry for entry in entries if entry.group == group.name]
                placed[0].add(own, placed[1])

    def _of(self, group: ProcessGroup, pulse: Pulse, world: int) -> tuple[GroupArrivals, int] | None:
        """Return the arrivals of a group and the rank's index in it; None without progress."""
        ranks: Sequence[int] = group.ranks or (range(world) if group.name in ("", "0") else ())
        if len(ranks) < 2:
            return None
        key = group.name, len(ranks), ranks[0], ranks[-1]
        arrivals = self._groups.get(key)
        if arrivals is None:
            arrivals = GroupArrivals(group.name, ranks, {rank: at for at, rank in enumerate(ranks)})
            self._groups[key] = arrivals
        member = arrivals.index.get(pulse.rank)
        if member is None:
            return None
        if group.enqueued < arrivals.closed:
            arrivals.restart()
        elif arrivals.progress.get(member) == (group.enqueued, group.completed):
            return None
        arrivals.progress[member] = group.enqueued, group.completed
        if member == 0 and pulse.step is not None:
            arrivals.counts.append((pulse.step, group.enqueued))
        return arrivals, member


def _mutual(op: str) -> bool:
    """Whether every rank waits for every other in this operation."""
    plain = op.lstrip("_").lower()
    return plain.startswith("reduce_scatter") or not plain.startswith(ASYMMETRIC)


def _kernel(entry: Collective) -> float | None:
    """Minus the kernel's seconds; None while they are unknown."""
    return -entry.duration_ms / 1000 if entry.done and entry.duration_ms is not None else None


FINE = 30
"""Number of newest points that are never thinned out."""
SPARSE_S = 20.0
"""Minimum seconds between two older points."""
POINTS_KEPT = FINE + 48
"""Maximum number of points per curve."""


class Point(NamedTuple):
    at: float
    """Unix time."""
    rss: int | None = None
    """Bytes of host memory."""
    gpu: int | None = None
    """Bytes of GPU memory."""


class Curve:
    """Bounded memory curve of one rank or node: all newest points, and sparse older ones."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def add(self, point: Point) -> None:
        """Add a sample, unless it is not newer than the last."""
        points = self.points
        if points and point.at <= points[-1].at:
            return
        points.append(point)
        old = len(points) - FINE - 1
        if old > 0 and points[old].at - points[old - 1].at < SPARSE_S:
            del points[old]
        elif len(points) > POINTS_KEPT:
            del points[0]


KEPT = 8
"""Maximum number of pulses kept per rank."""


class About(TypedDict):
    """The fields of a finding that name its ranks and node."""

    rank: int
    ranks: tuple[int, ...]
    node: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A run at one moment. Detectors read it and change nothing."""

    state: RunState
    plan: Plan | None
    """None if there is only a journal, as in a replay."""
    now: float
    """Unix time."""
    history: Mapping[int, Sequence[Pulse]]
    """The newest pulses per rank of the current attempt, oldest first, at most KEPT."""
    arrivals: Arrivals = field(default_factory=Arrivals)
    """Arrivals from all pulses of the attempt."""
    memory: Mapping[int, Sequence[Point]] = field(default_factory=dict)
    """Memory over time per rank of the current attempt, oldest first, older points sparser."""
    memory_before: Mapping[int, Sequence[Point]] = field(default_factory=dict)
    """`memory` of the previous attempt."""
    node_memory: Mapping[int, Sequence[Point]] = field(default_factory=dict)
    """Memory in use per node, as `Point.rss`."""

    @property
    def attempt(self) -> Attempt | None:
        return self.state.newest

    def newest(self, rank: int) -> Pulse | None:
        """Return the newest pulse of a rank."""
        pulses = self.history.get(rank)
        return pulses[-1] if pulses else None

    def gpu(self, rank: int) -> Gpu | None:
        """Return the GPU of a rank in its node's newest sample; None if unknown."""
        entry = self.state.ranks.get(rank)
        node = None if entry is None else self.state.nodes.get(entry.place.node)
        if entry is None or node is None or entry.sample is None or entry.sample.gpu is None:
            return None
        return next((gpu for gpu in node.gpus if gpu.index == entry.sample.gpu), None)

    def host(self, node: int) -> str:
        """Return the name of a node for users."""
        entry = self.state.nodes.get(node)
        return (entry.host if entry is not None else "") or f"node {node}"

    def nodes_of(self, ranks: Iterable[int]) -> list[int]:
        """Numbers of the nodes of these ranks."""
        return sorted({self.state.ranks[rank].place.node for rank in ranks if rank in self.state.ranks})

    def about(self, ranks: Sequence[int]) -> About:
        """Return the finding's fields for these ranks: the first rank, all if several, and the node if only one."""
        nodes = self.nodes_of(ranks)
        return {
            "rank": ranks[0],
            "ranks": tuple(ranks) if len(ranks) > 1 else (),
            "node": nodes[0] if len(nodes) == 1 else None,
        }

    def several(self) -> bool:
        """Whether ranks are on more than one node, so that findings name the node."""
        return len(self.nodes_of(self.state.ranks)) > 1

    def who(self, ranks: Sequence[int]) -> str:
        """ "rank 9 on gpu-b". Name the node only if the run has several and these ranks are on one."""
        nodes = self.nodes_of(ranks)
        where = f" on {self.host(nodes[0])}" if len(nodes) == 1 and self.several() else ""
        return spans_text("rank", ranks) + where


Detector = Callable[[View], Iterable[Finding]]
"""A finding's text does not change while the finding holds: ages are in `since`, counts in `evidence`."""
