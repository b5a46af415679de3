"""What the detectors read: a run at one moment, when its ranks called the same collectives, its memory over time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypedDict

from ...presets.finding import Finding
from ...presets.plan import Plan
from ..formatting import spans_text
from ..model import Collective, Gpu, ProcessGroup, Pulse
from ..state import Attempt, RunState

# When each rank called the same collective: who comes last lets the others wait. Fed pulse by pulse, bounded.
# On gloo the time of the call counts. NCCL's calls return at once, so there the time of the kernel counts:
# it spins on the ranks that are early, and is shortest on the one that is last.

ASYMMETRIC = ("broadcast", "scatter", "gather", "reduce", "send", "recv")
"""Collectives in which not every rank waits for every other."""
COLLECTIVES_KEPT = 256
BUDGET = 16384
"""Entries of one round of pulses that are read, over all ranks; at least FEWEST of each rank."""
FEWEST = 16
OPEN = 128
"""Collectives of a group that wait for the word of further ranks."""
PIECE_S = 2.0
"""Length of a piece of time where steps are unknown."""


class Met(NamedTuple):
    """One collective that every member has called."""

    seq: int
    first: float
    """Unix time of the earliest call."""
    last: float
    """Unix time of the latest call."""
    values: list[float]
    """By member: unix time of its call, or minus the seconds of its kernel; the greatest is that of the last one."""
    late: float
    """The greatest of `values`."""
    who: int
    """The member of that."""


class Piece(NamedTuple):
    """Collectives one after the other that make a step, or a piece of time."""

    seconds: float
    waits: tuple[Met, ...]
    """The collectives for which the members waited, each by itself."""
    calls: int
    ends: float
    """Unix time."""


class _OpenCollective:
    """A collective that not every member has reported."""

    __slots__ = ("at", "left", "values")

    def __init__(self, members: int) -> None:
        self.values: list[float | None] = [None] * members
        self.left = members
        self.at = 0.0
        """Unix time of one of the calls."""


@dataclass(slots=True)
class GroupArrivals:
    name: str
    members: Sequence[int]
    index: Mapping[int, int]
    timed: bool = False
    """Whether `values` are of kernels."""
    met: deque[Met] = field(default_factory=lambda: deque(maxlen=COLLECTIVES_KEPT))
    opened: dict[int, _OpenCollective | None] = field(default_factory=dict)
    """None: of a kind in which not all wait for all."""
    passed: deque[int] = field(default_factory=lambda: deque(maxlen=COLLECTIVES_KEPT))
    """Numbers of the collectives of such a kind, which leave no gap between those in which all met."""
    closed: int = 0
    """Number of the newest collective that all have called."""
    counts: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=8))
    """Of the first member: optimizer steps and calls so far."""
    progress: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By member: calls and completions in its newest pulse, so that a pulse without news costs nothing."""

    def add(self, entries: Iterable[Collective], member: int) -> None:
        """The calls that a member reports, oldest first. The hot loop: 1,024 ranks come here at once."""
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
        """A collective that is reported for the first time."""
        if len(self.opened) >= OPEN:
            del self.opened[min(self.opened)]
        self.timed = entry.started is not None
        made = _OpenCollective(len(self.members)) if _mutual(entry.op) else None
        if made is None:
            self.passed.append(entry.seq)
        self.opened[entry.seq] = made
        return made

    def _close(self, seq: int, open_call: _OpenCollective) -> None:
        """All members have reported it."""
        del self.opened[seq]
        values = [value for value in open_call.values if value is not None]
        late = max(values)
        first, last = (open_call.at, open_call.at) if self.timed else (min(values), late)
        self.met.append(Met(seq, first, last, values, late, values.index(late)))
        self.closed = max(self.closed, seq)

    def restart(self) -> None:
        """The group was made anew, and counts from 1."""
        self.met.clear()
        self.passed.clear()
        self.opened.clear()
        self.counts.clear()
        self.progress.clear()
        self.closed = 0

    @property
    def a_step(self) -> int | None:
        """Collectives that one optimizer step takes; None where steps are unknown."""
        if len(self.counts) < 2:
            return None
        (steps, calls), (later, more) = self.counts[0], self.counts[-1]
        return max(1, round((more - calls) / (later - steps))) if later > steps and more > calls else None

    def pieces(self, margin: float) -> list[Piece]:
        """The steps that were seen, oldest first; where steps are unknown or too long, pieces of time.

        `margin`: seconds by which clocks may differ.
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
        """Numbers of the collectives for which members really waited.

        Who calls the next one before the last rank has called this one does not wait for this one: buckets of
        gradients go out one after the other, and only the last of them is waited for.
        """
        for met, following in pairwise(run):
            if self.timed or following.first >= met.last - margin:
                yield met.seq
        yield run[-1].seq


def _runs(met: list[Met], passed: frozenset[int]) -> Iterable[list[Met]]:
    """What follows each other without a gap; `passed`: numbers that are none."""
    run: list[Met] = []
    for current in met:
        if run and not passed.issuperset(range(run[-1].seq + 1, current.seq)):
            yield run
            run = []
        run.append(current)
    if run:
        yield run


class Arrivals:
    """The calls in the pulses of an attempt; add every pulse once."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int, int, int], GroupArrivals] = {}

    @property
    def groups(self) -> Iterable[GroupArrivals]:
        return self._groups.values()

    def add(self, pulse: Pulse, world: int) -> None:
        """A further pulse; `world`: ranks of the attempt."""
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
        """The arrivals of a group, and the rank's place in it; None where there is nothing new."""
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
    """Whether every rank waits for every other in it."""
    plain = op.lstrip("_").lower()
    return plain.startswith("reduce_scatter") or not plain.startswith(ASYMMETRIC)


def _kernel(entry: Collective) -> float | None:
    """Minus the seconds of the kernel; None where they are unknown so far."""
    return -entry.duration_ms / 1000 if entry.done and entry.duration_ms is not None else None


FINE = 30
"""Newest points, which are kept as they come."""
SPARSE_S = 20.0
"""Seconds at least between two older points."""
POINTS_KEPT = FINE + 48
"""Points of a curve that are kept."""


class Point(NamedTuple):
    at: float
    """Unix time."""
    rss: int | None = None
    """Bytes of host memory."""
    gpu: int | None = None
    """Bytes of GPU memory."""


class Curve:
    """Points of one rank or node, bounded: all of the last minute, and some of the quarter of an hour before it."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def add(self, point: Point) -> None:
        """A further sample; one that is not newer than the last is left out."""
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
"""Pulses of a rank that are kept."""


class About(TypedDict):
    """Whom a finding is about: its fields of these names."""

    rank: int
    ranks: tuple[int, ...]
    node: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A run at one moment. Detectors read it and change nothing."""

    state: RunState
    plan: Plan | None
    """None where there is only a journal, as in a replay."""
    now: float
    """Unix time."""
    history: Mapping[int, Sequence[Pulse]]
    """Of each rank's process of the current attempt the newest pulses, oldest first, at most KEPT."""
    arrivals: Arrivals = field(default_factory=Arrivals)
    """When the ranks called their collectives, of all pulses of the attempt."""
    memory: Mapping[int, Sequence[Point]] = field(default_factory=dict)
    """Of each rank of the current attempt its memory over time, oldest first, the older the sparser."""
    memory_before: Mapping[int, Sequence[Point]] = field(default_factory=dict)
    """The same of the attempt before."""
    node_memory: Mapping[int, Sequence[Point]] = field(default_factory=dict)
    """Of each node what is in use there, as `Point.rss`."""

    @property
    def attempt(self) -> Attempt | None:
        return self.state.attempts[-1] if self.state.attempts else None

    def gpu(self, rank: int) -> Gpu | None:
        """The GPU of a rank, as its node sampled it last."""
        entry = self.state.ranks.get(rank)
        node = None if entry is None else self.state.nodes.get(entry.place.node)
        if entry is None or node is None or entry.sample is None or entry.sample.gpu is None:
            return None
        return next((gpu for gpu in node.gpus if gpu.index == entry.sample.gpu), None)

    def host(self, node: int) -> str:
        """What a user calls a node."""
        entry = self.state.nodes.get(node)
        return (entry.host if entry is not None else "") or f"node {node}"

    def nodes_of(self, ranks: Iterable[int]) -> list[int]:
        """Numbers of the nodes that some ranks are on."""
        return sorted({self.state.ranks[rank].place.node for rank in ranks if rank in self.state.ranks})

    def about(self, ranks: Sequence[int]) -> About:
        """Some ranks as a finding names them: the first, all where there are several, and their node where it is one."""
        nodes = self.nodes_of(ranks)
        return {
            "rank": ranks[0],
            "ranks": tuple(ranks) if len(ranks) > 1 else (),
            "node": nodes[0] if len(nodes) == 1 else None,
        }

    def several(self) -> bool:
        """Whether ranks are on more than one node, so that a node has to be named."""
        return len(self.nodes_of(self.state.ranks)) > 1

    def who(self, ranks: Sequence[int]) -> str:
        """ "rank 9 on gpu-b"; the node only where there are several, and where it is one."""
        nodes = self.nodes_of(ranks)
        where = f" on {self.host(nodes[0])}" if len(nodes) == 1 and self.several() else ""
        return spans_text("rank", ranks) + where


Detector = Callable[[View], Iterable[Finding]]
"""The text of a finding stays the same while it holds: ages belong into `since`, counts into `evidence`."""
