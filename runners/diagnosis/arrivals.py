"""Match the calls of one collective across ranks: the rank that arrives last keeps the others waiting.

With gloo the time of the call counts. NCCL's calls return at once, so the time of the kernel counts there: on an early
rank the kernel spins, and on the last rank it is shortest. Bounded, fed per pulse.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ..run.pulse import Collective, ProcessGroup, Pulse

ASYMMETRIC = ("broadcast", "scatter", "gather", "reduce", "send", "recv")
"""Collectives that do not make every rank wait for every other."""
COLLECTIVES_KEPT = 256
BUDGET = 16384
"""Maximum number of entries read per round of pulses over all ranks, but at least FEWEST per rank."""
FEWEST = 16
OPEN = 128
"""Collectives per group that may be incomplete, because not all ranks have reported them."""
SLICE_S = 2.0
"""Seconds that replace a step if steps are unknown."""


class CompletedCollective(NamedTuple):
    """One collective that every member has called."""

    seq: int
    first_call: float
    """Unix time of the earliest call. With kernel times: of any call."""
    last_call: float
    """Unix time of the latest call. With kernel times: of any call."""
    arrivals: list[float]
    """Arrival of each member in seconds: the Unix time of its call, or minus the seconds of its kernel.

    All values of a collective are of the same kind, and only their differences are used. The last member has the
    greatest value.
    """
    latest: float
    """The greatest of `arrivals`."""
    last_member: int
    """Index of the member with the arrival `latest`."""


class Step(NamedTuple):
    """Consecutive collectives of one optimizer step, or of SLICE_S seconds if steps are unknown."""

    seconds: float
    waits: tuple[CompletedCollective, ...]
    """The collectives that made members wait."""
    calls: int
    """Number of all its collectives."""
    ends: float


class _OpenCollective:
    """A collective that not every member has reported."""

    __slots__ = ("any_call", "arrivals", "unreported")

    def __init__(self, members: int) -> None:
        self.arrivals: list[float | None] = [None] * members
        self.unreported = members
        self.any_call = 0.0
        """Unix time of one call."""


@dataclass(slots=True)
class GroupArrivals:
    """The collectives of one process group."""

    name: str
    members: Sequence[int]
    """Its ranks, in the order of their index in the group."""
    index: Mapping[int, int]
    """Index in `members` by rank."""
    kernel_times: bool = False
    """Whether arrivals are kernel times. It is equal for all collectives of a group, because its backend is fixed."""
    completed: deque[CompletedCollective] = field(default_factory=lambda: deque(maxlen=COLLECTIVES_KEPT))
    opened: dict[int, _OpenCollective | None] = field(default_factory=dict)
    """Collectives that not all members have reported, by number; None for an asymmetric one."""
    asymmetric_seqs: deque[int] = field(default_factory=lambda: deque(maxlen=COLLECTIVES_KEPT))
    """Numbers of asymmetric collectives, which do not count as gaps between the others."""
    newest_completed: int = 0
    """Number of the newest collective that all members have called."""
    counts: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=8))
    """Optimizer steps and calls of the first member so far."""
    progress: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Calls and completions in each member's newest pulse, to skip a pulse without progress."""

    def add(self, entries: Iterable[Collective], member: int) -> None:
        """Add the calls that a member reports, oldest first. Hot loop: 1,024 ranks report at once."""
        opened, newest_completed = self.opened, self.newest_completed
        for entry in entries:
            seq = entry.seq
            if seq <= newest_completed or entry.p2p:
                continue
            open_call = opened[seq] if seq in opened else self._open(entry)
            if open_call is None or open_call.arrivals[member] is not None:
                continue
            arrival = _kernel_arrival(entry) if self.kernel_times else entry.created
            if arrival is None:
                continue
            open_call.arrivals[member] = arrival
            open_call.unreported -= 1
            if not open_call.unreported:
                open_call.any_call = entry.created
                self._complete(seq, open_call)

    def _open(self, entry: Collective) -> _OpenCollective | None:
        """Open a collective at its first report. Return None if it is asymmetric."""
        if len(self.opened) >= OPEN:
            del self.opened[min(self.opened)]
        self.kernel_times = entry.started is not None
        if _is_symmetric(entry.op):
            opened = _OpenCollective(len(self.members))
        else:
            opened = None
            self.asymmetric_seqs.append(entry.seq)
        self.opened[entry.seq] = opened
        return opened

    def _complete(self, seq: int, open_call: _OpenCollective) -> None:
        """Keep a collective that all members have reported."""
        del self.opened[seq]
        arrivals = [arrival for arrival in open_call.arrivals if arrival is not None]
        latest = max(arrivals)
        if self.kernel_times:
            first_call = last_call = open_call.any_call
        else:
            first_call, last_call = min(arrivals), latest
        self.completed.append(
            CompletedCollective(seq, first_call, last_call, arrivals, latest, arrivals.index(latest))
        )
        self.newest_completed = max(self.newest_completed, seq)

    def restart(self) -> None:
        """Forget everything: the group was created again and counts from 1."""
        self.completed.clear()
        self.asymmetric_seqs.clear()
        self.opened.clear()
        self.counts.clear()
        self.progress.clear()
        self.newest_completed = 0

    @property
    def collectives_per_step(self) -> int | None:
        """Number of collectives per optimizer step; None if steps are unknown."""
        if len(self.counts) < 2:
            return None
        (steps, calls), (later_steps, later_calls) = self.counts[0], self.counts[-1]
        if later_steps <= steps or later_calls <= calls:
            return None
        return max(1, round((later_calls - calls) / (later_steps - steps)))

    def steps(self, margin: float) -> list[Step]:
        """Return the steps, oldest first. `margin`: maximum clock difference in seconds."""
        per_step = self.collectives_per_step
        steps: list[Step] = []
        for stretch in _stretches(sorted(self.completed), frozenset(self.asymmetric_seqs)):
            steps += self._cut(stretch, per_step, margin)
        return steps

    def _cut(
        self, stretch: list[CompletedCollective], per_step: int | None, margin: float
    ) -> Iterator[Step]:
        """Cut collectives with consecutive numbers into steps.

        A step begins after the last collective of the step before. If the stretch is shorter than one step, all of it
        counts as a step; a rest after the last complete step is left out.
        """
        waits = frozenset(self._waits(stretch, margin))
        begin, final = 0, len(stretch) - 1
        for at in range(1, len(stretch)):
            seconds = stretch[at].last_call - stretch[begin].last_call
            calls = stretch[at].seq - stretch[begin].seq
            is_complete = seconds >= SLICE_S if per_step is None else calls >= per_step
            is_whole_stretch = begin == 0 and at == final
            if seconds > 0 and (is_complete or is_whole_stretch):
                collectives = stretch[begin + 1 : at + 1]
                waited = tuple(each for each in collectives if each.seq in waits)
                yield Step(seconds, waited, len(collectives), stretch[at].last_call)
                begin = at

    def _waits(self, stretch: list[CompletedCollective], margin: float) -> Iterator[int]:
        """Yield the numbers of the collectives that really made members wait.

        If a rank calls the next collective before the last rank has called this one, it does not wait for this one.
        Gradient buckets are such calls: ranks wait only for the last bucket.
        """
        for current, following in pairwise(stretch):
            if self.kernel_times or following.first_call >= current.last_call - margin:
                yield current.seq
        yield stretch[-1].seq


def _stretches(
    completed: list[CompletedCollective], asymmetric: frozenset[int]
) -> Iterator[list[CompletedCollective]]:
    """Split collectives at gaps in their numbers. `asymmetric`: numbers that are no gap."""
    stretch: list[CompletedCollective] = []
    for current in completed:
        if stretch and not asymmetric.issuperset(range(stretch[-1].seq + 1, current.seq)):
            yield stretch
            stretch = []
        stretch.append(current)
    if stretch:
        yield stretch


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
        entries = (*pulse.recent[-most:], *pulse.active)
        for group in pulse.groups:
            progressed = self._note_progress(group, pulse, world)
            if progressed is None:
                continue
            arrivals, member = progressed
            if len(pulse.groups) == 1:
                arrivals.add(entries, member)
            else:
                arrivals.add([entry for entry in entries if entry.group == group.name], member)

    def _note_progress(
        self, group: ProcessGroup, pulse: Pulse, world: int
    ) -> tuple[GroupArrivals, int] | None:
        """Return the arrivals of a group and the rank's index in it; None if it made no progress there."""
        arrivals = self._group_arrivals(group, world)
        member = None if arrivals is None else arrivals.index.get(pulse.rank)
        if arrivals is None or member is None:
            return None
        if group.enqueued < arrivals.newest_completed:
            arrivals.restart()
        elif arrivals.progress.get(member) == (group.enqueued, group.completed):
            return None
        arrivals.progress[member] = group.enqueued, group.completed
        if member == 0 and pulse.step is not None:
            arrivals.counts.append((pulse.step, group.enqueued))
        return arrivals, member

    def _group_arrivals(self, group: ProcessGroup, world: int) -> GroupArrivals | None:
        """Return the arrivals of a group; None if its ranks are unknown or fewer than two."""
        ranks: Sequence[int] = group.ranks
        if not ranks and group.name in ("", "0"):
            ranks = range(world)
        if len(ranks) < 2:
            return None
        key = group.name, len(ranks), ranks[0], ranks[-1]
        arrivals = self._groups.get(key)
        if arrivals is None:
            index = {rank: member for member, rank in enumerate(ranks)}
            arrivals = self._groups[key] = GroupArrivals(group.name, ranks, index)
        return arrivals


def _is_symmetric(op: str) -> bool:
    """Return whether every rank waits for every other in this operation."""
    plain = op.lstrip("_").lower()
    return plain.startswith("reduce_scatter") or not plain.startswith(ASYMMETRIC)


def _kernel_arrival(entry: Collective) -> float | None:
    """Return minus the kernel's seconds; None while they are unknown."""
    if entry.duration_ms is None or not entry.done:
        return None
    return -entry.duration_ms / 1000
